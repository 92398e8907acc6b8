"""Rules for entries about runs and work: terms, checkpoints, leases and submissions.

Each checks everything first, then changes the state. Who judges work is in audits.py, what it earns in rewards.py.
"""

from prime_protocol.constants import LEASE_MS_MAX, LINEAGE_PAUSE_MS, ROLLOUT_ROWS_MAX, ROUNDS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import (
    CheckpointPublished,
    LeaseEnded,
    LeaseGranted,
    NodeStatus,
    Outcome,
    Role,
    RunCreated,
    RunStatus,
    RunStatusSet,
    RunUpdated,
    StepMeasured,
    SubmissionsListed,
    Submitted,
)
from prime_protocol.ledger.rewards import retire_steps
from prime_protocol.ledger.run_record import NO_EVIDENCE
from prime_protocol.ledger.state import (
    CheckpointState,
    EntryContext,
    LeaseState,
    LedgerState,
    RunState,
    StepState,
    SubmissionState,
)
from prime_protocol.ledger.terms import RunTerms, TrainOn
from prime_protocol.ledger.versions.lineage import LISTED_LINEAGE, OpenLineage, extend_lineage, find_disorder
from prime_protocol.wire.ids import Digest, NodeId, Step
from prime_protocol.wire.typed_data import compute_receipt_id, verify_document


def create_run(state: LedgerState, context: EntryContext, entry: RunCreated) -> None:
    name = context.get_run_id()
    if name in state.runs:
        raise RemoteError("run", f"{name} exists already")
    _check_terms(state, entry.terms)
    state.runs[name] = RunState(entry.terms)
    _refresh_validators(state)


def update_run(state: LedgerState, context: EntryContext, entry: RunUpdated) -> None:
    run = state.run(context)
    if run.status is RunStatus.CLOSED:
        raise RemoteError("run", "is closed")
    _check_terms(state, entry.terms)
    before = run.terms.tolerance, run.terms.class_bounds
    if (entry.terms.tolerance, entry.terms.class_bounds) != before:
        _forget_evidence(run)
    run.terms = entry.terms
    _refresh_validators(state)


def _forget_evidence(run: RunState) -> None:
    """Evidence was weighed by the bounds before, so under new ones it says nothing."""
    for node, record in run.records.items():
        record.evidence, record.is_held = NO_EVIDENCE, False
        run.release_held(node)


def _check_terms(state: LedgerState, terms: RunTerms) -> None:
    """Stake asked back as soon as a lease is granted must still be there when its submission was judged."""
    if terms.compute_slots_readable() < 1:
        read_ms = terms.compute_read_ms(
            rows=terms.samples_per_slot, output_tokens=terms.samples_per_slot * terms.output_tokens_max
        )
        raise RemoteError("terms.verdict_ms", f"is {terms.verdict_ms}, one slot may take {read_ms} ms to read")
    # Reading takes at most as long again: see compute_slots_readable.
    judged_ms = LEASE_MS_MAX + ROUNDS_MAX * 2 * terms.verdict_ms + terms.judgement_ms
    if judged_ms > state.unbonding_ms:
        raise RemoteError("terms.verdict_ms", f"work is open for {judged_ms} ms, stake for {state.unbonding_ms} ms")
    # A finding may come until the pay has vested, and is judged for `judgement_ms` then.
    vested_ms = judged_ms + terms.vesting_ms + terms.judgement_ms
    if vested_ms > state.unbonding_ms:
        raise RemoteError(
            "terms.vesting_ms",
            f"work can be found fraudulent for {vested_ms} ms, stake is there {state.unbonding_ms} ms",
        )


def set_run_status(state: LedgerState, context: EntryContext, entry: RunStatusSet) -> None:
    run = state.run(context)
    if run.status is RunStatus.CLOSED:
        raise RemoteError("run", "is closed for good")
    run.status = entry.status


