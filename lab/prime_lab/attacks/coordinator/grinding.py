"""A coordinator that rewrites its log until an audit draw suits it, and what a replay says to that.

A coordinator may claim any time for the last entry before a head, and so any later round. One that runs the chain
itself knows every round in advance. It tries one round after another in private and would publish the log whose draw
spares a friend. What it lacks are the validators' cosignatures of the changed head.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from prime_protocol.constants import BASIS_POINTS, ED25519_SIGNATURE_BYTES, ENVELOPE_LIFE_MS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import compute_audit_rate_bps, compute_draw
from prime_protocol.ledger.entries import LogRecord
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.ledger.entry_values import HeadCosignature
from prime_protocol.ledger.randomness_chain import RandomnessChain
from prime_protocol.ledger.replay import Ledger, decode_entry, replay
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import seal_envelope
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId
from prime_protocol.wire.signing import WalletKey

Leaves = Sequence[bytes]
Draw = tuple[NodeId, ...]
TRIES_MAX = 200
"""Far fewer than a coordinator has time for: an attempt costs one hash of the log's right edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DishonestOperator:
    """What a coordinator can sign with."""

    key: WalletKey
    network: NetworkId
    run: RunId
    chain: RandomnessChain
    sign_round: Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class GrindingPosition:
    """Where a log can be rewritten once a round is known: the head that fixed the round, and the draw from it."""

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


def find_grinding_position(operator: DishonestOperator, leaves: Leaves) -> GrindingPosition | None:
    """The first draw of a submission that might not have been audited."""
    ledger = Ledger(operator.network)
    heads: dict[int, int] = {}
    for index, leaf in enumerate(leaves):
        entry = read_entry(leaf)
        if isinstance(entry, e.RoundRecorded):
            heads[entry.round] = ledger.state.pending_rounds[entry.round].head_size
        if isinstance(entry, e.AuditDrawn) and not entry.round:
            run = ledger.state.runs[operator.run]
            node = run.submissions[entry.submission].node
            rate_bps = compute_audit_rate_bps(run.get_record(node).streak, run.terms)
            if rate_bps < BASIS_POINTS:
                head = heads[entry.randomness_round]
                return GrindingPosition(leaves[: index + 1], head, entry.submission, rate_bps, entry.validators[0])
        ledger.restore(leaf)
    return None


def grind_draw(
    operator: DishonestOperator, position: GrindingPosition, suits: Callable[[Draw], bool]
) -> GroundLog | None:
    """Claim a later time for the last entry before the head, until the round that the head then waits for suits."""
    before = Ledger(operator.network)
    for leaf in position.leaves[: position.head - 1]:
        before.restore(leaf)
    last = position.leaves[position.head - 1]
    for number in range(1, TRIES_MAX + 1):
        ledger, tried = deepcopy(before), delay_entry(last, 1000 * operator.chain.period_s * number)
        try:
            ledger.restore(tried)
        except RemoteError:
            return None  # its author's envelope does not live longer
        made = [tried, append_unchecked(operator, ledger, e.HeadNoted(root=ledger.state.frontier.root()))]
        while ledger.state.pending_rounds:
            wanted = next(iter(ledger.state.pending_rounds))
            told = forge_round(operator, ledger, wanted)
            made.append(append_unchecked(operator, ledger, told, operator.chain.round_time_ms(wanted)))
        drawn = compute_draw(ledger.state, ledger.state.runs[operator.run], position.submission, ledger.state.at_ms)
        if drawn is not None and suits(drawn):
            draw = make_first_draw(position.submission, wanted, drawn)
            made.append(append_unchecked(operator, ledger, draw, run=operator.run))
            return GroundLog([*position.leaves[: position.head - 1], *made], drawn, number)
    return None


def make_first_draw(submission: Digest, number: int, drawn: Draw) -> e.AuditDrawn | e.AcceptedUnaudited:
    """What the coordinator writes about a submission once its round is known."""
    if not drawn:
        return e.AcceptedUnaudited(randomness_round=number, submissions=(submission,))
    return e.AuditDrawn(submission=submission, round=0, randomness_round=number, validators=drawn)


def forge_round(operator: DishonestOperator, ledger: Ledger, number: int) -> e.RoundRecorded:
    """A round with cosignatures in time for everybody who was asked, which the coordinator cannot sign."""
    pending = ledger.state.pending_rounds[number]
    time_s = operator.chain.round_time_ms(number) // 1000 - 1
    size = pending.head_size
    cosignatures = tuple(
        HeadCosignature(witness=node, head_size=size, time_s=time_s, signature=bytes(ED25519_SIGNATURE_BYTES))
        for node in sorted({node for asked in pending.witnesses.values() for node in asked})
    )
    return e.RoundRecorded(round=number, signature=operator.sign_round(number), cosignatures=cosignatures)


def append_unchecked(
    operator: DishonestOperator, ledger: Ledger, entry: Any, at_ms: int = 0, run: RunId | None = None
) -> bytes:
    """An entry of the coordinator's that the ledger takes without its signatures, as a dishonest program would."""
    at_ms = max(at_ms, ledger.state.at_ms)
    frame = seal_envelope(
        operator.key,
        kind=type(entry).__name__,
        body=encode(entry),
        network=operator.network,
        run=run,
        sequence=ledger.state.sequences[operator.key.node] + 1,
        issued_at_ms=at_ms,
        life_ms=ENVELOPE_LIFE_MS_MAX,
    )
    leaf = encode(LogRecord(at_ms, frame))
    ledger.restore(leaf)
    return leaf


def find_refusal(operator: DishonestOperator, leaves: Leaves) -> str:
    """Why a replay refuses the log; empty where it does not."""
    try:
        replay(operator.network, leaves, coordinator=operator.key.node)
    except RemoteError as error:
        return str(error)
    return ""


def delay_entry(leaf: bytes, wait_ms: int) -> bytes:
    """The same entry with a later time of receipt, which its author's signature does not cover."""
    record = decode(LogRecord, leaf)
    return encode(replace(record, at_ms=record.at_ms + wait_ms))


def read_entry(leaf: bytes) -> Any:
    _, payload = decode_leaf(leaf)
    return decode_entry(payload)
