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
from prime_node.appeals import ChainAppeals
from prime_node.config import NodeConfig, NodeRole
from prime_node.courier import Courier
from prime_node.delegation_file import read_delegation
from prime_node.events import (
    Abandon,
    Audit,
    Drained,
    Effect,
    Event,
    Generate,
    Generated,
    Held,
    KeepHead,
    Leaving,
    LoadWeights,
    Progressed,
    Refused,
    ReplyReceived,
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
from prime_node.shelf import Shelf
from prime_node.swarm import Swarm
from prime_node.workshop import Workshop
from prime_protocol.constants import PROTOCOL_VERSION
from prime_protocol.entries import LeaseEnded, LeaseGranted
from prime_protocol.errors import LocalError
from prime_protocol.exchange import Refusal
from prime_protocol.ids import NodeId
from prime_protocol.messages import AuditTask, Heartbeat, HeartbeatReply, LeaseReply, LeaseRequest, Weights
from prime_protocol.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.http_client import HttpClient
from prime_runtime.supervision import Part, Supervisor

log = logging.getLogger(__name__)

LOOK_MS = 1_000
LEAVE_MS = 5_000
"""How long a node that is stopped tries to give back its leases."""


class Daemon:
    """One node at work, from the moment it knows whose weights count."""

    def __init__(self, config: NodeConfig, key: WalletKey, client: HttpClient, trainer: NodeId, clock: Clock) -> None:
        self.config = config
        self.key = key
        self._clock = clock
        self._dice = random.Random(secrets.randbits(64))
        self.swarm = Swarm(config, key, client, trainer, clock=clock, dice=self._dice)
        self.swarm.heads.on_kept = self._head_kept
        shelf = Shelf(Home(config.folder).files)
        self.courier = Courier(client, config.server, shelf, clock)
        self.workshop: Workshop | None = None
        """None on a relay, which needs no engine."""
        if config.role is not NodeRole.RELAY:
            self.workshop = Workshop(config, key.node, client, self.swarm, shelf, tell=self._tell, clock=clock)
        self._memory = MemoryFile(Home(config.folder).memory)
        self._jobs: dict[int, tuple[LeaseGranted, asyncio.Task[None]]] = {}
        """What is being generated, by lease."""
        self.progress: dict[int, Progressed] = {}
        """How far what is being generated is, by lease."""
        self.beat_refusal: Refusal | None = None
        """Why the last beat was refused, where it was."""
        self.upgrade_by_ms = 0
        """When the run begins to need a newer version than this; 0 where nothing is planned."""
        self.is_outdated = False
        """The run needs a newer version than this already."""
        self.idle_for = ""
        """Why the last request for work brought none."""
        self._holds: dict[str, str] = {}
        self._is_draining = False
        self.leases_done = 0
        """Answered since this process began."""
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._group = asyncio.TaskGroup()
        self._stop = asyncio.Event()
        self._gone = asyncio.Event()
        """The agent has nothing left to do."""
        self.agent: Agent | None = None
        self.wanted: Weights | None = None
        """The checkpoint that the coordinator last named."""
        self.weights_problem = ""
        """Why the last try for weights ended, where it was this machine's fault."""
        self.stopped_for = ""
        """Why this process ends, where nobody on this machine asked for it."""
        parts = [Part("agent", self._run_agent), *self.swarm.parts(), Part("trainer", self._watch_trainer)]
        if self.workshop is not None:
            appeals = ChainAppeals(config, key, clock)
            self.workshop.on_appealed = appeals.ask
            parts += [Part("outcomes", self.workshop.outcomes.run), Part("appeals", appeals.run)]
        self.supervisor = Supervisor(parts, clock)

    async def run(self, stop: asyncio.Event) -> None:
        """Until told to stop, or until something here says so. LocalError: the port is taken."""
        self._stop = stop
        try:
            await self.swarm.start()
            await self.supervisor.run_until(self._wait(stop))
        finally:
            if self.workshop is not None:
                await self.workshop.close()
            await self.swarm.stop()

    # --- What the owner wants ---------------------------------------------------------------------------------------

    def hold(self, reason: str, by: str = "owner") -> None:
        """No more work is taken while somebody has a reason; an empty one takes it back."""
        before = self.held_for
        self._holds[by] = reason
        if self.held_for != before:
            log.info("no more work is taken: %s", self.held_for) if self.held_for else log.info("work is taken again")
            self._tell(Held(self.held_for))

    @property
    def held_for(self) -> str:
        return "; ".join(reason for reason in self._holds.values() if reason)

    def drain(self) -> None:
        """Finish what is in hand, then end."""
        self._is_draining = True
        self._tell(Drained())

    def _tell(self, event: Event) -> None:
        self._events.put_nowait(event)

    async def _wait(self, stop: asyncio.Event) -> None:
        """Until told to stop, and then for the agent to hand back what it holds, while that takes no time."""
        await stop.wait()
        self._tell(Leaving())
        try:
            async with asyncio.timeout(LEAVE_MS / 1000):
                await self._gone.wait()
        except TimeoutError:
            log.warning("stopping with work in hand, or words unsaid; the next start goes on with them")

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
        agent = self.agent = Agent(self.key, self._make_profile(), self._dice)
        memory = self._memory.load()
        if self.workshop is not None:
            self.workshop.tidy(memory)
        self._events = asyncio.Queue()
        self._jobs = {}
        if self.swarm.heads.kept is not None:
            agent.head_kept(self.swarm.heads.kept.size)
        # A bug in what was begun for the agent ends the agent too, or it would wait for an event that never comes.
        async with asyncio.TaskGroup() as self._group:
            if self.held_for:
                self._tell(Held(self.held_for))
            if self._is_draining:
                self._tell(Drained())
            event: Event = Started(memory)
            while True:
                for effect in agent.handle(event, self._clock.now_ms()):
                    self._carry_out(effect)
                self._note(event, agent)
                event = await self._next_event(agent.wake_ms - self._clock.now_ms())

    def _make_profile(self) -> Profile:
        config, now_ms = self.config, self._clock.now_ms()
        delegation = None
        if config.delegation is not None:
            delegation = read_delegation(
                config.delegation,
                network=config.network_id,
                node=self.key.node,
                domain=config.signing_domain,
                now_ms=now_ms,
            )
        return Profile(
            network=config.network_id,
            run=config.run_id,
            roles=config.role.entries,
            hardware=config.hardware,
            addresses=self.swarm.urls,
            delegation=delegation,
            tokens_per_s=self.workshop.find_pace() if self.workshop else 1,
            audits_at_once=config.engine.audits_at_once,
            domain=config.signing_domain,
        )

    def _note(self, event: Event, agent: Agent) -> None:
        """A file that came too late is no answer."""
        if isinstance(event, Generated) and self.workshop is not None:
            job = self._jobs.pop(event.lease, None)
            if event.lease in agent.assignments.answers:
                self.leases_done += 1
            elif job is not None:
                self.workshop.worker.note_given_back(job[0], "it was done after its deadline")

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
                self._gone.set()
            case Generate(lease):
                task = self._begin(self._generate(effect, self._events))
                self._jobs[lease.lease] = lease, task
            case Abandon(number):
                self._abandon(number)
            case Audit(audit_task):
                self._begin(self._audit(audit_task, self._events))

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._group.create_task(work)

    async def _deliver(self, send: Send, events: asyncio.Queue[Event]) -> None:
        event = await self.courier.deliver(send)
        if self.workshop is not None:
            self.workshop.note_sent(send, event)
        self._note_reply(send, event)
        events.put_nowait(event)

    def _note_reply(self, send: Send, event: Event) -> None:
        """What a reply says that only the owner wants to know."""
        match send.message, event:
            case Heartbeat(), ReplyReceived(reply=HeartbeatReply(upgrade_by_ms=by_ms, version_min=version_min)):
                self.upgrade_by_ms, self.beat_refusal = by_ms, None
                self.is_outdated = version_min > PROTOCOL_VERSION
            case Heartbeat(), Refused(refusal=refusal):
                self.beat_refusal = refusal
            case LeaseRequest(), ReplyReceived(reply=LeaseReply(lease=lease, reason=reason)):
                self.idle_for = reason if lease is None else ""
            case LeaseEnded(lease=number, reason=reason), _:
                self.idle_for = f"lease {number} was given back: {reason}"

    # --- Work -------------------------------------------------------------------------------------------------------

    async def _generate(self, wanted: Generate, events: asyncio.Queue[Event]) -> None:
        assert self.workshop is not None, "a relay asks for no leases"
        number = wanted.lease.lease

        def note_progress(progress: Progressed) -> None:
            self.progress = {number: progress}
            events.put_nowait(progress)

        event = await self.workshop.worker.generate(wanted, note_progress)
        if not isinstance(event, Generated):
            self._jobs.pop(number, None)
        self._mind_engine(self.workshop)
        events.put_nowait(event)

    def _abandon(self, number: int) -> None:
        """The agent has no more use for it: the coordinator ended it, or it is late."""
        if number in self._jobs and self.workshop is not None:
            lease, task = self._jobs.pop(number)
            task.cancel()
            self.workshop.worker.note_given_back(lease, "it was late, or the coordinator had ended it")

    async def _audit(self, task: AuditTask, events: asyncio.Queue[Event]) -> None:
        assert self.workshop is not None, "a relay is not drawn"
        event = await self.workshop.auditor.audit(task)
        self._mind_engine(self.workshop)
        events.put_nowait(event)

    def _mind_engine(self, workshop: Workshop) -> None:
        """No work is taken while the engine is broken; then it gets another chance."""
        if workshop.keeper.is_broken and not self._holds.get("engine"):
            self.hold(f"the engine keeps failing: {workshop.keeper.last_error}", by="engine")
            self._begin(self._try_engine_again(workshop))

    async def _try_engine_again(self, workshop: Workshop) -> None:
        try:
            await self._clock.sleep_ms(workshop.keeper.wait_ms())
        finally:
            self.hold("", by="engine")

    # --- Weights ----------------------------------------------------------------------------------------------------

    async def _load(self, weights: Weights, events: asyncio.Queue[Event]) -> None:
        try:
            is_here = await self.swarm.fetcher.obtain(weights.root, weights.manifest, lambda: self.wanted is weights)
        except LocalError as error:
            # It is tried again with every beat: said once, or a full disk is filled with saying so.
            if str(error) != self.weights_problem:
                log.error("the weights of step %d cannot be had: %s", weights.step, error)
            self.weights_problem = str(error)
            events.put_nowait(WeightsFailed(weights.step))
            return
        if not is_here:
            return
        self.weights_problem = ""
        log.info("the weights of step %d are here: %s", weights.step, weights.root)
        events.put_nowait(WeightsReady(weights.step, weights.root))

    def _head_kept(self, size: int) -> None:
        if self.agent is not None:
            self.agent.head_kept(size)
