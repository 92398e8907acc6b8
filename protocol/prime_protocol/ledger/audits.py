"""Rules for audits: draws of validators, verdicts and the settled outcome. What follows is in slashes.py.

Each rule checks everything first, then changes the state, so a refused entry changes nothing. Draws and outcomes are
computed from the log alone: the coordinator writes them down but cannot choose them, and a replay refuses any other.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from prime_protocol.constants import BASIS_POINTS, REVEAL_MS, ROUNDS_MAX, SUSPICION_AUDITED
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import (
    AcceptedUnaudited,
    AuditDrawn,
    NodeStatus,
    Outcome,
    Settled,
    VerdictCommitted,
    VerdictGiven,
)
from prime_protocol.ledger.randomness import compute_audit_seed, draw_validators, is_audited
from prime_protocol.ledger.rewards import credit_accepted, find_uncredited, is_creditable
from prime_protocol.ledger.run_record import RunRecord, take_medians
from prime_protocol.ledger.state import (
    UNDRAWN,
    AuditRoundState,
    EntryContext,
    LedgerState,
    RunState,
    SubmissionState,
)
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.typed_data import verify_document


def compute_audit_rate_bps(streak: int, terms: RunTerms, suspicion: int = 0) -> int:
    """All on probation or under suspicion; then falling with each accepted submission, never below the floor."""
    if streak < terms.audit_probation or suspicion >= SUSPICION_AUDITED:
        return BASIS_POINTS
    return max(terms.audit_floor, BASIS_POINTS * (terms.audit_probation + 1) // (streak + 1))


INVALID_BY_TWO_QUORUMS = 3
"""First rules under which a submission is invalid only by the lead that an accept needs."""


OPEN_ROUNDS_SPEAK = 3
"""First rules under which verdicts from before an appeal or a finding decide nothing about it by themselves."""


def decide_outcome(rounds: Iterable[AuditRoundState], quorum: int, rules: int) -> Outcome | None:
    """The outcome that leads all others together: by `quorum` votes if it is fraudulent, else by 2 * quorum - 1.

    So one dissenting vote against an accept asks for another round. A fraudulent outcome can be appealed and is then
    judged by other validators. An accept pays, an invalid outcome takes pay and costs its validators no stake, and
    neither can be appealed, so the other validators are asked at once.
    """
    votes = _count_votes(rounds)
    for outcome, count in votes.most_common(1):
        is_final = outcome is Outcome.ACCEPT or (outcome is Outcome.INVALID and rules >= INVALID_BY_TWO_QUORUMS)
        lead = 2 * quorum - 1 if is_final else quorum
        if 2 * count - votes.total() >= lead:
            return outcome
    return None


def _count_votes(rounds: Iterable[AuditRoundState]) -> Counter[Outcome]:
    return Counter(outcome for each in rounds for outcome in each.verdicts.values())


def tally_outcome(state: LedgerState, run: RunState, name: Digest, at_ms: int) -> Outcome | None:
    """What an inspector ruled, or the rounds that count have decided: all, or those of an appeal or finding.

    If too few validators are left to draw and no inspector decides in time, a plain majority of all verdicts accepts.
    Otherwise a small network would never credit work, and a single validator could block it. But if all judges of an
    appeal or a finding are silent, the verdicts that it is about are not its judgement: it ends undecided.
    """
    submission, terms = run.submissions[name], run.get_terms(run.submissions[name])
    if submission.ruling is not None:
        return submission.ruling
    rounds = get_open_rounds(run, name)
    if not rounds or not needs_new_round(state, rounds, terms, at_ms):
        return decide_outcome(rounds, terms.quorum, state.rules.get_version(at_ms))
    if state.rules.get_version(at_ms) >= OPEN_ROUNDS_SPEAK and not any(each.verdicts for each in rounds):
        return None
    votes = _count_votes(submission.rounds)
    is_majority = votes[Outcome.ACCEPT] > max(terms.quorum, votes.total()) // 2
    is_last_word = is_stuck(state, run, name, at_ms) and not awaits_ruling(state, run, name, at_ms)
    if not is_last_word:
        return None
    if is_majority:
        return Outcome.ACCEPT
    # No second quorum is left to ask: the lead of one is the last word. Otherwise a small network would pay validators
    # for accepts only.
    return decide_outcome(rounds, terms.quorum, INVALID_BY_TWO_QUORUMS - 1)


def get_open_rounds(run: RunState, name: Digest) -> Sequence[AuditRoundState]:
    """The rounds that count now: all of them, or those of an open appeal or finding."""
    return run.submissions[name].rounds[run.get_first_round(name) :]


def is_stuck(state: LedgerState, run: RunState, name: Digest, at_ms: int) -> bool:
    """Validators cannot decide: what they said decides nothing, and no further round can be drawn."""
    submission, rounds = run.submissions[name], get_open_rounds(run, name)
    if not submission.rounds or (rounds and not needs_new_round(state, rounds, run.get_terms(submission), at_ms)):
        return False
    if len(submission.rounds) >= ROUNDS_MAX:
        return True
    # Which seed does not matter: it decides who is drawn, not whether there are enough.
    return _draw_quorum(state, run, name, submission.rounds[-1].seed, at_ms) is None


def awaits_ruling(state: LedgerState, run: RunState, name: Digest, at_ms: int) -> bool:
    """Whether there is an inspector that can decide what validators could not, and still has time."""
    submission, finding = run.submissions[name], run.get_open_finding(name)
    if finding is not None:
        until_ms = finding.judged_until_ms
    else:
        until_ms = get_open_rounds(run, name)[-1].deadline_ms + run.get_terms(submission).judgement_ms
    return at_ms < until_ms and any(may_rule(state, run, name, node) for node in run.terms.inspectors)


def may_rule(state: LedgerState, run: RunState, name: Digest, inspector: NodeId) -> bool:
    """Whether an inspector is at work and no party: neither it nor its owner made, judged or decided the submission
    before, or filed the finding about it."""
    submission, finding = run.submissions[name], run.findings.get(name)
    known = state.nodes.get(inspector)
    if known is None or known.status is not NodeStatus.ACTIVE or inspector in submission.rulings:
        return False
    parties = {submission.owner, *(owner for each in submission.rounds for owner in each.validators.values())}
    if finding is not None:
        parties |= {finding.finder, finding.owner}
    return inspector not in (submission.node, *parties) and state.owners[inspector] not in parties


def draw_audit(state: LedgerState, context: EntryContext, entry: AuditDrawn) -> None:
    run = state.run(context)
    submission = run.submission(entry.submission)
    if entry.round != len(submission.rounds) or entry.round >= ROUNDS_MAX:
        raise RemoteError("round", f"is {entry.round}, the next is {len(submission.rounds)} of at most {ROUNDS_MAX}")
    _check_due(state, run, entry.submission, context.at_ms)
    randomness = _get_randomness(submission, entry.randomness_round)
    expected = compute_draw(state, run, entry.submission, context.at_ms)
    if expected is None:
        raise RemoteError("validators", "too few can be drawn for the quorum")
    if entry.validators != expected:
        raise RemoteError("validators", f"the draw gives {', '.join(map(str, expected)) or 'no audit'}")
    seed = compute_audit_seed(randomness=randomness, submission=entry.submission)
    deadline_ms = context.at_ms + compute_verdict_ms(run.get_terms(submission), submission)
    drawn = {node: state.owners[node] for node in expected}
    submission.rounds = (*submission.rounds, AuditRoundState(drawn, seed, context.at_ms, deadline_ms))
    run.await_head(entry.submission, context.index)


def _get_randomness(submission: SubmissionState, number: int) -> Digest:
    """What the next draw of a submission comes from; RemoteError where that is another round than the entry says."""
    if submission.randomness is None or submission.randomness[0] != number:
        known = submission.randomness[0] if submission.randomness else "none yet"
        raise RemoteError("randomness_round", f"is {number}, the draw comes from {known}")
    return submission.randomness[1]


def accept_unaudited(state: LedgerState, context: EntryContext, entry: AcceptedUnaudited) -> None:
    """Each draw is computed from the state before the entry, so none depends on another submission in it."""
    run = state.run(context)
    _check_log_order(run, entry.submissions, "submissions[{}]")
    for place, name in enumerate(entry.submissions):
        _check_spared(state, run, name, entry.randomness_round, context.at_ms, f"submissions[{place}]")
    _check_uncredited(run, entry.submissions, entry.uncredited)
    for name in entry.submissions:
        submission = run.submissions[name]
        submission.rounds, submission.randomness, submission.candidates_before = UNDRAWN, None, 0
        _apply_outcome(state, run, name, Outcome.ACCEPT, context.at_ms)


def _check_spared(state: LedgerState, run: RunState, name: Digest, number: int, at_ms: int, field: str) -> None:
    """Refuse a submission that was drawn or settled before, or that the draw does not spare."""
    submission = run.submissions[name]
    if submission.outcome is not None or submission.rounds:
        raise RemoteError(field, f"{name} is settled, or its audit was drawn")
    try:
        _get_randomness(submission, number)
    except RemoteError as error:
        raise RemoteError(field, f"{name}: {error.field} {error.problem}") from None
    expected = compute_draw(state, run, name, at_ms)
    if expected != ():
        drawn = ", ".join(map(str, expected or ())) or "validators, of which too few are left"
        raise RemoteError(field, f"{name} is to be audited: the draw gives {drawn}")


def _check_log_order(run: RunState, names: Sequence[Digest], field: str) -> None:
    """Submissions that share an entry are known, and stand in it as in the log. So each stands there once, and the
    coordinator does not choose which of two answers to a slot is credited."""
    last = -1
    for place, name in enumerate(names):
        if name not in run.submissions:
            raise RemoteError(field.format(place), f"{name} is not known in this run")
        index = run.submissions[name].position.index
        if index <= last:
            raise RemoteError(field.format(place), f"{name} is entry {index}, the one before it is entry {last}")
        last = index


def _check_uncredited(run: RunState, accepted: Iterable[Digest], uncredited: tuple[Digest, ...]) -> None:
    """Refuse another choice of what is credited than the slots give."""
    expected = find_uncredited(run, accepted)
    if uncredited != expected:
        different = zip_longest(uncredited, expected)
        place, (given, wanted) = next(each for each in enumerate(different) if each[1][0] != each[1][1])
        raise RemoteError(f"uncredited[{place}]", f"is {given or 'missing'}, the slots give {wanted or 'no more'}")


def compute_draw(state: LedgerState, run: RunState, name: Digest, at_ms: int) -> tuple[NodeId, ...] | None:
    """The validators of the next round: a full quorum, or none where round 0 does not fall on the submission.

    The submission has its randomness. None: too few are left whose owner was not asked before.
    """
    submission = run.submissions[name]
    terms = run.get_terms(submission)
    assert submission.randomness is not None
    seed = compute_audit_seed(randomness=submission.randomness[1], submission=name)
    record = run.get_record(submission.node)
    rate_bps = compute_audit_rate_bps(record.streak, terms, record.suspicion)
    if not submission.rounds and not submission.is_unwitnessed and not is_audited(seed, rate_bps):
        return ()
    return _draw_quorum(state, run, name, seed, at_ms)


def _draw_quorum(
    state: LedgerState, run: RunState, name: Digest, seed: Digest, at_ms: int
) -> tuple[NodeId, ...] | None:
    """A full quorum whose owners were not drawn before, or None. The seed decides who, not whether there are enough."""
    submission, finding = run.submissions[name], run.findings.get(name)
    terms = run.get_terms(submission)
    unwanted = {key for each in submission.rounds for pair in each.validators.items() for key in pair}
    unwanted.add(submission.owner)
    if finding is not None:
        unwanted |= {finding.finder, finding.owner}
    version_min = state.get_version_min(run.terms, at_ms)

    def is_fit(node: NodeId) -> bool:
        is_present = state.is_delegated(node, at_ms) and state.nodes[node].version >= version_min
        return is_present and unwanted.isdisjoint((node, *state.list_owners(node, at_ms)))

    # Without randomness it is only asked whether there are enough, and a later head will fix the round.
    size = submission.candidates_before if submission.randomness is not None else 0
    drawn = draw_validators(
        seed,
        run.list_candidates(size),
        state.owners,
        candidates_before=submission.candidates_before,
        excluded_owner=submission.owner,
        quorum=terms.quorum,
        is_fit=is_fit,
    )
    return drawn if len(drawn) == terms.quorum else None


def _check_due(state: LedgerState, run: RunState, name: Digest, at_ms: int) -> None:
    """Refuse a draw that is not due. A new submission, an appeal, a finding or an undecided round makes one due."""
    submission = run.submissions[name]
    if submission.outcome is not None and not run.is_judged_again(name):
        raise RemoteError("submission", f"{name} is settled and no appeal or finding is open")
    rounds = submission.rounds[run.get_first_round(name) :]
    if rounds and not needs_new_round(state, rounds, run.get_terms(submission), at_ms):
        raise RemoteError("round", "is not due: the round before is decided, or still has time")


def needs_new_round(state: LedgerState, rounds: Sequence[AuditRoundState], terms: RunTerms, at_ms: int) -> bool:
    """The last round is over and the verdicts decide nothing."""
    if not is_round_over(rounds, at_ms) or not rounds[-1].validators:
        return False
    return decide_outcome(rounds, terms.quorum, state.rules.get_version(at_ms)) is None


def compute_verdict_ms(terms: RunTerms, submission: SubmissionState) -> int:
    """The time that a validator has for a submission: it follows the tokens to be read, so a large file cannot outlast
    its judges."""
    rows = len(submission.slots) * terms.samples_per_slot
    return terms.verdict_ms + terms.compute_read_ms(rows=rows, output_tokens=submission.output_tokens)


def is_round_over(rounds: Sequence[AuditRoundState], at_ms: int) -> bool:
    """Every validator of the last round gave a verdict, or its time is over.

    After the deadline only the verdicts that were committed are waited for.
    """
    last = rounds[-1]
    if len(last.verdicts) == len(last.validators):
        return True
    return at_ms >= last.reveal_ms + (REVEAL_MS if last.list_unrevealed() else 0)


def _find_round(run: RunState, name: Digest, author: NodeId, field: str) -> AuditRoundState:
    """The latest round for an open submission, in which the author was drawn."""
    submission = run.submission(name)
    is_open = run.is_judged_again(name) and submission.rounds[run.get_first_round(name) :]
    if submission.outcome is not None and not is_open:
        raise RemoteError(field, f"{name} is settled")
    round_ = next((each for each in submission.rounds if author in each.validators), None)
    if round_ is None or round_ is not submission.rounds[-1]:
        raise RemoteError("sender", f"{author} was not drawn in the latest round for {name}")
    return round_


def commit_verdict(state: LedgerState, context: EntryContext, entry: VerdictCommitted) -> None:
    """The content of the verdict is fixed here, before any other of the round can be read."""
    round_ = _find_round(state.run(context), entry.submission, context.author, "submission")
    if not round_.is_committed_first:
        raise RemoteError("submission", f"{entry.submission} has one validator: give the verdict itself")
    if context.author in round_.commitments:
        raise RemoteError("sender", f"{context.author} has committed to its verdict on {entry.submission}")
    if round_.verdicts:
        raise RemoteError("commitment", f"comes too late: the deadline is over, and {len(round_.verdicts)} can be read")
    round_.commitments[context.author] = entry.commitment
    round_.committed[context.author] = context.position()
    if len(round_.commitments) == len(round_.validators):
        round_.complete_ms = context.at_ms


def _check_commitment(round_: AuditRoundState, context: EntryContext) -> None:
    """In a round of several validators a verdict is the one that was committed, and comes when none can be copied."""
    if not round_.is_committed_first:
        return
    if context.author not in round_.commitments:
        raise RemoteError(
            "commitment", f"{context.author} has not committed to its verdict: send VerdictCommitted first"
        )
    if context.body != round_.commitments[context.author]:
        raise RemoteError("commitment", f"is {round_.commitments[context.author]}, this verdict has {context.body}")
    if context.at_ms < round_.reveal_ms:
        missing = len(round_.validators) - len(round_.commitments)
        problem = (
            f"is not to be revealed before {missing} more commitments, or for {round_.reveal_ms - context.at_ms} ms"
        )
        raise RemoteError("commitment", problem)


def give_verdict(state: LedgerState, context: EntryContext, entry: VerdictGiven) -> None:
    run, receipt = state.run(context), entry.receipt
    round_ = _find_round(run, receipt.submission, context.author, "receipt.submission")
    submission = run.submissions[receipt.submission]
    if context.author in round_.verdicts:
        raise RemoteError("sender", f"{context.author} has given its verdict on {receipt.submission}")
    if (receipt.network, receipt.run, receipt.validator) != (context.network, context.run, context.author):
        raise RemoteError("receipt.validator", f"is {receipt.validator} for {receipt.network}/{receipt.run}")
    _check_commitment(round_, context)
    if not context.is_signature_checked:
        verify_document(receipt, entry.signature, signer=context.author, domain=state.domain)
    round_.verdicts[context.author] = entry.outcome
    round_.read_proof[context.author] = entry.read_proof
    round_.blocks_read[context.author] = entry.blocks_read
    round_.positions[context.author] = context.position()
    round_.bets[context.author] = entry.bets
    if entry.outcome is Outcome.FRAUDULENT and receipt.evidence not in submission.evidence:
        submission.evidence = {**submission.evidence, receipt.evidence: context.author}


def settle(state: LedgerState, context: EntryContext, entry: Settled) -> None:
    """No outcome depends on another one in the entry: each is computed from the state before it."""
    run = state.run(context)
    _check_log_order(run, [each.submission for each in entry.settled], "settled[{}].submission")
    for place, each in enumerate(entry.settled):
        if run.submissions[each.submission].outcome is not None:
            raise RemoteError(f"settled[{place}].submission", f"{each.submission} is settled")
        expected = compute_settled_outcome(state, run, each.submission, context.at_ms)
        if expected is not each.outcome:
            problem = f"is {each.outcome}, the verdicts give {expected or 'none yet'}"
            raise RemoteError(f"settled[{place}].outcome", problem)
    accepted = [each.submission for each in entry.settled if each.outcome is Outcome.ACCEPT]
    _check_uncredited(run, accepted, entry.uncredited)
    for each in entry.settled:
        run.submissions[each.submission].judged = tally_outcome(state, run, each.submission, context.at_ms)
        is_refuting = each.outcome is Outcome.ACCEPT and is_clear(state, run, each.submission, context.at_ms)
        run.submissions[each.submission].is_refuting = is_refuting
        _apply_outcome(state, run, each.submission, each.outcome, context.at_ms)


def _apply_outcome(state: LedgerState, run: RunState, name: Digest, outcome: Outcome, at_ms: int) -> None:
    """Settle a submission, and credit it where it is accepted and its slots are free."""
    submission = run.submissions[name]
    step = run.steps[submission.step]
    submission.outcome = outcome
    run.unsettled.remove(name)
    step.pending -= 1
    step.settled_ms = at_ms
    record_outcome(state, run, submission, outcome)
    if is_creditable(run, submission):
        credit_accepted(state, run, submission)
    else:
        # Another answer was credited for some of these slots meanwhile: then this one cannot be, and the others of its
        # slots are open again.
        step.free(submission.slots, submission.lease)
    # Whether a fraudulent verdict stands is known when its slash is.
    if outcome is not Outcome.FRAUDULENT:
        record_upheld(run, submission)


def is_clear(state: LedgerState, run: RunState, name: Digest, at_ms: int) -> bool:
    """Whether a lead of votes or a ruling decided: not a plain majority among too few."""
    submission = run.submissions[name]
    quorum = run.get_terms(submission).quorum
    rules = state.rules.get_version(at_ms)
    return submission.ruling is not None or decide_outcome(get_open_rounds(run, name), quorum, rules) is not None


def compute_settled_outcome(state: LedgerState, run: RunState, name: Digest, at_ms: int) -> Outcome | None:
    """What the verdicts or an inspector decide; invalid if neither can. AcceptedUnaudited settles what no draw fell on.

    A split alone settles nothing while others can be asked. Otherwise a few validators could deny a worker its pay.
    """
    submission = run.submissions[name]
    terms = run.get_terms(submission)
    if not submission.rounds:
        waited = submission.randomness is not None and at_ms >= submission.at_ms + terms.verdict_ms
        return Outcome.INVALID if waited and compute_draw(state, run, name, at_ms) is None else None
    outcome = tally_outcome(state, run, name, at_ms)
    is_given_up = outcome is None and is_stuck(state, run, name, at_ms) and not awaits_ruling(state, run, name, at_ms)
    return Outcome.INVALID if is_given_up else outcome


def record_outcome(state: LedgerState, run: RunState, submission: SubmissionState, outcome: Outcome) -> None:
    state.nodes[submission.node].settled[outcome] += 1
    record = run.records.setdefault(submission.node, RunRecord())
    record.streak = record.streak + 1 if outcome is Outcome.ACCEPT else 0
    weighed = take_medians(bets for each in submission.rounds for bets in each.bets.values())
    # A fraudulent file is slashed, and counts here only if that is overturned.
    if weighed is not None and outcome is not Outcome.FRAUDULENT:
        record.add(weighed)
        run.release_held(submission.node)


def record_upheld(run: RunState, submission: SubmissionState, first_round: int = 0) -> None:
    """Count the verdicts from a round on that agree with the decision: only these are paid."""
    step = run.steps[submission.step]
    upheld = run.carried_upheld if step.paid else step.upheld
    for each in submission.rounds[first_round:]:
        stood = [node for node, found in each.verdicts.items() if found is submission.judged]
        upheld.update((each.validators[node], node) for node in stood)
