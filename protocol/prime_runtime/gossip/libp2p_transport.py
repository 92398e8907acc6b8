"""Gossip over libp2p as an optional part of a program: when it starts, with which peers, and why it is off.

Where nothing is set, it starts by itself: as soon as a peer is known, from the coordinator's signed answer, the
settings, or the file of the peers that were known before a restart. The library is imported only then. Without it, or
without peers, gossip travels through the coordinator.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from prime_protocol.errors import LocalError
from prime_protocol.gossip.budget import GossipSampler
from prime_protocol.gossip.guard import GossipGuard
from prime_protocol.gossip.messages import ReceivedGossip
from prime_protocol.wire.addresses import PeerAddress
from prime_protocol.wire.ids import NetworkId, NodeId, RunId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.gossip.config import BOOTSTRAP_MAX, P2PConfig, P2PMode, P2PStatus
from prime_runtime.gossip.known_peers import KnownPeers, choose_known_peers, read_known_peers, write_known_peers

if TYPE_CHECKING:
    from prime_runtime.gossip.libp2p.node import P2PNode

log = logging.getLogger(__name__)

JOIN_POLL_MS = 1_000
"""Interval between checks for new runs and new peers."""
SAVE_MS = 30_000
"""Interval between checks whether the known peers have changed."""
NO_PEER = "no peer is known yet"
COORDINATOR_SOURCE, SAVED_SOURCE = "coordinator", "saved"
"""Who named a peer, if not another peer."""


class Libp2pTransport:
    """Gossip over libp2p; run it under a supervisor."""

    def __init__(
        self,
        key: WalletKey,
        network: NetworkId,
        config: P2PConfig,
        *,
        clock: Clock,
        guard: GossipGuard,
        peers_file: Path | None = None,
        is_seed: bool = False,
    ) -> None:
        """`peers_file` outlives the process. A seed is dialled by others, so it starts without knowing a peer."""
        self._key = key
        self._network = network
        self._config = config
        self._clock = clock
        self._guard = guard
        self._peers_file = peers_file
        self._is_seed = is_seed
        self._node: P2PNode | None = None
        self._joined: set[RunId] = set()
        self._sampler = GossipSampler()
        self._saved = KnownPeers()
        self._named: dict[str, list[str]] = {}
        """Peers that the running node was not told of yet, by who named them."""
        self._is_peer_known = asyncio.Event()
        self.count_nodes: Callable[[RunId], int] = lambda run: 0
        """About how many nodes like this one serve in a run, which share the sample among them. Its owner sets it."""
        self.reason = "p2p.enabled is off" if config.enabled is P2PMode.OFF else "not started yet"
        """Why libp2p is off; empty while it runs."""

    # --- Peers ------------------------------------------------------------------------------------------------------

    def add_peers(self, peers: Iterable[str], *, seed: NodeId | None = None) -> None:
        """Peers that the coordinator names. The addresses of `seed`, the coordinator itself, are bootstrap addresses;
        those of others are hearsay, which is dialled only if it is not private."""
        parsed = [address for text in peers if (address := PeerAddress.parse(text)).peer != self._key.peer_id()]
        own = [str(address) for address in parsed if address.node == seed]
        if own:
            others = [text for text in self._config.bootstrap if PeerAddress.parse(text).node != seed]
            self._config = replace(self._config, bootstrap=tuple((own + others)[:BOOTSTRAP_MAX]))
        self._named[COORDINATOR_SOURCE] = [str(address) for address in parsed if address.node != seed]
        if parsed:
            self._is_peer_known.set()

    def wants_peers(self) -> bool:
        """Whether the coordinator's next answer should name peers."""
        if self._config.enabled is P2PMode.OFF or self.is_missing:
            return False
        status = self.status()
        return status is None or status.connected < max(1, self._config.peers_target // 2)

    @property
    def is_missing(self) -> bool:
        """The library is not installed."""
        try:
            import prime_runtime.gossip.libp2p  # noqa: F401
        except LocalError:
            return True
        return False

    @property
    def bootstrap(self) -> tuple[str, ...]:
        return self._config.bootstrap

    @property
    def record(self) -> bytes:
        """The frame of this node's own peer record; empty if it cannot be dialled."""
        return self._node.state.counts.record if self._node is not None else b""

    # --- Life -------------------------------------------------------------------------------------------------------

    async def run(self, deliver: Callable[[ReceivedGossip], None], list_runs: Callable[[], Iterable[RunId]]) -> None:
        """Run until cancelled; return at once if libp2p is disabled or missing. LocalError: it may work later."""
        if self._config.enabled is P2PMode.OFF:
            log.info("gossip over libp2p is off (%s); gossip travels over HTTP", self.reason)
            return
        try:
            import prime_runtime.gossip.libp2p  # noqa: F401
        except LocalError as error:
            self.reason = str(error)
            level = logging.WARNING if self._config.enabled is P2PMode.ON else logging.INFO
            log.log(level, "gossip over libp2p is off: %s; gossip travels over HTTP", error)
            return
        await self._wait_for_peer()
        node = self._make_node()
        try:
            await node.start()
            self._node, self.reason = node, ""
            log.info("gossip over libp2p is on: %s", ", ".join(node.status().addresses) or "outbound only")
            await self._carry(node, deliver, list_runs)
        except LocalError as error:
            self.reason = str(error)
            raise
        finally:
            self._save_peers()
            self._node = None
            self._joined.clear()
            self.reason = self.reason or "restarting"
            await node.stop()

    async def _wait_for_peer(self) -> None:
        """The library takes a second and 85 MB to load: it is not worth that while there is nobody to talk to."""
        self._saved = read_known_peers(self._peers_file)
        self._named[SAVED_SOURCE] = list(self._saved.addresses)
        if self._config.bootstrap or self._saved.addresses:
            self._is_peer_known.set()
        if self._config.enabled is P2PMode.AUTO and not self._is_seed:
            if not self._is_peer_known.is_set():
                self.reason = NO_PEER
            await self._is_peer_known.wait()

    def _make_node(self) -> "P2PNode":
        from prime_runtime.gossip.libp2p.node import P2PNode

        return P2PNode(
            self._key,
            self._network,
            self._config,
            clock=self._clock,
            guard=self._guard,
            port=self._saved.port,
        )

    async def _carry(
        self, node: "P2PNode", deliver: Callable[[ReceivedGossip], None], list_runs: Callable[[], Iterable[RunId]]
    ) -> None:
        async def receive() -> None:
            while True:
                deliver(await node.receive())

        async def join() -> None:
            while True:
                for run in set(list_runs()) - self._joined:
                    await node.join(run)
                    self._joined.add(run)
                await self._tell_peers(node)
                await self._clock.sleep_ms(JOIN_POLL_MS)

        async def save() -> None:
            while True:
                await self._clock.sleep_ms(SAVE_MS)
                self._save_peers()

        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(receive())
                group.create_task(join())
                group.create_task(save())
        except* LocalError as errors:
            raise LocalError(str(errors.exceptions[0])) from None

    async def _tell_peers(self, node: "P2PNode") -> None:
        if node.status().is_running and node.status().known == 0 and not self._named:
            self._named = {SAVED_SOURCE: list(self._saved.addresses)}  # all were forgotten during a long failure
        named, self._named = self._named, {}
        if not any(named.values()) and self._config.bootstrap == node.bootstrap:
            return
        try:
            await node.add_peers(self._config.bootstrap, named)
        except LocalError as error:
            self._named = named | self._named
            log.debug("peers are named again after the restart: %s", error)

    def _save_peers(self) -> None:
        if self._peers_file is None or self._node is None:
            return
        counts = self._node.state.counts
        port = int(counts.addresses[0].split("/")[4]) if counts.addresses and self._config.listen else 0
        known = KnownPeers(addresses=choose_known_peers(counts.dialled, self._saved.addresses), port=port)
        if known != self._saved:
            write_known_peers(self._peers_file, known)
            self._saved = known

    # --- Messages ---------------------------------------------------------------------------------------------------

    async def send(self, run: RunId, gossip: ReceivedGossip, *, known_nodes: int | None = None) -> None:
        """A SendGossip: sends what is in the sample. LocalError while libp2p is down; no effect while it is off.

        `known_nodes`: how many nodes share the sample with the sender; default: as many as with this node.
        """
        nodes = self.count_nodes(run) if known_nodes is None else known_nodes
        if not self._sampler.is_chosen(gossip, known_nodes=nodes, now_ms=self._clock.now_ms()):
            return
        if self._node is not None and run in self._joined:
            await self._node.publish_frame(run, gossip.kind, gossip.frame)

    def status(self) -> P2PStatus | None:
        """None while libp2p is off."""
        return self._node.status() if self._node is not None else None

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses at which this node can be dialled."""
        status = self.status()
        return status.addresses if status else ()
