"""A small network that gossips: keys, honest examples of every message, and how to seal them."""

from dataclasses import replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_protocol.gossip.accusation import Accusation, BrokenRule
from prime_protocol.gossip.guard import GossipGuard, ValidationResult
from prime_protocol.gossip.messages import (
    CheckpointAnnounced,
    GossipKind,
    GossipMessage,
    HeadSeen,
    PeerRecord,
    ReceivedGossip,
    ServingRecord,
    get_topic,
    seal_gossip,
)
from prime_protocol.log.merkle import compute_leaf_hash
from prime_protocol.log.tree_head import TreeHead, sign_tree_head
from prime_protocol.weights.manifest import ManifestKind
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step
from prime_protocol.wire.signing import WalletKey

NETWORK, RUN = NetworkId("test"), RunId("run-1")
NOW_MS = 1_800_000_000_000
LOG = Ed25519PrivateKey.from_private_bytes(b"l" * 32)


def wallet(number: int) -> WalletKey:
    return WalletKey.from_secret(number.to_bytes(32, "big"))


TRAINER, ANN, BOB = wallet(1), wallet(2), wallet(3)


def is_trainer(run: RunId, node: NodeId) -> bool:
    return run == RUN and node == TRAINER.node


def announced(step: int = 7, **changed: Any) -> CheckpointAnnounced:
    keyframe = CheckpointAnnounced(
        step=Step(step),
        root=Digest(b"r" * 32),
        manifest=Digest(step.to_bytes(32, "big")),
        manifest_bytes=5_000,
        kind=ManifestKind.KEYFRAME,
        base=None,
        transport_bytes=10**9,
    )
    return replace(keyframe, **changed)


def serving(slots_free: int = 4, **changed: Any) -> ServingRecord:
    record = ServingRecord(
        urls=("http://203.0.113.9:8080", "https://node.example:443"),
        depth=1,
        slots_free=slots_free,
        manifests=(Digest(b"m" * 32),),
    )
    return replace(record, **changed)


def accusation(leaf: bytes = b"no entry") -> Accusation:
    """Of the only entry of a log."""
    leaf_hash = compute_leaf_hash(leaf)
    return Accusation(
        note=sign_tree_head(TreeHead("prime.example/log", 1, leaf_hash), LOG),
        index=0,
        leaf_hash=leaf_hash,
        leaf=leaf,
        proof=(),
        rule=BrokenRule.LEDGER,
        problem="is no entry",
    )


def head_seen(size: int = 9) -> HeadSeen:
    return HeadSeen(note=sign_tree_head(TreeHead("prime.example/log", size, Digest(b"t" * 32)), LOG))


def peer_record(key: WalletKey, *hosts: str) -> PeerRecord:
    return PeerRecord(
        addresses=tuple(f"{host}/p2p/{key.peer_id()}" for host in hosts or ("/ip4/203.0.113.9/tcp/4001",))
    )


def sealed(
    message: GossipMessage,
    key: WalletKey = TRAINER,
    *,
    sequence: int = 1,
    now_ms: int = NOW_MS,
    run: RunId | None = RUN,
) -> bytes:
    """An honest frame; only a trainer's announcement is one that the guard lets through."""
    return seal_gossip(key, message, network=NETWORK, run=run, sequence=sequence, now_ms=now_ms)


def topic_of(kind: GossipKind) -> str:
    return get_topic(NETWORK, RUN, kind)


def guard() -> GossipGuard:
    return GossipGuard(NETWORK, is_trainer=is_trainer)


def judged(by: GossipGuard, frame: bytes, kind: GossipKind, now_ms: int = NOW_MS) -> ValidationResult:
    return by.validate(topic_of(kind), frame, run=RUN, now_ms=now_ms)


def steps(received: list[ReceivedGossip]) -> list[int]:
    """The steps of announcements, in the order they came."""
    return [gossip.message.step for gossip in received if isinstance(gossip.message, CheckpointAnnounced)]
