"""Rules for what follows an outcome: scores and inspections of validators, slashes and appeals.

Each rule checks everything first, then changes the state. Stake that is taken never goes to a judge.
"""

from prime_protocol.constants import REFUTED_VERDICTS
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.audits import is_clear, is_stuck, may_rule, record_outcome, record_upheld, tally_outcome
from prime_protocol.ledger.entries import (
    Appealed,
    Inspected,
    Outcome,
    RulingGiven,
    SlashExecuted,
    SlashOverturned,
    SlashProposed,
    ValidatorScored,
)
from prime_protocol.ledger.findings import close_finding, get_bounty_account
from prime_protocol.ledger.funds import StakeKey
from prime_protocol.ledger.rewards import forfeit_unpaid
from prime_protocol.ledger.state import EntryContext, LedgerState, RunState, SlashState, SubmissionState
from prime_protocol.ledger.terms import SlashDestination
from prime_protocol.proofs.read_proofs import is_read_proof_refuted
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN


def score_validator(state: LedgerState, context: EntryContext, entry: ValidatorScored) -> None:
    run = state.run(context)
    submission = run.submission(entry.submission)
    is_inspected = is_penalty_due(state, submission, entry.validator)
    if not is_inspected:
        _check_score(run, entry.submission, submission, entry.validator)
    penalty_nano = compute_penalty_nano(state, run, submission, entry.validator)
    if entry.penalty_nano != penalty_nano:
        raise RemoteError("penalty_nano", f"is {entry.penalty_nano}, the terms and the stake give {penalty_nano}")
    if not is_inspected:  # the inspection has counted its own fault
        submission.scored |= {entry.validator}
        state.nodes[entry.validator].faults += 1
    if state.domain != EMBEDDED_DOMAIN and (is_inspected or penalty_nano):
        submission.penalised |= {entry.validator}
    _take_penalty(state, context, submission, entry.validator, penalty_nano)


def _check_score(run: RunState, name: Digest, submission: SubmissionState, validator: NodeId) -> None:
    """RemoteError unless this validator's verdict is against what was settled for good."""
    is_open = submission.outcome is Outcome.FRAUDULENT and (not submission.slashed or name in run.slashes)
    if submission.judged is None or is_open or name in run.findings:
        raise RemoteError("submission", f"{name} was not judged, or may still be judged otherwise")
    verdicts = {node: found for each in submission.rounds for node, found in each.verdicts.items()}
    if verdicts.get(validator, submission.judged) is submission.judged:
        raise RemoteError("validator", f"{validator} gave no verdict against what was settled")
    if validator in submission.scored:
        raise RemoteError("validator", f"{validator} was scored for {name} before")


def is_penalty_due(state: LedgerState, submission: SubmissionState, validator: NodeId) -> bool:
    """Whether an inspector has refuted this validator, and the court on the chain was not told yet."""
    is_refuted = validator in submission.refuted and validator not in submission.penalised
    return is_refuted and state.domain != EMBEDDED_DOMAIN


def compute_penalty_nano(state: LedgerState, run: RunState, submission: SubmissionState, validator: NodeId) -> int:
    """The stake that a validator loses over a verdict that was refuted.

    Only for calling honest work fraudulent, or fraud honest: honest validators may differ about an invalid file. And
    only if the decision is clear: in a network of few, a dishonest majority must not take the others' stake. On a chain
    also for what an inspector refuted, and once for each submission: the court takes no more.
    """
    if is_penalty_due(state, submission, validator):
        return _limit_penalty(state, run, submission, validator)
    if validator in submission.penalised:
        return 0
    found = next(each.verdicts[validator] for each in submission.rounds if validator in each.verdicts)
    if not submission.is_refuting or {found, submission.judged} != {Outcome.ACCEPT, Outcome.FRAUDULENT}:
        return 0
    return _limit_penalty(state, run, submission, validator)


def _limit_penalty(state: LedgerState, run: RunState, submission: SubmissionState, validator: NodeId) -> int:
    """What the terms say, limited to the stake that this log knows. A court limits it to what the vault has."""
    penalty_nano = run.get_terms(submission).validator_slash_nano
    return min(penalty_nano, state.funds.slashable_nano(_get_position(submission, validator)))


def _get_position(submission: SubmissionState, validator: NodeId) -> StakeKey:
    """Whose stake stood behind a validator when it was drawn."""
    return next((each.validators[validator], validator) for each in submission.rounds if validator in each.validators)


def _take_penalty(
    state: LedgerState, context: EntryContext, submission: SubmissionState, validator: NodeId, amount_nano: int
) -> None:
    run = state.run(context)
    position = _get_position(submission, validator)
    is_pooled = run.get_terms(submission).slash_to is SlashDestination.POOL
    if is_pooled and state.domain != EMBEDDED_DOMAIN:
        # What the court brings into the pool comes as a deposit.
        state.funds.transfer_stake_to_court(position, amount_nano)
    else:
        state.funds.forfeit_stake(position, amount_nano, pool=context.get_run_id() if is_pooled else None)
        run.forfeited_nano += amount_nano if is_pooled else 0
    state.refresh_validator(validator)


