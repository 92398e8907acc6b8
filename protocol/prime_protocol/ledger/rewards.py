"""What work earns: the units of a rollout, the shares of a step's budget, and the rules of funding, credit and payout.

A unit is 10^9 FLOP of matrix multiplication. The run's terms hold two factors, computed once from the model's shape,
and the log holds the token counts. So everyone computes the same credit, and no party declares its own. Validators
whose verdicts were confirmed share a part of the budget; workers share the rest by verified units. Each rule checks
everything first, then changes the state.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prime_protocol.constants import BASIS_POINTS, FLOP_PER_UNIT
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import Credited, Outcome, PaidOut, PoolReturned, RunFunded, RunStatus
from prime_protocol.ledger.funds import StakeKey
from prime_protocol.ledger.state import EntryContext, LedgerState, RunState, StepState, SubmissionState
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.wire.ids import Digest, NodeId, RunId, Step
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """A dense decoder, as its config file states it."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpaceShape:
    """A state-space decoder (Mamba): what is behind a token is in a state of fixed size, so context costs nothing."""

    layers: int
    hidden: int
    inner: int
    """Channels of a layer's recurrence."""
    state: int
    """Numbers of state in each channel."""
    rank: int
    """Of the product that a channel's step size comes from."""
    kernel: int
    """Inputs that a channel's convolution sees."""
    vocabulary: int


def compute_state_space_flop_per_token(shape: StateSpaceShape) -> int:
    """Products and convolution at two FLOP per weight, the recurrence at six per number of state, and the head."""
    products = shape.inner * (3 * shape.hidden + 2 * shape.rank + 2 * shape.state + shape.kernel)
    recurrence = 3 * shape.inner * shape.state
    return 2 * (shape.layers * (products + recurrence) + shape.vocabulary * shape.hidden)


def compute_flop_per_token(shape: TransformerShape) -> int:
    """Projections, gated feed-forward and output head, for one token: two FLOP per weight."""
    attention = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    feed_forward = 3 * shape.hidden * shape.feed_forward
    return 2 * (shape.layers * (attention + feed_forward) + shape.vocabulary * shape.hidden)


def compute_flop_per_context_token(shape: TransformerShape) -> int:
    """Scores and weighted sum against one earlier token, in all layers."""
    return 4 * shape.layers * shape.head_dim * shape.heads


def count_context_tokens(prompt_tokens: int, output_tokens: int) -> int:
    """Sum over the output tokens of what each attends to: the prompt, the outputs before it, and itself."""
    return output_tokens * prompt_tokens + output_tokens * (output_tokens + 1) // 2


