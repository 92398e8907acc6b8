"""Rules for entries that judge: audit draws, verdicts, what they add up to, slashes and appeals.

Each checks everything first, then changes the state.
"""

from collections import Counter
from collections.abc import Iterable

from prime_protocol.beacon import audit_seed, draw_validators, is_audited
from prime_protocol.constants import BASIS_POINTS, ROUNDS_MAX
from prime_protocol.entries import (
    Appealed,
    AuditDrawn,
    Outcome,
    Settled,
    SlashExecuted,
    SlashOverturned,
    SlashProposed,
    ValidatorScored,
    VerdictGiven,
)
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NodeId
from prime_protocol.state import Round, RunState, SlashState, State, SubmissionState
from prime_protocol.terms import RunTerms, SlashTo
from prime_protocol.turn import Turn
from prime_protocol.typed_data import check_document


def audit_rate_bps(streak: int, terms: RunTerms) -> int:
    """All on probation; then falling with each further accepted submission, never below the floor."""
    if streak < terms.audit_probation:
        return BASIS_POINTS
    return max(terms.audit_floor, BASIS_POINTS * (terms.audit_probation + 1) // (streak + 1))


def decide(rounds: Iterable[Round], quorum: int) -> Outcome | None:
    """What the verdicts add up to: a majority of the quorum, and more than all others together."""
    votes = Counter(outcome for each in rounds for outcome in each.verdicts.values())
    for outcome, count in votes.most_common(1):
        if count > quorum // 2 and 2 * count > votes.total():
            return outcome
    return None


def draw_audit(state: State, turn: Turn, entry: AuditDrawn) -> None:
    run = state.run(turn)
    submission = run.submission(entry.submission)
    if entry.round != len(submission.rounds) or entry.round >= ROUNDS_MAX:
        raise RemoteError("round", f"is {entry.round}, the next is {len(submission.rounds)} of at most {ROUNDS_MAX}")
    event_index = _draw_event(run, submission, entry, turn.at_ms)
    head_size, head_root = state.head_after(event_index)
    if entry.head_size != head_size:
        raise RemoteError("head_size", f"is {entry.head_size}, the first head after entry {event_index} is {head_size}")
    expected = expected_draw(state, run, entry.submission, entry.round, head_root)
    if entry.validators != expected:
        raise RemoteError("validators", f"the draw gives {', '.join(map(str, expected)) or 'no audit'}")
    submission.rounds.append(Round(expected, turn.index, turn.at_ms))


def expected_draw(state: State, run: RunState, name: Digest, number: int, head_root: Digest) -> tuple[NodeId, ...]:
    """The validators of a round: a full quorum, or none where round 0 does not fall on the submission."""
    submission = run.submissions[name]
    seed = audit_seed(tree_head_root=head_root, submission=name)
    if number == 0 and not is_audited(seed, audit_rate_bps(state.nodes[submission.node].streak, run.terms)):
        return ()
    asked = {validator for each in submission.rounds for validator in each.validators}
    candidates = [node for node in run.validators if node not in asked] if asked else run.validators
    drawn = draw_validators(seed, candidates, state.owners, excluded_owner=submission.owner, quorum=run.terms.quorum)
    if len(drawn) < run.terms.quorum:
        raise RemoteError("validators", f"only {len(drawn)} can be drawn, the quorum is {run.terms.quorum}")
    return drawn


def _draw_event(run: RunState, submission: SubmissionState, entry: AuditDrawn, at_ms: int) -> int:
    """The entry that makes this draw due; the head must be noted after it."""
    slash = run.slashes.get(entry.submission)
    appeal = slash is not None and slash.appealed_at_ms is not None
    if submission.outcome is not None and not appeal:
        raise RemoteError("submission", f"{entry.submission} is settled and no appeal is open")
    if not submission.rounds:
        return submission.index
    if slash is not None and len(submission.rounds) == slash.rounds_before:
        return slash.appealed_index
    if not _is_stuck(submission.rounds, slash.rounds_before if slash else 0, run.terms, at_ms):
        raise RemoteError("round", f"{entry.round} is not due: the round before is decided, or still has time")
    return submission.rounds[-1].drawn_index


def _is_stuck(rounds: list[Round], first: int, terms: RunTerms, at_ms: int) -> bool:
    """No decision, and none to come from the last round: everybody spoke, or the time is over."""
    last = rounds[-1]
    finished = len(last.verdicts) == len(last.validators) or at_ms >= last.drawn_at_ms + terms.verdict_ms
    return finished and bool(last.validators) and decide(rounds[first:], terms.quorum) is None


def give_verdict(state: State, turn: Turn, entry: VerdictGiven) -> None:
    run, receipt = state.run(turn), entry.receipt
    submission = run.submission(receipt.submission)
    slash = run.slashes.get(receipt.submission)
    if submission.outcome is not None and (slash is None or len(submission.rounds) <= slash.rounds_before):
        raise RemoteError("receipt.submission", f"{receipt.submission} is settled")
    round_ = next((each for each in submission.rounds if turn.author in each.validators), None)
    if round_ is None or round_ is not submission.rounds[-1]:
        raise RemoteError("sender", f"{turn.author} was not drawn in the latest round for {receipt.submission}")
    if turn.author in round_.verdicts:
        raise RemoteError("sender", f"{turn.author} has given its verdict on {receipt.submission}")
    if (receipt.network, receipt.run, receipt.validator) != (turn.network, turn.run, turn.author):
        raise RemoteError("receipt.validator", f"is {receipt.validator} for {receipt.network}/{receipt.run}")
    check_document(receipt, entry.signature, signer=turn.author, domain=state.domain)
    round_.verdicts[turn.author] = entry.outcome
    if entry.outcome is Outcome.HARD:
        submission.evidence.setdefault(receipt.evidence, turn.author)


def settle(state: State, turn: Turn, entry: Settled) -> None:
    run = state.run(turn)
    submission = run.submission(entry.submission)
    if submission.outcome is not None or not submission.rounds:
        raise RemoteError("submission", f"{entry.submission} is settled, or no draw was made for it")
    expected = _settled_outcome(submission, run.terms, turn.at_ms)
    if expected is not entry.outcome:
        raise RemoteError("outcome", f"is {entry.outcome}, the verdicts give {expected or 'none yet'}")
    submission.outcome = entry.outcome
    step = run.steps[submission.step]
    step.pending -= 1
    if entry.outcome is not Outcome.ACCEPT:
        step.free(submission.slots, submission.lease)
    _record_outcome(state, submission, entry.outcome)
    _record_upheld(run, submission, submission.rounds, entry.outcome)


def _settled_outcome(submission: SubmissionState, terms: RunTerms, at_ms: int) -> Outcome | None:
    """Not drawn is accepted; drawn is what the verdicts say; if nobody could say, no credit and no blame."""
    if not submission.rounds[0].validators:
        return Outcome.ACCEPT
    decided = decide(submission.rounds, terms.quorum)
    if decided is None and _is_stuck(submission.rounds, 0, terms, at_ms):
        return Outcome.SOFT
    return decided


def _record_outcome(state: State, submission: SubmissionState, outcome: Outcome) -> None:
    node = state.nodes[submission.node]
    node.settled[outcome] += 1
    node.streak = node.streak + 1 if outcome is Outcome.ACCEPT else 0


def _record_upheld(run: RunState, submission: SubmissionState, rounds: Iterable[Round], outcome: Outcome) -> None:
    upheld = run.steps[submission.step].upheld
    upheld.update(node for each in rounds for node, found in each.verdicts.items() if found is outcome)


def score_validator(state: State, turn: Turn, entry: ValidatorScored) -> None:
    run = state.run(turn)
    submission = run.submission(entry.submission)
    verdicts = {node: found for each in submission.rounds for node, found in each.verdicts.items()}
    if entry.validator not in verdicts or submission.outcome in (None, verdicts[entry.validator]):
        raise RemoteError("validator", f"{entry.validator} gave no verdict against what was settled")
    if entry.validator in submission.scored:
        raise RemoteError("validator", f"{entry.validator} was scored for {entry.submission} before")
    submission.scored.add(entry.validator)
    state.nodes[entry.validator].faults += 1


def propose_slash(state: State, turn: Turn, entry: SlashProposed) -> None:
    run = state.run(turn)
    submission = run.submission(entry.submission)
    if submission.outcome is not Outcome.HARD or submission.slashed:
        raise RemoteError("submission", f"{entry.submission} was not settled as hard, or slashed before")
    if entry.evidence not in submission.evidence:
        raise RemoteError("evidence", f"{entry.evidence} is in no hard verdict on {entry.submission}")
    position = (submission.owner, submission.node)
    amount_nano = min(run.terms.slash_nano, state.books.slashable_nano(position))
    if entry.amount_nano != amount_nano:
        raise RemoteError("amount_nano", f"is {entry.amount_nano}, the terms and the stake give {amount_nano}")
    state.books.seize(entry.submission, position, amount_nano)
    submission.slashed = True
    run.slashes[entry.submission] = SlashState(
        node=submission.node,
        owner=submission.owner,
        appeal_until_ms=turn.at_ms + run.terms.appeal_ms,
        judgement_ms=run.terms.judgement_ms,
        bond_nano=run.terms.appeal_bond_nano,
        slash_to=run.terms.slash_to,
        rounds_before=len(submission.rounds),
    )
    state.refresh_validator(submission.node)


def appeal(state: State, turn: Turn, entry: Appealed) -> None:
    run = state.run(turn)
    slash = run.slash(entry.submission)
    if turn.author not in (slash.node, slash.owner):
        raise RemoteError("sender", f"is {turn.author}, only {slash.node} or {slash.owner} may appeal")
    if slash.appealed_at_ms is not None or turn.at_ms >= slash.appeal_until_ms:
        raise RemoteError("submission", f"{entry.submission} was appealed before, or the window is over")
    if slash.bond_nano:
        state.books.post_bond(entry.submission, slash.owner, slash.bond_nano)
    slash.appealed_at_ms = turn.at_ms
    slash.appealed_index = turn.index


def execute_slash(state: State, turn: Turn, entry: SlashExecuted) -> None:
    run = state.run(turn)
    slash = run.slash(entry.submission)
    submission = run.submissions[entry.submission]
    rounds = submission.rounds[slash.rounds_before :]
    if slash.appealed_at_ms is None and turn.at_ms < slash.appeal_until_ms:
        raise RemoteError("submission", f"can be appealed for {slash.appeal_until_ms - turn.at_ms} ms more")
    if slash.appealed_at_ms is not None and decide(rounds, run.terms.quorum) is not Outcome.HARD:
        raise RemoteError("submission", "the appeal was not decided against the node")
    if slash.slash_to is SlashTo.BURN:
        state.books.burn(entry.submission)
    else:
        state.books.pool(entry.submission, turn.run_name())
    _record_upheld(run, submission, rounds, Outcome.HARD)
    del run.slashes[entry.submission]


def overturn_slash(state: State, turn: Turn, entry: SlashOverturned) -> None:
    run = state.run(turn)
    slash = run.slash(entry.submission)
    submission = run.submissions[entry.submission]
    rounds = submission.rounds[slash.rounds_before :]
    outcome = decide(rounds, run.terms.quorum)
    if slash.appealed_at_ms is None or outcome is Outcome.HARD:
        raise RemoteError("submission", f"{entry.submission} was not appealed, or the appeal failed")
    if outcome is None and turn.at_ms < slash.appealed_at_ms + slash.judgement_ms:
        raise RemoteError("submission", "the appeal is not decided, and there is time left")
    state.books.refund(entry.submission)
    state.nodes[submission.node].settled[Outcome.HARD] -= 1
    submission.outcome = outcome or Outcome.ACCEPT
    _record_outcome(state, submission, submission.outcome)
    _record_upheld(run, submission, submission.rounds, submission.outcome)
    del run.slashes[entry.submission]
    state.refresh_validator(submission.node)
