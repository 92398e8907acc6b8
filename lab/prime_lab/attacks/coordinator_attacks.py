"""A dishonest coordinator: logs changed after the fact, and draws that it grinds until they suit it.

A coordinator can sign any entry of its own and any tree head. It cannot make an independent replay of a changed log
succeed, nor make two heads that it signed consistent. Grinding is different: a draw depends on the first head after the
submission, and the head on every entry before it. Only the coordinator knows when it received the last of these, so
each millisecond that it may claim is another head. Others see one log that replays, and no attempt that was discarded.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from prime_lab.attacks.catalog import COORDINATOR_ATTACKS, GROUND_DRAW, Attack, AttackResult, AttackVerdict
from prime_lab.simulator.coordinator_host import CoordinatorHost
from prime_lab.simulator.plan import SimulationPlan
from prime_lab.simulator.simulation import simulate_world
from prime_lab.simulator.world import NETWORK, RUN
from prime_node.log.tree_heads import HeadRelation, SignedHead, compare_sizes, compare_with_tiles
from prime_protocol.constants import BASIS_POINTS
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import compute_audit_rate_bps, compute_draw
from prime_protocol.ledger.entries import LogRecord
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.ledger.replay import ENTRY_TYPES, Ledger, replay
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash
from prime_protocol.log.tiles import encode_tile
from prime_protocol.log.tree_head import TreeHead, sign_tree_head
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import Payload, seal_envelope
from prime_protocol.wire.ids import Digest, NodeId

Leaves = Sequence[bytes]


def find_entry(leaves: Leaves, kind: type, is_wanted: Callable[[Any], bool] = lambda entry: True) -> int:
    """Index of the first entry of a kind."""
    for index, leaf in enumerate(leaves):
        _, payload = decode_leaf(leaf)
        if payload.kind == kind.__name__ and is_wanted(decode(kind, payload.body)):
            return index
    raise AssertionError(f"the world has no {kind.__name__}")


def rewrite_entry(host: CoordinatorHost, leaf: bytes, change: Callable[[Any], Any]) -> bytes:
    """One of the coordinator's own entries with other content, signed by it at the same position and time."""
    record = decode(LogRecord, leaf)
    _, payload = decode_leaf(leaf)
    entry = change(decode(ENTRY_TYPES[payload.kind], payload.body))
    frame = seal_envelope(
        host.key,
        kind=payload.kind,
        body=encode(entry),
        network=payload.network,
        run=payload.run,
        sequence=payload.sequence,
        issued_at_ms=payload.issued_at_ms,
        life_ms=get_life_ms(payload),
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


def change_draw(change: Callable[[e.AuditDrawn], e.AuditDrawn]) -> Callable[[CoordinatorHost, Leaves], list[bytes]]:
    def bend(host: CoordinatorHost, leaves: Leaves) -> list[bytes]:
        position = find_entry(leaves, e.AuditDrawn, lambda entry: bool(entry.validators))
        return [*leaves[:position], rewrite_entry(host, leaves[position], change), *leaves[position + 1 :]]

    return bend


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
    "spared-draw": change_draw(lambda entry: replace(entry, validators=())),
    "back-dated-head": change_draw(lambda entry: replace(entry, head_size=entry.head_size - 1)),
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


TRIES_MAX = 200
"""Far fewer than a coordinator has time for: an attempt costs one hash of the log's right edge."""
GRINDING_SEEDS = range(1, 9)
Draw = tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class GrindingPosition:
    """Where a log can be ground: its entries up to the last before a head, and the draw that depends on that head."""

    leaves: Leaves
    """Without what comes after the draw."""
    head: int
    """Index of the noted head."""
    submission: Digest
    rate_bps: int
    """How likely it was to be drawn."""
    foe: NodeId
    """A validator that the coordinator wants to avoid."""


@dataclass(frozen=True, slots=True)
class GroundLog:
    """A log with a draw that suits, and the number of attempts."""

    leaves: Leaves
    drawn: Draw
    """Empty: the submission is not audited."""
    tries: int


def attack_draws() -> Iterator[tuple[Attack, AttackResult]]:
    """In the log of an honest world, for the first worker past probation whose file was drawn.

    Some worlds have too few eligible validators for another draw, so several seeds are tried until one gives a result.
    """
    for seed in GRINDING_SEEDS:
        _, finished = simulate_world(SimulationPlan(seed=seed, nodes=16, steps=4, malicious=0.0))
        host = finished.world.host
        result = grind_log(host, list(host.disk))
        if result.verdict is not None:
            break
    yield GROUND_DRAW, result


def grind_log(host: CoordinatorHost, leaves: Leaves) -> AttackResult:
    position = find_grinding_position(leaves)
    if position is None:
        return AttackResult(verdict=None, checks=(), reason="no worker past probation was drawn")
    spared = grind_draw(host, position, lambda drawn: not drawn)
    friendly = grind_draw(host, position, lambda drawn: bool(drawn) and position.foe not in drawn)
    if spared is None or friendly is None:
        return AttackResult(verdict=None, checks=(), reason=f"no draw suited in {TRIES_MAX} tries")
    for found in (spared, friendly):
        try:
            replay(NETWORK, found.leaves, coordinator=host.key.node)
        except RemoteError as error:
            return AttackResult(verdict=AttackVerdict.PROVEN, checks=("replay",), reason=str(error))
    rate = f"{position.rate_bps / BASIS_POINTS:.0%}"
    told = f"spared in try {spared.tries} at {rate}, rid of a judge in try {friendly.tries}"
    return AttackResult(verdict=AttackVerdict.UNDETECTED, checks=(), reason=f"{told}; both replay")


def find_grinding_position(leaves: Leaves) -> GrindingPosition | None:
    """The first draw of a submission that might not have been audited."""
    ledger = Ledger(NETWORK)
    for index, leaf in enumerate(leaves):
        entry = read_entry(leaf)
        if isinstance(entry, e.AuditDrawn) and entry.validators and not entry.round:
            run = ledger.state.runs[RUN]
            node = run.submissions[entry.submission].node
            rate_bps = compute_audit_rate_bps(ledger.state.nodes[node].streak, run.terms)
            if rate_bps < BASIS_POINTS:
                return GrindingPosition(
                    leaves[: index + 1], entry.head_size, entry.submission, rate_bps, entry.validators[0]
                )
        ledger.restore(leaf)
    return None


def grind_draw(host: CoordinatorHost, position: GrindingPosition, suits: Callable[[Draw], bool]) -> GroundLog | None:
    """Claim a later millisecond for the last entry before the head, until the draw suits."""
    before = Ledger(NETWORK)
    for leaf in position.leaves[: position.head - 1]:
        before.restore(leaf)
    last, head, draw = position.leaves[position.head - 1], position.leaves[position.head], position.leaves[-1]
    for number in range(1, TRIES_MAX + 1):
        ledger, tried = deepcopy(before), delay_entry(last, number)
        ledger.restore(tried)
        root = ledger.state.frontier.root()
        noted = delay_entry(rewrite_entry(host, head, partial(replace, root=root)), number)
        ledger.restore(noted)
        at_ms = decode(LogRecord, draw).at_ms + number
        drawn = compute_draw(ledger.state, ledger.state.runs[RUN], position.submission, at_ms)
        if drawn is not None and suits(drawn):
            said = delay_entry(rewrite_entry(host, draw, partial(replace, validators=drawn)), number)
            return GroundLog([*position.leaves[: position.head - 1], tried, noted, said], drawn, number)
    return None


def delay_entry(leaf: bytes, wait_ms: int) -> bytes:
    """The same entry with a later time of receipt, which its author's signature does not cover."""
    record = decode(LogRecord, leaf)
    return encode(replace(record, at_ms=record.at_ms + wait_ms))


def read_entry(leaf: bytes) -> Any:
    _, payload = decode_leaf(leaf)
    return decode(ENTRY_TYPES[payload.kind], payload.body)
