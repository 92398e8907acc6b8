"""The parts of a joined node, wired together and supervised: agent, swarm, appeals.

Each part may fail and is restarted. What a part does is in its own module; this one starts, stops and connects them.
"""

import asyncio
import logging
import random
import re
import secrets

from prime_node.agent.events import HeadCosigned, StopRequested
from prime_node.agent_runner import AgentRunner
from prime_node.config import NodeConfig
from prime_node.settlement.appeals import ChainAppeals
from prime_node.settlement.payout_watch import PayoutWatch
from prime_node.storage.node_folder import save_trainer
from prime_node.swarm import Swarm
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock, wait_until_set
from prime_runtime.http.client import HttpClient
from prime_runtime.supervisor import SupervisedTask, Supervisor

log = logging.getLogger(__name__)

POLL_MS = 1_000
SHUTDOWN_MS = 5_000
"""How long a node that was told to stop tries to return its leases."""
GPU_DEVICE = re.compile(r"cuda(?::(\d+))?")


class Daemon:
    """One node at work, once it knows the run's trainer."""

    def __init__(self, config: NodeConfig, key: WalletKey, client: HttpClient, trainer: NodeId, clock: Clock) -> None:
        self.config = config
        self._clock = clock
        self._stop = asyncio.Event()
        self._agent_done = asyncio.Event()
        """The agent has nothing left to do."""
        self.stop_reason = ""
        """Why the process ends, where its owner did not ask for it."""
        rng = random.Random(secrets.randbits(64))
        self.swarm = Swarm(config, key, client, trainer, clock=clock, rng=rng)
        appeals = ChainAppeals(config, key, clock)
        self.work = AgentRunner(
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
        self.swarm.head_monitor.on_cosigned = lambda cosigned: self.work.post_event(HeadCosigned(cosigned))
        self.swarm.accusations.on_change = lambda reason: self.work.hold(reason, by="log")
        parts = [
            SupervisedTask("agent", self.work.run),
            *self.swarm.parts(),
            SupervisedTask("trainer", self._watch_trainer),
        ]
        if self.work.job_runner is not None:
            parts.append(SupervisedTask("appeals", appeals.run))
        if self.swarm.ledger_follower is not None and PayoutWatch.is_allowed(config):
            watch = PayoutWatch(config, key, self.swarm.ledger_follower, clock)
            parts.append(SupervisedTask("payout roots", watch.run))
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
        self.work.post_event(StopRequested())
        if not await wait_until_set(self._agent_done, SHUTDOWN_MS):
            log.warning("shutdown timed out; leases and unsent entries resume at the next start")

    def _finish(self, reason: str) -> None:
        self._end(reason)
        self._agent_done.set()

    def _end(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason
        self._stop.set()

    async def _watch_trainer(self) -> None:
        """Ends the process when the run gets another trainer, since the weights here are then not the run's."""
        while True:
            await self._clock.sleep_ms(POLL_MS)
            trainer = self.swarm.relay_client.trainer
            if trainer is not None and trainer != self.swarm.trainer:
                save_trainer(self.config.folder, trainer)
                self._end(f"the run's trainer changed from {self.swarm.trainer} to {trainer}; start the node again")
                return


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
        job_runner = self._work.job_runner
        if job_runner is not None and (self._restart_task is None or self._restart_task.done()):
            self._restart_task = asyncio.create_task(job_runner.engine.stop_process())

    @property
    def leases_done(self) -> int:
        return self._work.status.leases_done

    @property
    def transferred_bytes(self) -> int:
        swarm = self._swarm
        return swarm.server.sent_bytes + swarm.fetcher.received_bytes + self._work.coordinator.uploaded_bytes

    @property
    def engine_gpus(self) -> tuple[int, ...]:
        job_runner = self._work.job_runner
        return find_gpus(job_runner.engine.get_status()["device"]) if job_runner is not None else ()


def find_gpus(device: str) -> tuple[int, ...]:
    """From the engine's name of its device; `cuda` alone is the first GPU."""
    match = GPU_DEVICE.fullmatch(device)
    return (int(match[1] or 0),) if match else ()
