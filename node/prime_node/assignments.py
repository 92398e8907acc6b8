"""The leases a node holds, from the grant to the finished file. Pure.

It works on one at a time, fetches the next shortly before the first is done, gives back what it cannot finish in time,
and remembers what it has answered. Sending is for the outbox.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from prime_node.events import Abandon, Answer, Effect, Generate, Work
from prime_protocol.entries import LeaseEnded, LeaseGranted, Submitted
from prime_protocol.ids import Digest, NetworkId, RunId, Step
from prime_protocol.messages import Weights
from prime_protocol.receipts import SubmissionReceipt, receipt_id
from prime_protocol.signing import WalletKey
from prime_protocol.typed_data import Domain, sign_document

AHEAD_MS = 10_000
"""The next lease is fetched this long before the present one should be done: an answer is back by then."""

PACE_KEEP = 0.5
"""Weight of what was known of the time per slot when another lease is done."""

HOPELESS = 2
"""A lease whose rest would be late even at so many times the speed so far is given back. Completions differ in length,
so the speed so far is a poor guess."""

ANSWERS_KEEP_MS = 600_000
"""An answer is remembered this long after its lease's deadline. No reply that names the lease is on its way then."""


@dataclass(slots=True)
class Assignment:
    """One lease in hand."""

    lease: LeaseGranted
    heard_ms: int
    started_ms: int | None = None
    began_ms: int | None = None
    """When the engine began with it: starting one, and loading weights, is not its pace."""


