"""Runs the agent of one run: feeds it events, carries out its effects, and records what the owner is shown of that.

The decisions are in agent/. This module waits, sends, loads and starts jobs, and reports the end of each as an event.
The supervisor restarts `AgentRunner.run` after a failure; it then continues from the state on disk.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from random import Random
from typing import Any

from prime_node.agent.agent import Agent
from prime_node.agent.audit_schedule import AuditSchedule
from prime_node.agent.events import (
    Audit,
    CancelGeneration,
    CheckTreeHead,
    CosignTreeHead,
    DrainRequested,
    Effect,
    Event,
    Generate,
    Generated,
    GenerationProgressed,
    HoldChanged,
    LoadWeights,
    LogRolledBack,
    PendingEntry,
    ReplyReceived,
    SavedState,
    SaveState,
    Send,
    SendRefused,
    StakeMissing,
    Started,
    Stop,
    Tick,
    WeightsFailed,
    WeightsReady,
)
from prime_node.agent.outbox import NodeProfile
from prime_node.config import NodeConfig
from prime_node.coordinator_client import CoordinatorClient
from prime_node.jobs.runner import JobRunner, JobTools
from prime_node.log.restores import LossNoticed
from prime_node.storage.keys import read_delegation
from prime_node.storage.node_folder import RunFolder
from prime_node.storage.saved_state import SavedStateFile
from prime_node.swarm import Swarm
from prime_protocol.constants import PROTOCOL_VERSION
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import LeaseEnded, LeaseGranted, RulesChanged, RunStatus
from prime_protocol.log.tree_head import derive_witness_key
from prime_protocol.wire.ids import Digest, RunId
from prime_protocol.wire.messages import (
    AuditTask,
    CheckpointRef,
    Heartbeat,
    HeartbeatReply,
    LeaseReply,
    LeaseRequest,
)
from prime_protocol.wire.rpc import Refusal
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.http.client import HttpClient

log = logging.getLogger(__name__)


@dataclass(slots=True)
class WorkStatus:
    """What the owner is shown of the work. Nothing decides by it."""

    progress: dict[int, GenerationProgressed] = field(default_factory=dict)
    """Of the leases that are being generated."""
    heartbeat_refusal: Refusal | None = None
    """Why the coordinator refused the last heartbeat; None where it did not."""
    run_status: RunStatus = RunStatus.ACTIVE
    """As the coordinator said last."""
    upgrade_by_ms: int = 0
    """When the run starts to require a newer protocol version; 0 where nothing is planned."""
    is_outdated: bool = False
    """The run already requires a newer protocol version."""
    rules_change: RulesChanged | None = None
    """Other rules of the log, announced and not in force yet."""
    idle_reason: str = ""
    """Why the last lease request brought no lease."""
    leases_done: int = 0
    """Leases answered since this process started."""
    wanted_weights: CheckpointRef | None = None
    """The checkpoint that the coordinator named last."""
    weights_problem: str = ""
    """Why the last attempt to load weights failed on this machine."""

    def record_reply(self, send: Send, event: Event) -> None:
        match send.message, event:
            case Heartbeat(), ReplyReceived(reply=HeartbeatReply() as reply):
                self.upgrade_by_ms, self.heartbeat_refusal = reply.upgrade_by_ms, None
                self.is_outdated = reply.version_min > PROTOCOL_VERSION
                self.rules_change = reply.rules_change
                self.run_status = reply.run_status
            case Heartbeat(), SendRefused(refusal=refusal):
                self.heartbeat_refusal = refusal
            case LeaseRequest(), ReplyReceived(reply=LeaseReply(lease=lease, reason=reason)):
                self.idle_reason = reason if lease is None else ""
            case LeaseEnded(lease=number, reason=reason), _:
                self.idle_reason = f"lease {number} was returned: {reason}"


@dataclass(slots=True)
class Holds:
    """Who wants the node to take no more work in any run, and why. It outlives the agents, which get it again after a
    restart."""

    reasons: dict[str, str] = field(default_factory=dict)
    is_draining: bool = False

    @property
    def reason(self) -> str:
        return "; ".join(reason for reason in self.reasons.values() if reason)


@dataclass(frozen=True, slots=True)
class SharedWork:
    """What the runners of all runs share."""

    tools: JobTools | None
    """None on a relay, which needs no engine."""
    coordinator: CoordinatorClient
    schedule: AuditSchedule
    holds: Holds


class AgentRunner:
    """The work of one node in one run."""

    def __init__(
        self,
        config: NodeConfig,
        key: WalletKey,
        client: HttpClient,
        swarm: Swarm,
        shared: SharedWork,
        *,
        registers: bool,
        clock: Clock,
        rng: Random,
        on_stop: Callable[[str], None],
        on_handled: Callable[[RunId, int], None],
        on_stake_missing: Callable[[StakeMissing], None],
        on_appealed: Callable[[Digest], None],
    ) -> None:
        """`config` names this run alone. `on_handled` is called after each event, with the coordinator's time."""
        self._config = config
        self._key = key
        self._swarm = swarm
        self._clock = clock
        self._rng = rng
        self.run_id = config.run_id
        self._shared = shared
        self._registers = registers
        self._on_stop = on_stop
        self._on_handled = on_handled
        self._on_stake_missing = on_stake_missing
        self.weights = swarm.runs[self.run_id]
        self.status = WorkStatus()
        self._own_holds: dict[str, str] = {}
        """Why no work is taken in this run alone, by who says so."""
        self._saved_state = SavedStateFile(RunFolder(config, self.run_id).saved_state)
        self.job_runner: JobRunner | None = None
        """None on a relay, which needs no engine."""
        if shared.tools is not None:
            common: dict[str, Any] = {"post_event": self._post_tracked, "on_appealed": on_appealed, "clock": clock}
            self.job_runner = JobRunner(config, key.node, client, self.weights.fetcher, shared.tools, **common)
        self.agent: Agent | None = None
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._tasks = asyncio.TaskGroup()
        self._generating: dict[int, tuple[LeaseGranted, asyncio.Task[None]]] = {}
        """By lease."""

    # --- For the daemon ---------------------------------------------------------------------------------------------

    def post_event(self, event: Event) -> None:
        self._events.put_nowait(event)

    def _post_tracked(self, event: Event) -> None:
        """From the tracker of submissions. The stake is not of this run alone."""
        if isinstance(event, StakeMissing):
            self._on_stake_missing(event)
        else:
            self.post_event(event)

    def hold(self, reason: str, by: str) -> None:
        """Takes no more work in this run while any party has a reason. An empty reason withdraws that of `by`."""
        if self._own_holds.get(by, "") != reason:
            self._own_holds[by] = reason
            log.info("%s: %s", self.run_id, f"taking no more work: {reason}" if reason else "taking work")
            self.post_event(HoldChanged(self.hold_reason))

    @property
    def own_hold_reason(self) -> str:
        """Why no work is taken in this run, whatever holds for the others; empty: it is taken."""
        return "; ".join(reason for reason in self._own_holds.values() if reason)

    @property
    def hold_reason(self) -> str:
        return "; ".join(reason for reason in (self._shared.holds.reason, self.own_hold_reason) if reason)

    def load_state(self) -> SavedState:
        return self._saved_state.load()

    def set_head_size(self, size: int) -> None:
        if self.agent is not None:
            self.agent.set_head_size(size)

    def handle_loss(self, loss: LossNoticed) -> None:
        """The coordinator restored its log, and entries are lost."""
        resent: list[PendingEntry] = []
        if self.job_runner is not None:
            self.job_runner.contexts.forget_facts()
            resent = self.job_runner.tracker.list_lost(loss, self._config.network_id, self._key)
        self.post_event(LogRolledBack(loss.head_size, tuple(resent)))

    def close(self) -> None:
        if self.job_runner is not None:
            self.job_runner.close()

    # --- The loop ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled, from the state on disk."""
        agent = self.agent = Agent(self._key, self._make_profile(), self._rng, self._shared.schedule)
        state = self.load_state()
        self._events = asyncio.Queue()
        self._generating = {}
        if self._swarm.head_monitor.latest is not None:
            agent.set_head_size(self._swarm.head_monitor.latest.size)
        # A bug in a task ends the agent too; otherwise the agent would wait for an event that never comes.
        async with AsyncExitStack() as stack:
            stack.callback(self._shared.schedule.reset_run, self.run_id)
            self._tasks = await stack.enter_async_context(asyncio.TaskGroup())
            if self.hold_reason:
                self.post_event(HoldChanged(self.hold_reason))
            if self._shared.holds.is_draining:
                self.post_event(DrainRequested())
            event: Event = Started(state)
            while True:
                for effect in agent.handle(event, self._clock.now_ms()):
                    self._carry_out(effect)
                if isinstance(event, Generated):
                    self._record_generated(event, agent)
                self._on_handled(self.run_id, agent.get_server_ms(self._clock.now_ms()))
                event = await self._next_event(agent.wake_ms - self._clock.now_ms())

    def _make_profile(self) -> NodeProfile:
        config = self._config
        delegation = None
        if config.delegation is not None:
            delegation = read_delegation(
                config.delegation,
                network=config.network_id,
                node=self._key.node,
                domain=config.signing_domain,
                now_ms=self._clock.now_ms(),
            )
        return NodeProfile(
            network=config.network_id,
            run=self.run_id,
            registers=self._registers,
            runs_audited=config.runs_audited,
            roles=config.role.log_roles,
            hardware=config.hardware,
            addresses=self._swarm.urls,
            delegation=delegation,
            tokens_per_s=self.job_runner.estimate_tokens_per_s() if self.job_runner else 1,
            audits_at_once=config.engine.audits_at_once,
            domain=config.signing_domain,
            witness_key=derive_witness_key(self._key).public_key().public_bytes_raw(),
        )

    async def _next_event(self, wait_ms: int) -> Event:
        try:
            async with asyncio.timeout(max(0, wait_ms) / 1000):
                return await self._events.get()
        except TimeoutError:
            return Tick()

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send():
                self._start(self._send(effect))
            case SaveState(state):
                self._saved_state.save(state)
            case LoadWeights(weights):
                self.status.wanted_weights = weights
                self._start(self._load_weights(weights))
            case CheckTreeHead(head, restored_size):
                self._swarm.head_monitor.add_coordinator_head(head, restored_size)
            case CosignTreeHead(head):
                self._swarm.head_monitor.add_head_to_cosign(head)
            case Stop(reason):
                self._on_stop(reason)
            case Generate(lease):
                self._generating[lease.lease] = lease, self._start(self._generate(effect))
            case CancelGeneration(number):
                self._cancel_generation(number)
            case Audit(task):
                self._start(self._audit(task))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.create_task(work)

    # --- Effects ----------------------------------------------------------------------------------------------------

    async def _send(self, send: Send) -> None:
        event = await self._shared.coordinator.send(send)
        if self.job_runner is not None:
            self.job_runner.record_sent(send, event)
        self.status.record_reply(send, event)
        self.post_event(event)

    async def _load_weights(self, weights: CheckpointRef) -> None:
        try:
            is_loaded = await self.weights.fetcher.ensure_checkpoint(
                weights.root, weights.manifest, lambda: self.status.wanted_weights is weights
            )
        except LocalError as error:
            # Every heartbeat repeats the attempt. The same problem is logged once, or it would fill a full disk.
            if str(error) != self.status.weights_problem:
                log.error("cannot load the weights of step %d: %s", weights.step, error)
            self.status.weights_problem = str(error)
            self.post_event(WeightsFailed(weights.step))
            return
        if is_loaded:
            self.status.weights_problem = ""
            log.info("loaded the weights of step %d: %s", weights.step, weights.root)
            self.post_event(WeightsReady(weights.step, weights.root))

    async def _generate(self, wanted: Generate) -> None:
        assert self.job_runner is not None, "a relay requests no leases"

        def report_progress(progress: GenerationProgressed) -> None:
            self.status.progress[progress.lease] = progress
            self.post_event(progress)

        try:
            event = await self.job_runner.generator.generate(wanted, report_progress)
        finally:
            self.status.progress.pop(wanted.lease.lease, None)
        if not isinstance(event, Generated):
            self._generating.pop(wanted.lease.lease, None)
        self._hold_if_engine_broken(self.job_runner)
        self.post_event(event)

    def _record_generated(self, event: Generated, agent: Agent) -> None:
        """The agent has seen the file. It submits it, unless it came after the deadline."""
        assert self.job_runner is not None, "a relay generates nothing"
        generated = self._generating.pop(event.lease, None)
        if event.lease in agent.leases.answers:
            self.status.leases_done += 1
        elif generated is not None:
            self.job_runner.generator.record_returned(generated[0], "it was finished after its deadline")

    def _cancel_generation(self, number: int) -> None:
        """The coordinator ended the lease, or it is late."""
        if number in self._generating and self.job_runner is not None:
            lease, task = self._generating.pop(number)
            task.cancel()
            self.job_runner.generator.record_returned(lease, "it was late, or the coordinator had ended it")

    async def _audit(self, task: AuditTask) -> None:
        assert self.job_runner is not None, "a relay is not drawn for audits"
        event = await self.job_runner.auditor.audit(task)
        self._hold_if_engine_broken(self.job_runner)
        self.post_event(event)

    def _hold_if_engine_broken(self, job_runner: JobRunner) -> None:
        """Takes no work while the engine keeps dying with this run's model, and tries it again after a while."""
        engine = job_runner.engine
        if engine.is_broken(self.run_id) and not self._own_holds.get("engine"):
            self.hold(f"the engine keeps failing: {engine.get_error(self.run_id)}", by="engine")
            self._start(self._release_engine_hold(job_runner))

    async def _release_engine_hold(self, job_runner: JobRunner) -> None:
        try:
            await self._clock.sleep_ms(job_runner.engine.get_retry_wait_ms(self.run_id))
        finally:
            self.hold("", by="engine")
