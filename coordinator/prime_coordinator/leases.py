"""Who gets which slots, how many, and until when. Pure: the ledger keeps the leases, this decides about new ones.

Everything remembered here follows from the ledger and can be lost: `LeaseDesk` fills itself from a state.
"""

import heapq
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from prime_coordinator.constants import (
    LEASES_UNSETTLED_MAX,
    RETRY_MS,
    STRAGGLER_SHARE,
    TOKENS_PER_SLOT_FIRST,
    TOKENS_PER_SLOT_KEEP,
)
from prime_coordinator.scribe import Scribe
from prime_coordinator.slots import FreeSlots
from prime_coordinator.speeds import Speeds
from prime_protocol.constants import (
    LEASE_MS_MAX,
    LEASE_SLACK,
    LEASE_SLOTS_MAX,
    LEASE_TARGET_MS,
    LEASES_OPEN_MAX,
    ROLLOUT_ROWS_MAX,
)
from prime_protocol.entries import LeaseEnded, LeaseGranted, RunStatus
from prime_protocol.errors import RemoteError
from prime_protocol.ids import NodeId, RunId, Slot, Step
from prime_protocol.messages import LeaseReply, LeaseRequest
from prime_protocol.state import RunState, SubmissionState

assert LEASES_UNSETTLED_MAX <= LEASES_OPEN_MAX


@dataclass(slots=True)
class Pace:
    """How a run goes: tokens a slot takes, and milliseconds a step takes."""

    tokens_per_slot: float
    published_ms: int = 0
    step_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """An open lease and when it was granted."""

    entry: LeaseGranted
    granted_ms: int


