"""The leases a node holds, from the grant to the finished file. Pure.

It works on one at a time, fetches the next shortly before the first is done, gives back what it cannot finish in time,
and remembers what it has answered. Sending is for the outbox.

The audits a validator was drawn for, from the task to the signed verdict. Pure.

A verdict is given once: two that differ would be held against the validator. An audit that breaks is tried again while
there is time, and never turned into a verdict.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from prime_node.agent.events import Audit, AuditFinding, CancelGeneration, Effect, FinishedFile, Generate, LeaseAnswer
from prime_protocol.ledger.entries import (
    OUTCOME_NUMBER,
    Inspected,
    InspectedVerdict,
    LeaseEnded,
    LeaseGranted,
    Submitted,
    VerdictGiven,
)
from prime_protocol.wire.ids import Digest, NetworkId, RunId, Step
from prime_protocol.wire.messages import AuditTask, CheckpointRef
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import Domain, SubmissionReceipt, VerdictReceipt, compute_receipt_id, sign_document

PREFETCH_MS = 10_000
"""The next lease is fetched this long before the present one should be done: an answer is back by then."""

THROUGHPUT_DECAY = 0.5
"""Weight of what was known of the time per slot when another lease is done."""

SPEEDUP_MAX = 2
"""A lease whose rest would be late even at so many times the speed so far is given back. Completions differ in length,
so the speed so far is a poor guess."""

ANSWERS_KEEP_MS = 600_000
"""An answer is remembered this long after its lease's deadline. No reply that names the lease is on its way then."""


@dataclass(slots=True)
class HeldLease:
    """One lease in hand."""

    lease: LeaseGranted
    received_ms: int
    started_ms: int | None = None
    engine_started_ms: int | None = None
    """When the engine began with it: starting one, and loading weights, is not its pace."""


