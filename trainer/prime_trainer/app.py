"""One process of a trainer, from the lock to the last word. The first rank talks to the world; the others only train.

Training runs in a thread of its own, since it computes for minutes; everything that waits for others is in the loop.
"""

import asyncio
import logging
import signal
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock, SystemClock
from prime_runtime.http.client import HttpClient, open_client
from prime_runtime.http.control_api import ControlServer
from prime_runtime.lock import ProcessLock, hold_process_lock
from prime_runtime.model_files import ModelFiles
from prime_runtime.sandbox.sandbox import Sandbox
from prime_runtime.supervisor import SupervisedTask, Supervisor
from prime_trainer.checkpoints import TrainState, find_newest_checkpoint, get_checkpoint_folder
from prime_trainer.config import TRAINER_LOCK_NAME, TrainConfig
from prime_trainer.data.collector import RolloutCollector
from prime_trainer.data.rollout_buffer import RolloutBuffer, TrainingBatch
from prime_trainer.evaluate import MetricsReporter
from prime_trainer.metrics import MetricsLog
from prime_trainer.model.distributed import RankGroup
from prime_trainer.publish.publisher import CheckpointPublisher
from prime_trainer.resume import (
    CHECKPOINTS_FOLDER,
    StartPoint,
    choose_start_point,
    make_learner,
    repair_checkpoints,
    verify_run,
)
from prime_trainer.status import TrainerStatus
from prime_trainer.train import Learner, TrainContext, save_state, train

log = logging.getLogger(__name__)

T = TypeVar("T")

WORKER_THREADS = 4
"""One learns, one publishes, one tries checkpoints, one reads what comes in. Python's own number grows with cores,
and the allocator keeps for each thread what it once had: on many cores that would be a model for each of them."""


def run_trainer(config: TrainConfig) -> int:
    """Until the last step, SIGTERM, SIGINT or `stop`."""
    ranks = RankGroup.join(config.device)
    try:
        return (
            asyncio.run(TrainerApp(config, ranks, SystemClock()).run())
            if ranks.is_first
            else run_follower_rank(config, ranks)
        )
    finally:
        ranks.leave()


