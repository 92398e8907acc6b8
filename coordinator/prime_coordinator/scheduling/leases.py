"""Decides which node gets which slots, how many, and until when. Pure: the ledger holds the leases.

Everything kept here follows from the ledger: `LeaseScheduler` fills itself from a state. Whether a node may have work
at all is decided in eligibility.py.
"""

import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import partial

from prime_coordinator.constants import (
    FILE_BYTES_PER_TOKEN,
    GRACE_MS,
    LATENCY_MS_MAX,
    LEASES_UNSETTLED_MAX,
    LEASES_UNSETTLED_PROBATION_MAX,
    PROBATION_STEP_PARTS,
    RETRY_MS,
    RETRY_MS_MAX,
    ROUND_LATE_S,
    STRAGGLER_SHARE,
    THROUGHPUT_CLAIMED_MAX,
    UNSETTLED_STEPS_MAX,
)
from prime_coordinator.entry_writer import EntryWriter
from prime_coordinator.scheduling.capacity import FreeSlots, StepEstimate, Stragglers, Throughput
from prime_coordinator.scheduling.eligibility import Backoff
from prime_coordinator.scheduling.sizing import ActiveWorkers, RowCredits, WorkerLoad, limit_to_share
from prime_protocol.constants import (
    LEASES_OPEN_MAX,
    ROLLOUT_FILE_BYTES_MAX,
    ROLLOUT_ROWS_MAX,
)
from prime_protocol.ledger.entries import LeaseEnded, LeaseGranted, RunStatus
from prime_protocol.ledger.state import LeaseState, RunState, StepState, SubmissionState
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.wire.ids import NodeId, RunId, Slot, Step
from prime_protocol.wire.messages import LeaseReply, LeaseRequest

assert LEASES_UNSETTLED_MAX >= LEASES_OPEN_MAX


@dataclass(frozen=True, slots=True)
class LeasePlan:
    """What to grant to a node: how many slots of the latest step, and what it has to do already."""

    run: RunId
    step: Step
    checkpoint_step: Step
    node: NodeId
    slots: int
    load: WorkerLoad
    samples: int
    """Rows of a slot."""
    is_probe: bool


@dataclass(frozen=True, slots=True)
class OpenLease:
    """A lease without an answer, and when it was granted."""

    entry: LeaseGranted
    granted_ms: int


def refuse_lease(reason: str, retry_ms: int = RETRY_MS) -> LeaseReply:
    return LeaseReply(lease=None, retry_ms=retry_ms, reason=reason[:200])