class LeaseAssignments:
    """A worker's leases, checkpoints and pace."""

    def __init__(self, key: WalletKey, network: NetworkId, run: RunId, domain: Domain) -> None:
        self._key = key
        self._network = network
        self._run = run
        self._domain = domain
        self.open: dict[int, HeldLease] = {}
        self.answers: dict[int, LeaseAnswer] = {}
        self.returned: set[int] = set()
        """Leases given back. A reply that is older than the log may still list them."""
        self.checkpoints: dict[Step, Digest] = {}
        """Checkpoints that can be generated with, and their roots."""
        self._beacons: dict[Step, Digest] = {}
        self.lag_max = 0
        self.tokens_per_s = 0
        """As measured with the last leases; 0 before the first."""
        self._slot_ms: float | None = None

    # --- What is known ----------------------------------------------------------------------------------------------

    def apply_weights(self, weights: CheckpointRef, lag_max: int) -> None:
        self.lag_max = lag_max
        if weights.beacon is not None:
            self._beacons[weights.step] = weights.beacon
        oldest = weights.step - lag_max - 1
        for table in (self._beacons, self.checkpoints):
            for step in [step for step in table if step < oldest]:
                del table[step]

    def has_beacon(self, step: Step) -> bool:
        return step in self._beacons

    @property
    def newest_checkpoint(self) -> int:
        """The newest checkpoint in hand; -1 for none."""
        return max(self.checkpoints, default=-1)

    @property
    def current(self) -> HeldLease | None:
        """What is being generated."""
        return next((each for each in self.open.values() if each.started_ms is not None), None)

    def next_room_ms(self, now_ms: int) -> int | None:
        """When there will be room for another lease; None where that is not known."""
        if not self.open:
            return now_ms
        current = self.current
        if len(self.open) > 1 or current is None or self._slot_ms is None:
            return None
        assert current.started_ms is not None
        return current.started_ms + int(current.lease.slots * self._slot_ms) - PREFETCH_MS

    def next_deadline_ms(self) -> int | None:
        """When a deadline passes, by the coordinator's clock."""
        return min((each.lease.deadline_ms + 1 for each in self.open.values()), default=None)

    # --- What happens -----------------------------------------------------------------------------------------------

    def accept(self, lease: LeaseGranted, now_ms: int) -> None:
        """Take a lease in hand, unless it was answered or given back before."""
        if lease.lease not in self.answers and lease.lease not in self.open and lease.lease not in self.returned:
            self.open[lease.lease] = HeldLease(lease, now_ms)

    def reconcile(self, leases: Iterable[LeaseGranted], asked_ms: int, now_ms: int) -> list[Effect]:
        """Follow the coordinator's list: take up what a crash made us forget, drop what it has ended."""
        listed = set()
        for lease in leases:
            listed.add(lease.lease)
            self.accept(lease, now_ms)
        self.returned &= listed | self.open.keys()
        # A lease that came after the question was asked may be missing in the answer.
        gone = [number for number, each in self.open.items() if number not in listed and each.received_ms < asked_ms]
        return [effect for number in gone for effect in self.drop(number)]

    def drop(self, number: int) -> list[Effect]:
        assignment = self.open.pop(number, None)
        return [CancelGeneration(number)] if assignment and assignment.started_ms is not None else []

    def advance(self, now_ms: int, server_ms: int) -> tuple[list[Effect], list[LeaseEnded]]:
        """Drop what is late and begin the next; also the leases that have to be given back."""
        late = [number for number, each in self.open.items() if server_ms > each.lease.deadline_ms]
        effects = [effect for number in late for effect in self.drop(number)]
        returned: list[LeaseEnded] = []
        while self.open and self.current is None:
            assignment = min(self.open.values(), key=lambda each: (each.lease.deadline_ms, each.lease.lease))
            lease = assignment.lease
            reason = self._find_obstacle(lease, server_ms)
            if reason:
                del self.open[lease.lease]
                returned.append(LeaseEnded(lease=lease.lease, reason=reason))
                self._lower_slot_estimate()
                continue
            step = self._checkpoint_for(lease.step)
            if step is None or lease.step not in self._beacons:
                break
            assignment.started_ms = now_ms
            effects.append(Generate(lease, step, self.checkpoints[step], self._beacons[lease.step]))
        return effects, returned

    def _find_obstacle(self, lease: LeaseGranted, server_ms: int) -> str:
        """Why the lease cannot be done any more, empty where it can."""
        if self._slot_ms is not None and server_ms + lease.slots * self._slot_ms > lease.deadline_ms:
            return "it would take longer than the deadline allows"
        if lease.step not in self._beacons and self._beacons and lease.step < max(self._beacons):
            return "its step had passed before this node heard of it"
        return ""

    def _checkpoint_for(self, step: Step) -> Step | None:
        fit = [held for held in self.checkpoints if step - self.lag_max <= held <= step]
        return max(fit, default=None)

    def would_miss_deadline(self, number: int, *, rows_done: int, rows: int, now_ms: int, server_ms: int) -> bool:
        """Whether a lease that is being generated cannot be done in time any more."""
        assignment = self.open.get(number)
        if assignment is None or assignment.started_ms is None:
            return False
        if assignment.engine_started_ms is None:
            assignment.engine_started_ms = now_ms
        if not rows_done:
            return False
        rest_ms = (rows - rows_done) * (now_ms - assignment.engine_started_ms) / rows_done
        return server_ms + rest_ms / SPEEDUP_MAX > assignment.lease.deadline_ms

    def finish(self, number: int, work: FinishedFile, now_ms: int, server_ms: int) -> Submitted | None:
        """The signed answer to a lease; None if it is late, or was dropped."""
        assignment = self.open.pop(number, None)
        if assignment is None or assignment.started_ms is None:
            return None
        lease = assignment.lease
        began_ms = assignment.engine_started_ms or assignment.started_ms
        self._update_throughput((now_ms - began_ms) / lease.slots, work.output_tokens / lease.slots)
        if server_ms > lease.deadline_ms:
            return None
        assert number not in self.answers
        receipt = SubmissionReceipt(
            network=self._network,
            run=self._run,
            step=lease.step,
            lease=number,
            node=self._key.node,
            checkpoint_root=work.checkpoint_root,
            file_digest=work.file_digest,
            rollout_root=work.rollout_root,
        )
        self._save_answer(LeaseAnswer(number, compute_receipt_id(receipt), lease.deadline_ms), server_ms)
        return Submitted(
            receipt=receipt,
            signature=sign_document(self._key, receipt, self._domain),
            file_bytes=work.file_bytes,
            output_tokens=work.output_tokens,
            context_tokens=work.context_tokens,
        )

    def has_submitted(self, submission: Digest) -> bool:
        """Whether this node stands by a submission."""
        return any(answer.submission == submission for answer in self.answers.values())

    def _update_throughput(self, slot_ms: float, slot_tokens: float) -> None:
        self._slot_ms = (
            slot_ms if self._slot_ms is None else THROUGHPUT_DECAY * self._slot_ms + (1 - THROUGHPUT_DECAY) * slot_ms
        )
        self.tokens_per_s = max(1, int(1000 * slot_tokens / max(1.0, self._slot_ms)))

    def _lower_slot_estimate(self) -> None:
        """After a lease that was given back unbegun. The first pace has the engine's start in it: who believed it for
        ever would give back every lease for ever."""
        if self._slot_ms is not None:
            self._slot_ms *= THROUGHPUT_DECAY

    def _save_answer(self, answer: LeaseAnswer, server_ms: int) -> None:
        forgotten = [n for n, old in self.answers.items() if old.deadline_ms + ANSWERS_KEEP_MS < server_ms]
        for number in forgotten:
            del self.answers[number]
        self.answers[answer.lease] = answer