def run_follower_rank(config: TrainConfig, ranks: RankGroup) -> int:
    """Every rank but the first: learn what it is told to, and leave when the first one does."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # torchrun tells all ranks at once; one that left in the middle of a step would take the others down with it.
        signal.signal(number, signal.SIG_IGN)
    begin: StartPoint = ranks.broadcast(None)  # type: ignore[assignment]
    learner = make_learner(config, ranks, begin)
    desk = TrainContext(
        checkpoints=config.folder / CHECKPOINTS_FOLDER,
        model=begin.model,
        checkpoints_kept=config.checkpoints_kept,
        source=FollowerRankIo(),
        sink=FollowerRankIo(),
        write_metrics=lambda facts: None,
        clock=SystemClock(),
    )
    if begin.saved is None:
        save_state(learner, begin.state, desk, begin.model)
    train(learner, begin.state, desk, steps=config.steps)
    return 0


class FollowerRankIo:
    """Whom a rank that is not the first gets batches from and gives checkpoints to."""

    def next_batch(self, step: Step) -> TrainingBatch | None:
        raise AssertionError("only the first rank asks")

    def mark_trained(self, names: tuple[Digest, ...], step: Step) -> None:
        raise AssertionError("only the first rank tells")

    def publish(self, position: TrainState) -> None:
        raise AssertionError("only the first rank publishes")

    def wait(self) -> None:
        raise AssertionError("only the first rank publishes")


class TrainerApp:
    """The first rank."""

    def __init__(self, config: TrainConfig, ranks: RankGroup, clock: Clock) -> None:
        self._config = config
        self._ranks = ranks
        self._clock = clock
        self._stop = asyncio.Event()
        self._status = TrainerStatus(config, clock.now_ms())

    async def run(self) -> int:
        config = self._config
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(WORKER_THREADS, thread_name_prefix="trainer"))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        for folder in (config.folder / CHECKPOINTS_FOLDER, config.store):
            folder.mkdir(parents=True, exist_ok=True)
        async with AsyncExitStack() as stack:
            lock = stack.enter_context(
                hold_process_lock(config.folder / TRAINER_LOCK_NAME, "trainer", advice="give --folder a folder")
            )
            notes = MetricsLog(config.folder, self._clock.now_ms())
            await self._open_control_api(lock, notes, stack)
            key = config.load_key()
            client = await stack.enter_async_context(
                open_client(
                    key=key,
                    network=config.network_id,
                    clock=self._clock,
                    limits=config.client,
                    authority=config.authority,
                )
            )
            sandbox = await stack.enter_async_context(Sandbox(jobs_max=config.jobs))
            await self._train_run(key, client, sandbox, notes)
        return 0

    async def _open_control_api(self, lock: ProcessLock, notes: MetricsLog, stack: AsyncExitStack) -> None:
        def stop(given: dict[str, str]) -> str:
            self._stop.set()
            return "it ends after the running step"

        door = ControlServer(
            lambda: self._status.build(self._clock.now_ms()), {"stop": stop}, {"/metrics": notes.metrics.handle}
        )
        url = await door.open(self._config.port, advice="choose another --port")
        stack.push_async_callback(door.close)
        lock.write_url(url, token=door.token)
        log.info("status and metrics are under %s", url)

    async def _train_run(self, key: WalletKey, client: HttpClient, sandbox: Sandbox, notes: MetricsLog) -> None:
        config = self._config
        checkpoints = config.folder / CHECKPOINTS_FOLDER
        found = await asyncio.to_thread(find_newest_checkpoint, checkpoints)
        begin = await asyncio.to_thread(choose_start_point, config, found.saved)
        model_files = await asyncio.to_thread(ModelFiles.open, begin.model)
        harvest = RolloutBuffer(config.batch, dict.fromkeys(begin.state.trained_on, int(begin.state.step)))
        collector = RolloutCollector(config, client, harvest, model_files, sandbox, self._clock)
        measurer = MetricsReporter(config, client, sandbox, notes, self._clock)
        publisher = CheckpointPublisher(config, key, self._clock, self._stop, measurer.add)
        self._status.attach(collector, publisher, measurer, notes)
        seen = await collector.wait_for_run(self._stop)
        if seen is None:
            return
        saved = await asyncio.to_thread(repair_checkpoints, config, key.node, checkpoints, found, seen.latest_step)
        begin = await asyncio.to_thread(choose_start_point, config, saved)
        verify_run(seen, key.node, model_files.digest, begin)
        notes.repair(begin.state.step, dict(begin.state.metrics))
        desk = self._make_context(begin, collector, publisher, notes)
        learner = await asyncio.to_thread(self._make_learner, begin, desk)
        publisher.published = Step(seen.latest_step)
        if begin.state.step > seen.latest_step:
            desk.sink.publish(begin.state)
        else:
            # Its numbers may not have come through before the last end.
            measurer.add(begin.model.parent, begin.state)
        supervisor = Supervisor(
            [SupervisedTask("collector", collector.run), SupervisedTask("measurer", measurer.run)], self._clock
        )
        self._status.parts = supervisor.tasks
        log.info("training begins with step %d, on %d ranks", begin.state.step, self._ranks.size)
        training = asyncio.create_task(asyncio.to_thread(train, learner, begin.state, desk, steps=config.steps))
        try:
            await supervisor.run_until(asyncio.wait([training]))
        finally:
            self._stop.set()
            last = await training
        await publisher.wait()
        await measurer.finish()
        log.info("the trainer stops with step %d", last.step)

    def _make_learner(self, begin: StartPoint, desk: TrainContext) -> Learner:
        learner = make_learner(self._config, self._ranks, self._ranks.broadcast(begin))
        if begin.saved is None:
            save_state(learner, begin.state, desk, begin.model)
        return learner

    def _make_context(
        self, begin: StartPoint, collector: RolloutCollector, publisher: CheckpointPublisher, notes: MetricsLog
    ) -> TrainContext:
        config, bridge = self._config, LoopBridge(collector, publisher, self._stop, self._config)
        return TrainContext(
            checkpoints=config.folder / CHECKPOINTS_FOLDER,
            model=begin.model,
            checkpoints_kept=config.checkpoints_kept,
            source=bridge,
            sink=bridge,
            write_metrics=notes.write_step,
            clock=self._clock,
        )


class LoopBridge:
    """From the training thread into the loop and back."""

    def __init__(
        self, collector: RolloutCollector, publisher: CheckpointPublisher, stop: asyncio.Event, config: TrainConfig
    ) -> None:
        self._collector = collector
        self._publisher = publisher
        self._stop = stop
        self._checkpoints = config.folder / CHECKPOINTS_FOLDER
        self._loop = asyncio.get_running_loop()

    def next_batch(self, step: Step) -> TrainingBatch | None:
        return self._run(self._collector.next_batch(step, self._stop))

    def mark_trained(self, names: tuple[Digest, ...], step: Step) -> None:
        self._loop.call_soon_threadsafe(self._collector.buffer.mark_trained, names, step)

    def publish(self, position: TrainState) -> None:
        self._loop.call_soon_threadsafe(
            self._publisher.start, get_checkpoint_folder(self._checkpoints, position.step), position
        )

    def wait(self) -> None:
        self._run(self._publisher.wait())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
