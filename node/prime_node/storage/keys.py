"""The node's wallet key in its folder: drawn at the first start, behind a password that is given or drawn with it.

A drawn password lies beside the key, so it guards a copy of the key file alone, not the folder. That is what a machine
that starts by itself can have; who wants more gives a password, and keeps it elsewhere.

A delegation as a file: an owner's signed word that a node key works for it, on its way from one to the other.
"""

import json
import secrets
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from prime_node.config import NodeConfig
from prime_node.storage.node_folder import NodeFolder
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import Delegated
from prime_protocol.wire.ids import NetworkId, NodeId
from prime_protocol.wire.signing import Signature, WalletKey
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, Delegation, Domain, sign_document, verify_delegation
from prime_runtime.files import write_private_file
from prime_runtime.keys import create_key_file, load_key_file, resolve_password

PASSWORD_BYTES = 24


@dataclass(frozen=True, slots=True)
class OpenedKey:
    """A key, and what was just made for it."""

    key: WalletKey
    is_new: bool = False
    is_password_new: bool = False


def open_key(config: NodeConfig) -> OpenedKey:
    """The node's key; drawn where there is none yet."""
    home = NodeFolder(config.folder)
    if home.key.exists():
        return OpenedKey(load_key(config))
    is_password_new = not _has_password(config)
    if is_password_new:
        create_password(home.password)
    key = create_key_file(home.key, get_password(config), secrets.token_bytes)
    return OpenedKey(key, is_new=True, is_password_new=is_password_new)


def load_key(config: NodeConfig) -> WalletKey:
    """The key that is there. LocalError says which file and which password do not fit."""
    home = NodeFolder(config.folder)
    if not home.key.exists():
        raise LocalError(f"there is no key in {config.folder} yet; prime-node start or prime-node keys new makes one")
    password = get_password(config)
    try:
        return load_key_file(home.key, password)
    except LocalError as error:
        source = f" The password is {_describe_source(config)}." if "password" in str(error) else ""
        raise LocalError(
            f"{home.key} does not open: {error}.{source} If the file is damaged, bring back your copy:"
            " prime-node keys recover COPY --replace"
        ) from None


def get_password(config: NodeConfig) -> str:
    """From the settings, else the one that was drawn."""
    home = NodeFolder(config.folder)
    if config.password is None and config.password_file is None and home.password.exists():
        return resolve_password(None, home.password)
    return resolve_password(config.password, config.password_file)


def create_password(path: Path) -> None:
    """A strong one, in a file that only its owner can read."""
    write_private_file(path, secrets.token_urlsafe(PASSWORD_BYTES) + "\n")


def _has_password(config: NodeConfig) -> bool:
    return (
        config.password is not None or config.password_file is not None or NodeFolder(config.folder).password.exists()
    )


def _describe_source(config: NodeConfig) -> str:
    if config.password is not None:
        return "that of PRIME_PASSWORD or the setting password"
    return f"the one in {config.password_file or NodeFolder(config.folder).password}"


DELEGATION_BYTES_MAX = 4096


def write_delegation(path: Path, owner: WalletKey, delegation: Delegation, domain: Domain = EMBEDDED_DOMAIN) -> None:
    """Signed by its owner; never over another file."""
    facts = {field.name: getattr(delegation, field.name) for field in fields(delegation)}
    plain = {name: value if isinstance(value, int) else str(value) for name, value in facts.items()}
    plain["signature"] = str(sign_document(owner, delegation, domain))
    write_private_file(path, json.dumps(plain, indent=2) + "\n")


def read_delegation(
    path: Path, *, network: NetworkId, node: NodeId, now_ms: int, domain: Domain = EMBEDDED_DOMAIN
) -> Delegated:
    """LocalError where it is not for this node, not in force, or not signed by its owner."""
    try:
        with path.open("rb") as file:
            plain = json.loads(file.read(DELEGATION_BYTES_MAX))
        delegated = _parse_delegation(plain)
        verify_delegation(delegated.delegation, delegated.signature, domain, now_ms)
    except OSError as error:
        raise LocalError(f"cannot read the delegation {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RemoteError) as error:
        raise LocalError(f"the delegation {path} is not good: {error}; have its owner write a new one") from None
    found = delegated.delegation
    if (found.network, found.node) != (network, node):
        raise LocalError(
            f"the delegation {path} is for {found.node} on {found.network}, this node is {node} on {network}"
        )
    return delegated


def _parse_delegation(plain: dict[str, Any]) -> Delegated:
    times = {name: plain[name] for name in ("issued_at_ms", "expires_at_ms")}
    if not all(type(value) is int for value in times.values()):
        raise ValueError("its times are not whole numbers")
    delegation = Delegation(
        network=NetworkId(plain["network"]),
        owner=NodeId.parse(plain["owner"]),
        node=NodeId.parse(plain["node"]),
        **times,
    )
    return Delegated(delegation=delegation, signature=Signature.parse(plain["signature"]))
