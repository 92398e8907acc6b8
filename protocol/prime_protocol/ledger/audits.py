"""Rules for audits: draws of validators, verdicts, the settled outcome, inspections, slashes and appeals.

Each rule checks everything first, then changes the state, so a refused entry changes nothing. Draws and outcomes are
computed from the log alone: the coordinator writes them down but cannot choose them, and a replay refuses any other.
"""

from collections import Counter
from collections.abc import Iterable

from prime_protocol.constants import BASIS_POINTS, REFUTED_VERDICTS, ROUNDS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import (
    Appealed,
    AuditDrawn,
    Inspected,
    Outcome,
    Settled,
    SlashExecuted,
    SlashOverturned,
    SlashProposed,
    ValidatorScored,
    VerdictGiven,
)
from prime_protocol.ledger.randomness import compute_audit_seed, draw_validators, is_audited
from prime_protocol.ledger.state import (
    AuditRoundState,
    EntryContext,
    LedgerState,
    RunState,
    SlashState,
    SubmissionState,
)
from prime_protocol.ledger.terms import RunTerms, SlashDestination
from prime_protocol.proofs.read_proofs import is_read_proof_refuted
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, verify_document


def compute_audit_rate_bps(streak: int, terms: RunTerms) -> int:
    """All on probation; then falling with each further accepted submission, never below the floor."""
    if streak < terms.audit_probation:
        return BASIS_POINTS
    return max(terms.audit_floor, BASIS_POINTS * (terms.audit_probation + 1) // (streak + 1))


def decide_outcome(rounds: Iterable[AuditRoundState], quorum: int) -> Outcome | None:
    """The outcome that leads all others together by `quorum` votes, or by 2 * quorum - 1 to be accepted; else None.

    So one dissenting vote against an accept asks for another round. A fraudulent outcome can be appealed and is then
    judged by other validators. An accept pays and cannot be appealed, so the other validators are asked at once.
    """
    votes = _count_votes(rounds)
    for outcome, count in votes.most_common(1):
        lead = 2 * quorum - 1 if outcome is Outcome.ACCEPT else quorum
        if 2 * count - votes.total() >= lead:
            return outcome
    return None


def _count_votes(rounds: Iterable[AuditRoundState]) -> Counter[Outcome]:
    return Counter(outcome for each in rounds for outcome in each.verdicts.values())


def tally_outcome(state: LedgerState, run: RunState, name: Digest, at_ms: int) -> Outcome | None:
    """What the rounds that count have decided: all rounds, or only those of the appeal while a slash is open.

    If too few validators are left to draw, a plain majority of all verdicts accepts. Otherwise a small network would
    never credit work, and a single validator could block it.
    """
    submission, slash, terms = run.submissions[name], run.slashes.get(name), run.get_terms(run.submissions[name])
    rounds = submission.rounds[slash.rounds_before if slash else 0 :]
    if not rounds or not needs_new_round(rounds, terms, at_ms):
        return decide_outcome(rounds, terms.quorum)
    votes = _count_votes(submission.rounds)
    is_majority = votes[Outcome.ACCEPT] > max(terms.quorum, votes.total()) // 2
    return (
        Outcome.ACCEPT if is_majority and _draw_quorum(state, run, submission, rounds[-1].seed, at_ms) is None else None
    )


def draw_audit(state: LedgerState, context: EntryContext, entry: AuditDrawn) -> None:
    run = state.run(context)
    submission = run.submission(entry.submission)
    if entry.round != len(submission.rounds) or entry.round >= ROUNDS_MAX:
        raise RemoteError("round", f"is {entry.round}, the next is {len(submission.rounds)} of at most {ROUNDS_MAX}")
    _check_due(run, entry.submission, context.at_ms)
    if submission.head is None or entry.head_size != submission.head[0]:
        size = submission.head and submission.head[0]
        raise RemoteError("head_size", f"is {entry.head_size}, the first head since the draw fell due is {size}")
    expected = compute_draw(state, run, entry.submission, context.at_ms)
    if expected is None:
        raise RemoteError("validators", "too few can be drawn for the quorum")
    if entry.validators != expected:
        raise RemoteError("validators", f"the draw gives {', '.join(map(str, expected)) or 'no audit'}")
    seed = compute_audit_seed(tree_head_root=submission.head[1], submission=entry.submission)
    submission.rounds.append(AuditRoundState({node: state.owners[node] for node in expected}, seed, context.at_ms))
    run.await_head(entry.submission)


def compute_draw(state: LedgerState, run: RunState, name: Digest, at_ms: int) -> tuple[NodeId, ...] | None:
    """The validators of the next round: a full quorum, or none where round 0 does not fall on the submission.

    The submission has its head. None: too few are left whose owner was not asked before.
    """
    submission = run.submissions[name]
    terms = run.get_terms(submission)
    assert submission.head is not None
    seed = compute_audit_seed(tree_head_root=submission.head[1], submission=name)
    if not submission.rounds and not is_audited(
        seed, compute_audit_rate_bps(state.nodes[submission.node].streak, terms)
    ):
        return ()
    return _draw_quorum(state, run, submission, seed, at_ms)


def _draw_quorum(
    state: LedgerState, run: RunState, submission: SubmissionState, seed: Digest, at_ms: int
) -> tuple[NodeId, ...] | None:
    """A full quorum whose owners were not drawn before, or None. The seed decides who, not whether there are enough."""
    terms = run.get_terms(submission)
    asked = {key for each in submission.rounds for pair in each.validators.items() for key in pair}
    version_min = run.terms.get_version_min(at_ms)

    def is_fit(node: NodeId) -> bool:
        is_present = state.is_delegated(node, at_ms) and state.nodes[node].version >= version_min
        return is_present and asked.isdisjoint((node, state.owners[node]))

    drawn = draw_validators(
        seed, run.validators, state.owners, excluded_owner=submission.owner, quorum=terms.quorum, is_fit=is_fit
    )
    return drawn if len(drawn) == terms.quorum else None


def _check_due(run: RunState, name: Digest, at_ms: int) -> None:
    """Refuse a draw that is not due. A new submission, an appeal or an undecided round makes one due."""
    submission, slash = run.submissions[name], run.slashes.get(name)
    first = 0
    if submission.outcome is not None:
        if slash is None or slash.appealed_at_ms is None:
            raise RemoteError("submission", f"{name} is settled and no appeal is open")
        first = slash.rounds_before
    rounds = submission.rounds[first:]
    if rounds and not needs_new_round(rounds, run.get_terms(submission), at_ms):
        raise RemoteError("round", "is not due: the round before is decided, or still has time")


def needs_new_round(rounds: list[AuditRoundState], terms: RunTerms, at_ms: int) -> bool:
    """The last round is over and the verdicts decide nothing."""
    return (
        is_round_over(rounds, terms, at_ms)
        and bool(rounds[-1].validators)
        and decide_outcome(rounds, terms.quorum) is None
    )


def is_round_over(rounds: list[AuditRoundState], terms: RunTerms, at_ms: int) -> bool:
    """Every validator of the last round gave a verdict, or its time is over."""
    last = rounds[-1]
    return len(last.verdicts) == len(last.validators) or at_ms >= last.drawn_at_ms + terms.verdict_ms


def give_verdict(state: LedgerState, context: EntryContext, entry: VerdictGiven) -> None:
    run, receipt = state.run(context), entry.receipt
    submission = run.submission(receipt.submission)
    slash = run.slashes.get(receipt.submission)
    if submission.outcome is not None and (slash is None or len(submission.rounds) <= slash.rounds_before):
        raise RemoteError("receipt.submission", f"{receipt.submission} is settled")
    round_ = next((each for each in submission.rounds if context.author in each.validators), None)
    if round_ is None or round_ is not submission.rounds[-1]:
        raise RemoteError("sender", f"{context.author} was not drawn in the latest round for {receipt.submission}")
    if context.author in round_.verdicts:
        raise RemoteError("sender", f"{context.author} has given its verdict on {receipt.submission}")
    if (receipt.network, receipt.run, receipt.validator) != (context.network, context.run, context.author):
        raise RemoteError("receipt.validator", f"is {receipt.validator} for {receipt.network}/{receipt.run}")
    if not context.is_signature_checked:
        verify_document(receipt, entry.signature, signer=context.author, domain=state.domain)
    round_.verdicts[context.author] = entry.outcome
    round_.read_proof[context.author] = entry.read_proof
    round_.positions[context.author] = context.position()
    if entry.outcome is Outcome.FRAUDULENT:
        submission.evidence.setdefault(receipt.evidence, context.author)


def settle(state: LedgerState, context: EntryContext, entry: Settled) -> None:
    run = state.run(context)
    submission = run.submission(entry.submission)
    if submission.outcome is not None:
        raise RemoteError("submission", f"{entry.submission} is settled")
    expected = compute_settled_outcome(state, run, entry.submission, context.at_ms)
    if expected is not entry.outcome:
        raise RemoteError("outcome", f"is {entry.outcome}, the verdicts give {expected or 'none yet'}")
    step = run.steps[submission.step]
    submission.judged = tally_outcome(state, run, entry.submission, context.at_ms)
    submission.outcome = entry.outcome
    step.pending -= 1
    # An overturned slash may have been credited for some of these slots meanwhile: then this one cannot be, and the
    # others of its slots are open again.
    if entry.outcome is not Outcome.ACCEPT or not step.credited.isdisjoint(submission.slots):
        step.free(submission.slots, submission.lease)
    _record_outcome(state, submission, entry.outcome)
    # Whether a fraudulent verdict stands is known when its slash is.
    if entry.outcome is not Outcome.FRAUDULENT:
        _record_upheld(run, submission)


def compute_settled_outcome(state: LedgerState, run: RunState, name: Digest, at_ms: int) -> Outcome | None:
    """Accepted if no audit was drawn; else what the verdicts decide; invalid if they cannot decide in time."""
    submission = run.submissions[name]
    terms = run.get_terms(submission)
    if not submission.rounds:
        waited = submission.head is not None and at_ms >= submission.at_ms + terms.verdict_ms
        return Outcome.INVALID if waited and compute_draw(state, run, name, at_ms) is None else None
    if not submission.rounds[0].validators:
        return Outcome.ACCEPT
    outcome = tally_outcome(state, run, name, at_ms)
    return Outcome.INVALID if outcome is None and needs_new_round(submission.rounds, terms, at_ms) else outcome


def _record_outcome(state: LedgerState, submission: SubmissionState, outcome: Outcome) -> None:
    node = state.nodes[submission.node]
    node.settled[outcome] += 1
    node.streak = node.streak + 1 if outcome is Outcome.ACCEPT else 0


def _record_upheld(run: RunState, submission: SubmissionState) -> None:
    """Count the verdicts that agree with the decision: only these are paid."""
    step = run.steps[submission.step]
    upheld = run.carried_upheld if step.paid else step.upheld
    for each in submission.rounds:
        stood = [node for node, found in each.verdicts.items() if found is submission.judged]
        upheld.update((each.validators[node], node) for node in stood)


def score_validator(state: LedgerState, context: EntryContext, entry: ValidatorScored) -> None:
    run = state.run(context)
    submission = run.submission(entry.submission)
    is_open = submission.outcome is Outcome.FRAUDULENT and (not submission.slashed or entry.submission in run.slashes)
    if submission.judged is None or is_open:
        raise RemoteError("submission", f"{entry.submission} was not judged, or may still be judged otherwise")
    verdicts = {node: found for each in submission.rounds for node, found in each.verdicts.items()}
    if verdicts.get(entry.validator, submission.judged) is submission.judged:
        raise RemoteError("validator", f"{entry.validator} gave no verdict against what was settled")
    if entry.validator in submission.scored:
        raise RemoteError("validator", f"{entry.validator} was scored for {entry.submission} before")
    submission.scored.add(entry.validator)
    state.nodes[entry.validator].faults += 1


def record_inspection(state: LedgerState, context: EntryContext, entry: Inspected) -> None:
    """Refute verdicts whose read proof is wrong. The outcome stays: only the payment of those validators changes."""
    run = state.run(context)
    submission = run.submission(entry.submission)
    if context.author not in run.terms.inspectors:
        raise RemoteError("sender", f"is {context.author}, no inspector of this run")
    if submission.outcome is None or context.author in submission.inspected:
        raise RemoteError("submission", f"{entry.submission} is not settled, or was inspected before")
    judged = {node: each for each in submission.rounds for node in each.verdicts}
    strangers = [seen.reader for seen in entry.seen if seen.reader not in judged or seen.reader == context.author]
    if strangers:
        raise RemoteError("seen", f"{strangers[0]} gave no verdict on {entry.submission}, or is the inspector")
    submission.inspected[context.author] = context.position()
    for seen in entry.seen:
        round_ = judged[seen.reader]
        if seen.reader not in submission.refuted and is_read_proof_refuted(
            round_.read_proof[seen.reader], seen.read_proof
        ):
            submission.refuted.add(seen.reader)
            state.nodes[seen.reader].faults += 1
            run.debts[(round_.validators[seen.reader], seen.reader)] += REFUTED_VERDICTS


def propose_slash(state: LedgerState, context: EntryContext, entry: SlashProposed) -> None:
    run = state.run(context)
    submission = run.submission(entry.submission)
    if submission.outcome is not Outcome.FRAUDULENT or submission.slashed:
        raise RemoteError("submission", f"{entry.submission} was not settled as fraudulent, or slashed before")
    if entry.evidence not in submission.evidence:
        raise RemoteError("evidence", f"{entry.evidence} is in no fraudulent verdict on {entry.submission}")
    position, terms = (submission.owner, submission.node), run.get_terms(submission)
    amount_nano = min(terms.slash_nano, state.funds.slashable_nano(position))
    if entry.amount_nano != amount_nano:
        raise RemoteError("amount_nano", f"is {entry.amount_nano}, the terms and the stake give {amount_nano}")
    state.funds.move_to_escrow(entry.submission, position, amount_nano)
    submission.slashed = True
    run.slashes[entry.submission] = SlashState(
        node=submission.node,
        owner=submission.owner,
        appeal_until_ms=context.at_ms + terms.appeal_ms,
        judgement_ms=terms.judgement_ms,
        bond_nano=terms.appeal_bond_nano,
        slash_to=terms.slash_to,
        rounds_before=len(submission.rounds),
    )
    state.refresh_validator(submission.node)


def appeal(state: LedgerState, context: EntryContext, entry: Appealed) -> None:
    run = state.run(context)
    slash = run.slash(entry.submission)
    # The coordinator tells of an appeal before the court, which has its own window and has taken its own bond.
    is_told = context.author == state.coordinator and state.domain != EMBEDDED_DOMAIN
    # The bond is the owner's: a node that has left it may not spend it.
    is_node = context.author == slash.node and state.owners[slash.node] == slash.owner
    if context.author != slash.owner and not is_node and not is_told:
        raise RemoteError("sender", f"is {context.author}, only {slash.owner} and its node may appeal")
    is_late = context.at_ms >= slash.appeal_until_ms and not is_told
    if slash.appealed_at_ms is not None or is_late:
        raise RemoteError("submission", f"{entry.submission} was appealed before, or the window is over")
    if slash.bond_nano and not is_told:
        state.funds.post_bond(entry.submission, slash.owner, slash.bond_nano)
    slash.appealed_at_ms = context.at_ms
    run.await_head(entry.submission)


def execute_slash(state: LedgerState, context: EntryContext, entry: SlashExecuted) -> None:
    run = state.run(context)
    slash = run.slash(entry.submission)
    submission = run.submissions[entry.submission]
    if slash.appealed_at_ms is None and context.at_ms < slash.appeal_until_ms:
        raise RemoteError("submission", f"can be appealed for {slash.appeal_until_ms - context.at_ms} ms more")
    if (
        slash.appealed_at_ms is not None
        and tally_outcome(state, run, entry.submission, context.at_ms) is not Outcome.FRAUDULENT
    ):
        raise RemoteError("submission", "the appeal was not decided against the node")
    if slash.slash_to is SlashDestination.BURN:
        state.funds.burn(entry.submission)
    elif state.domain == EMBEDDED_DOMAIN:
        run.forfeited_nano += state.funds.pool(entry.submission, context.get_run_id())
    else:
        # The court may have had less to take, or nothing: what it brings into the pool comes as a deposit.
        state.funds.transfer_to_court(entry.submission)
    _record_upheld(run, submission)
    del run.slashes[entry.submission]


def overturn_slash(state: LedgerState, context: EntryContext, entry: SlashOverturned) -> None:
    run = state.run(context)
    slash = run.slash(entry.submission)
    submission = run.submissions[entry.submission]
    outcome = tally_outcome(state, run, entry.submission, context.at_ms)
    if slash.appealed_at_ms is None or outcome is Outcome.FRAUDULENT:
        raise RemoteError("submission", f"{entry.submission} was not appealed, or the appeal failed")
    if outcome is None and context.at_ms < slash.appealed_at_ms + slash.judgement_ms:
        raise RemoteError("submission", "the appeal is not decided, and there is time left")
    state.funds.refund(entry.submission)
    state.nodes[submission.node].settled[Outcome.FRAUDULENT] -= 1
    submission.judged = outcome
    submission.outcome = outcome or Outcome.INVALID
    _record_outcome(state, submission, submission.outcome)
    _record_upheld(run, submission)
    del run.slashes[entry.submission]
    state.refresh_validator(submission.node)