def compute_units(*, output_tokens: int, context_tokens: int, per_token: int, per_context_token: int) -> int:
    """Credit for a submission, rounded down, at least 1 for any work at all."""
    flop = output_tokens * per_token + context_tokens * per_context_token
    return max(1, flop // FLOP_PER_UNIT)


def compute_withheld(upheld: Counter[StakeKey], debts: Counter[StakeKey]) -> Counter[StakeKey]:
    """How many of each position's verdicts go unpaid for its debt: all of the debt, or all that stood."""
    return upheld & debts


def compute_shares(
    *, budget_nano: int, audit_share: int, units: Mapping[StakeKey, int], upheld: Mapping[StakeKey, int]
) -> Counter[StakeKey]:
    """Who gets how much. Shares are rounded down; the unearned part and the remainders stay in the pool."""
    audit_nano = budget_nano * audit_share // BASIS_POINTS
    shares: Counter[StakeKey] = Counter()
    for pot_nano, weights in ((budget_nano - audit_nano, units), (audit_nano, upheld)):
        total = sum(weights.values())
        for position, weight in weights.items():
            shares[position] += pot_nano * weight // total
    assert sum(shares.values()) <= budget_nano
    return shares


def fund_run(state: LedgerState, context: EntryContext, entry: RunFunded) -> None:
    """Not on a chain: a balance is not in the pool there, and pay beyond what that pool holds could not be claimed."""
    run = state.run(context)
    if state.domain != EMBEDDED_DOMAIN:
        raise RemoteError("run", "is funded over the chain: prime-coordinator chain fund")
    if run.status is RunStatus.CLOSED:
        raise RemoteError("run", "is closed")
    add_to_pool(state, context.get_run_id(), context.author, entry.amount_nano)


def add_to_pool(state: LedgerState, name: RunId, account: NodeId, amount_nano: int) -> None:
    """From an account's balance. What comes from the court was slashed, so it has no funder."""
    run = state.runs[name]
    state.funds.fund(name, account, amount_nano)
    if account == state.domain.contract:
        run.forfeited_nano += amount_nano
    else:
        run.funded[account] += amount_nano


def credit(state: LedgerState, context: EntryContext, entry: Credited) -> None:
    run = state.run(context)
    submission = run.submission(entry.submission)
    if submission.outcome is not Outcome.ACCEPT or submission.credited:
        raise RemoteError("submission", f"{entry.submission} is not accepted, or credited already")
    step = run.steps[submission.step]
    taken = step.credited.intersection(submission.slots)
    if taken:
        raise RemoteError("submission", f"slot {min(taken)} was credited to another submission")
    units = compute_submission_units(step.terms, submission)
    if entry.units != units:
        raise RemoteError("units", f"is {entry.units}, the tokens are worth {units}")
    _add_credit(state, run, submission, units)


def is_creditable(run: RunState, submission: SubmissionState) -> bool:
    """Whether a submission is accepted, counts for nothing yet, and no other is credited for one of its slots."""
    is_wanted = submission.outcome is Outcome.ACCEPT and not submission.credited
    return is_wanted and run.steps[submission.step].credited.isdisjoint(submission.slots)


def find_uncredited(run: RunState, accepted: Iterable[Digest]) -> tuple[Digest, ...]:
    """Those of the submissions, accepted together in this order, that an earlier answer leaves without credit."""
    taken: dict[Step, set[int]] = {}
    found: list[Digest] = []
    for name in accepted:
        submission = run.submissions[name]
        before = taken.setdefault(submission.step, set())
        if before.isdisjoint(submission.slots) and run.steps[submission.step].credited.isdisjoint(submission.slots):
            before.update(submission.slots)
        else:
            found.append(name)
    return tuple(found)


def credit_accepted(state: LedgerState, run: RunState, submission: SubmissionState) -> None:
    """Credit an accepted submission. Its units follow from the tokens that its entry states."""
    assert is_creditable(run, submission)
    _add_credit(state, run, submission, compute_submission_units(run.get_terms(submission), submission))


def _add_credit(state: LedgerState, run: RunState, submission: SubmissionState, units: int) -> None:
    step = run.steps[submission.step]
    submission.credited = True
    step.credited.update(submission.slots)
    step.free(submission.slots, submission.lease)
    state.nodes[submission.node].units += units
    earn(run, submission, units)


def earn(run: RunState, submission: SubmissionState, units: int) -> None:
    """Count units for pay, unless the node's pay is held. A node that is excluded since has forfeited them."""
    record = run.get_record(submission.node)
    if record.restake_nano:
        return
    if record.is_held:
        record.held_units[(submission.owner, submission.step)] += units
    else:
        run.get_earned(submission.step)[(submission.owner, submission.node)] += units


def forfeit_unpaid(run: RunState, owner: NodeId, node: NodeId) -> None:
    """A conviction costs all units of the pair that are not paid yet: of unpaid steps, carried ones, held ones."""
    for step in run.steps.values():
        if not step.paid:
            step.units.pop((owner, node), None)
    run.carried_units.pop((owner, node), None)
    for name, finding in run.findings.items():
        if (run.submissions[name].owner, run.submissions[name].node) == (owner, node):
            finding.units = 0
    held = run.records[node].held_units
    for key in [key for key in held if key[0] == owner]:
        del held[key]


def compute_submission_units(terms: RunTerms, submission: SubmissionState) -> int:
    """What an accepted submission is worth."""
    return compute_units(
        output_tokens=submission.output_tokens,
        context_tokens=submission.context_tokens,
        per_token=terms.units_per_token,
        per_context_token=terms.units_per_context_token,
    )


def pay_out(state: LedgerState, context: EntryContext, entry: PaidOut) -> None:
    run, name = state.run(context), context.get_run_id()
    step = run.steps.get(entry.step)
    if step is None or step.paid:
        raise RemoteError("step", f"{entry.step} had no work, or was paid out already")
    if run.status is not RunStatus.CLOSED and entry.step >= run.latest:
        raise RemoteError("step", f"{entry.step} is still being worked on")
    judged = len(run.slashes.keys() | run.findings)
    if run.status is RunStatus.CLOSED and judged:
        raise RemoteError("run", f"is closed with {judged} slashes or findings open; what they decide is paid last")
    if step.pending:
        raise RemoteError("step", f"{entry.step} has {step.pending} leases or submissions open")
    vested_ms = compute_vested_ms(step)
    if context.at_ms < vested_ms:
        raise RemoteError("step", f"{entry.step} is paid in {vested_ms - context.at_ms} ms, when its pay has vested")
    owed = _find_unresolved(run, step)
    if owed is not None:
        raise RemoteError("step", f"{owed} is accepted without credit, or fraudulent without a slash")
    for (owner, node), amount_nano in compute_step_shares(state, name, step).items():
        state.funds.pay(name, owner, amount_nano)
        run.paid[owner] += amount_nano
        state.nodes[node].earned_nano += amount_nano
    run.debts -= compute_withheld(_count_upheld(run, step), run.debts)
    run.carried_units.clear()
    run.carried_upheld.clear()
    step.paid = True
    retire_steps(run)


def compute_vested_ms(step: StepState) -> int:
    """When the step may be paid: `vesting_ms` after its last submission was settled."""
    return step.settled_ms + step.terms.vesting_ms if step.settled_ms else 0


def compute_step_shares(state: LedgerState, name: RunId, step: StepState) -> Counter[StakeKey]:
    """Who gets how much if this step of the run is paid out now."""
    run = state.runs[name]
    stood = _count_upheld(run, step)
    return compute_shares(
        budget_nano=min(step.terms.step_budget_nano, state.funds.pools[name]),
        audit_share=step.terms.audit_share,
        units=step.units + run.carried_units,
        upheld=stood - compute_withheld(stood, run.debts),
    )


def _count_upheld(run: RunState, step: StepState) -> Counter[StakeKey]:
    """Verdicts that a payout of this step is about, before debts."""
    return step.upheld + run.carried_upheld


def _find_unresolved(run: RunState, step: StepState) -> Digest | None:
    """A settled submission that still has its credit or its slash to come."""
    run.submissions.unpack(step.submissions)
    for name in step.submissions:
        submission = run.submissions[name]
        if is_creditable(run, submission) or (submission.outcome is Outcome.FRAUDULENT and not submission.slashed):
            return name
    return None


def retire_steps(run: RunState) -> None:
    """Forget steps that are paid, too old to train on, and owe and are owed nothing. The log keeps them."""
    run.oldest = max(run.oldest, run.latest - run.terms.lag_max)
    for number in [number for number, step in run.steps.items() if step.paid and number < run.oldest]:
        step = run.steps[number]
        is_judged = not (run.slashes.keys() | run.findings).isdisjoint(step.submissions)
        if not is_judged and _find_unresolved(run, step) is None:
            for name in step.submissions:
                del run.submissions[name]
                run.dismissed.pop(name, None)
            del run.steps[number]


def return_pool(state: LedgerState, context: EntryContext, entry: PoolReturned) -> None:
    run, name = state.run(context), context.get_run_id()
    unpaid = [number for number, step in run.steps.items() if not step.paid]
    judged = len(run.slashes.keys() | run.findings)
    if run.status is not RunStatus.CLOSED or unpaid or judged:
        raise RemoteError("run", f"is {run.status}, {len(unpaid)} steps are unpaid, {judged} slashes or findings open")
    if not run.funded[context.author]:
        raise RemoteError("sender", f"{context.author} has nothing left in the pool")
    amount_nano = compute_refund_nano(state, name, context.author)
    if entry.amount_nano != amount_nano:
        raise RemoteError("amount_nano", f"is {entry.amount_nano}, the part of {context.author} is {amount_nano}")
    state.funds.pay(name, context.author, amount_nano)
    del run.funded[context.author]


def compute_refund_nano(state: LedgerState, name: RunId, account: NodeId) -> int:
    """A funder's part of what is left of the funding. Pay comes out of that first, and slashed stake is no funder's."""
    run = state.runs[name]
    refundable_nano = max(0, state.funds.pools[name] - run.forfeited_nano)
    return refundable_nano * run.funded[account] // run.funded.total()