AUDIT_RETRY_MS = 5_000
AUDIT_RETRY_MS_MAX = 120_000
"""Before an audit that broke is tried again, doubling: the engine, or the way to the file, may need a while."""

DONE_MAX = 1_024
"""Verdicts remembered. A reply that still lists one is at most minutes old, and nobody gives a thousand in that."""


class AuditAssignments:
    """A validator's tasks."""

    def __init__(self, key: WalletKey, network: NetworkId, run: RunId, domain: Domain, *, at_once: int) -> None:
        self._key = key
        self._network = network
        self._run = run
        self._domain = domain
        self._at_once = at_once
        self._waiting: dict[Digest, AuditTask] = {}
        self._running: dict[Digest, AuditTask] = {}
        self._done: dict[Digest, None] = {}
        self.verdicts_given = 0
        self.inspections_given = 0
        """Verdicts, and inspections, since this process began."""
        self._failed: dict[Digest, tuple[int, int]] = {}
        """How often an audit broke, and when to try again."""

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def list_open(self) -> list[AuditTask]:
        """Those in hand first."""
        return [*self._running.values(), *self._waiting.values()]

    def reconcile(self, tasks: Iterable[AuditTask]) -> None:
        """Follow the coordinator's list, which may be older than the last verdicts."""
        listed = {task.submission: task for task in tasks}
        busy = self._running.keys() | self._done.keys()
        self._waiting = {name: task for name, task in listed.items() if name not in busy}
        self._failed = {name: known for name, known in self._failed.items() if name in listed}

    def advance(self, server_ms: int) -> list[Effect]:
        """Begin what there is room for, the oldest first."""
        effects: list[Effect] = []
        for name, task in list(self._waiting.items()):
            if len(self._running) >= self._at_once:
                break
            if server_ms < self._failed.get(name, (0, 0))[1]:
                continue
            del self._waiting[name]
            if server_ms < task.deadline_ms:
                self._running[name] = task
                effects.append(Audit(task))
        return effects

    def finish(self, submission: Digest, finding: AuditFinding) -> tuple[VerdictGiven | Inspected, int] | None:
        """What to say and until when it counts; None for an audit nobody asked for."""
        task = self._running.pop(submission, None)
        if task is None:
            return None
        self.mark_done(submission)
        if task.readers:
            self.inspections_given += 1
            return self._make_inspection(task, finding), task.deadline_ms
        self.verdicts_given += 1
        return self._make_verdict(task, finding), task.deadline_ms

    def _make_inspection(self, task: AuditTask, finding: AuditFinding) -> Inspected:
        seen = [
            InspectedVerdict(reader=reader, read_proof=looks)
            for reader, looks in sorted(finding.read_proofs.items())
            if looks
        ]
        return Inspected(submission=task.submission, seen=tuple(seen))

    def _make_verdict(self, task: AuditTask, finding: AuditFinding) -> VerdictGiven:
        receipt = VerdictReceipt(
            network=self._network,
            run=self._run,
            submission=task.submission,
            validator=self._key.node,
            outcome=OUTCOME_NUMBER[finding.outcome],
            evidence=finding.evidence,
        )
        return VerdictGiven(
            receipt=receipt,
            signature=sign_document(self._key, receipt, self._domain),
            outcome=finding.outcome,
            reason=finding.reason,
            metrics=finding.metrics,
            read_proof=finding.read_proofs.get(self._key.node, b""),
        )

    def retry_later(self, submission: Digest, server_ms: int) -> None:
        """It is tried again while there is time: the coordinator lists it until then."""
        if self._running.pop(submission, None) is not None:
            times, _ = self._failed.get(submission, (0, 0))
            self._failed[submission] = times + 1, server_ms + min(AUDIT_RETRY_MS_MAX, AUDIT_RETRY_MS << min(times, 10))

    def mark_done(self, submission: Digest) -> None:
        """A verdict on this one was signed, now or before a restart."""
        self._done[submission] = None
        if len(self._done) > DONE_MAX:
            del self._done[next(iter(self._done))]
