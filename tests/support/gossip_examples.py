"""Gossip for tests: what parties with names say, sealed, and as a guard would hand it over."""

from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_protocol.gossip.messages import (
    MESSAGE_KINDS,
    CheckpointAnnounced,
    HeadSeen,
    ReceivedGossip,
    ServingRecord,
    get_topic,
    open_gossip,
    seal_gossip,
)
from prime_protocol.log.tree_head import TreeHead, sign_tree_head
from prime_protocol.weights.manifest import ManifestKind
from prime_protocol.wire.ids import Digest, NetworkId, RunId, Step
from prime_protocol.wire.signing import WalletKey

NETWORK, RUN = NetworkId("testnet"), RunId("run-1")
NOW_MS = 1_800_000_000_000
LOG_KEY = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)


def key_of(name: str) -> WalletKey:
    return WalletKey.from_secret(sha256(f"party/{name}".encode()).digest())


def digest_of(name: str) -> Digest:
    return Digest(sha256(name.encode()).digest())


def announced(step: int, **changes: Any) -> CheckpointAnnounced:
    usual = {
        "step": Step(step),
        "root": digest_of(f"root {step}"),
        "manifest": digest_of(f"manifest {step}"),
        "manifest_bytes": 100,
        "kind": ManifestKind.KEYFRAME,
        "base": None,
        "transport_bytes": 1000,
    }
    return CheckpointAnnounced(**usual | changes)


def serving(*steps: int, **changes: Any) -> ServingRecord:
    usual = {
        "urls": ("http://10.0.0.1:8450",),
        "depth": 1,
        "slots_free": 2,
        "manifests": tuple(digest_of(f"manifest {step}") for step in steps),
    }
    return ServingRecord(**usual | changes)


def head_note(size: int, root: str = "tree") -> bytes:
    return sign_tree_head(TreeHead("prime/testnet", size, digest_of(f"{root} {size}")), LOG_KEY)


def head_seen(size: int, root: str = "tree") -> HeadSeen:
    return HeadSeen(note=head_note(size, root))


def sealed(
    name: str,
    message: CheckpointAnnounced | ServingRecord | HeadSeen,
    *,
    sequence: int | None = None,
    now_ms: int = NOW_MS,
    network: NetworkId = NETWORK,
    run: RunId = RUN,
) -> bytes:
    return seal_gossip(
        key_of(name),
        message,
        network=network,
        run=run,
        sequence=now_ms if sequence is None else sequence,
        now_ms=now_ms,
    )


def said(name: str, message: CheckpointAnnounced | ServingRecord | HeadSeen, *, now_ms: int = NOW_MS) -> ReceivedGossip:
    frame = sealed(name, message, now_ms=now_ms)
    return open_gossip(
        get_topic(NETWORK, RUN, MESSAGE_KINDS[type(message)]), frame, network=NETWORK, run=RUN, now_ms=now_ms
    )
