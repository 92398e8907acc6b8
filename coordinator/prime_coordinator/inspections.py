"""Inspections: judged files that the run's inspectors read again, to see who of the validators had read them. Pure.

Which ones is drawn with a secret, after they were judged, so nobody knows while it judges. What an inspector finds goes
into the log, and the ledger says what follows for pay; here it costs the validator its place in the draw for a while.
What is open is forgotten at a restart: it is a sample.
"""

from prime_coordinator.cases import Case, Name
from prime_coordinator.reputation import Reputation
from prime_coordinator.scribe import Scribe
from prime_protocol.beacon import draw_u64
from prime_protocol.constants import BASIS_POINTS
from prime_protocol.digests import digest_fields
from prime_protocol.entries import Inspected, NodeStatus
from prime_protocol.ids import Digest, NodeId, RunId
from prime_protocol.messages import AuditTask


class InspectionDesk:
    """What inspectors have still to read."""

    def __init__(self, scribe: Scribe, reputation: Reputation, secret: bytes, share: int) -> None:
        self._scribe = scribe
        self._reputation = reputation
        self._secret = secret
        self._share = share
        self._open: dict[NodeId, dict[Name, AuditTask]] = {}

    def settled(self, case: Case, now_ms: int) -> None:
        """It has an outcome: perhaps somebody reads it again, who did not judge it."""
        readers = {node for each in case.submission.rounds for node in each.verdicts}
        inspectors = [node for node in case.run.terms.inspectors if node not in readers and self._is_active(node)]
        draw = self._draw(case.run_name, case.name)
        if readers and inspectors and draw % BASIS_POINTS < self._share:
            chosen = inspectors[draw // BASIS_POINTS % len(inspectors)]
            task = case.make_task(now_ms + case.terms.verdict_ms, tuple(sorted(readers - {chosen})))
            self._open.setdefault(chosen, {})[(case.run_name, case.name)] = task

    def tasks(self, inspector: NodeId, run: RunId) -> tuple[AuditTask, ...]:
        return tuple(task for (name, _), task in self._open.get(inspector, {}).items() if name == run)

    def inspected(self, inspector: NodeId, run: RunId, entry: Inspected, now_ms: int) -> None:
        """The log has what it found. What nobody asked it for costs pay, as the ledger says, and no recess."""
        if self._open.get(inspector, {}).pop((run, entry.submission), None) is None:
            return
        refuted = self._scribe.state.runs[run].submissions[entry.submission].refuted
        for seen in entry.seen:
            if seen.reader in refuted:
                self._reputation.unread(seen.reader, now_ms)

    def tick(self, now_ms: int) -> None:
        """Forget what nobody has read in time."""
        for inspector, tasks in list(self._open.items()):
            self._open[inspector] = {name: task for name, task in tasks.items() if now_ms < task.deadline_ms}
            if not self._open[inspector]:
                del self._open[inspector]

    def _is_active(self, node: NodeId) -> bool:
        known = self._scribe.state.nodes.get(node)
        return known is not None and known.status is NodeStatus.ACTIVE

    def _draw(self, run: RunId, submission: Digest) -> int:
        return draw_u64(digest_fields("inspection/1", self._secret, run.encode(), submission))