class LeaseDesk:
    """Answers requests for work, and ends leases that ran out."""

    def __init__(self, scribe: Scribe, now_ms: int) -> None:
        self._scribe = scribe
        self.speeds = Speeds()
        self._pace: dict[RunId, Pace] = {}
        self._free: dict[tuple[RunId, Step], FreeSlots] = {}
        self._held: dict[NodeId, dict[tuple[RunId, int], Held]] = defaultdict(dict)
        self._deadlines: list[tuple[int, RunId, int]] = []
        self._unjudged: defaultdict[NodeId, int] = defaultdict(int)
        self._twinned: set[tuple[RunId, int]] = set()
        for name, run in scribe.state.runs.items():
            self._recover(name, run, now_ms)

    def _recover(self, name: RunId, run: RunState, now_ms: int) -> None:
        for number, lease in run.leases.items():
            entry = LeaseGranted(
                lease=number,
                node=lease.node,
                step=lease.step,
                first_slot=lease.first_slot,
                slots=lease.slots,
                deadline_ms=lease.deadline_ms,
                speculative=False,
            )
            self._hold(name, entry, now_ms)
        for submission in run.submissions.values():
            self._unjudged[submission.node] += submission.outcome is None

    # --- Asking -----------------------------------------------------------------------------------------------------

    def request(self, name: RunId, node: NodeId, request: LeaseRequest, now_ms: int) -> LeaseReply:
        """A lease that fits the node, or why there is none and when to ask again."""
        run = self._scribe.state.runs[name]
        wanted = Step(run.latest)
        reason = self._refusal(name, run, node, request)
        if reason:
            return LeaseReply(lease=None, retry_ms=RETRY_MS, reason=reason)
        speed = self.speeds.get(node, request.tokens_per_s)
        tokens_per_slot = self._pace_of(name, run).tokens_per_slot
        slots = self._size(run, node, speed, tokens_per_slot)
        expected_ms = int(1000 * slots * tokens_per_slot / speed)
        if self._comes_too_late(name, run, now_ms + expected_ms):
            return LeaseReply(lease=None, retry_ms=RETRY_MS, reason="the result would come too late for this step")
        deadline_ms = now_ms + min(LEASE_MS_MAX, max(LEASE_SLACK * expected_ms, LEASE_TARGET_MS))
        return self._grant(name, run, wanted, node, slots, deadline_ms, now_ms)

    def _refusal(self, name: RunId, run: RunState, node: NodeId, request: LeaseRequest) -> str:
        if run.status is not RunStatus.ACTIVE:
            return f"the run is {run.status}"
        checkpoint = run.checkpoints.get(Step(run.latest))
        if checkpoint is None or checkpoint.beacon is None:
            return "no step is open yet"
        if request.checkpoint_step < run.latest - run.terms.lag_max:
            return f"checkpoint {request.checkpoint_step} is too old, load {run.latest}"
        if len(self._held[node]) + self._unjudged[node] >= LEASES_UNSETTLED_MAX:
            return f"{LEASES_UNSETTLED_MAX} of your leases and submissions are not settled yet"
        return ""

    def _size(self, run: RunState, node: NodeId, speed: float, tokens_per_slot: float) -> int:
        """One slot to a node that was never measured: its first lease is the probe of what it can do."""
        if not self.speeds.is_measured(node):
            return 1
        fitting = int(speed * LEASE_TARGET_MS / 1000 / tokens_per_slot)
        return max(1, min(fitting, LEASE_SLOTS_MAX, ROLLOUT_ROWS_MAX // run.terms.samples_per_slot))

    def _comes_too_late(self, name: RunId, run: RunState, done_ms: int) -> bool:
        """Whether the trainer will, at its present pace, be past this step's lag by then."""
        pace = self._pace_of(name, run)
        if pace.step_ms is None:
            return False
        return done_ms > pace.published_ms + (run.terms.lag_max + 1) * pace.step_ms

    def _grant(
        self, name: RunId, run: RunState, step: Step, node: NodeId, slots: int, deadline_ms: int, now_ms: int
    ) -> LeaseReply:
        free = self._free_slots(name, run, step)
        taken = free.take(slots)
        twin = None if taken else self._straggler(name, step, node, now_ms)
        if taken is None and twin is None:
            return LeaseReply(lease=None, retry_ms=RETRY_MS, reason=f"step {step} is fully leased")
        place = taken or range(twin.entry.first_slot, twin.entry.first_slot + min(slots, twin.entry.slots))  # type: ignore[union-attr]
        entry = LeaseGranted(
            lease=run.lease_next,
            node=node,
            step=step,
            first_slot=Slot(place.start),
            slots=len(place),
            deadline_ms=deadline_ms,
            speculative=twin is not None,
        )
        try:
            self._scribe.write(entry, name, now_ms)
        except RemoteError as error:
            if taken:
                free.give_back(taken)
            return LeaseReply(lease=None, retry_ms=RETRY_MS, reason=error.problem[:200])
        if twin:
            self._twinned.add((name, twin.entry.lease))
        self._hold(name, entry, now_ms)
        return LeaseReply(lease=entry, retry_ms=0, reason="")

    def _straggler(self, name: RunId, step: Step, node: NodeId, now_ms: int) -> Held | None:
        """The open lease of this step that has used most of its time, if one has used enough and has no twin."""
        best, best_share = None, STRAGGLER_SHARE
        for number, lease in self._scribe.state.runs[name].leases.items():
            held = self._held[lease.node].get((name, number))
            if held is None or lease.step != step or lease.node == node or held.entry.speculative:
                continue
            share = (now_ms - held.granted_ms) / max(1, lease.deadline_ms - held.granted_ms)
            if share >= best_share and (name, number) not in self._twinned:
                best, best_share = held, share
        return best

    # --- What happened ----------------------------------------------------------------------------------------------

    def open_leases(self, node: NodeId) -> tuple[LeaseGranted, ...]:
        return tuple(held.entry for held in self._held.get(node, {}).values())

    def submitted(self, name: RunId, submission: SubmissionState, now_ms: int) -> None:
        held = self._release(submission.node, name, submission.lease)
        self._unjudged[submission.node] += 1
        if held:
            self.speeds.record(submission.node, tokens=submission.output_tokens, duration_ms=now_ms - held.granted_ms)
        pace = self._pace_of(name, self._scribe.state.runs[name])
        seen = submission.output_tokens / len(submission.slots)
        pace.tokens_per_slot = TOKENS_PER_SLOT_KEEP * pace.tokens_per_slot + (1 - TOKENS_PER_SLOT_KEEP) * seen

    def settled(self, name: RunId, submission: SubmissionState) -> None:
        self._unjudged[submission.node] -= 1
        self._free_again(name, submission.step, submission.slots)

    def ended(self, name: RunId, number: int, node: NodeId) -> None:
        held = self._release(node, name, number)
        if held:
            slots = range(held.entry.first_slot, held.entry.first_slot + held.entry.slots)
            self._free_again(name, held.entry.step, slots)

    def published(self, name: RunId, now_ms: int) -> None:
        run = self._scribe.state.runs[name]
        pace = self._pace_of(name, run)
        if pace.published_ms:
            took_ms = now_ms - pace.published_ms
            pace.step_ms = took_ms if pace.step_ms is None else (pace.step_ms + took_ms) / 2
        pace.published_ms = now_ms
        self._free = {key: free for key, free in self._free.items() if key[0] != name or key[1] == run.latest}

    def tick(self, now_ms: int) -> None:
        """End the leases that ran out."""
        while self._deadlines and self._deadlines[0][0] < now_ms:
            _, name, number = heapq.heappop(self._deadlines)
            lease = self._scribe.state.runs[name].leases.get(number)
            if lease is None:
                continue
            self._scribe.write(LeaseEnded(lease=number, reason="the deadline passed"), name, now_ms)
            self.speeds.record_loss(lease.node)
            self.ended(name, number, lease.node)

    # --- Small parts ------------------------------------------------------------------------------------------------

    def _hold(self, name: RunId, entry: LeaseGranted, now_ms: int) -> None:
        self._held[entry.node][(name, entry.lease)] = Held(entry, now_ms)
        heapq.heappush(self._deadlines, (entry.deadline_ms, name, entry.lease))

    def _release(self, node: NodeId, name: RunId, number: int) -> Held | None:
        self._twinned.discard((name, number))
        return self._held[node].pop((name, number), None)

    def _pace_of(self, name: RunId, run: RunState) -> Pace:
        if name not in self._pace:
            terms = run.terms
            self._pace[name] = Pace(max(1.0, TOKENS_PER_SLOT_FIRST * terms.output_tokens_max * terms.samples_per_slot))
        return self._pace[name]

    def _free_slots(self, name: RunId, run: RunState, step: Step) -> FreeSlots:
        key = (name, step)
        if key not in self._free:
            known = run.steps.get(step)
            taken = known.held.keys() | known.credited if known else set()
            total = (known.terms if known else run.terms).slots_per_step
            self._free[key] = FreeSlots(total, set(taken))
        return self._free[key]

    def _free_again(self, name: RunId, step: Step, slots: range) -> None:
        """Of these slots, give back those that nobody holds or was credited for."""
        free, known = self._free.get((name, step)), self._scribe.state.runs[name].steps.get(step)
        if free is None or known is None:
            return
        loose = [slot for slot in slots if slot not in known.held and slot not in known.credited]
        cuts = [0, *(place + 1 for place, (a, b) in enumerate(pairwise(loose)) if b != a + 1), len(loose)]
        for start, stop in pairwise(cuts):
            if start < stop:
                free.give_back(range(loose[start], loose[stop - 1] + 1))
