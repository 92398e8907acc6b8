"""Logs that a coordinator changes after it has shown them."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from prime_lab.attacks.attack import Attack, AttackResult, AttackVerdict
from prime_lab.attacks.catalog import (
    COORDINATOR_ATTACKS,
)
from prime_lab.attacks.coordinator.grinding import (
    Leaves,
)
from prime_lab.simulator.coordinator_host import CoordinatorHost
from prime_lab.simulator.plan import SimulationPlan
from prime_lab.simulator.simulation import simulate_world
from prime_lab.simulator.world import NETWORK
from prime_node.log.signed_heads import HeadRelation, SignedHead, compare_sizes, compare_with_tiles
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Entry, LogRecord
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.ledger.replay import decode_entry, replay
from prime_protocol.ledger.versions.upgrades import encode_form
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash
from prime_protocol.log.tiles import encode_tile
from prime_protocol.log.tree_head import TreeHead, sign_tree_head
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import Payload, seal_envelope


def find_entry(leaves: Leaves, kind: type, is_wanted: Callable[[Any], bool] = lambda entry: True) -> int:
    """Index of the first entry of a kind."""
    for index, leaf in enumerate(leaves):
        _, payload = decode_leaf(leaf)
        if payload.kind == kind.__name__ and is_wanted(decode_entry(payload)):
            return index
    raise AssertionError(f"the world has no {kind.__name__}")


def rewrite_entry(host: CoordinatorHost, leaf: bytes, change: Callable[[Any], Any]) -> bytes:
    """One of the coordinator's own entries with other content, signed by it at the same position and time."""
    record = decode(LogRecord, leaf)
    _, payload = decode_leaf(leaf)
    entry = change(decode_entry(payload))
    frame = seal_envelope(
        host.key,
        kind=type(entry).__name__,
        body=encode_form(entry, payload.version),
        network=payload.network,
        run=payload.run,
        sequence=payload.sequence,
        issued_at_ms=payload.issued_at_ms,
        life_ms=get_life_ms(payload),
        version=payload.version,
    )
    return encode(replace(record, frame=frame))


def get_life_ms(payload: Payload) -> int:
    return payload.expires_at_ms - payload.issued_at_ms


# --- Histories ------------------------------------------------------------------------------------------------------


def fork_log(host: CoordinatorHost, leaves: Leaves) -> list[bytes]:
    """A log of the same length, with another time in its last entry."""
    other = list(leaves)
    record = decode(LogRecord, other[-1])
    other[-1] = encode(replace(record, at_ms=record.at_ms + 1))
    return other


def reorder_submissions(host: CoordinatorHost, leaves: Leaves) -> list[bytes]:
    """Swap two submissions."""
    first = find_entry(leaves, e.Submitted)
    second = first + 1 + find_entry(leaves[first + 1 :], e.Submitted)
    other = list(leaves)
    other[first], other[second] = other[second], other[first]
    return other


def drop_submission(host: CoordinatorHost, leaves: Leaves) -> list[bytes]:
    """Cut the log before a submission that was acknowledged to its author."""
    return list(leaves[: find_entry(leaves, e.Submitted)])


def change_draw(change: Callable[[e.AuditDrawn], Entry]) -> Callable[[CoordinatorHost, Leaves], list[bytes]]:
    def bend(host: CoordinatorHost, leaves: Leaves) -> list[bytes]:
        position = find_entry(leaves, e.AuditDrawn)
        return [*leaves[:position], rewrite_entry(host, leaves[position], change), *leaves[position + 1 :]]

    return bend


def spare(entry: e.AuditDrawn) -> e.AcceptedUnaudited:
    """Accept what was to be audited."""
    return e.AcceptedUnaudited(randomness_round=entry.randomness_round, submissions=(entry.submission,))


def backdate_entry(host: CoordinatorHost, leaves: Leaves) -> list[bytes]:
    position = find_entry(leaves, e.Submitted)
    record = decode(LogRecord, leaves[position])
    before = decode(LogRecord, leaves[position - 1])
    return [*leaves[:position], encode(replace(record, at_ms=before.at_ms - 1)), *leaves[position + 1 :]]


FORGED_LOGS: dict[str, Callable[[CoordinatorHost, Leaves], list[bytes]]] = {
    "two-histories": fork_log,
    "reordered-log": reorder_submissions,
    "dropped-submission": drop_submission,
    "invented-draw": change_draw(lambda entry: replace(entry, validators=tuple(reversed(entry.validators)))),
    "spared-draw": change_draw(spare),
    "back-dated-head": change_draw(lambda entry: replace(entry, randomness_round=entry.randomness_round - 1)),
    "back-dated-entry": backdate_entry,
}


# --- Detection ------------------------------------------------------------------------------------------------------


def attack_logs() -> Iterator[tuple[Attack, AttackResult]]:
    _, scene = simulate_world(SimulationPlan(seed=1, nodes=16, steps=1, malicious=0.0))
    host = scene.world.host
    leaves = list(host.disk)
    for attack in COORDINATOR_ATTACKS:
        yield attack, verify_forged_log(host, leaves, FORGED_LOGS[attack.name](host, leaves))


def verify_forged_log(host: CoordinatorHost, shown: Leaves, bent: Leaves) -> AttackResult:
    """What a reader finds that kept a head of the first log, and is now shown the second."""
    try:
        replay(NETWORK, bent, coordinator=host.key.node)
    except RemoteError as error:
        return AttackResult(verdict=AttackVerdict.PROVEN, checks=("replay",), reason=str(error))
    # The changed log is as long as the other, so that its length does not give it away.
    longer = [*bent, *shown[len(bent) :][1:]] if len(bent) < len(shown) else list(bent)
    one, other = sign_head(host, shown), sign_head(host, longer)
    relation = compare_sizes(one, other)
    if relation is HeadRelation.UNKNOWN:
        newer = shown if one.size > other.size else longer
        tree = MerkleTree([compute_leaf_hash(leaf) for leaf in newer])
        relation = compare_with_tiles(one, other, lambda tile: encode_tile(tile, tree.get_node))
    verdict = AttackVerdict.PROVEN if relation is HeadRelation.FORK else None
    sizes = f"heads over {one.size} and {other.size} entries"
    return AttackResult(
        verdict=verdict,
        checks=("consistency",) if verdict else (),
        reason=f"{sizes}, both signed, do not fit" if verdict else f"{sizes} fit",
    )


def sign_head(host: CoordinatorHost, leaves: Leaves) -> SignedHead:
    tree = MerkleTree([compute_leaf_hash(leaf) for leaf in leaves])
    head = TreeHead(host.origin, len(leaves), tree.root())
    return SignedHead(head, sign_tree_head(head, host.log_key))
