"""libp2p where it is wanted and works, and a plain reason where not. The rest of a program goes on either way.

The library is imported only when the half starts.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from prime_protocol.errors import LocalError
from prime_protocol.gossip import Gossip
from prime_protocol.gossip_guard import GossipGuard
from prime_protocol.ids import NetworkId, RunId
from prime_protocol.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.p2p_config import BOOTSTRAP_MAX, P2PConfig, P2PStatus

if TYPE_CHECKING:
    from prime_runtime.p2p import P2PNode

log = logging.getLogger(__name__)

RUNS_MS = 1_000
"""Between two looks for runs that were created."""


class GossipHalf:
    """One part of a program: `run` it under a supervisor."""

    def __init__(
        self, key: WalletKey, network: NetworkId, config: P2PConfig, *, clock: Clock, guard: GossipGuard
    ) -> None:
        self._key = key
        self._network = network
        self._config = config
        self._clock = clock
        self._guard = guard
        self._node: P2PNode | None = None
        self._joined: set[RunId] = set()
        self.reason = "it has not started yet" if config.enabled else "p2p.enabled is false"
        """Why it is off; empty while it runs."""

    def add_bootstrap(self, peers: Iterable[str]) -> None:
        """More peers to dial first; before the start."""
        known = dict.fromkeys((*self._config.bootstrap, *peers))
        own = self._key.peer_id()
        wanted = [peer for peer in known if not peer.endswith(own)][:BOOTSTRAP_MAX]
        self._config = replace(self._config, bootstrap=tuple(wanted))

    @property
    def bootstrap(self) -> tuple[str, ...]:
        return self._config.bootstrap

    async def run(self, deliver: Callable[[Gossip], None], list_runs: Callable[[], Iterable[RunId]]) -> None:
        """Until cancelled; at once if it is not wanted or cannot be had. LocalError: it may work later."""
        if not self._config.enabled:
            log.info("gossip over libp2p is off (%s); records travel over HTTP", self.reason)
            return
        try:
            from prime_runtime.p2p import P2PNode
        except LocalError as error:
            self.reason = str(error)
            log.warning("gossip over libp2p is off: %s; records travel over HTTP", error)
            return
        node = P2PNode(self._key, self._network, self._config, clock=self._clock, guard=self._guard)
        try:
            await node.start()
            self._node, self.reason = node, ""
            log.info("gossip over libp2p is on: %s", ", ".join(node.status().addresses) or "outbound only")
            await self._carry(node, deliver, list_runs)
        except LocalError as error:
            self.reason = str(error)
            raise
        finally:
            self._node = None
            self._joined.clear()
            self.reason = self.reason or "it is starting again"
            await node.stop()

    async def _carry(
        self, node: "P2PNode", deliver: Callable[[Gossip], None], list_runs: Callable[[], Iterable[RunId]]
    ) -> None:
        async def receive() -> None:
            while True:
                deliver(await node.receive())

        async def join() -> None:
            while True:
                for run in set(list_runs()) - self._joined:
                    await node.join(run)
                    self._joined.add(run)
                await self._clock.sleep_ms(RUNS_MS)

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(receive())
                group.create_task(join())
        except* LocalError as errors:
            raise LocalError(str(errors.exceptions[0])) from None

    async def pass_on(self, run: RunId, gossip: Gossip) -> None:
        """A way for Voice, and for what came by another way. LocalError while it is down; nothing while it is off."""
        if self._node is not None and run in self._joined:
            await self._node.publish_frame(run, gossip.kind, gossip.frame)

    def status(self) -> P2PStatus | None:
        """None while it is off."""
        return self._node.status() if self._node is not None else None

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it can be dialled."""
        status = self.status()
        return status.addresses if status else ()