def publish_checkpoint(state: LedgerState, context: EntryContext, entry: CheckpointPublished) -> None:
    run = state.run(context)
    _check_trainer(run, context)
    if run.status is RunStatus.CLOSED:
        raise RemoteError("run", "is closed")
    if entry.step != run.latest + 1:
        raise RemoteError("step", f"is {entry.step}, the next is {run.latest + 1}")
    if len(set(entry.trained_on)) != len(entry.trained_on):
        raise RemoteError("trained_on", "names a submission twice")
    if context.rules >= LISTED_LINEAGE:
        _check_lineage(run.lineage or OpenLineage(0), entry)
    _mark_trained(run, "trained_on", entry.trained_on, entry.step)
    run.lineage = None
    run.checkpoints[entry.step] = CheckpointState(entry.root, entry.manifest, context.position())
    run.awaiting_beacon.append(entry.step)
    run.latest = entry.step
    retire_steps(run)


def list_submissions(state: LedgerState, context: EntryContext, entry: SubmissionsListed) -> None:
    """A part of a list that is longer than LINEAGE_MAX. Each name counts as trained on from here."""
    run = state.run(context)
    _check_trainer(run, context)
    if run.status is RunStatus.CLOSED:
        raise RemoteError("run", "is closed")
    if entry.step != run.latest + 1:
        raise RemoteError("step", f"is {entry.step}, the next is {run.latest + 1}")
    lineage = run.lineage or OpenLineage(0)
    if entry.first not in (0, len(lineage.submissions)):
        raise RemoteError("first", f"is {entry.first}, the next is {len(lineage.submissions)}")
    dropped = lineage.submissions if entry.first == 0 else []
    if dropped and context.at_ms < lineage.begun_ms + LINEAGE_PAUSE_MS:
        wait_ms = lineage.begun_ms + LINEAGE_PAUSE_MS - context.at_ms
        raise RemoteError("first", "is 0, but the list was begun lately", retry_after_ms=wait_ms)
    if entry.first == 0:
        lineage = OpenLineage(context.at_ms)
    _check_order("submissions", entry.submissions, lineage)
    _mark_trained(run, "submissions", entry.submissions, entry.step, free=frozenset(dropped))
    for name in set(dropped).difference(entry.submissions) & run.submissions.keys():
        run.submissions[name].trained_into = None
    lineage.submissions += entry.submissions
    lineage.frontier = extend_lineage(lineage.frontier, entry.submissions)
    run.lineage = lineage


def _check_order(field: str, names: tuple[Digest, ...], lineage: OpenLineage) -> None:
    place = find_disorder(names, lineage.submissions[-1] if lineage.submissions else None)
    if place is not None:
        raise RemoteError(f"{field}[{place}]", f"{names[place]} is not above the name before it")


def _check_lineage(lineage: OpenLineage, entry: CheckpointPublished) -> None:
    """The whole list: its order, its length and its root."""
    _check_order("trained_on", entry.trained_on, lineage)
    count = len(lineage.submissions) + len(entry.trained_on)
    if entry.trained_on_count != count:
        raise RemoteError("trained_on_count", f"is {entry.trained_on_count}, {count} submissions are listed")
    root = extend_lineage(lineage.frontier, entry.trained_on).root()
    if entry.trained_on_root != root:
        raise RemoteError("trained_on_root", f"is {entry.trained_on_root}, the listed submissions have {root}")


def _mark_trained(
    run: RunState, field: str, names: tuple[Digest, ...], step: Step, free: frozenset[Digest] = frozenset()
) -> None:
    """Check all, then mark them. `free`: of a list that is dropped with this entry."""
    for place, name in enumerate(names):
        _check_trainable(run, name, f"{field}[{place}]", step, is_free=name in free)
    for name in names:
        run.submissions[name].trained_into = step


def measure_step(state: LedgerState, context: EntryContext, entry: StepMeasured) -> None:
    """Also of a closed run: its last checkpoint may still be tried on held-out problems then."""
    run = state.run(context)
    _check_trainer(run, context)
    checkpoint = run.checkpoints.get(entry.step)
    if checkpoint is None or checkpoint.measured is not None:
        raise RemoteError("step", f"{entry.step} was not published, or its numbers stand in the log already")
    checkpoint.measured = context.position()


def _check_trainer(run: RunState, context: EntryContext) -> None:
    if context.author != run.terms.trainer:
        raise RemoteError("sender", f"is {context.author}, the run's trainer is {run.terms.trainer}")


