"""The node's wallet key, encrypted in its folder, and delegations as files.

The key is created at the first start, under a password that is given or generated. A generated password lies beside the
key, so it protects a copy of the key file but not the folder: a machine that starts unattended cannot have more. An
owner who wants more gives a password and keeps it elsewhere.

A delegation is an owner's signed statement that a node works with the owner's stake.
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
    """A key, and what was just created with it."""

    key: WalletKey
    is_new: bool = False
    is_password_new: bool = False


def open_key(config: NodeConfig) -> OpenedKey:
    """The node's key; created where there is none yet."""
    folder = NodeFolder(config.folder)
    if folder.key.exists():
        return OpenedKey(load_key(config))
    is_password_new = not _has_password(config)
    if is_password_new:
        create_password(folder.password)
    key = create_key_file(folder.key, get_password(config), secrets.token_bytes)
    return OpenedKey(key, is_new=True, is_password_new=is_password_new)


def load_key(config: NodeConfig) -> WalletKey:
    """The existing key. The LocalError names the file and the source of the password."""
    folder = NodeFolder(config.folder)
    if not folder.key.exists():
        raise LocalError(f"there is no key in {config.folder} yet; prime-node start or prime-node keys new creates one")
    password = get_password(config)
    try:
        return load_key_file(folder.key, password)
    except LocalError as error:
        source = f" The password is {_describe_source(config)}." if "password" in str(error) else ""
        raise LocalError(
            f"{folder.key} cannot be decrypted: {error}.{source} If the file is damaged, restore your copy:"
            " prime-node keys recover COPY --replace"
        ) from None


def get_password(config: NodeConfig) -> str:
    """From the settings, or else the generated one."""
    folder = NodeFolder(config.folder)
    if config.password is None and config.password_file is None and folder.password.exists():
        return resolve_password(None, folder.password)
    return resolve_password(config.password, config.password_file)


def create_password(path: Path) -> None:
    """Generates a strong password, in a file that only its owner can read."""
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
    """Signed by its owner. Never overwrites a file."""
    facts = {field.name: getattr(delegation, field.name) for field in fields(delegation)}
    plain = {name: value if isinstance(value, int) else str(value) for name, value in facts.items()}
    plain["signature"] = str(sign_document(owner, delegation, domain))
    write_private_file(path, json.dumps(plain, indent=2) + "\n")


def read_delegation(
    path: Path, *, network: NetworkId, node: NodeId, now_ms: int, domain: Domain = EMBEDDED_DOMAIN
) -> Delegated:
    """LocalError: it is for another node, not in force, or not signed by its owner."""
    try:
        with path.open("rb") as file:
            plain = json.loads(file.read(DELEGATION_BYTES_MAX))
        delegated = _parse_delegation(plain)
        verify_delegation(delegated.delegation, delegated.signature, domain, now_ms)
    except OSError as error:
        raise LocalError(f"cannot read the delegation {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RemoteError) as error:
        raise LocalError(f"the delegation {path} is not valid: {error}; ask its owner for a new one") from None
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
