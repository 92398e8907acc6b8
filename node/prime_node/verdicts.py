"""The audits a validator was drawn for, from the task to the signed verdict. Pure.

A verdict is given once: two that differ would be held against the validator. An audit that breaks is tried again while
there is time, and never turned into a verdict.
"""

from collections.abc import Iterable

from prime_node.events import Audit, Effect, Finding
from prime_protocol.entries import OUTCOME_NUMBER, Inspected, Seen, VerdictGiven
from prime_protocol.ids import Digest, NetworkId, RunId
from prime_protocol.messages import AuditTask
from prime_protocol.receipts import VerdictReceipt
from prime_protocol.signing import WalletKey
from prime_protocol.typed_data import Domain, sign_document

AGAIN_MS = 5_000
AGAIN_MS_MAX = 120_000
"""Before an audit that broke is tried again, doubling: the engine, or the way to the file, may need a while."""

GIVEN_MAX = 1_024
"""Verdicts remembered. A reply that still lists one is at most minutes old, and nobody gives a thousand in that."""


class Verdicts:
    """A validator's tasks."""

    def __init__(self, key: WalletKey, network: NetworkId, run: RunId, domain: Domain, *, at_once: int) -> None:
        self._key = key
        self._network = network
        self._run = run
        self._domain = domain
        self._at_once = at_once
        self._waiting: dict[Digest, AuditTask] = {}
        self._running: dict[Digest, AuditTask] = {}
        self._given: dict[Digest, None] = {}
        self.given = 0
        self.inspected = 0
        """Verdicts, and inspections, since this process began."""
        self._broken: dict[Digest, tuple[int, int]] = {}
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
        busy = self._running.keys() | self._given.keys()
        self._waiting = {name: task for name, task in listed.items() if name not in busy}
        self._broken = {name: known for name, known in self._broken.items() if name in listed}

    def advance(self, server_ms: int) -> list[Effect]:
        """Begin what there is room for, the oldest first."""
        effects: list[Effect] = []
        for name, task in list(self._waiting.items()):
            if len(self._running) >= self._at_once:
                break
            if server_ms < self._broken.get(name, (0, 0))[1]:
                continue
            del self._waiting[name]
            if server_ms < task.deadline_ms:
                self._running[name] = task
                effects.append(Audit(task))
        return effects

    def finish(self, submission: Digest, finding: Finding) -> tuple[VerdictGiven | Inspected, int] | None:
        """What to say and until when it counts; None for an audit nobody asked for."""
        task = self._running.pop(submission, None)
        if task is None:
            return None
        self.remember(submission)
        if task.readers:
            self.inspected += 1
            return self._inspected(task, finding), task.deadline_ms
        self.given += 1
        return self._judged(task, finding), task.deadline_ms

    def _inspected(self, task: AuditTask, finding: Finding) -> Inspected:
        seen = [Seen(reader=reader, looks=looks) for reader, looks in sorted(finding.looks.items()) if looks]
        return Inspected(submission=task.submission, seen=tuple(seen))

    def _judged(self, task: AuditTask, finding: Finding) -> VerdictGiven:
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
            looks=finding.looks.get(self._key.node, b""),
        )

    def break_off(self, submission: Digest, server_ms: int) -> None:
        """It is tried again while there is time: the coordinator lists it until then."""
        if self._running.pop(submission, None) is not None:
            times, _ = self._broken.get(submission, (0, 0))
            self._broken[submission] = times + 1, server_ms + min(AGAIN_MS_MAX, AGAIN_MS << min(times, 10))

    def remember(self, submission: Digest) -> None:
        """A verdict on this one was signed, now or before a restart."""
        self._given[submission] = None
        if len(self._given) > GIVEN_MAX:
            del self._given[next(iter(self._given))]
