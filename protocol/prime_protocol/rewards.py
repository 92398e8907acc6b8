"""Rules for entries about what work earns: funding, credit, payout, and what is left when a run is over.

Each checks everything first, then changes the state. How a budget is shared is in payout.py.
"""

from collections import Counter

from prime_protocol.books import Position
from prime_protocol.entries import Credited, Outcome, PaidOut, PoolReturned, RunFunded, RunStatus
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NodeId, RunId
from prime_protocol.payout import compute_shares, withhold
from prime_protocol.state import RunState, State, StepState, SubmissionState
from prime_protocol.terms import RunTerms
from prime_protocol.turn import Turn
from prime_protocol.typed_data import EMBEDDED
from prime_protocol.units import compute_units


def fund_run(state: State, turn: Turn, entry: RunFunded) -> None:
    """Not on a chain: a balance is not in the pool there, and pay beyond what that pool holds could not be claimed."""
    run = state.run(turn)
    if state.domain != EMBEDDED:
        raise RemoteError("run", "is funded over the chain: prime-coordinator chain fund")
    if run.status is RunStatus.CLOSED:
        raise RemoteError("run", "is closed")
    fill_pool(state, turn.run_name(), turn.author, entry.amount_nano)


def fill_pool(state: State, name: RunId, account: NodeId, amount_nano: int) -> None:
    """From an account's balance. What comes from the court was slashed: nobody has funded it."""
    run = state.runs[name]
    state.books.fund(name, account, amount_nano)
    if account == state.domain.contract:
        run.forfeited_nano += amount_nano
    else:
        run.funded[account] += amount_nano


def credit(state: State, turn: Turn, entry: Credited) -> None:
    run = state.run(turn)
    submission = run.submission(entry.submission)
    if submission.outcome is not Outcome.ACCEPT or submission.credited:
        raise RemoteError("submission", f"{entry.submission} is not accepted, or credited already")
    step = run.steps[submission.step]
    taken = step.credited.intersection(submission.slots)
    if taken:
        raise RemoteError("submission", f"slot {min(taken)} was credited to another submission")
    units = submission_units(step.terms, submission)
    if entry.units != units:
        raise RemoteError("units", f"is {entry.units}, the tokens are worth {units}")
    submission.credited = True
    step.credited.update(submission.slots)
    state.nodes[submission.node].units += units
    (run.carried_units if step.paid else step.units)[(submission.owner, submission.node)] += units


def submission_units(terms: RunTerms, submission: SubmissionState) -> int:
    """What an accepted submission is worth."""
    return compute_units(
        output_tokens=submission.output_tokens,
        context_tokens=submission.context_tokens,
        per_token=terms.units_per_token,
        per_context_token=terms.units_per_context_token,
    )


def pay_out(state: State, turn: Turn, entry: PaidOut) -> None:
    run, name = state.run(turn), turn.run_name()
    step = run.steps.get(entry.step)
    if step is None or step.paid:
        raise RemoteError("step", f"{entry.step} had no work, or was paid out already")
    if run.status is not RunStatus.CLOSED and entry.step >= run.latest:
        raise RemoteError("step", f"{entry.step} is still being worked on")
    if run.status is RunStatus.CLOSED and run.slashes:
        raise RemoteError("run", f"is closed with {len(run.slashes)} slashes open; what they decide is paid last")
    if step.pending:
        raise RemoteError("step", f"{entry.step} has {step.pending} leases or submissions open")
    owed = _find_owed(run, step)
    if owed is not None:
        raise RemoteError("step", f"{owed} is accepted without credit, or hard without a slash")
    for (owner, node), amount_nano in step_shares(state, name, step).items():
        state.books.pay(name, owner, amount_nano)
        run.paid[owner] += amount_nano
        state.nodes[node].earned_nano += amount_nano
    run.debts -= withhold(_stood(run, step), run.debts)
    run.carried_units.clear()
    run.carried_upheld.clear()
    step.paid = True
    retire_steps(run)


def step_shares(state: State, name: RunId, step: StepState) -> Counter[Position]:
    """Who gets how much if this step of the run is paid out now."""
    run = state.runs[name]
    stood = _stood(run, step)
    return compute_shares(
        budget_nano=min(step.terms.step_budget_nano, state.books.pools[name]),
        audit_share=step.terms.audit_share,
        units=step.units + run.carried_units,
        upheld=stood - withhold(stood, run.debts),
    )


def _stood(run: RunState, step: StepState) -> Counter[Position]:
    """Verdicts that a payout of this step is about, before debts."""
    return step.upheld + run.carried_upheld


def _find_owed(run: RunState, step: StepState) -> Digest | None:
    """A settled submission that still has its credit or its slash to come."""
    for name in step.submissions:
        submission = run.submissions[name]
        creditable = submission.outcome is Outcome.ACCEPT and step.credited.isdisjoint(submission.slots)
        if creditable or (submission.outcome is Outcome.HARD and not submission.slashed):
            return name
    return None


def retire_steps(run: RunState) -> None:
    """Forget steps that are paid, too old to train on, and owe and are owed nothing. The log keeps them for ever."""
    run.oldest = max(run.oldest, run.latest - run.terms.lag_max)
    for number in [number for number, step in run.steps.items() if step.paid and number < run.oldest]:
        step = run.steps[number]
        if run.slashes.keys().isdisjoint(step.submissions) and _find_owed(run, step) is None:
            for name in step.submissions:
                del run.submissions[name]
            del run.steps[number]


def return_pool(state: State, turn: Turn, entry: PoolReturned) -> None:
    run, name = state.run(turn), turn.run_name()
    unpaid = [number for number, step in run.steps.items() if not step.paid]
    if run.status is not RunStatus.CLOSED or unpaid or run.slashes:
        raise RemoteError("run", f"is {run.status}, {len(unpaid)} steps are unpaid, {len(run.slashes)} slashes open")
    if not run.funded[turn.author]:
        raise RemoteError("sender", f"{turn.author} has nothing left in the pool")
    amount_nano = refund_nano(state, name, turn.author)
    if entry.amount_nano != amount_nano:
        raise RemoteError("amount_nano", f"is {entry.amount_nano}, the part of {turn.author} is {amount_nano}")
    state.books.pay(name, turn.author, amount_nano)
    del run.funded[turn.author]


def refund_nano(state: State, name: RunId, account: NodeId) -> int:
    """A funder's part of what is left of the funding. Pay comes out of that first, and slashed stake is no funder's."""
    run = state.runs[name]
    refundable_nano = max(0, state.books.pools[name] - run.forfeited_nano)
    return refundable_nano * run.funded[account] // run.funded.total()
