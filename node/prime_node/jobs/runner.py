"""Wires together what jobs need: engine, sandbox, journal and spool, for the worker and for the validator.

Nothing here decides which jobs run. The agent runner passes in each job, and gets back one event for it.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from prime_node.agent.events import Event, ReplyReceived, SavedState, Send, SendRefused
from prime_node.agent.outbox import is_final
from prime_node.config import NodeConfig
from prime_node.engine.lifecycle import FindChangedTensors
from prime_node.engine.pool import EnginePool
from prime_node.jobs.audit import Auditor
from prime_node.jobs.generate import RolloutGenerator
from prime_node.jobs.self_check import PassedChecks, SelfCheck
from prime_node.jobs.step_context import StepContexts
from prime_node.log.submission_tracker import SubmissionTracker
from prime_node.storage.journal import JobState, Journal
from prime_node.storage.node_folder import NodeFolder
from prime_node.storage.saved_state import UploadSpool
from prime_node.weights.checkpoints import CheckpointFetcher
from prime_protocol.ledger.entries import Appealed, LeaseEnded, Submitted, VerdictCommitted, VerdictGiven
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.messages import Heartbeat
from prime_protocol.wire.typed_data import compute_receipt_id
from prime_runtime.clock import Clock
from prime_runtime.http.client import HttpClient
from prime_runtime.sandbox.sandbox import Sandbox

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobTools:
    """What the jobs of all runs share."""

    journal: Journal
    engine: EnginePool
    sandbox: Sandbox
    spool: UploadSpool
    self_check: SelfCheck

    @classmethod
    def open(
        cls, config: NodeConfig, clock: Clock, *, changes: FindChangedTensors = lambda old, new: None
    ) -> "JobTools":
        folder = NodeFolder(config.folder)
        engine = EnginePool(config.engine, folder.engine, clock, changes=changes)
        self_check = SelfCheck(PassedChecks(folder.self_checks))
        return cls(Journal(folder.journal), engine, Sandbox(), UploadSpool(folder.spool), self_check)

    def remove_orphan_files(self, states: Iterable[SavedState]) -> None:
        """Removes files that neither the journal nor a pending entry of any run names. Call it before any job."""
        named = self.journal.list_open_files().union(*(state.list_files() for state in states))
        removed = self.spool.remove_unnamed(named)
        if removed:
            log.info("removed %d orphan files from the spool", removed)

    async def close(self) -> None:
        await self.engine.close()
        await self.sandbox.close()
        self.journal.close()


class JobRunner:
    """The generator, the auditor and the submission tracker of one run."""

    def __init__(
        self,
        config: NodeConfig,
        node: NodeId,
        client: HttpClient,
        fetcher: CheckpointFetcher,
        tools: JobTools,
        *,
        post_event: Callable[[Event], None],
        on_appealed: Callable[[Digest], None],
        clock: Clock,
    ) -> None:
        node_folder, server, run = NodeFolder(config.folder), config.server, config.run_id
        self._run = run
        self._on_appealed = on_appealed
        """Called when the log has taken an appeal of this node."""
        self._clock = clock
        self._spool = spool = tools.spool
        self.journal = tools.journal
        self.engine = tools.engine
        self.tracker = self._open_tracker(config, post_event)
        self.contexts = StepContexts(client, server, run, fetcher, node_folder.datasets)
        common: dict[str, Any] = {
            "contexts": self.contexts,
            "engine": self.engine,
            "spool": spool,
            "clock": clock,
        }
        self.generator = RolloutGenerator(
            node, config.network_id, run, journal=self.journal, self_check=tools.self_check, **common
        )
        self.auditor = Auditor(
            client,
            server,
            config.network_id,
            run,
            node=node,
            sandbox=tools.sandbox,
            fetch_receipt=self.tracker.fetch_receipt_or_none,
            **common,
        )

    def _open_tracker(self, config: NodeConfig, post_event: Callable[[Event], None]) -> SubmissionTracker:
        return SubmissionTracker(
            config.coordinator,
            config.authority,
            run=config.run_id,
            domain=config.signing_domain,
            journal=self.journal,
            spool=self._spool,
            stakes=config.stake and config.delegation is None,
            post_event=post_event,
            clock=self._clock,
        )

    def estimate_tokens_per_s(self) -> int:
        """Output tokens per second over the last files generated here; 1 where there is none."""
        made = [
            (record, at_ms)
            for record in reversed(self.journal.list_newest(20))
            for state, at_ms in record.history
            if state == JobState.PRODUCED and at_ms > record.started_ms
        ]
        work_ms = until_ms = 0
        for record, at_ms in made:
            # Leases are generated together: time that two of them share counts once.
            work_ms += max(0, at_ms - max(record.started_ms, until_ms))
            until_ms = max(until_ms, at_ms)
        return max(1, 1000 * sum(record.output_tokens for record, _ in made) // max(1, work_ms))

    def record_sent(self, send: Send, event: Event) -> None:
        """Records in the journal what an answer says, and removes files that are not needed any more."""
        is_logged = isinstance(event, ReplyReceived)
        is_over = is_logged or (isinstance(event, SendRefused) and is_final(event.refusal))
        if not is_over:
            return
        match send.message:
            case Submitted() as entry:
                self._record_submitted(entry, event)
            case VerdictCommitted() | VerdictGiven() if send.file is not None:
                self._spool.remove(send.file)
            case LeaseEnded(lease=lease, reason=reason) if is_logged:
                record = self.journal.get_by_lease(self._run, lease)
                if record is not None:
                    self.journal.advance(record, JobState.RETURNED, self._clock.now_ms(), reason=reason)
            case Appealed(submission=name) if is_logged:
                self._on_appealed(name)
            case Heartbeat() if isinstance(event, ReplyReceived):
                self.tracker.apply_reply(event.reply)

    def _record_submitted(self, entry: Submitted, event: Event) -> None:
        record = self.journal.get_by_submission(compute_receipt_id(entry.receipt))
        if record is None:
            return
        if isinstance(event, SendRefused):
            self.tracker.record_refused(record, f"{event.refusal.field}: {event.refusal.problem}")
            self._spool.remove(entry.receipt.file_digest)
        else:
            self.journal.advance(record, JobState.RECEIVED, self._clock.now_ms())

    def close(self) -> None:
        self.contexts.close()
