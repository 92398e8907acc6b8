"""A delegation as a file: an owner's signed word that a node key works for it, on its way from one to the other."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from prime_protocol.entries import Delegated
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import NetworkId, NodeId
from prime_protocol.receipts import Delegation, check_delegation
from prime_protocol.signing import Signature, WalletKey
from prime_protocol.typed_data import EMBEDDED, Domain, sign_document
from prime_runtime.key_file import write_private

FILE_BYTES_MAX = 4096


def write_delegation(path: Path, owner: WalletKey, delegation: Delegation, domain: Domain = EMBEDDED) -> None:
    """Signed by its owner; never over another file."""
    facts = {field.name: getattr(delegation, field.name) for field in fields(delegation)}
    plain = {name: value if isinstance(value, int) else str(value) for name, value in facts.items()}
    plain["signature"] = str(sign_document(owner, delegation, domain))
    write_private(path, json.dumps(plain, indent=2) + "\n")


def read_delegation(
    path: Path, *, network: NetworkId, node: NodeId, now_ms: int, domain: Domain = EMBEDDED
) -> Delegated:
    """LocalError where it is not for this node, not in force, or not signed by its owner."""
    try:
        with path.open("rb") as file:
            plain = json.loads(file.read(FILE_BYTES_MAX))
        delegated = _parse(plain)
        check_delegation(delegated.delegation, delegated.signature, domain, now_ms)
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


def _parse(plain: dict[str, Any]) -> Delegated:
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