def _check_trainable(run: RunState, name: Digest, field: str, step: Step, *, is_free: bool) -> None:
    submission = run.submissions.get(name)
    if submission is None or submission.outcome is not Outcome.ACCEPT:
        raise RemoteError(field, f"{name} was not accepted in this run")
    if run.terms.train_on is TrainOn.AUDITED and submission.judged is not Outcome.ACCEPT:
        raise RemoteError(field, f"{name} was not audited, and the terms allow training on audited submissions only")
    if submission.trained_into is not None and not is_free:
        raise RemoteError(field, f"{name} was trained on in step {submission.trained_into}")
    lag = step - 1 - submission.checkpoint_step
    if lag > run.terms.lag_max:
        raise RemoteError(field, f"{name} is {lag} steps old, the limit is {run.terms.lag_max}")


def grant_lease(state: LedgerState, context: EntryContext, entry: LeaseGranted) -> None:
    run = state.run(context)
    if run.status is not RunStatus.ACTIVE:
        raise RemoteError("run", f"is {run.status}")
    if entry.lease != run.lease_next:
        raise RemoteError("lease", f"is {entry.lease}, the next is {run.lease_next}")
    if not context.at_ms < entry.deadline_ms <= context.at_ms + LEASE_MS_MAX:
        lease_ms = entry.deadline_ms - context.at_ms
        raise RemoteError("deadline_ms", f"is {lease_ms} ms away, allowed is 1 to {LEASE_MS_MAX}")
    _check_worker(state, run, entry.node, context.at_ms)
    step = _check_slots(run, entry)
    owner = state.owners[entry.node]
    lease = LeaseState(
        node=owner if owner == entry.node else entry.node,  # one object where a node owns itself: many are kept
        owner=owner,
        step=entry.step,
        checkpoint_step=entry.checkpoint_step,
        first_slot=entry.first_slot,
        slots=entry.slots,
        granted_at_ms=context.at_ms,
        deadline_ms=entry.deadline_ms,
        speculative=entry.speculative,
    )
    run.leases[entry.lease] = lease
    run.lease_next += 1
    run.steps[entry.step] = step
    step.pending += 1
    if not entry.speculative:
        step.held.update(dict.fromkeys(lease.slot_range(), entry.lease))


def _check_worker(state: LedgerState, run: RunState, name: NodeId, at_ms: int) -> None:
    node = state.node(name)
    if Role.WORKER not in node.roles or node.status is not NodeStatus.ACTIVE:
        raise RemoteError("node", f"{name} is {node.status} with roles {', '.join(node.roles)}: not an active worker")
    if not state.is_delegated(name, at_ms):
        raise RemoteError("node", f"{name}: its owner's delegation has expired")
    version_min = state.get_version_min(run.terms, at_ms)
    if node.version < version_min:
        raise RemoteError("node", f"{name} speaks version {node.version}, the run needs {version_min}")
    if state.get_stake(name) < run.terms.stake_min_nano:
        raise RemoteError("node", f"{name} has {state.get_stake(name)} at stake, needed is {run.terms.stake_min_nano}")
    restake_nano = run.get_record(name).restake_nano
    if restake_nano:
        raise RemoteError("node", f"{name} was slashed in this run; its owner must stake {restake_nano} more first")


def _check_slots(run: RunState, entry: LeaseGranted) -> StepState:
    checkpoint = run.checkpoints.get(entry.step)
    if checkpoint is None or checkpoint.beacon is None:
        raise RemoteError("step", f"{entry.step} has no beacon yet")
    oldest = max(run.oldest, run.latest - run.terms.lag_max)
    if entry.step < oldest:
        raise RemoteError("step", f"is {entry.step}, the oldest still wanted is {oldest}")
    step = run.steps.get(entry.step, StepState(run.terms))
    if (
        entry.checkpoint_step not in run.checkpoints
        or not 0 <= entry.step - entry.checkpoint_step <= step.terms.lag_max
    ):
        allowed = f"{entry.step - step.terms.lag_max} to {entry.step}"
        raise RemoteError("checkpoint_step", f"is {entry.checkpoint_step}, allowed is a published one of {allowed}")
    if entry.first_slot + entry.slots > step.terms.slots_per_step:
        raise RemoteError("first_slot", f"the step has slots 0 to {step.terms.slots_per_step - 1}")
    if entry.slots * step.terms.samples_per_slot > ROLLOUT_ROWS_MAX:
        raise RemoteError("slots", f"{entry.slots} slots make more than the {ROLLOUT_ROWS_MAX} rows of a rollout file")
    if entry.slots > step.terms.compute_slots_readable():
        most = step.terms.compute_slots_readable()
        raise RemoteError("slots", f"is {entry.slots}, validators can read the files of {most} in time")
    if step.paid:
        raise RemoteError("step", f"{entry.step} was paid out")
    for slot in range(entry.first_slot, entry.first_slot + entry.slots):
        if slot in step.credited or (slot in step.held and not entry.speculative):
            raise RemoteError("first_slot", f"slot {slot} of step {entry.step} is taken")
    return step


