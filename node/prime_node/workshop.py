"""Where a node's work is done: engine, sandbox, journal and files, wired together for the worker and the validator.

Nothing here decides; the daemon hands in what the agent wants, and gets back one event for each.
"""

import logging
from collections.abc import Callable
from typing import Any

from prime_node.audit import Auditor
from prime_node.briefing import Briefings
from prime_node.config import NodeConfig
from prime_node.engine.keeper import EngineKeeper
from prime_node.events import Event, Memory, Refused, ReplyReceived, Send
from prime_node.home import Home
from prime_node.journal import Journal, PieceState
from prime_node.outbox import is_final
from prime_node.outcomes import Outcomes
from prime_node.shelf import Shelf
from prime_node.swarm import Swarm
from prime_node.worker import Worker
from prime_protocol.entries import Appealed, LeaseEnded, NodeRegistered, Staked, Submitted, VerdictGiven
from prime_protocol.ids import Digest, NodeId
from prime_protocol.receipts import receipt_id
from prime_runtime.clock import Clock
from prime_runtime.http_client import HttpClient
from prime_runtime.sandbox import Sandbox

log = logging.getLogger(__name__)


class Workshop:
    """One node's."""

    def __init__(
        self,
        config: NodeConfig,
        node: NodeId,
        client: HttpClient,
        swarm: Swarm,
        shelf: Shelf,
        *,
        tell: Callable[[Event], None],
        clock: Clock,
    ) -> None:
        home, server, run = Home(config.folder), config.server, config.run_id
        self._run = run
        self.on_appealed: Callable[[Digest], None] = lambda submission: None
        """Told when the log has taken our appeal; the daemon sets it."""
        self._clock = clock
        self._swarm = swarm
        self._shelf = shelf
        self.journal = Journal(home.journal)
        self.keeper = EngineKeeper(config.engine, home.engine, clock, changes=self._find_changes)
        self.sandbox = Sandbox()
        self.outcomes = self._open_outcomes(config, node, tell)
        tools: dict[str, Any] = {
            "briefings": Briefings(client, server, run, swarm.fetcher, home.datasets),
            "keeper": self.keeper,
            "shelf": shelf,
            "clock": clock,
        }
        self.worker = Worker(node, config.network_id, run, journal=self.journal, **tools)
        self.auditor = Auditor(
            client,
            server,
            config.network_id,
            run,
            node=node,
            sandbox=self.sandbox,
            find_receipt=self.outcomes.find_receipt,
            **tools,
        )

    def _open_outcomes(self, config: NodeConfig, node: NodeId, tell: Callable[[Event], None]) -> Outcomes:
        return Outcomes(
            config.coordinator,
            config.authority,
            node=node,
            run=config.run_id,
            domain=config.signing_domain,
            journal=self.journal,
            shelf=self._shelf,
            stakes=config.stake and config.delegation is None,
            tell=tell,
            clock=self._clock,
        )

    def _find_changes(self, old: Digest, new: Digest) -> frozenset[str] | None:
        """Names of the tensors in which two checkpoints on this disk differ."""
        held = self._swarm.store.checkpoints()
        if old not in held or new not in held:
            return None
        before = {tensor.name: tensor.digest for tensor in held[old].manifest.tensors}
        return frozenset(
            tensor.name for tensor in held[new].manifest.tensors if before.get(tensor.name) != tensor.digest
        )

    def tidy(self, memory: Memory) -> None:
        """After a start: remove files that neither the journal nor an entry on its way names."""
        named = self.journal.files() | {parcel.file for parcel in memory.parcels if parcel.file is not None}
        removed = self._shelf.sweep(named)
        if removed:
            log.info("removed %d files that nothing names any more", removed)

    def find_pace(self) -> int:
        """Output tokens per second of the last file that was made here; 1 where there is none."""
        for piece in self.journal.list(20):
            made = [at_ms for state, at_ms in piece.history if state == PieceState.PRODUCED]
            if made and made[0] > piece.started_ms:
                return max(1, 1000 * piece.output_tokens // (made[0] - piece.started_ms))
        return 1

    def note_sent(self, send: Send, event: Event) -> None:
        """What became of an entry: into the journal, and off the disk where nobody needs its file any more."""
        is_logged = isinstance(event, ReplyReceived)
        is_over = is_logged or (isinstance(event, Refused) and is_final(event.refusal))
        if not is_over:
            return
        match send.message:
            case Submitted() as entry:
                self._note_submitted(entry, event)
            case VerdictGiven() if send.file is not None:
                self._shelf.remove(send.file)
            case LeaseEnded(lease=lease, reason=reason) if is_logged:
                piece = self.journal.of_lease(self._run, lease)
                if piece is not None:
                    self.journal.advance(piece, PieceState.GIVEN_BACK, self._clock.now_ms(), reason=reason)
            case Appealed(submission=name) if is_logged:
                self.on_appealed(name)
            case NodeRegistered() | Staked():
                self.outcomes.expect_news()

    def _note_submitted(self, entry: Submitted, event: Event) -> None:
        piece = self.journal.of_submission(receipt_id(entry.receipt))
        if piece is None:
            return
        now_ms = self._clock.now_ms()
        if isinstance(event, Refused):
            reason = f"{event.refusal.field}: {event.refusal.problem}"
            self.journal.advance(piece, PieceState.REFUSED, now_ms, reason=reason)
            self._shelf.remove(entry.receipt.file_digest)
        else:
            self.journal.advance(piece, PieceState.RECEIVED, now_ms)
            self.outcomes.expect_news()

    async def close(self) -> None:
        await self.keeper.close()
        await self.sandbox.close()
        self.journal.close()
