"""The node's shell: clock, sockets, disk and supervision around the decisions of agent.py. What waits is in here.

Each part may die and begins again: the agent from what is on disk, the others from nothing. What the agent wants done
is carried out in the order it says.

What of a running daemon its owner's wishes are about: see owner.py for who asks.
"""

import asyncio
import logging
import random
import re
import secrets
from collections.abc import Coroutine
from typing import Any

from prime_node.agent.agent import Agent
from prime_node.agent.events import (
    Audit,
    CancelGeneration,
    CheckTreeHead,
    DrainRequested,
    Effect,
    Event,
    Generate,
    Generated,
    GenerationProgressed,
    HoldChanged,
    LoadWeights,
    ReplyReceived,
    SaveState,
    Send,
    SendRefused,
    Started,
    Stop,
    StopRequested,
    Tick,
    WeightsFailed,
    WeightsReady,
)
from prime_node.agent.outbox import NodeProfile
from prime_node.config import NodeConfig, NodeRole
from prime_node.coordinator_client import CoordinatorClient
from prime_node.jobs.runner import JobRunner
from prime_node.settlement.appeals import ChainAppeals
from prime_node.storage.keys import read_delegation
from prime_node.storage.node_folder import NodeFolder, save_trainer
from prime_node.storage.saved_state import SavedStateFile, UploadSpool
from prime_node.swarm import Swarm
from prime_protocol.constants import PROTOCOL_VERSION
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import LeaseEnded, LeaseGranted
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.messages import AuditTask, CheckpointRef, Heartbeat, HeartbeatReply, LeaseReply, LeaseRequest
from prime_protocol.wire.rpc import Refusal
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.http.client import HttpClient
from prime_runtime.supervisor import SupervisedTask, Supervisor

log = logging.getLogger(__name__)


POLL_MS = 1_000
SHUTDOWN_MS = 5_000
"""How long a node that is stopped tries to give back its leases."""


