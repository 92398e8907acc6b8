"""Rules for findings: anyone may claim, against a bond, that an accepted submission is fraudulent. Drawn judges decide.

Most submissions are never drawn for audit, so a forged one may be accepted. Until its step is paid anyone can read the
file and file a finding. While it is open only the units of that submission are held back. If judges agree, the
submission is treated as any other fraudulent one: slash, appeal, execution; the finder then gets a share of the slash.
Where too few validators are left to judge, an inspector decides (slashes.give_ruling): otherwise a false finding would
cost nothing there, and a true one convict no node. Each rule checks everything first, then changes the state.
"""

from collections import Counter
from typing import TypeVar

from prime_protocol.constants import BASIS_POINTS, FINDINGS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.audits import is_clear, record_outcome, record_upheld, tally_outcome
from prime_protocol.ledger.entries import FindingDismissed, FindingFiled, FindingUpheld, Outcome
from prime_protocol.ledger.rewards import compute_submission_units, earn
from prime_protocol.ledger.state import EntryContext, FindingState, LedgerState, RunState, SubmissionState
from prime_protocol.ledger.terms import SlashDestination
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN

K = TypeVar("K")


def check_finding(state: LedgerState, run: RunState, author: NodeId, name: Digest) -> None:
    """RemoteError if this account cannot file a finding about the submission now.

    A coordinator checks the same before it stores the evidence of a finding.
    """
    submission = run.submission(name)
    _check_open(run, name, submission)
    dismissed = run.dismissed.get(name, ())
    if author in dismissed or len(dismissed) >= FINDINGS_MAX:
        raise RemoteError("submission", f"{len(dismissed)} findings were dismissed, one of them yours or too many")
    owner = state.owners.get(author, author)
    if submission.owner in (owner, author) or submission.node == author:
        raise RemoteError("sender", f"{author} is of the owner of {name}")
    bond_nano, balance_nano = run.get_terms(submission).finding_bond_nano, state.funds.balances[author]
    if balance_nano < bond_nano:
        raise RemoteError("amount_nano", f"is {bond_nano} for the bond, the balance of {author} is {balance_nano}")


def file_finding(state: LedgerState, context: EntryContext, entry: FindingFiled) -> None:
    run = state.run(context)
    check_finding(state, run, context.author, entry.submission)
    submission = run.submissions[entry.submission]
    terms = run.get_terms(submission)
    if terms.finding_bond_nano:
        state.funds.post_finding_bond(entry.submission, context.author, terms.finding_bond_nano)
    submission.ruling = None  # what an inspector decided is judged again
    run.findings[entry.submission] = FindingState(
        finder=context.author,
        owner=state.owners.get(context.author, context.author),
        position=context.position(),
        judged_until_ms=context.at_ms + terms.judgement_ms,
        rounds_before=len(submission.rounds),
        units=_hold_back(run, submission),
    )
    run.await_head(entry.submission, context.index)


def _check_open(run: RunState, name: Digest, submission: SubmissionState) -> None:
    if submission.outcome is not Outcome.ACCEPT or not submission.credited or submission.slashed:
        raise RemoteError("submission", f"{name} is not accepted and credited, or was slashed before")
    if run.steps[submission.step].paid:
        raise RemoteError("submission", f"{name} was paid: its pay has vested")
    if name in run.findings:
        raise RemoteError("submission", f"{name} has an open finding")


def _hold_back(run: RunState, submission: SubmissionState) -> int:
    """Take the units of one submission out of its step's payout; how many were there to take."""
    wanted = compute_submission_units(run.get_terms(submission), submission)
    step, record = run.steps[submission.step], run.records[submission.node]
    taken = _take_units(step.units, (submission.owner, submission.node), wanted)
    return taken + _take_units(record.held_units, (submission.owner, submission.step), wanted - taken)


