"""Wires together what jobs need: engine, sandbox, journal and spool, for the worker and for the validator.

Nothing here decides which jobs run. The agent runner passes in each job, and gets back one event for it.
"""

import logging
from collections.abc import Callable
from typing import Any

from prime_node.agent.events import Event, ReplyReceived, SavedState, Send, SendRefused
from prime_node.agent.outbox import is_final
from prime_node.config import NodeConfig
from prime_node.engine.lifecycle import EngineManager
from prime_node.jobs.audit import Auditor
from prime_node.jobs.generate import RolloutGenerator
from prime_node.jobs.step_context import StepContexts
from prime_node.log.submission_tracker import SubmissionTracker
from prime_node.storage.journal import JobState, Journal
from prime_node.storage.node_folder import NodeFolder
from prime_node.storage.saved_state import UploadSpool
from prime_node.swarm import Swarm
from prime_protocol.ledger.entries import Appealed, LeaseEnded, Submitted, VerdictCommitted, VerdictGiven
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.messages import Heartbeat
from prime_protocol.wire.typed_data import compute_receipt_id
from prime_runtime.clock import Clock
from prime_runtime.http.client import HttpClient
from prime_runtime.sandbox.sandbox import Sandbox

log = logging.getLogger(__name__)


class JobRunner:
    """The generator, the auditor and the submission tracker of one node."""

    def __init__(
        self,
        config: NodeConfig,
        node: NodeId,
        client: HttpClient,
        swarm: Swarm,
        spool: UploadSpool,
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
        self._swarm = swarm
        self._spool = spool
        self.journal = Journal(node_folder.journal)
        self.engine = EngineManager(config.engine, node_folder.engine, clock, changes=self._list_changed_tensors)
        self.sandbox = Sandbox()
        self.tracker = self._open_tracker(config, post_event)
        self.contexts = StepContexts(client, server, run, swarm.fetcher, node_folder.datasets)
        tools: dict[str, Any] = {
            "contexts": self.contexts,
            "engine": self.engine,
            "spool": spool,
            "clock": clock,
        }
        self.generator = RolloutGenerator(node, config.network_id, run, journal=self.journal, **tools)
        self.auditor = Auditor(
            client,
            server,
            config.network_id,
            run,
            node=node,
            sandbox=self.sandbox,
            fetch_receipt=self.tracker.fetch_receipt_or_none,
            **tools,
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

    def _list_changed_tensors(self, old: Digest, new: Digest) -> frozenset[str] | None:
        """Names of the tensors that differ between two checkpoints; None where one of them is not on this disk."""
        held = self._swarm.store.checkpoints()
        if old not in held or new not in held:
            return None
        before = {tensor.name: tensor.digest for tensor in held[old].manifest.tensors}
        return frozenset(
            tensor.name for tensor in held[new].manifest.tensors if before.get(tensor.name) != tensor.digest
        )

    def remove_orphan_files(self, state: SavedState) -> None:
        """Removes files that neither the journal nor a pending entry names. Call it once, at the start."""
        named = self.journal.list_open_files() | state.list_files()
        removed = self._spool.remove_unnamed(named)
        if removed:
            log.info("removed %d orphan files from the spool", removed)

    def estimate_tokens_per_s(self) -> int:
        """Output tokens per second of the last file generated here; 1 where there is none."""
        for record in self.journal.list_newest(20):
            made = [at_ms for state, at_ms in record.history if state == JobState.PRODUCED]
            if made and made[0] > record.started_ms:
                return max(1, 1000 * record.output_tokens // (made[0] - record.started_ms))
        return 1

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
        now_ms = self._clock.now_ms()
        if isinstance(event, SendRefused):
            reason = f"{event.refusal.field}: {event.refusal.problem}"
            self.journal.advance(record, JobState.REFUSED, now_ms, reason=reason)
            self._spool.remove(entry.receipt.file_digest)
        else:
            self.journal.advance(record, JobState.RECEIVED, now_ms)

    async def close(self) -> None:
        await self.engine.close()
        self.contexts.close()
        await self.sandbox.close()
        self.journal.close()