class Daemon:
    """One node at work, from the moment it knows whose weights count."""

    def __init__(self, config: NodeConfig, key: WalletKey, client: HttpClient, trainer: NodeId, clock: Clock) -> None:
        self.config = config
        self.key = key
        self._clock = clock
        self._rng = random.Random(secrets.randbits(64))
        self.swarm = Swarm(config, key, client, trainer, clock=clock, dice=self._rng)
        self.swarm.head_monitor.on_verified = self._set_head_size
        spool = UploadSpool(NodeFolder(config.folder).spool)
        self.coordinator = CoordinatorClient(client, config.server, spool, clock)
        self.job_runner: JobRunner | None = None
        """None on a relay, which needs no engine."""
        if config.role is not NodeRole.RELAY:
            self.job_runner = JobRunner(config, key.node, client, self.swarm, spool, tell=self._post_event, clock=clock)
        self._saved_state = SavedStateFile(NodeFolder(config.folder).saved_state)
        self._jobs: dict[int, tuple[LeaseGranted, asyncio.Task[None]]] = {}
        """What is being generated, by lease."""
        self.progress: dict[int, GenerationProgressed] = {}
        """How far what is being generated is, by lease."""
        self.heartbeat_refusal: Refusal | None = None
        """Why the last beat was refused, where it was."""
        self.upgrade_by_ms = 0
        """When the run begins to need a newer version than this; 0 where nothing is planned."""
        self.is_outdated = False
        """The run needs a newer version than this already."""
        self.idle_reason = ""
        """Why the last request for work brought none."""
        self._holds: dict[str, str] = {}
        self._is_draining = False
        self.leases_done = 0
        """Answered since this process began."""
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._group = asyncio.TaskGroup()
        self._stop = asyncio.Event()
        self._agent_done = asyncio.Event()
        """The agent has nothing left to do."""
        self.agent: Agent | None = None
        self.wanted_weights: CheckpointRef | None = None
        """The checkpoint that the coordinator last named."""
        self.weights_problem = ""
        """Why the last try for weights ended, where it was this machine's fault."""
        self.stop_reason = ""
        """Why this process ends, where nobody on this machine asked for it."""
        parts = [
            SupervisedTask("agent", self._run_agent),
            *self.swarm.parts(),
            SupervisedTask("trainer", self._watch_trainer),
        ]
        if self.job_runner is not None:
            appeals = ChainAppeals(config, key, clock)
            self.job_runner.on_appealed = appeals.request_appeal
            parts += [SupervisedTask("outcomes", self.job_runner.tracker.run), SupervisedTask("appeals", appeals.run)]
        self.supervisor = Supervisor(parts, clock)

    async def run(self, stop: asyncio.Event) -> None:
        """Until told to stop, or until something here says so. LocalError: the port is taken."""
        self._stop = stop
        try:
            await self.swarm.start()
            await self.supervisor.run_until(self._wait_for_stop(stop))
        finally:
            if self.job_runner is not None:
                await self.job_runner.close()
            await self.swarm.stop()

    # --- What the owner wants ---------------------------------------------------------------------------------------

    def hold(self, reason: str, by: str = "owner") -> None:
        """No more work is taken while somebody has a reason; an empty one takes it back."""
        before = self.hold_reason
        self._holds[by] = reason
        if self.hold_reason != before:
            log.info("no more work is taken: %s", self.hold_reason) if self.hold_reason else log.info(
                "work is taken again"
            )
            self._post_event(HoldChanged(self.hold_reason))

    @property
    def hold_reason(self) -> str:
        return "; ".join(reason for reason in self._holds.values() if reason)

    def drain(self) -> None:
        """Finish what is in hand, then end."""
        self._is_draining = True
        self._post_event(DrainRequested())

    def _post_event(self, event: Event) -> None:
        self._events.put_nowait(event)

    async def _wait_for_stop(self, stop: asyncio.Event) -> None:
        """Until told to stop, and then for the agent to hand back what it holds, while that takes no time."""
        await stop.wait()
        self._post_event(StopRequested())
        try:
            async with asyncio.timeout(SHUTDOWN_MS / 1000):
                await self._agent_done.wait()
        except TimeoutError:
            log.warning("stopping with work in hand, or words unsaid; the next start goes on with them")

    def _end(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason
        self._stop.set()

    async def _watch_trainer(self) -> None:
        """A run may be given another trainer; then what is here is nobody's."""
        while True:
            await self._clock.sleep_ms(POLL_MS)
            trainer = self.swarm.relay_client.trainer
            if trainer is not None and trainer != self.swarm.trainer:
                save_trainer(self.config.folder, trainer)
                self._end(f"the run's trainer is {trainer} now, and was {self.swarm.trainer}; start the node again")
                return

    # --- The agent --------------------------------------------------------------------------------------------------

    async def _run_agent(self) -> None:
        """From what is on disk, also after a failure."""
        agent = self.agent = Agent(self.key, self._make_profile(), self._rng)
        state = self._saved_state.load()
        if self.job_runner is not None:
            self.job_runner.remove_orphan_files(state)
        self._events = asyncio.Queue()
        self._jobs = {}
        if self.swarm.head_monitor.latest is not None:
            agent.set_head_size(self.swarm.head_monitor.latest.size)
        # A bug in what was begun for the agent ends the agent too, or it would wait for an event that never comes.
        async with asyncio.TaskGroup() as self._group:
            if self.hold_reason:
                self._post_event(HoldChanged(self.hold_reason))
            if self._is_draining:
                self._post_event(DrainRequested())
            event: Event = Started(state)
            while True:
                for effect in agent.handle(event, self._clock.now_ms()):
                    self._carry_out(effect)
                self._record_generated(event, agent)
                event = await self._next_event(agent.wake_ms - self._clock.now_ms())

    def _make_profile(self) -> NodeProfile:
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
        return NodeProfile(
            network=config.network_id,
            run=config.run_id,
            roles=config.role.log_roles,
            hardware=config.hardware,
            addresses=self.swarm.urls,
            delegation=delegation,
            tokens_per_s=self.job_runner.estimate_tokens_per_s() if self.job_runner else 1,
            audits_at_once=config.engine.audits_at_once,
            domain=config.signing_domain,
        )

    def _record_generated(self, event: Event, agent: Agent) -> None:
        """A file that came too late is no answer."""
        if isinstance(event, Generated) and self.job_runner is not None:
            job = self._jobs.pop(event.lease, None)
            if event.lease in agent.leases.answers:
                self.leases_done += 1
            elif job is not None:
                self.job_runner.generator.record_returned(job[0], "it was done after its deadline")

    async def _next_event(self, wait_ms: int) -> Event:
        try:
            async with asyncio.timeout(max(0, wait_ms) / 1000):
                return await self._events.get()
        except TimeoutError:
            return Tick()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._start_task(self._send(effect, self._events))
            case SaveState(state):
                self._saved_state.save(state)
            case LoadWeights(weights):
                self.wanted_weights = weights
                self._start_task(self._load_weights(weights, self._events))
            case CheckTreeHead(head):
                self.swarm.head_monitor.add_coordinator_head(head)
            case Stop(reason):
                self._end(reason)
                self._agent_done.set()
            case Generate(lease):
                task = self._start_task(self._generate(effect, self._events))
                self._jobs[lease.lease] = lease, task
            case CancelGeneration(number):
                self._cancel_generation(number)
            case Audit(audit_task):
                self._start_task(self._audit(audit_task, self._events))

    def _start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._group.create_task(work)

    async def _send(self, send: Send, events: asyncio.Queue[Event]) -> None:
        event = await self.coordinator.send(send)
        if self.job_runner is not None:
            self.job_runner.record_sent(send, event)
        self._record_reply(send, event)
        events.put_nowait(event)

    def _record_reply(self, send: Send, event: Event) -> None:
        """What a reply says that only the owner wants to know."""
        match send.message, event:
            case Heartbeat(), ReplyReceived(reply=HeartbeatReply(upgrade_by_ms=by_ms, version_min=version_min)):
                self.upgrade_by_ms, self.heartbeat_refusal = by_ms, None
                self.is_outdated = version_min > PROTOCOL_VERSION
            case Heartbeat(), SendRefused(refusal=refusal):
                self.heartbeat_refusal = refusal
            case LeaseRequest(), ReplyReceived(reply=LeaseReply(lease=lease, reason=reason)):
                self.idle_reason = reason if lease is None else ""
            case LeaseEnded(lease=number, reason=reason), _:
                self.idle_reason = f"lease {number} was given back: {reason}"

    # --- Work -------------------------------------------------------------------------------------------------------

    async def _generate(self, wanted: Generate, events: asyncio.Queue[Event]) -> None:
        assert self.job_runner is not None, "a relay asks for no leases"
        number = wanted.lease.lease

        def note_progress(progress: GenerationProgressed) -> None:
            self.progress = {number: progress}
            events.put_nowait(progress)

        event = await self.job_runner.generator.generate(wanted, note_progress)
        if not isinstance(event, Generated):
            self._jobs.pop(number, None)
        self._hold_if_engine_broken(self.job_runner)
        events.put_nowait(event)

    def _cancel_generation(self, number: int) -> None:
        """The agent has no more use for it: the coordinator ended it, or it is late."""
        if number in self._jobs and self.job_runner is not None:
            lease, task = self._jobs.pop(number)
            task.cancel()
            self.job_runner.generator.record_returned(lease, "it was late, or the coordinator had ended it")

    async def _audit(self, task: AuditTask, events: asyncio.Queue[Event]) -> None:
        assert self.job_runner is not None, "a relay is not drawn"
        event = await self.job_runner.auditor.audit(task)
        self._hold_if_engine_broken(self.job_runner)
        events.put_nowait(event)

    def _hold_if_engine_broken(self, job_runner: JobRunner) -> None:
        """No work is taken while the engine is broken; then it gets another chance."""
        if job_runner.engine.is_broken and not self._holds.get("engine"):
            self.hold(f"the engine keeps failing: {job_runner.engine.last_error}", by="engine")
            self._start_task(self._release_engine_hold(job_runner))

    async def _release_engine_hold(self, job_runner: JobRunner) -> None:
        try:
            await self._clock.sleep_ms(job_runner.engine.get_retry_wait_ms())
        finally:
            self.hold("", by="engine")

    # --- Weights ----------------------------------------------------------------------------------------------------

    async def _load_weights(self, weights: CheckpointRef, events: asyncio.Queue[Event]) -> None:
        try:
            is_here = await self.swarm.fetcher.ensure_checkpoint(
                weights.root, weights.manifest, lambda: self.wanted_weights is weights
            )
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

    def _set_head_size(self, size: int) -> None:
        if self.agent is not None:
            self.agent.set_head_size(size)


GPU_DEVICE = re.compile(r"cuda(?::(\d+))?")


class DaemonControl:
    """One daemon's."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._restart_task: asyncio.Task[None] | None = None

    def hold(self, reason: str) -> None:
        self._daemon.hold(reason)

    def drain(self) -> None:
        self._daemon.drain()

    def restart_engine(self) -> None:
        """The engine is started anew before its next job, and finds what there is now."""
        job_runner = self._daemon.job_runner
        if job_runner is not None and (self._restart_task is None or self._restart_task.done()):
            self._restart_task = asyncio.create_task(job_runner.engine.stop_process())

    @property
    def leases_done(self) -> int:
        return self._daemon.leases_done

    @property
    def transferred_bytes(self) -> int:
        swarm = self._daemon.swarm
        return swarm.server.sent_bytes + swarm.fetcher.received_bytes + self._daemon.coordinator.uploaded_bytes

    @property
    def engine_gpus(self) -> tuple[int, ...]:
        job_runner = self._daemon.job_runner
        return find_gpus(job_runner.engine.get_status()["device"]) if job_runner is not None else ()


def find_gpus(device: str) -> tuple[int, ...]:
    """From the engine's name of its device; `cuda` alone is the first."""
    match = GPU_DEVICE.fullmatch(device)
    return (int(match[1] or 0),) if match else ()
