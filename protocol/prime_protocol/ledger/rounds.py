"""Rules for rounds of the randomness chain: when one counts, who witnessed the heads that wait for it, what it decides.

The threat is an entry that is written after its author knows the draw. A head is noted first, and it fixes the round.
Validators cosign the head with the time at which they saw it. The round is published later. A draw counts only if more
than half of the validators that were asked cosigned before then, so an entry that is backdated, by a coordinator
alone, is not covered by their cosignatures.
"""

from hashlib import sha256

from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import RoundRecorded
from prime_protocol.ledger.entry_values import HeadCosignature
from prime_protocol.ledger.randomness import compute_step_beacon, compute_witnesses_needed
from prime_protocol.ledger.randomness_chain import verify_round
from prime_protocol.ledger.state import EntryContext, LedgerState, PendingRound
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead, is_cosigned
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId


def record_round(state: LedgerState, context: EntryContext, entry: RoundRecorded) -> None:
    oldest = next(iter(state.pending_rounds), None)
    if entry.round != oldest:
        raise RemoteError("round", f"is {entry.round}, the next that is waited for is {oldest or 'none'}")
    early_ms = state.randomness.round_time_ms(oldest) - context.at_ms
    if early_ms > 0:
        raise RemoteError("round", f"{entry.round} is published {early_ms} ms after this entry")
    for place, cosignature in enumerate(entry.cosignatures):
        problem = find_cosignature_problem(
            state, context.network, entry.round, cosignature, is_verified=context.is_cosignature_checked
        )
        if problem:
            raise RemoteError(f"cosignatures[{place}]", f"of {cosignature.witness}: {problem}")
    randomness = Digest(sha256(entry.signature).digest())
    if not context.is_signature_checked:
        randomness = verify_round(state.randomness, entry.round, entry.signature)
    pending = state.remove_pending_round(oldest)
    state.newest_randomness = randomness
    _set_beacons(state, pending, randomness)
    _set_draws(state, pending, entry, randomness)


def find_cosignature_problem(
    state: LedgerState, network: NetworkId, number: int, cosignature: HeadCosignature, *, is_verified: bool = False
) -> str:
    """Why a cosignature does not count for a pending round; empty where it does."""
    pending = state.pending_rounds[number]
    if not is_asked(pending, cosignature.witness):
        return "was not asked to cosign this head"
    if 1000 * cosignature.time_s >= state.randomness.round_time_ms(number):
        return f"is of {cosignature.time_s} s, when round {number} was out"
    size = cosignature.head_size
    if size not in state.noted_heads or size < pending.head_size:
        return f"is of a head over {size} entries, needed is a noted one over {pending.head_size} or more"
    head = TreeHead(ORIGIN_PREFIX + network, size, state.noted_heads[size])
    key = state.nodes[cosignature.witness].witness_key
    if not is_verified and not is_cosigned(head, key, cosignature.time_s, cosignature.signature):
        return f"is no valid signature of the head over {size} entries"
    return ""


def is_asked(pending: PendingRound, node: NodeId) -> bool:
    return any(node in asked for asked in pending.witnesses.values())


def list_unwitnessed_runs(pending: PendingRound, witnesses: set[NodeId]) -> list[RunId]:
    """The runs for which too few of the asked validators are among these."""
    return [
        run
        for run, asked in pending.witnesses.items()
        if len(witnesses.intersection(asked)) < compute_witnesses_needed(len(asked))
    ]


def _set_beacons(state: LedgerState, pending: PendingRound, randomness: Digest) -> None:
    for run, step in pending.checkpoints:
        checkpoint = state.runs[run].checkpoints[step]
        checkpoint.beacon = compute_step_beacon(run, step, checkpoint_root=checkpoint.root, randomness=randomness)


def _set_draws(state: LedgerState, pending: PendingRound, entry: RoundRecorded, randomness: Digest) -> None:
    """Give the randomness to the submissions whose head was witnessed. The others wait for another head."""
    unwitnessed, drawn = (
        list_unwitnessed_runs(pending, {each.witness for each in entry.cosignatures}),
        (entry.round, randomness),
    )
    for name, submission in pending.submissions:
        run = state.runs[name]
        if submission not in run.submissions:
            continue  # it was not drawn, so it needs no further round, and it is gone with its step
        if run.submissions[submission].awaits_since >= pending.head_size:
            continue  # an appeal or a finding came after the head: its own head fixes a later round
        if name in unwitnessed:
            run.submissions[submission].is_unwitnessed = True
            run.awaiting_head.append(submission)
        else:
            run.submissions[submission].randomness = drawn
            run.submissions[submission].candidates_before = pending.head_size
