"""What the coordinator has assigned to this node: a worker's leases and a validator's audits. Pure.

A worker holds several leases: rows of the next one enter the engine as rows of the last are finished, and each lease is
answered when its own rows are. It returns what it cannot finish in time, and never answers a lease twice. A validator
gives one verdict per submission, since two that differ would be held against it. An audit that fails on this machine is
retried while there is time, and never becomes a verdict. Sending is the outbox's.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from prime_node.agent.audit_schedule import AuditSchedule
from prime_node.agent.engine_room import EngineRoom
from prime_node.agent.events import (
    Audit,
    AuditFinding,
    CancelGeneration,
    Effect,
    FinishedFile,
    Generate,
    LeaseAnswer,
    PendingEntry,
    SavedState,
)
from prime_protocol.constants import LEASES_OPEN_MAX, REVEAL_MS
from prime_protocol.ledger.entries import (
    OUTCOME_NUMBER,
    Inspected,
    LeaseEnded,
    LeaseGranted,
    RulingGiven,
    Submitted,
    VerdictCommitted,
    VerdictGiven,
)
from prime_protocol.ledger.entry_values import InspectedVerdict
from prime_protocol.wire.codec import encode
from prime_protocol.wire.ids import Digest, NetworkId, RunId, Step, hash_bytes
from prime_protocol.wire.messages import AuditTask, CheckpointRef
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import Domain, VerdictReceipt, compute_receipt_id, sign_document

PREFETCH_MS = 10_000
"""An engine that does not say how many rows it holds gets the next lease this long before the last should be done."""

THROUGHPUT_HALF_LIFE_MS = 60_000
"""Least time of work after which a measurement counts half; twice the time of its lease, if that is more."""

DISBELIEF = 0.5
"""Factor of the expected time after a lease was returned for being too slow: the first measurement may have contained
the engine's start, and a node that never corrects it would return every lease."""

SPEEDUP_MAX = 2
"""A lease is returned if its rest would be late even at this many times the speed so far. Completions differ in length,
so the speed so far is a poor estimate."""

JUDGED_PARTS = 4
"""That speed says nothing before this part of the rows is done: rows wait for a place in the batch, and the first to
end are the shortest."""

ANSWERS_KEEP_MS = 600_000
"""How long an answer is kept after its lease's deadline. By then no reply in flight can name the lease."""


@dataclass(slots=True)
class HeldLease:
    """A lease that this node has not answered yet."""

    lease: LeaseGranted
    received_ms: int
    started_ms: int | None = None
    engine_started_ms: int | None = None
    """When the engine began to generate. Starting it and loading weights does not count towards throughput."""
    rows: int | None = None
    """None until the engine has begun."""
    rows_done: int = 0


