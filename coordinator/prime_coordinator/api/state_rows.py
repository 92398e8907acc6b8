"""Rows from the coordinator's state: everything that is still open. Pure. log_rows.py has what only the log holds."""

from collections import Counter
from collections.abc import Iterator

from prime_coordinator.api import schemas
from prime_coordinator.api.log_rows import PROGRESS_BY_OUTCOME
from prime_coordinator.api.schemas import SlashProgress, SubmissionProgress
from prime_coordinator.core import Core
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.state import LedgerState, RunState, SubmissionState
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step

# --- The network ----------------------------------------------------------------------------------------------------


def status_row(core: Core, network: NetworkId, now_ms: int) -> schemas.StatusRow:
    state = core.state
    return schemas.StatusRow(
        network=network,
        coordinator=str(state.coordinator),
        log_key=state.log_key,
        ticker=state.ticker,
        now_ms=now_ms,
        entries=state.size,
        root=str(state.frontier.root()),
        head_size=core.head_size,
        newest_entry_ms=state.at_ms,
        nodes=_count_nodes(core),
        leases_open=sum(len(run.leases) for run in state.runs.values()),
        submissions=_count_submissions(state),
        slashes_open=sum(len(run.slashes) for run in state.runs.values()),
        value=schemas.ValueRow(
            deposited_nano=state.funds.deposited_nano,
            withdrawn_nano=state.funds.withdrawn_nano,
            burned_nano=state.funds.burned_nano,
            held_nano=state.funds.deposited_nano - state.funds.withdrawn_nano - state.funds.burned_nano,
        ),
        runs=tuple(run_row(state, name, run) for name, run in state.runs.items()),
    )


def _count_nodes(core: Core) -> schemas.NodeCounts:
    seen = {str(phase): count for phase, count in core.liveness.count().items()}
    registered = len(core.state.nodes)
    online, late = seen["online"], seen["late"]
    return schemas.NodeCounts(registered=registered, online=online, late=late, lost=registered - online - late)


def _count_submissions(state: LedgerState) -> schemas.SubmissionCounts:
    found = Counter(_progress(each) for run in state.runs.values() for each in run.submissions.values())
    return schemas.SubmissionCounts(**{str(progress): found[progress] for progress in SubmissionProgress})


# --- Runs -----------------------------------------------------------------------------------------------------------


def run_row(state: LedgerState, name: RunId, run: RunState) -> schemas.RunRow:
    step = run.steps.get(Step(run.latest))
    return schemas.RunRow(
        run=name,
        status=str(run.status),
        latest_step=run.latest,
        slots_done=len(step.credited) if step else 0,
        slots_held=len(step.held.keys() - step.credited) if step else 0,
        slots_per_step=step.terms.slots_per_step if step else run.terms.slots_per_step,
        leases_open=len(run.leases),
        submissions_open=sum(each.outcome is None for each in run.submissions.values()),
        slashes_open=len(run.slashes),
        validators=len(run.validators),
        pool_nano=state.funds.pools[name],
        model=run.terms.model,
        task_set=run.terms.task_set,
        trainer=str(run.terms.trainer),
    )


def run_detail(state: LedgerState, name: RunId, run: RunState) -> schemas.RunDetail:
    steps = [
        schemas.StepRow(
            step=number,
            slots=step.terms.slots_per_step,
            slots_held=len(step.held.keys() - step.credited),
            slots_done=len(step.credited),
            submissions=len(step.submissions),
            pending=step.pending,
            units=sum(step.units.values()),
            paid=step.paid,
        )
        for number, step in sorted(run.steps.items())
    ]
    return schemas.RunDetail(
        summary=run_row(state, name, run), terms=schemas.to_json_value(run.terms), steps=tuple(steps)
    )


def lease_rows(name: RunId, run: RunState) -> Iterator[schemas.LeaseRow]:
    for number, lease in run.leases.items():
        yield schemas.LeaseRow(
            run=name,
            lease=number,
            node=str(lease.node),
            owner=str(lease.owner),
            step=lease.step,
            first_slot=lease.first_slot,
            slots=lease.slots,
            granted_at_ms=lease.granted_at_ms,
            deadline_ms=lease.deadline_ms,
            speculative=lease.speculative,
        )


# --- Nodes ----------------------------------------------------------------------------------------------------------


