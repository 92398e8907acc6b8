"""The work of one node in all its runs: an agent runner for each run, over one engine and one coordinator client.

What concerns the node as a whole is decided once, here: who holds it, what it stakes, and when it may end. A run that
fails, is paused or has ended keeps its own runner waiting and touches no other.
"""

import logging
from collections.abc import Callable
from functools import partial
from random import Random

from prime_node.agent.audit_schedule import AuditSchedule
from prime_node.agent.events import DrainRequested, EngineReported, Event, HoldChanged, StakeMissing, Tick
from prime_node.agent_runner import AgentRunner, Holds, SharedWork
from prime_node.config import NodeConfig, NodeRole
from prime_node.coordinator_client import CoordinatorClient
from prime_node.engine.interface import EngineQueue
from prime_node.jobs.runner import JobTools
from prime_node.log.restores import LossNoticed
from prime_node.run_weights import find_changed_tensors
from prime_node.storage.node_folder import NodeFolder
from prime_node.storage.saved_state import UploadSpool
from prime_node.swarm import Swarm
from prime_protocol.wire.ids import Digest, RunId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.http.client import HttpClient
from prime_runtime.supervisor import SupervisedTask

log = logging.getLogger(__name__)


class NodeWork:
    """The runners of all runs, and what they share."""

    def __init__(
        self,
        config: NodeConfig,
        key: WalletKey,
        client: HttpClient,
        swarm: Swarm,
        *,
        clock: Clock,
        rng: Random,
        on_stop: Callable[[str], None],
        on_appealed: Callable[[Digest], None],
    ) -> None:
        self._clock = clock
        self._on_stop = on_stop
        self.holds = Holds()
        self.tools: JobTools | None = None
        """None on a relay, which needs no engine."""
        if config.role is not NodeRole.RELAY:
            stores = [each.store for each in swarm.runs.values()]
            self.tools = JobTools.open(config, clock, changes=lambda old, new: find_changed_tensors(stores, old, new))
        spool = self.tools.spool if self.tools else UploadSpool(NodeFolder(config.folder).spool)
        self.coordinator = CoordinatorClient(client, config.server, spool, clock)
        self._schedule = AuditSchedule(config.engine.audits_at_once)
        shared = SharedWork(self.tools, self.coordinator, self._schedule, self.holds)
        self._stopped: dict[RunId, str] = {}
        self._missing_nano: dict[RunId, int] = {}
        self.runners = {
            run: AgentRunner(
                config.for_run(run),
                key,
                client,
                swarm,
                shared,
                registers=run == config.run_id,
                clock=clock,
                rng=rng,
                on_stop=partial(self._finish, run),
                on_handled=self._wake_next_run,
                on_stake_missing=partial(self._report_stake, run),
                on_appealed=on_appealed,
            )
            for run in config.runs
        }
        if self.tools is not None:
            self.tools.engine.on_queue = partial(self._report_engine, self.tools)
            self.tools.remove_orphan_files([runner.load_state() for runner in self.runners.values()])

    @property
    def first(self) -> AgentRunner:
        """Its agent registers the node, stakes for it and hands in its cosignatures."""
        return next(iter(self.runners.values()))

    def list_parts(self) -> list[SupervisedTask]:
        is_one = len(self.runners) == 1
        return [
            SupervisedTask("agent" if is_one else f"agent of {run}", runner.run) for run, runner in self.runners.items()
        ]

    def post_to_all(self, event: Event) -> None:
        for runner in self.runners.values():
            runner.post_event(event)

    def hold(self, reason: str, by: str = "owner") -> None:
        """Takes no more work in any run while any party has a reason. An empty reason withdraws that of `by`."""
        before = self.holds.reason
        self.holds.reasons[by] = reason
        if self.holds.reason != before:
            log.info("taking no more work: %s", self.holds.reason) if self.holds.reason else log.info("taking work")
            for runner in self.runners.values():
                runner.post_event(HoldChanged(runner.hold_reason))

    def drain(self) -> None:
        """Finishes the current jobs, then stops."""
        self.holds.is_draining = True
        self.post_to_all(DrainRequested())

    def handle_loss(self, loss: LossNoticed) -> None:
        """The coordinator restored its log, and entries of any run may be lost."""
        for runner in self.runners.values():
            runner.handle_loss(loss)

    def set_head_size(self, size: int) -> None:
        for runner in self.runners.values():
            runner.set_head_size(size)

    @property
    def leases_done(self) -> int:
        return sum(runner.status.leases_done for runner in self.runners.values())

    async def close(self) -> None:
        for runner in self.runners.values():
            runner.close()
        if self.tools is not None:
            await self.tools.close()

    # --- Over all runs ----------------------------------------------------------------------------------------------

    def _report_engine(self, tools: JobTools, queue: EngineQueue) -> None:
        """The engine is at work: a few times a second."""
        capacity = tools.engine.capacity
        self.post_to_all(
            EngineReported(queue.running, queue.waiting, capacity.sequences_max, kv_tokens=capacity.kv_tokens)
        )

    def _wake_next_run(self, run: RunId, server_ms: int) -> None:
        """The engine may be free for an audit of a run whose agent sleeps."""
        other = self._schedule.get_next_run(server_ms)
        if other not in (None, run):
            self.runners[other].post_event(Tick())

    def _report_stake(self, run: RunId, missing: StakeMissing) -> None:
        """The runs share one stake, so the largest demand counts."""
        self._missing_nano[run] = missing.amount_nano
        self.first.post_event(StakeMissing(max(self._missing_nano.values())))

    def _finish(self, run: RunId, reason: str) -> None:
        """The node ends once no run has anything left to do."""
        self._stopped.setdefault(run, reason)
        if len(self._stopped) == len(self.runners):
            self._on_stop(next((each for each in self._stopped.values() if each), ""))