def end_lease(state: LedgerState, context: EntryContext, entry: LeaseEnded) -> None:
    run = state.run(context)
    if entry.lease not in run.leases:
        raise RemoteError("lease", f"{entry.lease} is not open")
    lease = run.leases[entry.lease]
    is_over = context.author == state.coordinator and context.at_ms > lease.deadline_ms
    if not is_over and context.author != lease.node:
        raise RemoteError("sender", f"only {lease.node}, or after the deadline the coordinator, may end {entry.lease}")
    del run.leases[entry.lease]
    step = run.steps[lease.step]
    step.pending -= 1
    step.free(lease.slot_range(), entry.lease)


def submit(state: LedgerState, context: EntryContext, entry: Submitted) -> None:
    run, receipt = state.run(context), entry.receipt
    lease = run.leases.get(receipt.lease)
    if lease is None:
        raise RemoteError("receipt.lease", f"{receipt.lease} is not open")
    if not context.author == receipt.node == lease.node:
        raise RemoteError("receipt.node", f"is {receipt.node}, the lease is {lease.node}'s")
    if context.at_ms > lease.deadline_ms:
        raise RemoteError("receipt.lease", f"{receipt.lease} ended {context.at_ms - lease.deadline_ms} ms ago")
    if (receipt.network, receipt.run, receipt.step) != (context.network, context.run, lease.step):
        raise RemoteError("receipt.step", f"is {receipt.network}/{receipt.run}/{receipt.step}, not the lease's")
    if state.owners[lease.node] != lease.owner:
        raise RemoteError("receipt.node", f"{lease.node} has left {lease.owner}, on whose stake it was given the lease")
    terms = run.steps[lease.step].terms
    _check_tokens(terms, lease, entry)
    if receipt.checkpoint_root != run.checkpoints[lease.checkpoint_step].root:
        raise RemoteError("receipt.checkpoint_root", f"is not that of step {lease.checkpoint_step}, as the lease says")
    if not context.is_signature_checked:
        verify_document(receipt, entry.signature, signer=receipt.node, domain=state.domain)
    name = compute_receipt_id(receipt)
    del run.leases[receipt.lease]
    run.steps[lease.step].submissions.append(name)
    run.submissions[name] = SubmissionState(
        node=lease.node,
        owner=lease.owner,
        lease=receipt.lease,
        step=lease.step,
        checkpoint_step=lease.checkpoint_step,
        file_digest=receipt.file_digest,
        rollout_root=receipt.rollout_root,
        first_slot=lease.first_slot,
        slots_total=lease.slots,
        position=context.position(),
        leased_at_ms=lease.granted_at_ms,
        at_ms=context.at_ms,
        file_bytes=entry.file_bytes,
        output_tokens=entry.output_tokens,
        context_tokens=entry.context_tokens,
    )
    run.unsettled.add(name)
    run.await_head(name, context.index)


def _check_tokens(terms: RunTerms, lease: LeaseState, entry: Submitted) -> None:
    rollouts = lease.slots * terms.samples_per_slot
    tokens_max = rollouts * terms.output_tokens_max
    if not rollouts <= entry.output_tokens <= tokens_max:
        raise RemoteError("output_tokens", f"is {entry.output_tokens}, allowed is {rollouts} to {tokens_max}")
    context_max = entry.output_tokens * (terms.prompt_tokens_max + terms.output_tokens_max)
    if not entry.output_tokens <= entry.context_tokens <= context_max:
        raise RemoteError("context_tokens", f"is {entry.context_tokens}, allowed is at most {context_max}")


def _refresh_validators(state: LedgerState) -> None:
    for node in state.nodes:
        state.refresh_validator(node)
