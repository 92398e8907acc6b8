"""The node's shell: clock, sockets, disk and supervision around the decisions of agent.py. What waits is in here.

Each part may die and begins again: the agent from what is on disk, the others from nothing. What the agent wants done
is carried out in the order it says.
"""

import asyncio
import logging
import random
import secrets
from collections.abc import Coroutine
from typing import Any

from prime_node.agent import Agent, Profile
from prime_node.config import NodeConfig
from prime_node.courier import Courier
from prime_node.events import (
    Abandon,
    Audit,
    AuditFailed,
    Effect,
    Event,
    Generate,
    GenerationFailed,
    KeepHead,
    LoadWeights,
    Save,
    Send,
    Started,
    Stop,
    Tick,
    WeightsFailed,
    WeightsReady,
)
from prime_node.home import Home, keep_trainer
from prime_node.memory_file import MemoryFile
from prime_node.swarm import Swarm
from prime_protocol.entries import Role
from prime_protocol.errors import LocalError
from prime_protocol.ids import NodeId
from prime_protocol.messages import Weights
from prime_protocol.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.http_client import HttpClient
from prime_runtime.supervision import Part, Supervisor

log = logging.getLogger(__name__)

LOOK_MS = 1_000


class Daemon:
    """One node at work, from the moment it knows whose weights count."""

    def __init__(self, config: NodeConfig, key: WalletKey, client: HttpClient, trainer: NodeId, clock: Clock) -> None:
        self.config = config
        self.key = key
        self._clock = clock
        self._dice = random.Random(secrets.randbits(64))
        self.swarm = Swarm(config, key, client, trainer, clock=clock, dice=self._dice)
        self.swarm.heads.on_kept = self._head_kept
        self.courier = Courier(client, config.server, clock)
        self._memory = MemoryFile(Home(config.folder).memory)
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._group = asyncio.TaskGroup()
        self._stop = asyncio.Event()
        self.agent: Agent | None = None
        self.wanted: Weights | None = None
        """The checkpoint that the coordinator last named."""
        self.weights_problem = ""
        """Why the last try for weights ended, where it was this machine's fault."""
        self.stopped_for = ""
        """Why this process ends, where nobody on this machine asked for it."""
        parts = [Part("agent", self._run_agent), *self.swarm.parts(), Part("trainer", self._watch_trainer)]
        self.supervisor = Supervisor(parts, clock)

    async def run(self, stop: asyncio.Event) -> None:
        """Until told to stop, or until something here says so. LocalError: the port is taken."""
        self._stop = stop
        try:
            await self.swarm.start()
            await self.supervisor.run_until(stop.wait())
        finally:
            await self.swarm.stop()

    def _end(self, reason: str) -> None:
        self.stopped_for = self.stopped_for or reason
        self._stop.set()

    async def _watch_trainer(self) -> None:
        """A run may be given another trainer; then what is here is nobody's."""
        while True:
            await self._clock.sleep_ms(LOOK_MS)
            trainer = self.swarm.records.trainer
            if trainer is not None and trainer != self.swarm.trainer:
                keep_trainer(self.config.folder, trainer)
                self._end(f"the run's trainer is {trainer} now, and was {self.swarm.trainer}; start the node again")
                return

    # --- The agent --------------------------------------------------------------------------------------------------

    async def _run_agent(self) -> None:
        """From what is on disk, also after a failure."""
        profile = Profile(
            network=self.config.network_id,
            run=self.config.run_id,
            roles=(Role(self.config.role),),
            hardware=self.config.hardware,
            addresses=self.swarm.urls,
        )
        agent = self.agent = Agent(self.key, profile, self._dice)
        self._events = asyncio.Queue()
        if self.swarm.heads.kept is not None:
            agent.head_kept(self.swarm.heads.kept.size)
        # A bug in what was begun for the agent ends the agent too, or it would wait for an event that never comes.
        async with asyncio.TaskGroup() as self._group:
            event: Event = Started(self._memory.load())
            while True:
                for effect in agent.handle(event, self._clock.now_ms()):
                    self._carry_out(effect)
                event = await self._next_event(agent.wake_ms - self._clock.now_ms())

    async def _next_event(self, wait_ms: int) -> Event:
        try:
            async with asyncio.timeout(max(0, wait_ms) / 1000):
                return await self._events.get()
        except TimeoutError:
            return Tick()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._begin(self._deliver(effect, self._events))
            case Save(memory):
                self._memory.save(memory)
            case LoadWeights(weights):
                self.wanted = weights
                self._begin(self._load(weights, self._events))
            case KeepHead(head):
                self.swarm.heads.show(head)
            case Stop(reason):
                self._end(reason)
            case Generate(lease):
                self._events.put_nowait(GenerationFailed(lease.lease, "this node has no engine"))
            case Audit(task):
                self._events.put_nowait(AuditFailed(task.submission))
            case Abandon():
                pass

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._group.create_task(work)

    async def _deliver(self, send: Send, events: asyncio.Queue[Event]) -> None:
        events.put_nowait(await self.courier.deliver(send))

    async def _load(self, weights: Weights, events: asyncio.Queue[Event]) -> None:
        try:
            await self.swarm.fetcher.obtain(weights.root, weights.manifest)
        except LocalError as error:
            self.weights_problem = str(error)
            log.error("the weights of step %d cannot be had: %s", weights.step, error)
            events.put_nowait(WeightsFailed(weights.step))
            return
        self.weights_problem = ""
        log.info("the weights of step %d are here: %s", weights.step, weights.root)
        events.put_nowait(WeightsReady(weights.step, weights.root))

    def _head_kept(self, size: int) -> None:
        if self.agent is not None:
            self.agent.head_kept(size)