def _take_units(units: Counter[K], key: K, wanted: int) -> int:
    """Up to so many; a key without units is dropped."""
    taken = min(wanted, units[key])
    units[key] -= taken
    if not units[key]:
        del units[key]
    return taken


def uphold_finding(state: LedgerState, context: EntryContext, entry: FindingUpheld) -> None:
    run = state.run(context)
    finding = _get_undecided(run, entry.submission)
    if tally_outcome(state, run, entry.submission, context.at_ms) is not Outcome.FRAUDULENT:
        raise RemoteError("submission", f"the finding about {entry.submission} was not decided against the node")
    submission = run.submissions[entry.submission]
    step = run.steps[submission.step]
    finding.is_upheld = True
    state.nodes[submission.node].units -= compute_submission_units(step.terms, submission)
    state.nodes[submission.node].settled[Outcome.ACCEPT] -= 1
    submission.credited = False
    step.credited.difference_update(submission.slots)
    submission.outcome = submission.judged = Outcome.FRAUDULENT
    record_outcome(state, run, submission, Outcome.FRAUDULENT)


def dismiss_finding(state: LedgerState, context: EntryContext, entry: FindingDismissed) -> None:
    run, name = state.run(context), entry.submission
    finding = _get_undecided(run, name)
    outcome = tally_outcome(state, run, name, context.at_ms)
    if outcome is Outcome.FRAUDULENT:
        raise RemoteError("submission", f"the finding about {name} was decided against the node")
    if outcome is None and context.at_ms < finding.judged_until_ms:
        raise RemoteError("submission", "the finding is not decided, and there is time left")
    submission = run.submissions[name]
    # As for any accepted file: verdicts against a clear decision are refuted.
    submission.is_refuting |= outcome is Outcome.ACCEPT and is_clear(state, run, name, context.at_ms)
    if outcome is None:
        state.funds.refund_finding_bond(name)
    elif run.get_terms(submission).slash_to is SlashDestination.POOL and state.domain == EMBEDDED_DOMAIN:
        run.forfeited_nano += state.funds.pool_finding_bond(name, context.get_run_id())
    else:
        state.funds.burn_finding_bond(name)
    if outcome is not None:
        _record_judges(run, submission, finding, outcome)
        run.dismissed[name] = (*run.dismissed.get(name, ()), finding.finder)
    del run.findings[name]
    earn(run, submission, finding.units)


def _record_judges(run: RunState, submission: SubmissionState, finding: FindingState, outcome: Outcome) -> None:
    """Pay the judges that agree with what was decided. An accept makes the submission an audited one."""
    before = submission.judged
    submission.judged = outcome
    record_upheld(run, submission, finding.rounds_before)
    if outcome is not Outcome.ACCEPT:
        submission.judged = before


def close_finding(state: LedgerState, run: RunState, name: Digest, *, is_executed: bool) -> int:
    """The slash of a submission ends: the finder gets its bond back, and its owner the bounty of an executed slash.

    Returns the first round whose judges are not paid yet: those before the finding were when it was settled.
    """
    finding = run.findings.pop(name, None)
    if finding is None:
        return 0
    state.funds.refund_finding_bond(name)
    if is_executed:
        share = run.get_terms(run.submissions[name]).bounty_share
        amount_nano = state.funds.escrow[name].amount_nano * share // BASIS_POINTS
        # On a chain the court has the stake, and pays the bounty out of it.
        account = finding.owner if state.domain == EMBEDDED_DOMAIN else None
        state.funds.pay_bounty(name, account, amount_nano)
    return finding.rounds_before


def get_bounty_account(run: RunState, name: Digest) -> NodeId | None:
    """Who gets the bounty if the slash of this submission is executed."""
    finding = run.findings.get(name)
    return None if finding is None else finding.owner


def _get_undecided(run: RunState, name: Digest) -> FindingState:
    finding = run.get_open_finding(name)
    if finding is None:
        raise RemoteError("submission", f"{name} has no open finding")
    return finding