class LeaseScheduler:
    """Answers lease requests, and ends leases that expired."""

    def __init__(self, entry_writer: EntryWriter, backoff: Backoff, now_ms: int) -> None:
        self._entry_writer = entry_writer
        self._backoff = backoff
        self._started_ms = now_ms
        self.throughput = Throughput()
        self._credits = RowCredits()
        self._active: defaultdict[RunId, ActiveWorkers] = defaultdict(ActiveWorkers)
        self._stragglers = Stragglers()
        self._estimates: dict[RunId, StepEstimate] = {}
        self._free: dict[tuple[RunId, Step], FreeSlots] = {}
        self._held: dict[NodeId, dict[tuple[RunId, int], OpenLease]] = {}
        self._deadlines: list[tuple[int, RunId, int]] = []
        self._unsettled: Counter[NodeId] = Counter()
        self._unsettled_slots: Counter[tuple[RunId, NodeId]] = Counter()
        for name, run in entry_writer.state.runs.items():
            self._recover(name, run)

    def _recover(self, name: RunId, run: RunState) -> None:
        for number, lease in run.leases.items():
            self._hold(name, to_lease_entry(number, lease), lease.granted_at_ms)
        for _, submission in run.list_recent():
            self._measure(run, submission)
        for each in run.unsettled:
            self._count_unsettled(name, run.submissions[each], 1)

    # --- Requests ---------------------------------------------------------------------------------------------------

    def request(self, name: RunId, node: NodeId, request: LeaseRequest, now_ms: int) -> LeaseReply:
        """A lease that fits the node, or why there is none and when to ask again. The node is eligible."""
        run = self._run(name)
        refusal = self._refusal(name, run, node, request, now_ms)
        if refusal is not None:
            return refusal
        plan = self._plan(name, run, node, request, now_ms)
        if plan.load.get_room() < 1:
            return refuse_lease(f"you have {plan.load.rows_open} rollouts in hand; submit some first")
        if plan.slots < 1:
            return refuse_lease("the result would come too late for this step")
        free = self._free_slots(name, plan.step)
        share, total = self._active[name].get_share(node), get_step_terms(run, plan.step).slots_per_step
        slot_ms = plan.samples * plan.load.row_ms
        span = free.take(limit_to_share(plan.slots, free=len(free), total=total, share=share, slot_ms=slot_ms))
        if span is not None:
            return self._grant(plan, span, False, now_ms)
        duplicate = self._take_straggler(plan, now_ms)
        if duplicate is not None:
            self._free_slots(name, plan.step).cover(duplicate)
            return self._grant(plan, duplicate, True, now_ms)
        due_ms = self._stragglers.next_ms(name, plan.step) or 0
        retry_ms = min(max(due_ms - now_ms, RETRY_MS), RETRY_MS_MAX)
        return refuse_lease(f"step {plan.step} is fully leased", retry_ms)

    def _refusal(
        self, name: RunId, run: RunState, node: NodeId, request: LeaseRequest, now_ms: int
    ) -> LeaseReply | None:
        if run.status is not RunStatus.ACTIVE:
            return refuse_lease(f"the run is {run.status}", RETRY_MS_MAX)
        checkpoint = run.checkpoints.get(Step(run.latest))
        if checkpoint is None:
            return refuse_lease("no step is open yet")
        if checkpoint.beacon is None:
            return refuse_lease(self._explain_missing_beacon(run.latest, now_ms))
        lag_max = min(run.terms.lag_max, get_step_terms(run, Step(run.latest)).lag_max)
        if request.checkpoint_step < run.latest - lag_max:
            return refuse_lease(f"checkpoint {request.checkpoint_step} is too old, load {run.latest}")
        held = self._held.get(node, {})
        if held and not self.throughput.is_measured(node):
            return refuse_lease("your first lease is a probe; submit it first")
        unsettled_max = LEASES_UNSETTLED_PROBATION_MAX if self._is_new(run, node) else LEASES_UNSETTLED_MAX
        if len(held) >= LEASES_OPEN_MAX:
            return refuse_lease(f"you have {LEASES_OPEN_MAX} leases in hand; submit one first")
        if len(held) + self._unsettled[node] >= unsettled_max:
            return refuse_lease(f"{unsettled_max} of your leases and submissions are not settled yet")
        open_slots = sum(each.entry.slots for (known, _), each in held.items() if known == name)
        if open_slots + self._unsettled_slots[name, node] >= UNSETTLED_STEPS_MAX * run.terms.slots_per_step:
            return refuse_lease(f"your leases and submissions of {UNSETTLED_STEPS_MAX} steps are not settled yet")
        return None

    def _explain_missing_beacon(self, step: int, now_ms: int) -> str:
        number = next(iter(self._entry_writer.state.pending_rounds), None)
        if number is None:
            return f"step {step} waits for a tree head"
        late_s = (now_ms - self._entry_writer.state.randomness.round_time_ms(number)) // 1000
        delay = f", which is {late_s} s late: its source does not answer" if late_s > ROUND_LATE_S else ""
        return f"step {step} waits for round {number} of the randomness chain{delay}"

    def _is_new(self, run: RunState, node: NodeId) -> bool:
        """Whether a node is on probation: too few accepted submissions in a row."""
        return run.get_record(node).streak < run.terms.audit_probation

    def _plan(self, name: RunId, run: RunState, node: NodeId, request: LeaseRequest, now_ms: int) -> LeasePlan:
        """A node without a measurement gets one slot: its first lease measures its throughput."""
        step, is_probe = Step(run.latest), not self.throughput.is_measured(node)
        terms = get_step_terms(run, step)
        load = self._get_load(name, run, node, request, now_ms)
        speed = 0.0 if is_probe else load.tokens_per_s
        if self._is_new(run, node):
            # What made it look fast may be junk that nobody has judged yet, and would make the shares of others small.
            speed = min(speed, THROUGHPUT_CLAIMED_MAX)
        self._active[name].record(node, speed, now_ms)
        parts = PROBATION_STEP_PARTS if self._is_new(run, node) else 1
        rows, samples = load.get_rows(), terms.samples_per_slot
        fitting = min(-(-rows // samples), compute_slots_max(terms), terms.slots_per_step // parts)
        slots = min(1, rows) if is_probe or rows < 1 else max(1, fitting)
        checkpoint_step = Step(min(request.checkpoint_step, step))
        return LeasePlan(name, step, checkpoint_step, node, slots, load, samples, is_probe)

    def _get_load(self, name: RunId, run: RunState, node: NodeId, request: LeaseRequest, now_ms: int) -> WorkerLoad:
        estimate, terms = self._get_estimate(name), get_step_terms(run, Step(run.latest))
        held = self._held.get(node, {})
        samples = terms.samples_per_slot
        return WorkerLoad(
            tokens_per_s=self.throughput.get(node, request.tokens_per_s),
            rows_claimed=request.rows_at_once,
            credit=self._credits.get(node, samples),
            slot_rows=samples,
            rows_open=samples * sum(each.entry.slots for each in held.values()),
            row_tokens=estimate.tokens_per_slot / samples,
            row_tokens_max=terms.output_tokens_max,
            left_ms=estimate.time_left_ms(run, request.checkpoint_step, now_ms),
        )

    def _take_straggler(self, plan: LeasePlan, now_ms: int) -> range | None:
        """The slots of the most overdue lease that this node would finish before the holder's deadline."""
        run, free = self._run(plan.run), self._free_slots(plan.run, plan.step)

        def is_open(number: int) -> bool:
            lease = run.leases.get(number)
            if lease is None or free.count(lease.first_slot) > 1:
                return False
            return run.steps[plan.step].credited.isdisjoint(lease.slot_range())

        def suits(number: int) -> bool:
            lease = run.leases[number]
            in_time = now_ms + plan.load.expect_mean_ms(plan.samples * lease.slots) < lease.deadline_ms
            return lease.node != plan.node and in_time and not (plan.is_probe and lease.slots > 1)

        found = self._stragglers.take(plan.run, plan.step, now_ms, is_open=is_open, suits=suits)
        return None if found is None else run.leases[found].slot_range()

    def _grant(self, plan: LeasePlan, span: range, is_duplicate: bool, now_ms: int) -> LeaseReply:
        number = self._run(plan.run).lease_next
        entry = LeaseGranted(
            lease=number,
            node=plan.node,
            step=plan.step,
            checkpoint_step=plan.checkpoint_step,
            first_slot=Slot(span.start),
            slots=len(span),
            deadline_ms=now_ms + plan.load.get_duration_ms(plan.samples * len(span)),
            speculative=is_duplicate,
        )
        self._entry_writer.append_own(entry, plan.run, now_ms)
        self._hold(plan.run, entry, now_ms)
        return LeaseReply(lease=entry, retry_ms=0, reason="")

    # --- Events -----------------------------------------------------------------------------------------------------

    def open_leases(self, run: RunId, node: NodeId) -> tuple[LeaseGranted, ...]:
        held = self._held.get(node)
        return tuple(each.entry for (name, _), each in held.items() if name == run) if held else ()

    def record_submission(self, name: RunId, submission: SubmissionState) -> None:
        self._measure(self._run(name), submission)
        self._release(submission.node, name, submission.lease)
        self._count_unsettled(name, submission, 1)
        # An estimate that is created later includes this submission, from the log.
        if name in self._estimates:
            self._estimates[name].record_submission(submission)
        self._backoff.record_good_file(submission.node)

    def record_settlement(self, name: RunId, submission: SubmissionState, now_ms: int) -> None:
        self._count_unsettled(name, submission, -1)
        self._uncover(name, submission.step, submission.slots, now_ms)

    def record_credit(self, name: RunId, submission: SubmissionState) -> None:
        """These slots are done, unless a finding about them is upheld."""
        free = self._free.get((name, submission.step))
        if free is not None:
            free.close(submission.slots)

    def record_upheld_finding(self, name: RunId, submission: SubmissionState) -> None:
        """The credit was taken back. Without new leases the step would lack these slots for good."""
        free = self._free.get((name, submission.step))
        if free is not None:
            free.reopen(submission.slots, partial(is_gone, self._run(name).steps[submission.step]))

    def record_end(self, name: RunId, number: int, lease: LeaseState, now_ms: int) -> None:
        self._release(lease.node, name, number)
        self._uncover(name, lease.step, lease.slot_range(), now_ms)

    def record_checkpoint(self, name: RunId, now_ms: int) -> None:
        step = Step(self._run(name).latest)
        if name in self._estimates:
            self._estimates[name].record_checkpoint(now_ms)
        self._free = {key: free for key, free in self._free.items() if key[0] != name or key[1] == step}
        self._stragglers.keep(name, step)

    def mark_leases_suspect(self, node: NodeId) -> None:
        """Let other nodes duplicate this node's leases at once: nothing is to be expected of it."""
        for (name, number), each in self._held.get(node, {}).items():
            if not each.entry.speculative:
                self._stragglers.add(name, each.entry.step, number, 0)

    def tick(self, now_ms: int) -> None:
        """End expired leases."""
        while self._deadlines and self._deadlines[0][0] < now_ms:
            _, name, number = heapq.heappop(self._deadlines)
            lease = self._run(name).leases.get(number)
            if lease is None:
                continue
            self._entry_writer.append_own(LeaseEnded(lease=number, reason="the deadline passed"), name, now_ms)
            self.record_end(name, number, lease, now_ms)
            if now_ms >= self._started_ms + GRACE_MS:
                self.throughput.record_loss(lease.node)
                self._credits.record_loss(lease.node)
                self._backoff.record_lost_lease(lease.node, now_ms)

    # --- Small parts ------------------------------------------------------------------------------------------------

    def _run(self, name: RunId) -> RunState:
        return self._entry_writer.state.runs[name]

    def _hold(self, name: RunId, entry: LeaseGranted, granted_ms: int) -> None:
        self._held.setdefault(entry.node, {})[(name, entry.lease)] = OpenLease(entry, granted_ms)
        heapq.heappush(self._deadlines, (entry.deadline_ms, name, entry.lease))
        if not entry.speculative:
            suspect_ms = granted_ms + min(LATENCY_MS_MAX, int(STRAGGLER_SHARE * (entry.deadline_ms - granted_ms)))
            self._stragglers.add(name, entry.step, entry.lease, suspect_ms)

    def _release(self, node: NodeId, name: RunId, number: int) -> None:
        self._backoff.forget_lease(name, number)
        held = self._held[node]
        del held[(name, number)]
        if not held:
            del self._held[node]

    def _count_unsettled(self, name: RunId, submission: SubmissionState, change: int) -> None:
        node, counts = submission.node, self._unsettled
        counts[node] += change
        self._unsettled_slots[name, node] += change * submission.slots_total
        if not counts[node]:
            del counts[node]
        if not self._unsettled_slots[name, node]:
            del self._unsettled_slots[name, node]

    def _measure(self, run: RunState, submission: SubmissionState) -> None:
        node = submission.node
        self.throughput.record(
            node,
            tokens=submission.output_tokens,
            leased_ms=submission.leased_at_ms,
            now_ms=submission.at_ms,
            oldest_ms=min((each.granted_ms for each in self._held.get(node, {}).values()), default=None),
        )
        samples = get_step_terms(run, submission.step).samples_per_slot
        self._credits.record_submission(node, samples * submission.slots_total)

    def _get_estimate(self, name: RunId) -> StepEstimate:
        if name not in self._estimates:
            self._estimates[name] = StepEstimate.recover(self._run(name))
        return self._estimates[name]

    def _free_slots(self, name: RunId, step: Step) -> FreeSlots:
        key, run = (name, step), self._run(name)
        if key not in self._free:
            known = run.steps.get(step)
            covered = [lease.slot_range() for lease in run.leases.values() if lease.step == step]
            if known is not None:
                unsettled = (run.submissions[each] for each in known.submissions if each in run.unsettled)
                covered += [answer.slots for answer in unsettled]
            gone = known.held.keys() | known.credited if known else set()
            self._free[key] = FreeSlots(get_step_terms(run, step).slots_per_step, covered, gone)
        return self._free[key]

    def _uncover(self, name: RunId, step: Step, slots: range, now_ms: int) -> None:
        """One holder of these slots less. If a slow lease is left alone with them, it may be duplicated again."""
        free = self._free.get((name, step))
        if free is None:
            return
        known = self._run(name).steps[step]
        free.uncover(slots, partial(is_gone, known))
        if free.count(slots.start):
            self._stragglers.add(name, step, known.held.get(slots.start, -1), now_ms)


def is_gone(step: StepState, slot: int) -> bool:
    """Whether a slot needs no other lease: it is credited, or held by a lease or by accepted work."""
    return slot in step.held or slot in step.credited


def to_lease_entry(number: int, lease: LeaseState) -> LeaseGranted:
    """The entry that granted a lease."""
    return LeaseGranted(
        lease=number,
        node=lease.node,
        step=lease.step,
        checkpoint_step=lease.checkpoint_step,
        first_slot=lease.first_slot,
        slots=lease.slots,
        deadline_ms=lease.deadline_ms,
        speculative=lease.speculative,
    )


def get_step_terms(run: RunState, step: Step) -> RunTerms:
    """A step keeps the terms of its first lease."""
    return run.steps[step].terms if step in run.steps else run.terms


def compute_slots_max(terms: RunTerms) -> int:
    """Most slots of one lease, even if every completion has the longest length: its file must pass intake, and
    validators must be able to read it in time."""
    slot_bytes = FILE_BYTES_PER_TOKEN * terms.samples_per_slot * terms.row_tokens_max
    return min(
        terms.compute_slots_readable(), ROLLOUT_ROWS_MAX // terms.samples_per_slot, ROLLOUT_FILE_BYTES_MAX // slot_bytes
    )