def give_ruling(state: LedgerState, context: EntryContext, entry: RulingGiven) -> None:
    """An inspector decides where validators stay split, or too few are left to ask."""
    run = state.run(context)
    submission, slash = run.submission(entry.submission), run.slashes.get(entry.submission)
    is_open = submission.outcome is None or run.is_judged_again(entry.submission)
    if not is_open or submission.ruling is not None:
        raise RemoteError("submission", f"{entry.submission} is decided, and no appeal or finding is open")
    if context.author not in run.terms.inspectors:
        raise RemoteError("sender", f"is {context.author}, no inspector of this run")
    if not may_rule(state, run, entry.submission, context.author):
        problem = f"{context.author} is not active, or it or its owner is a party to {entry.submission}"
        raise RemoteError("sender", problem)
    if not is_stuck(state, run, entry.submission, context.at_ms) and not _is_overdue(slash, context.at_ms):
        raise RemoteError("submission", f"{entry.submission} can still be decided by validators")
    submission.ruling = entry.outcome
    submission.rulings = {**submission.rulings, context.author: context.position()}
    if entry.outcome is Outcome.FRAUDULENT and entry.evidence not in submission.evidence:
        submission.evidence = {**submission.evidence, entry.evidence: context.author}


def _is_overdue(slash: SlashState | None, at_ms: int) -> bool:
    """An appeal has had judges for long enough."""
    return slash is not None and slash.appealed_at_ms is not None and at_ms >= slash.appealed_at_ms + slash.judgement_ms


def record_inspection(state: LedgerState, context: EntryContext, entry: Inspected) -> None:
    """Refute verdicts whose read proof is wrong. The outcome stays: those validators lose pay and stake."""
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
    submission.inspected = {**submission.inspected, context.author: context.position()}
    for seen in entry.seen:
        round_ = judged[seen.reader]
        if seen.reader not in submission.refuted and is_read_proof_refuted(
            round_.read_proof[seen.reader], seen.read_proof
        ):
            submission.refuted |= {seen.reader}
            state.nodes[seen.reader].faults += 1
            run.debts[(round_.validators[seen.reader], seen.reader)] += REFUTED_VERDICTS
            # On a chain the court takes it, by the coordinator's ValidatorScored.
            if state.domain == EMBEDDED_DOMAIN:
                penalty_nano = _limit_penalty(state, run, submission, seen.reader)
                _take_penalty(state, context, submission, seen.reader, penalty_nano)


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
    submission.ruling = None  # an appeal is decided by others
    run.slashes[entry.submission] = SlashState(
        node=submission.node,
        owner=submission.owner,
        appeal_until_ms=context.at_ms + terms.appeal_ms,
        judgement_ms=terms.judgement_ms,
        long_stop_ms=terms.long_stop_ms,
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
        state.funds.post_bond(entry.submission, slash.bond_nano)
        state.refresh_validator(slash.node)
    slash.appealed_at_ms = context.at_ms
    run.await_head(entry.submission, context.index)


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
    if entry.bounty_to != (account := get_bounty_account(run, entry.submission)):
        raise RemoteError("bounty_to", f"is {entry.bounty_to or 'empty'}, the finding gives {account or 'nothing'}")
    run.records[slash.node].exclude(state.funds.escrow[entry.submission].amount_nano)
    first_round = close_finding(state, run, entry.submission, is_executed=True)
    if slash.slash_to is SlashDestination.BURN:
        state.funds.burn(entry.submission)
    elif state.domain == EMBEDDED_DOMAIN:
        run.forfeited_nano += state.funds.pool(entry.submission, context.get_run_id())
    else:
        # The court may have had less to take, or nothing: what it brings into the pool comes as a deposit.
        state.funds.transfer_to_court(entry.submission)
    submission.is_refuting = slash.appealed_at_ms is not None or bool(submission.rulings)
    record_upheld(run, submission, first_round)
    forfeit_unpaid(run, slash.owner, slash.node)
    del run.slashes[entry.submission]
    state.refresh_validator(slash.node)


def overturn_slash(state: LedgerState, context: EntryContext, entry: SlashOverturned) -> None:
    run = state.run(context)
    slash = run.slash(entry.submission)
    submission = run.submissions[entry.submission]
    outcome = tally_outcome(state, run, entry.submission, context.at_ms)
    if slash.appealed_at_ms is None or outcome is Outcome.FRAUDULENT:
        raise RemoteError("submission", f"{entry.submission} was not appealed, or the appeal failed")
    if outcome is None and context.at_ms < slash.appealed_at_ms + slash.long_stop_ms:
        left_ms = slash.appealed_at_ms + slash.long_stop_ms - context.at_ms
        raise RemoteError("submission", f"the appeal is not decided; the stake stays in escrow for {left_ms} ms more")
    submission.is_refuting = outcome is not None and is_clear(state, run, entry.submission, context.at_ms)
    state.funds.refund(entry.submission)
    state.nodes[submission.node].settled[Outcome.FRAUDULENT] -= 1
    submission.judged = outcome
    submission.outcome = outcome or Outcome.INVALID
    record_outcome(state, run, submission, submission.outcome)
    record_upheld(run, submission, close_finding(state, run, entry.submission, is_executed=False))
    del run.slashes[entry.submission]
    state.refresh_validator(submission.node)