class LeaseAssignments:
    """A worker's leases, checkpoints and measured throughput."""

    def __init__(self, key: WalletKey, network: NetworkId, run: RunId, domain: Domain) -> None:
        self._key = key
        self._network = network
        self._run = run
        self._domain = domain
        self.open: dict[int, HeldLease] = {}
        self.answers: dict[int, LeaseAnswer] = {}
        self.returned: set[int] = set()
        """Leases that were returned. A reply that is older than that may still list them."""
        self.checkpoints: dict[Step, Digest] = {}
        """Roots of the checkpoints on this disk."""
        self._beacons: dict[Step, Digest] = {}
        self.lag_max = 0
        self.room = EngineRoom()
        self._rows_per_slot = 0
        """0 before the engine has begun with a lease."""
        self._finished_ms = 0
        """When the last lease was done."""
        self._work_ms = self._work_slots = self._work_tokens = 0.0
        """Over the last leases, newer ones weigh more."""

    # --- State ------------------------------------------------------------------------------------------------------

    def apply_weights(self, weights: CheckpointRef, lag_max: int) -> None:
        self.lag_max = lag_max
        if weights.beacon is not None:
            self._beacons[weights.step] = weights.beacon
        oldest = weights.step - lag_max - 1
        for table in (self._beacons, self.checkpoints):
            for step in [step for step in table if step < oldest]:
                del table[step]

    def forget_steps(self) -> None:
        """The log may have lost the newest steps. It may give them other beacons and other checkpoints."""
        self._beacons.clear()
        self.checkpoints.clear()

    def has_beacon(self, step: Step) -> bool:
        return step in self._beacons

    @property
    def newest_checkpoint(self) -> int:
        """Step of the newest checkpoint on this disk; -1 for none."""
        return max(self.checkpoints, default=-1)

    @property
    def tokens_per_s(self) -> int:
        """Measured over the last leases; 0 before the first."""
        return max(1, int(1000 * self._work_tokens / max(1.0, self._work_ms))) if self._work_slots else 0

    @property
    def _slot_ms(self) -> float | None:
        """Time of the whole engine for a slot."""
        return self._work_ms / self._work_slots if self._work_slots else None

    def list_started(self) -> list[HeldLease]:
        """The leases that are being generated, the one that is due first before the others."""
        started = [each for each in self.open.values() if each.started_ms is not None]
        return sorted(started, key=lambda each: (each.lease.deadline_ms, each.lease.lease))

    def next_room_ms(self, now_ms: int) -> int | None:
        """When there will be room for another lease; None: not known."""
        if not self.open:
            return now_ms
        if len(self.open) >= LEASES_OPEN_MAX:
            return None
        if self.room.rows_at_once:
            unfinished = self._count_unfinished()
            return now_ms if unfinished is not None and self.room.has_room(unfinished) else None
        current = next(iter(self.list_started()), None)
        if len(self.open) > 1 or current is None or self._slot_ms is None:
            return None
        assert current.started_ms is not None
        began_ms = max(current.started_ms, self._finished_ms)
        return began_ms + int(current.lease.slots * self._slot_ms) - PREFETCH_MS

    def _count_unfinished(self) -> int | None:
        """Rows that the engine is to generate with the newest checkpoint of any lease; None: not known yet.

        Rows of an older checkpoint leave the engine before these enter it, so the two never share its memory."""
        newest = max(each.lease.checkpoint_step for each in self.open.values())
        held = [each for each in self.open.values() if each.lease.checkpoint_step == newest]
        if any(each.rows is None for each in held) and not self._rows_per_slot:
            return None
        return sum(
            self._rows_per_slot * each.lease.slots if each.rows is None else each.rows - each.rows_done for each in held
        )

    def next_deadline_ms(self) -> int | None:
        """When the next deadline passes, by the coordinator's clock."""
        return min((each.lease.deadline_ms + 1 for each in self.open.values()), default=None)

    # --- Changes ----------------------------------------------------------------------------------------------------

    def accept(self, lease: LeaseGranted, now_ms: int) -> None:
        """Takes a lease, unless it was answered or returned before."""
        if lease.lease not in self.answers and lease.lease not in self.open and lease.lease not in self.returned:
            self.open[lease.lease] = HeldLease(lease, now_ms)

    def reconcile(self, leases: Iterable[LeaseGranted], asked_ms: int, now_ms: int) -> list[Effect]:
        """Follows the coordinator's list: resumes leases that a crash lost, drops those that the coordinator ended."""
        listed = set()
        for lease in leases:
            listed.add(lease.lease)
            self.accept(lease, now_ms)
        self.returned &= listed | self.open.keys()
        # A lease that was granted after the heartbeat was sent may be missing in its reply.
        gone = [number for number, each in self.open.items() if number not in listed and each.received_ms < asked_ms]
        return [effect for number in gone for effect in self.drop(number)]

    def drop(self, number: int) -> list[Effect]:
        held = self.open.pop(number, None)
        return [CancelGeneration(number)] if held and held.started_ms is not None else []

    def advance(self, now_ms: int, server_ms: int) -> tuple[list[Effect], list[LeaseEnded]]:
        """Drops late leases and starts all that can be. The entries are of leases that this node returns."""
        late = [number for number, each in self.open.items() if server_ms > each.lease.deadline_ms]
        effects = [effect for number in late for effect in self.drop(number)]
        returned: list[LeaseEnded] = []
        waiting = [each for each in self.open.values() if each.started_ms is None]
        for held in sorted(waiting, key=lambda each: (each.lease.deadline_ms, each.lease.lease)):
            lease, step = held.lease, held.lease.checkpoint_step
            reason = self._find_obstacle(lease, server_ms)
            if reason:
                del self.open[lease.lease]
                returned.append(LeaseEnded(lease=lease.lease, reason=reason))
                self._work_ms *= DISBELIEF
            elif step in self.checkpoints and lease.step in self._beacons:
                held.started_ms = now_ms
                effects.append(Generate(lease, step, self.checkpoints[step], self._beacons[lease.step]))
        return effects, returned

    def _find_obstacle(self, lease: LeaseGranted, server_ms: int) -> str:
        """Why the lease cannot be finished; empty where it can."""
        if self._slot_ms is not None and server_ms + lease.slots * self._slot_ms > lease.deadline_ms:
            return "it would take longer than the deadline allows"
        if lease.step not in self._beacons and self._beacons and lease.step < max(self._beacons):
            return "its step had ended before this node knew its beacon"
        if lease.checkpoint_step not in self.checkpoints and lease.checkpoint_step < self.newest_checkpoint:
            return f"this node has loaded a newer checkpoint than {lease.checkpoint_step}"
        return ""

    def record_progress(self, number: int, *, rows_done: int, rows: int, now_ms: int) -> None:
        held = self.open.get(number)
        if held is None or held.started_ms is None:
            return
        if held.engine_started_ms is None:
            held.engine_started_ms = now_ms
        held.rows, held.rows_done = rows, rows_done
        self._rows_per_slot = max(1, rows // held.lease.slots)

    def would_miss_deadline(self, number: int, *, now_ms: int, server_ms: int) -> bool:
        """Whether the lease that is being generated cannot be finished in time."""
        held = self.open.get(number)
        if held is None or held.engine_started_ms is None or held.rows is None or not held.rows_done:
            return False
        if held.rows_done * JUDGED_PARTS < held.rows:
            return False
        rest_ms = (held.rows - held.rows_done) * (now_ms - held.engine_started_ms) / held.rows_done
        return server_ms + rest_ms / SPEEDUP_MAX > held.lease.deadline_ms

    def finish(self, number: int, file: FinishedFile, now_ms: int, server_ms: int) -> Submitted | None:
        """The signed answer to a lease; None: it is late, or was dropped."""
        held = self.open.pop(number, None)
        if held is None or held.started_ms is None:
            return None
        lease = held.lease
        self._record_throughput(held, file.output_tokens, now_ms)
        if server_ms > lease.deadline_ms:
            return None
        assert number not in self.answers
        receipt = file.make_receipt(self._network, self._run, lease)
        self._save_answer(LeaseAnswer(number, compute_receipt_id(receipt), lease.deadline_ms), server_ms)
        return Submitted(
            receipt=receipt,
            signature=sign_document(self._key, receipt, self._domain),
            file_bytes=file.file_bytes,
            output_tokens=file.output_tokens,
            context_tokens=file.context_tokens,
        )

    def has_submitted(self, submission: Digest) -> bool:
        """Whether this node made the submission."""
        return any(answer.submission == submission for answer in self.answers.values())

    def _record_throughput(self, held: HeldLease, tokens: int, now_ms: int) -> None:
        """Leases that are generated together share the time: it counts from the end of the last one."""
        assert held.started_ms is not None
        began_ms = held.started_ms if held.engine_started_ms is None else held.engine_started_ms
        took_ms = max(0, now_ms - max(began_ms, self._finished_ms))
        kept = 0.5 ** (took_ms / max(THROUGHPUT_HALF_LIFE_MS, 2 * (now_ms - began_ms)))
        self._finished_ms = now_ms
        self._work_ms = kept * self._work_ms + took_ms
        self._work_slots = kept * self._work_slots + held.lease.slots
        self._work_tokens = kept * self._work_tokens + tokens
        self.room.record_rows(tokens / (held.rows or held.lease.slots * max(1, self._rows_per_slot)))

    def _save_answer(self, answer: LeaseAnswer, server_ms: int) -> None:
        expired = [n for n, old in self.answers.items() if old.deadline_ms + ANSWERS_KEEP_MS < server_ms]
        for number in expired:
            del self.answers[number]
        self.answers[answer.lease] = answer


AUDIT_RETRY_MS = 5_000
AUDIT_RETRY_MS_MAX = 120_000
"""Wait before a failed audit is retried, doubling: the engine or the network may need a while to recover."""

DONE_MAX = 1_024
"""Finished audits that are remembered. A reply that still lists one is minutes old at most, and no validator finishes
a thousand in that time."""


AuditAnswer = type[VerdictGiven] | type[Inspected] | type[RulingGiven]
"""The entry that answers a task."""


def get_answer(task: AuditTask) -> AuditAnswer:
    if task.readers:
        return Inspected
    return RulingGiven if task.is_ruling else VerdictGiven


class AuditAssignments:
    """A validator's audits."""

    def __init__(
        self, key: WalletKey, network: NetworkId, run: RunId, domain: Domain, *, schedule: AuditSchedule
    ) -> None:
        self._key = key
        self._network = network
        self._run = run
        self._domain = domain
        self._schedule = schedule
        schedule.reset_run(run)
        self._waiting: dict[Digest, AuditTask] = {}
        self._running: dict[Digest, AuditTask] = {}
        self._done: dict[tuple[Digest, AuditAnswer], None] = {}
        """By what was asked: an inspector that has read a file again may later have to decide a finding about it."""
        self.committed: dict[Digest, PendingEntry] = {}
        """Verdicts that the log has the digest of, or will have: they are sent when the coordinator says so."""
        self.verdicts_given = 0
        self.inspections_given = 0
        self.rulings_given = 0
        """All since this process started."""
        self._failed: dict[Digest, tuple[int, int]] = {}
        """How often an audit failed, and when to retry it."""

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def list_open(self) -> list[AuditTask]:
        """The running ones first."""
        return [*self._running.values(), *self._waiting.values()]

    def restore(self, state: SavedState) -> None:
        """Continue after a restart: no verdict that was signed is made again."""
        for pending in (*state.pending, *state.committed):
            match pending.entry:
                case VerdictGiven(receipt=receipt):
                    self._mark_done(receipt.submission, VerdictGiven)
                case Inspected(submission=name) | RulingGiven(submission=name):
                    self._mark_done(name, type(pending.entry))
        for pending in state.committed:
            self.keep_committed(pending)

    def forget_done(self) -> None:
        """The log may have lost the verdicts: the coordinator asks for those again."""
        self._done.clear()
        self.committed.clear()

    def reconcile(self, tasks: Iterable[AuditTask]) -> None:
        """Follows the coordinator's list, which may be older than the last verdicts."""
        listed = {task.submission: task for task in tasks}
        self._waiting = {
            name: task for name, task in listed.items() if name not in self._running and self._is_new(task)
        }
        self._failed = {name: known for name, known in self._failed.items() if name in listed}

    def advance(self, server_ms: int, *, accepts_work: bool = True) -> list[Effect]:
        """Starts the audits that are next on the schedule, which has those of the node's other runs too."""
        self._waiting = {name: task for name, task in self._waiting.items() if server_ms < task.deadline_ms}
        ready = [task for name, task in self._waiting.items() if server_ms >= self._failed.get(name, (0, 0))[1]]
        started = self._schedule.take_next(self._run, ready if accepts_work else (), server_ms)
        for task in started:
            self._running[task.submission] = self._waiting.pop(task.submission)
        return [Audit(task) for task in started]

    def finish(self, submission: Digest, finding: AuditFinding, server_ms: int) -> PendingEntry | None:
        """The entry to send; None for an audit that is not running. A verdict that is committed first is kept here.

        The evidence goes with the commitment: it is large, and the time to give a committed verdict is short. Its
        digest, without which it cannot be fetched, is told with the verdict.
        """
        task = self._running.pop(submission, None)
        self._schedule.finish(self._run, submission, server_ms)
        if task is None:
            return None
        self._mark_done(submission, get_answer(task))
        if task.readers:
            self.inspections_given += 1
            return PendingEntry(self._make_inspection(task, finding), self._run, task.deadline_ms)
        if task.is_ruling:
            self.rulings_given += 1
            ruling = RulingGiven(
                submission=task.submission, outcome=finding.outcome, evidence=finding.evidence, reason=finding.reason
            )
            return PendingEntry(ruling, self._run, task.deadline_ms, finding.evidence if finding.has_bundle else None)
        verdict, file = self._make_verdict(task, finding), finding.evidence if finding.has_bundle else None
        if not task.commit:
            self.verdicts_given += 1
            return PendingEntry(verdict, self._run, task.deadline_ms, file)
        self.keep_committed(PendingEntry(verdict, self._run, task.deadline_ms + REVEAL_MS))
        commitment = VerdictCommitted(submission=submission, commitment=hash_bytes(encode(verdict)))
        return PendingEntry(commitment, self._run, task.deadline_ms, file)

    def take_revealed(self, names: Iterable[Digest]) -> list[PendingEntry]:
        """The committed verdicts on these submissions, to be sent now."""
        revealed = [self.committed.pop(name) for name in names if name in self.committed]
        self.verdicts_given += len(revealed)
        return revealed

    def keep_committed(self, pending: PendingEntry) -> None:
        """Keep a verdict until the coordinator says that it may be given."""
        self.committed[pending.entry.receipt.submission] = pending

    def drop_expired(self, server_ms: int) -> bool:
        """Forget committed verdicts whose round is over; whether there was any."""
        late = [name for name, pending in self.committed.items() if server_ms > pending.until_ms]
        for name in late:
            del self.committed[name]
        return bool(late)

    def _make_inspection(self, task: AuditTask, finding: AuditFinding) -> Inspected:
        seen = [
            InspectedVerdict(reader=reader, read_proof=read_proof)
            for reader, read_proof in sorted(finding.read_proofs.items())
            if read_proof
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
            blocks_read=finding.blocks_read,
            bets=finding.bets,
        )

    def retry_later(self, submission: Digest, server_ms: int) -> None:
        """The audit failed. The coordinator lists it until its deadline, so it comes back."""
        self._schedule.finish(self._run, submission, server_ms)
        if self._running.pop(submission, None) is not None:
            times, _ = self._failed.get(submission, (0, 0))
            self._failed[submission] = times + 1, server_ms + min(AUDIT_RETRY_MS_MAX, AUDIT_RETRY_MS << min(times, 10))

    def _is_new(self, task: AuditTask) -> bool:
        return (task.submission, get_answer(task)) not in self._done

    def _mark_done(self, submission: Digest, answer: AuditAnswer) -> None:
        """A verdict, an inspection or a ruling was signed, now or before a restart."""
        self._done[(submission, answer)] = None
        if len(self._done) > DONE_MAX:
            del self._done[next(iter(self._done))]
