"""The parts of a joined node, wired together and supervised: agent, swarm, appeals.

Each part may fail and is restarted. What a part does is in its own module; this one starts, stops and connects them.
"""

import asyncio
import logging
import random
import re
import secrets
from collections.abc import Mapping

from prime_node.agent.events import HeadCosigned, StopRequested
from prime_node.config import NodeConfig
from prime_node.log.restores import LossNoticed
from prime_node.node_work import NodeWork
from prime_node.settlement.appeals import ChainAppeals
from prime_node.settlement.payout_watch import PayoutWatch
from prime_node.storage.node_folder import save_trainer
from prime_node.swarm import Swarm
from prime_protocol.wire.ids import NodeId, RunId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock, wait_until_set
from prime_runtime.http.client import HttpClient
from prime_runtime.supervisor import SupervisedTask, Supervisor

log = logging.getLogger(__name__)

POLL_MS = 1_000
SHUTDOWN_MS = 5_000
"""How long a node that was told to stop tries to return its leases."""
GPU_DEVICE = re.compile(r"cuda(?::(\d+(?:,\d+)*))?")


class Daemon:
    """One node at work, once it knows the trainers of its runs."""

    def __init__(
        self, config: NodeConfig, key: WalletKey, client: HttpClient, trainers: Mapping[RunId, NodeId], clock: Clock
    ) -> None:
        self.config = config
        self._clock = clock
        self._stop = asyncio.Event()
        self._agent_done = asyncio.Event()
        """The agent has nothing left to do."""
        self.stop_reason = ""
        """Why the process ends, where its owner did not ask for it."""
        rng = random.Random(secrets.randbits(64))
        self.swarm = Swarm(config, key, client, trainers, clock=clock, rng=rng)
        appeals = ChainAppeals(config, key, clock)
        self.work = NodeWork(
            config,
            key,
            client,
            self.swarm,
            clock=clock,
            rng=rng,
            on_stop=self._finish,
            on_appealed=appeals.request_appeal,
        )
        self.swarm.head_monitor.on_verified = self.work.set_head_size
        self.swarm.head_monitor.on_loss = self._handle_loss
        self.swarm.head_monitor.on_cosigned = lambda cosigned: self.work.first.post_event(HeadCosigned(cosigned))
        self.swarm.accusations.on_change = lambda reason: self.work.hold(reason, by="log")
        parts = [
            *self.work.list_parts(),
            *self.swarm.parts(),
            SupervisedTask("trainer", self._watch_trainer),
        ]
        if self.work.tools is not None:
            parts.append(SupervisedTask("appeals", appeals.run))
        if self.swarm.ledger_follower is not None and PayoutWatch.is_allowed(config):
            for run in config.runs:
                watch = PayoutWatch(config.for_run(run), key, self.swarm.ledger_follower, clock)
                of = f" of {run}" if len(config.runs) > 1 else ""
                parts.append(SupervisedTask(f"payout roots{of}", watch.run))
        self.supervisor = Supervisor(parts, clock)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set, by the owner or by a part. LocalError: the port is taken."""
        self._stop = stop
        try:
            await self.swarm.start()
            await self.supervisor.run_until(self._wait_for_stop(stop))
        finally:
            await self.work.close()
            await self.swarm.stop()

    async def _wait_for_stop(self, stop: asyncio.Event) -> None:
        """Waits for `stop`, then gives the agent a moment to return its leases."""
        await stop.wait()
        self.work.post_to_all(StopRequested())
        if not await wait_until_set(self._agent_done, SHUTDOWN_MS):
            log.warning("shutdown timed out; leases and unsent entries resume at the next start")

    def _handle_loss(self, loss: LossNoticed) -> None:
        if self.swarm.ledger_follower is not None:
            self.swarm.ledger_follower.handle_loss()
        self.work.handle_loss(loss)

    def _finish(self, reason: str) -> None:
        self._end(reason)
        self._agent_done.set()

    def _end(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason
        self._stop.set()

    async def _watch_trainer(self) -> None:
        """Takes no more work in a run that gets another trainer, since the weights here are then not the run's. Ends
        the process where that is the only run."""
        told: set[RunId] = set()
        while True:
            await self._clock.sleep_ms(POLL_MS)
            for run, weights in self.swarm.runs.items():
                trainer = weights.relay_client.trainer
                if trainer in (None, weights.trainer) or run in told:
                    continue
                told.add(run)
                save_trainer(self.config.folder, run, trainer)
                reason = f"the trainer of {run} changed from {weights.trainer} to {trainer}; start the node again"
                if len(told) == len(self.swarm.runs):
                    self._end(reason)
                    return
                self.work.runners[run].hold(reason, by="trainer")


class DaemonControl:
    """What the owner's policy may do with a running daemon: the NodeControl of policy/enforcer.py."""

    def __init__(self, daemon: Daemon) -> None:
        self._work = daemon.work
        self._swarm = daemon.swarm
        self._restart_task: asyncio.Task[None] | None = None

    def hold(self, reason: str) -> None:
        self._work.hold(reason)

    def drain(self) -> None:
        self._work.drain()

    def restart_engine(self) -> None:
        """Stops the engine process. The next job starts it again, on the GPUs that are there then."""
        tools = self._work.tools
        if tools is not None and (self._restart_task is None or self._restart_task.done()):
            self._restart_task = asyncio.create_task(tools.engine.stop_process())

    @property
    def leases_done(self) -> int:
        return self._work.leases_done

    @property
    def transferred_bytes(self) -> int:
        weights = self._swarm.runs.values()
        sent = sum(each.server.sent_bytes + each.fetcher.received_bytes for each in weights)
        return sent + self._work.coordinator.uploaded_bytes

    @property
    def engine_gpus(self) -> tuple[int, ...]:
        tools = self._work.tools
        return find_gpus(tools.engine.get_status()["device"]) if tools is not None else ()


def find_gpus(device: str) -> tuple[int, ...]:
    """From the engine's name of its devices; `cuda` alone is the first GPU."""
    match = GPU_DEVICE.fullmatch(device)
    return tuple(map(int, (match[1] or "0").split(","))) if match else ()