def node_row(core: Core, name: NodeId) -> schemas.NodeRow:
    state, node = core.state, core.state.node(name)
    presence = core.liveness.get(name)
    return schemas.NodeRow(
        node=str(name),
        owner=str(state.owners[name]),
        status=str(node.status),
        phase=str(core.liveness.phase(name)),
        roles=tuple(map(str, node.roles)),
        activity=str(presence.activity) if presence else None,
        checkpoint_step=presence.checkpoint_step if presence else None,
        last_beat_ms=presence.beat_ms if presence else None,
        stake_nano=state.get_stake(name),
        streak=node.streak,
        accepted=node.settled[Outcome.ACCEPT],
        invalid=node.settled[Outcome.INVALID],
        fraudulent=node.settled[Outcome.FRAUDULENT],
        units=node.units,
        earned_nano=node.earned_nano,
        faults=node.faults,
    )


def node_detail(core: Core, name: NodeId, now_ms: int) -> schemas.NodeDetail:
    state, node = core.state, core.state.node(name)
    position = (state.owners[name], name)
    throughput = core.leases.throughput
    leases = [row for run_name, run in state.runs.items() for row in lease_rows(run_name, run) if row.node == str(name)]
    return schemas.NodeDetail(
        summary=node_row(core, name),
        reason=node.reason,
        version=node.version,
        hardware=node.hardware,
        addresses=node.addresses,
        delegated_until_ms=node.delegated_until_ms,
        owner_balance_nano=state.funds.balances[position[0]],
        unbonding_nano=sum(part.amount_nano for part in state.funds.unbonding.get(position, ())),
        tokens_per_s=round(throughput.get(name, 0), 3) if throughput.is_measured(name) else None,
        standings=tuple(_standing(core, name, run, now_ms) for run in state.runs),
        leases=tuple(leases),
        audits=tuple(str(task.submission) for task in core.audits.tasks(name)),
    )


def _standing(core: Core, name: NodeId, run: RunId, now_ms: int) -> schemas.EligibilityRow:
    rule = core.get_eligibility(name, run, now_ms)
    standing = str(rule.eligibility)
    return schemas.EligibilityRow(run=run, standing=standing, works=rule.is_eligible, way_out=rule.remedy)


# --- Submissions ----------------------------------------------------------------------------------------------------


def _progress(submission: SubmissionState) -> SubmissionProgress:
    if submission.outcome is not None:
        return PROGRESS_BY_OUTCOME[submission.outcome]
    return SubmissionProgress.AUDITING if submission.rounds else SubmissionProgress.WAITING


def submission_row(run: RunId, name: Digest, submission: SubmissionState, index: int) -> schemas.SubmissionRow:
    """`index` is the index of its entry in the log."""
    return schemas.SubmissionRow(
        index=index,
        at_ms=submission.at_ms,
        run=run,
        submission=str(name),
        step=submission.step,
        node=str(submission.node),
        owner=str(submission.owner),
        progress=_progress(submission),
        lease=submission.lease,
        first_slot=submission.slots.start,
        slots=len(submission.slots),
        output_tokens=submission.output_tokens,
        verdicts=sum(len(each.verdicts) for each in submission.rounds),
        validators=sum(len(each.validators) for each in submission.rounds),
        credited=submission.credited,
        trained_into=submission.trained_into,
    )


def submission_detail(name: RunId, run: RunState, digest: Digest, index: int) -> schemas.SubmissionDetail:
    submission = run.submission(digest)
    rounds = [
        schemas.RoundRow(
            drawn_at_ms=each.drawn_at_ms,
            seed=str(each.seed),
            validators=tuple(map(str, each.validators)),
            verdicts={str(node): str(outcome) for node, outcome in each.verdicts.items()},
        )
        for each in submission.rounds
    ]
    return schemas.SubmissionDetail(
        summary=submission_row(name, digest, submission, index),
        file_digest=str(submission.file_digest),
        checkpoint_step=submission.checkpoint_step,
        context_tokens=submission.context_tokens,
        rounds=tuple(rounds),
        evidence=tuple(map(str, submission.evidence)),
        refuted=tuple(map(str, sorted(submission.refuted))),
        slash=_slash_of(run, digest),
    )


def _slash_of(run: RunState, digest: Digest) -> SlashProgress | None:
    if digest in run.slashes:
        return SlashProgress.PROPOSED if run.slashes[digest].appealed_at_ms is None else SlashProgress.APPEALED
    submission = run.submissions[digest]
    if not submission.slashed:
        return None
    return SlashProgress.EXECUTED if submission.outcome is Outcome.FRAUDULENT else SlashProgress.OVERTURNED