class Assignments:
    """A worker's leases, checkpoints and pace."""

    def __init__(self, key: WalletKey, network: NetworkId, run: RunId, domain: Domain) -> None:
        self._key = key
        self._network = network
        self._run = run
        self._domain = domain
        self.open: dict[int, Assignment] = {}
        self.answers: dict[int, Answer] = {}
        self.returned: set[int] = set()
        """Leases given back. A reply that is older than the log may still list them."""
        self.held: dict[Step, Digest] = {}
        """Checkpoints that can be generated with, and their roots."""
        self._beacons: dict[Step, Digest] = {}
        self.lag_max = 0
        self.tokens_per_s = 0
        """As measured with the last leases; 0 before the first."""
        self._slot_ms: float | None = None

    # --- What is known ----------------------------------------------------------------------------------------------

    def learn(self, weights: Weights, lag_max: int) -> None:
        self.lag_max = lag_max
        if weights.beacon is not None:
            self._beacons[weights.step] = weights.beacon
        oldest = weights.step - lag_max - 1
        for table in (self._beacons, self.held):
            for step in [step for step in table if step < oldest]:
                del table[step]

    def knows(self, step: Step) -> bool:
        return step in self._beacons

    @property
    def newest(self) -> int:
        """The newest checkpoint in hand; -1 for none."""
        return max(self.held, default=-1)

    @property
    def current(self) -> Assignment | None:
        """What is being generated."""
        return next((each for each in self.open.values() if each.started_ms is not None), None)

    def room_ms(self, now_ms: int) -> int | None:
        """When there will be room for another lease; None where that is not known."""
        if not self.open:
            return now_ms
        current = self.current
        if len(self.open) > 1 or current is None or self._slot_ms is None:
            return None
        assert current.started_ms is not None
        return current.started_ms + int(current.lease.slots * self._slot_ms) - AHEAD_MS

    def wake_ms(self) -> int | None:
        """When a deadline passes, by the coordinator's clock."""
        return min((each.lease.deadline_ms + 1 for each in self.open.values()), default=None)

    # --- What happens -----------------------------------------------------------------------------------------------

    def accept(self, lease: LeaseGranted, now_ms: int) -> None:
        """Take a lease in hand, unless it was answered or given back before."""
        if lease.lease not in self.answers and lease.lease not in self.open and lease.lease not in self.returned:
            self.open[lease.lease] = Assignment(lease, now_ms)

    def reconcile(self, leases: Iterable[LeaseGranted], asked_ms: int, now_ms: int) -> list[Effect]:
        """Follow the coordinator's list: take up what a crash made us forget, drop what it has ended."""
        listed = set()
        for lease in leases:
            listed.add(lease.lease)
            self.accept(lease, now_ms)
        self.returned &= listed | self.open.keys()
        # A lease that came after the question was asked may be missing in the answer.
        gone = [number for number, each in self.open.items() if number not in listed and each.heard_ms < asked_ms]
        return [effect for number in gone for effect in self.drop(number)]

    def drop(self, number: int) -> list[Effect]:
        assignment = self.open.pop(number, None)
        return [Abandon(number)] if assignment and assignment.started_ms is not None else []

    def advance(self, now_ms: int, server_ms: int) -> tuple[list[Effect], list[LeaseEnded]]:
        """Drop what is late and begin the next; also the leases that have to be given back."""
        late = [number for number, each in self.open.items() if server_ms > each.lease.deadline_ms]
        effects = [effect for number in late for effect in self.drop(number)]
        returned: list[LeaseEnded] = []
        while self.open and self.current is None:
            assignment = min(self.open.values(), key=lambda each: (each.lease.deadline_ms, each.lease.lease))
            lease = assignment.lease
            reason = self._hindrance(lease, server_ms)
            if reason:
                del self.open[lease.lease]
                returned.append(LeaseEnded(lease=lease.lease, reason=reason))
                self._doubt_pace()
                continue
            step = self._checkpoint_for(lease.step)
            if step is None or lease.step not in self._beacons:
                break
            assignment.started_ms = now_ms
            effects.append(Generate(lease, step, self.held[step], self._beacons[lease.step]))
        return effects, returned

    def _hindrance(self, lease: LeaseGranted, server_ms: int) -> str:
        """Why the lease cannot be done any more, empty where it can."""
        if self._slot_ms is not None and server_ms + lease.slots * self._slot_ms > lease.deadline_ms:
            return "it would take longer than the deadline allows"
        if lease.step not in self._beacons and self._beacons and lease.step < max(self._beacons):
            return "its step had passed before this node heard of it"
        return ""

    def _checkpoint_for(self, step: Step) -> Step | None:
        fit = [held for held in self.held if step - self.lag_max <= held <= step]
        return max(fit, default=None)

    def is_hopeless(self, number: int, *, rows_done: int, rows: int, now_ms: int, server_ms: int) -> bool:
        """Whether a lease that is being generated cannot be done in time any more."""
        assignment = self.open.get(number)
        if assignment is None or assignment.started_ms is None:
            return False
        if assignment.began_ms is None:
            assignment.began_ms = now_ms
        if not rows_done:
            return False
        rest_ms = (rows - rows_done) * (now_ms - assignment.began_ms) / rows_done
        return server_ms + rest_ms / HOPELESS > assignment.lease.deadline_ms

    def finish(self, number: int, work: Work, now_ms: int, server_ms: int) -> Submitted | None:
        """The signed answer to a lease; None if it is late, or was dropped."""
        assignment = self.open.pop(number, None)
        if assignment is None or assignment.started_ms is None:
            return None
        lease = assignment.lease
        began_ms = assignment.began_ms or assignment.started_ms
        self._record_pace((now_ms - began_ms) / lease.slots, work.output_tokens / lease.slots)
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
        self._remember(Answer(number, receipt_id(receipt), lease.deadline_ms), server_ms)
        return Submitted(
            receipt=receipt,
            signature=sign_document(self._key, receipt, self._domain),
            file_bytes=work.file_bytes,
            output_tokens=work.output_tokens,
            context_tokens=work.context_tokens,
        )

    def made(self, submission: Digest) -> bool:
        """Whether this node stands by a submission."""
        return any(answer.submission == submission for answer in self.answers.values())

    def _record_pace(self, slot_ms: float, slot_tokens: float) -> None:
        self._slot_ms = slot_ms if self._slot_ms is None else PACE_KEEP * self._slot_ms + (1 - PACE_KEEP) * slot_ms
        self.tokens_per_s = max(1, int(1000 * slot_tokens / max(1.0, self._slot_ms)))

    def _doubt_pace(self) -> None:
        """After a lease that was given back unbegun. The first pace has the engine's start in it: who believed it for
        ever would give back every lease for ever."""
        if self._slot_ms is not None:
            self._slot_ms *= PACE_KEEP

    def _remember(self, answer: Answer, server_ms: int) -> None:
        forgotten = [n for n, old in self.answers.items() if old.deadline_ms + ANSWERS_KEEP_MS < server_ms]
        for number in forgotten:
            del self.answers[number]
        self.answers[answer.lease] = answer
