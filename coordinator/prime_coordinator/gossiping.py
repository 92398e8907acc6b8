"""The coordinator's own part in gossip: bootstrap peer, bridge between libp2p and the board, its heads, its shards.

What comes by gossip goes onto the board, what is handed in over HTTP is gossiped; one guard stands before both, so
nothing goes round in circles. All of it may fail without the coordinator failing.
"""

import logging
import random

from prime_coordinator.board import Board
from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.constants import HEAD_SAY_MS
from prime_coordinator.core import Core
from prime_coordinator.records import Members, RecordsDesk
from prime_protocol.constants import ADDRESSES_MAX, REPEAT_MS
from prime_protocol.errors import LocalError
from prime_protocol.gossip import Gossip, HeadSeen
from prime_protocol.ids import RunId
from prime_protocol.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.gossip_half import GossipHalf
from prime_runtime.gossip_voice import Voice
from prime_runtime.http_server import HttpServer
from prime_runtime.sequence import Sequence
from prime_runtime.shardcast.crier import Crier
from prime_runtime.shardcast.directory import Directory
from prime_runtime.shardcast.serve import ShardServer
from prime_runtime.shardcast.slots import UploadLimits, UploadSlots
from prime_runtime.shardcast.store import ShardStore
from prime_runtime.shardcast.urls import with_ports
from prime_runtime.supervision import Part, Supervisor

log = logging.getLogger(__name__)

HEAD_LOOK_MS = 500


class Gossiping:
    """Owns the board and everything that speaks to it."""

    def __init__(self, config: CoordinatorConfig, core: Core, key: WalletKey, http: HttpServer, clock: Clock) -> None:
        network = config.network_id
        members = Members(core, key.node)
        guard = members.make_guard(network)
        self._config = config
        self._core = core
        self._clock = clock
        self._urls: tuple[str, ...] = ()
        self.board = Board(random.Random(), now_ms=clock.now_ms())
        self.desk = RecordsDesk(
            members, self.board, guard, network=network, clock=clock, handle_ms=config.limits.handle_ms
        )
        self._origin_run: RunId | None = None
        self._directory = Directory()
        """Whom our origin sends those to whom it has no slot for."""
        self._half = GossipHalf(key, network, config.p2p, clock=clock, guard=guard)
        self._voice = Voice(key, network, guard, clock=clock, sequence=Sequence(), ways=(self._pin, self._half.pass_on))
        self.desk.pass_on = self._pass_on
        self.desk.list_peers = lambda: self._half.addresses[:ADDRESSES_MAX]
        self._crier = self._open_origin(http)
        self._said = (0, -HEAD_SAY_MS)
        """Size of the head that was last gossiped, and when."""
        self.desk.add_routes(http)

    async def run(self, port: int) -> None:
        """Until cancelled; `port` is what the server listens on."""
        self._urls = with_ports(self._config.origin.urls, port)
        parts = [Part("gossip", self._gossip), Part("tree heads", self._say_heads)]
        if self._crier is not None:
            parts.append(Part("origin", self._crier.run))
        await Supervisor(parts, self._clock).run()

    def _open_origin(self, http: HttpServer) -> Crier | None:
        """Serve the shards that a trainer publishes into a folder of this machine, if there is one."""
        config, origin = self._config, self._config.origin
        if origin.folder is None:
            return None
        run = self._origin_run = RunId(origin.run)
        if run not in self._core.state.runs:
            raise LocalError(f"origin.run is {run}, which was not created here; create it, then set origin.folder")
        trainer = self._core.state.runs[run].terms.trainer
        store = ShardStore(origin.folder, network=config.network_id, run=run, trainer=trainer)
        slots = UploadSlots(UploadLimits(slots=origin.slots, address_slots=origin.address_slots))
        proxies = config.limits.trusted_proxies
        server = ShardServer(store, slots, clock=self._clock, trusted_proxies=proxies, directory=self._directory)
        server.add_routes(http)
        return Crier(
            server,
            self._voice,
            run=run,
            clock=self._clock,
            list_urls=lambda: self._urls,
            count_nodes=lambda: self.board.count_nodes(run),
            rescans=True,
        )

    def close(self) -> None:
        """Answer everybody who waits for something."""
        self.desk.close()
        if self._crier is not None:
            self._crier.server.close()

    def list_runs(self) -> list[RunId]:
        return list(self._core.state.runs)

    async def _gossip(self) -> None:
        await self._half.run(self._hear, self.list_runs)

    def _hear(self, gossip: Gossip) -> None:
        assert gossip.letter.run is not None, "topics are of runs"
        self.desk.put(gossip.letter.run, gossip)
        self._learn(gossip.letter.run, gossip)

    async def _pass_on(self, run: RunId, gossip: Gossip) -> None:
        """What was handed in over HTTP; it stands on the board already."""
        self._learn(run, gossip)
        try:
            await self._half.pass_on(run, gossip)
        except LocalError as error:
            log.debug("not gossiped: %s", error)

    def _learn(self, run: RunId, gossip: Gossip) -> None:
        if run == self._origin_run:
            self._directory.expire(self._clock.now_ms())
            self._directory.learn(gossip)

    async def _pin(self, run: RunId, gossip: Gossip) -> None:
        self.desk.put(run, gossip)

    async def _say_heads(self) -> None:
        """A new head soon, an old one now and then: who joins later hears it too."""
        while True:
            await self._clock.sleep_ms(HEAD_LOOK_MS)
            size, note, now_ms = self._core.head_size, self._core.head, self._clock.monotonic_ms()
            if not note or now_ms < self._said[1] + (REPEAT_MS if size == self._said[0] else HEAD_SAY_MS):
                continue
            self._said = (size, now_ms)
            for run in self.list_runs():
                await self._voice.say(run, HeadSeen(note=note), known_nodes=self.board.count_nodes(run))
