"""One trainer process, from taking the lock to shutdown. The first rank does all I/O; the other ranks only train.

Training runs in its own thread, because a step computes for minutes. Everything that waits for others runs in the event
loop. This module wires parts together; it holds no rules.
"""

import asyncio
import logging
import signal
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock, SystemClock
from prime_runtime.http.client import HttpClient
from prime_runtime.http.control_api import ControlServer
from prime_runtime.lock import ProcessLock, hold_process_lock
from prime_runtime.model_files import ModelFiles
from prime_runtime.sandbox.sandbox import Sandbox
from prime_runtime.supervisor import SupervisedTask, Supervisor
from prime_trainer.checkpoints import MODEL, CheckpointDamaged, TrainState, list_checkpoints, verify_checkpoint
from prime_trainer.config import TRAINER_LOCK_NAME, TrainConfig
from prime_trainer.data.batch_log import BatchLog
from prime_trainer.data.collector import RolloutCollector
from prime_trainer.data.rollout_buffer import RolloutBuffer, TrainingBatch
from prime_trainer.evaluate import MetricsReporter
from prime_trainer.metrics import MetricsLog
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.policy import resolve_model
from prime_trainer.publish.publisher import CheckpointPublisher
from prime_trainer.resume import (
    StartPoint,
    catch_up,
    find_newest_step,
    link_published,
    make_learner,
    prepare_start,
    verify_run,
)
from prime_trainer.saver import BATCHES_FOLDER, CHECKPOINTS_FOLDER, CheckpointSaver, SavePaths
from prime_trainer.status import TrainerStatus
from prime_trainer.train import Learner, TrainContext, train

log = logging.getLogger(__name__)

T = TypeVar("T")

WORKER_THREADS = 4
"""One each for training, publishing, evaluating and reading submissions. Python's default grows with the cores, and the
allocator keeps the peak memory of each thread: on many cores that would be one model per thread."""


def run_trainer(config: TrainConfig) -> int:
    """Run until the last step, SIGTERM, SIGINT or `stop`."""
    ranks = RankGroup.join(config.device, config.ranks)
    try:
        if ranks.is_first:
            return asyncio.run(TrainerApp(config, ranks, SystemClock()).run())
        return run_follower_rank(config, ranks)
    finally:
        ranks.leave()


def run_follower_rank(config: TrainConfig, ranks: RankGroup) -> int:
    """Every rank but the first: train on what the first one broadcasts, and end when it does."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # torchrun signals all ranks at once. A rank that left in the middle of a step would take the others down.
        signal.signal(number, signal.SIG_IGN)
    start: StartPoint = ranks.broadcast(None)  # type: ignore[assignment]
    paths, clock = SavePaths(config.folder, start.model), SystemClock()
    context = TrainContext(
        source=FollowerRankIo(),
        sink=FollowerRankIo(),
        saver=CheckpointSaver(paths, config.save, ranks, clock),
        write_metrics=lambda facts: None,
        clock=clock,
    )
    learner, state = start_learner(config, ranks, start, context.saver)
    train(learner, state, context, steps=config.steps)
    return 0


def start_learner(
    config: TrainConfig, ranks: RankGroup, start: StartPoint, saver: CheckpointSaver
) -> tuple[Learner, TrainState]:
    """The learner at the step that training goes on from. Every rank runs this."""
    learner = make_learner(config, ranks, start)
    state = catch_up(learner, start, BatchLog(config.folder / BATCHES_FOLDER), now_ms=SystemClock().now_ms())
    saver.start(-1 if start.saved is None else int(start.state.step))
    if start.saved is None:
        # It must be on disk before step 0 is published: without it a later start could not go on.
        saver.save_state(learner, state)
    if state.step > start.latest:
        saver.publish_weights(saver.stage_weights(learner), state)
    return learner, state


class FollowerRankIo:
    """The source and sink of a rank that is not the first: the training loop never calls them there."""

    def next_batch(self, step: Step) -> TrainingBatch | None:
        raise AssertionError("only the first rank fetches batches")

    def mark_trained(self, names: tuple[Digest, ...], step: Step) -> None:
        raise AssertionError("only the first rank marks submissions")

    def wait_for_room(self, step: Step) -> None:
        raise AssertionError("only the first rank publishes")


class TrainerApp:
    """The process of the first rank."""

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
            metrics = MetricsLog(config.folder)
            stack.callback(metrics.close)
            await self._open_control_api(lock, metrics, stack)
            key = config.load_key()
            client = await stack.enter_async_context(config.open_client(key, self._clock))
            sandbox = await stack.enter_async_context(Sandbox(jobs_max=config.jobs))
            await self._train_run(key, client, sandbox, metrics)
        return 0

    async def _open_control_api(self, lock: ProcessLock, metrics: MetricsLog, stack: AsyncExitStack) -> None:
        def stop(arguments: dict[str, str]) -> str:
            self._stop.set()
            return "the trainer stops after the current step"

        server = ControlServer(
            lambda: self._status.build(self._clock.now_ms()), {"stop": stop}, {"/metrics": metrics.metrics.handle}
        )
        url = await server.open(self._config.port, advice="choose another --port")
        stack.push_async_callback(server.close)
        lock.write_url(url, token=server.token)
        log.info("status and metrics are served at %s", url)

    async def _train_run(self, key: WalletKey, client: HttpClient, sandbox: Sandbox, metrics: MetricsLog) -> None:
        config = self._config
        batches = BatchLog(config.folder / BATCHES_FOLDER)
        model = await asyncio.to_thread(find_model, config)
        model_files = await asyncio.to_thread(ModelFiles.open, model)
        buffer = RolloutBuffer(config.batch)
        collector = RolloutCollector(config, client, buffer, model_files, sandbox, self._clock)
        reporter = MetricsReporter(config, client, sandbox, metrics, self._clock)
        publisher = CheckpointPublisher(config, key, self._clock, self._stop, reporter.add)
        self._status.attach(collector, publisher, reporter, metrics)
        run = await collector.wait_for_run(self._stop)
        if run is None:
            return
        verify_run(run, key.node, model_files.digest, await asyncio.to_thread(find_newest_step, config.folder))
        start = await asyncio.to_thread(prepare_start, config, key.node, run)
        buffer.trained |= dict.fromkeys(start.state.trained_on, int(start.state.step))
        buffer.trained |= await asyncio.to_thread(batches.read_lineage, int(start.state.step))
        publisher.published = Step(run.latest_step)
        context = self._make_context(start, batches, collector, publisher, metrics)
        start = self._ranks.broadcast(start)
        learner, state = await asyncio.to_thread(start_learner, config, self._ranks, start, context.saver)
        metrics.repair(state.step, dict(state.metrics))
        published = await asyncio.to_thread(link_published, config, start)
        if published is not None and state.step == run.latest_step:
            # The last process may have ended before it reported the metrics of this step.
            reporter.add(published, state)
        supervisor = Supervisor(
            [SupervisedTask("collector", collector.run), SupervisedTask("reporter", reporter.run)], self._clock
        )
        self._status.parts = supervisor.tasks
        collector.on_lost_step = self._stop.set
        log.info("training starts from step %d on %d ranks", state.step, self._ranks.size)
        training = asyncio.create_task(asyncio.to_thread(train, learner, state, context, steps=config.steps))
        try:
            await supervisor.run_until(asyncio.wait([training]))
        finally:
            self._stop.set()
            last = await training
        await publisher.wait()
        await reporter.finish()
        if collector.lost_step is not None:
            raise LocalError(
                f"the coordinator restored its log and lost step {collector.lost_step}: start the trainer again, and it"
                " publishes the step again"
            )
        log.info("the trainer stopped at step %d", last.step)

    def _make_context(
        self,
        start: StartPoint,
        batches: BatchLog,
        collector: RolloutCollector,
        publisher: CheckpointPublisher,
        metrics: MetricsLog,
    ) -> TrainContext:
        config, bridge = self._config, LoopBridge(batches, collector, publisher, self._stop)
        saver = CheckpointSaver(
            SavePaths(config.folder, start.model),
            config.save,
            self._ranks,
            self._clock,
            get_published=lambda: publisher.published,
            on_weights=bridge.publish,
            on_failure=bridge.stop,
        )
        return TrainContext(
            source=bridge, sink=bridge, saver=saver, write_metrics=metrics.write_step, clock=self._clock
        )


class LoopBridge:
    """Source and sink for the training thread: runs their calls in the event loop."""

    def __init__(
        self, batches: BatchLog, collector: RolloutCollector, publisher: CheckpointPublisher, stop: asyncio.Event
    ) -> None:
        self._batches = batches
        self._collector = collector
        self._publisher = publisher
        self._stop = stop
        self._loop = asyncio.get_running_loop()

    def next_batch(self, step: Step) -> TrainingBatch | None:
        """A step that an earlier process made and did not publish is made again, from the same batch."""
        if self._stop.is_set():
            return None
        return self._batches.read(step + 1) or self._run(self._collector.next_batch(step, self._stop))

    def mark_trained(self, names: tuple[Digest, ...], step: Step) -> None:
        self._loop.call_soon_threadsafe(self._collector.buffer.mark_trained, names, step)

    def publish(self, folder: Path, state: TrainState) -> None:
        self._loop.call_soon_threadsafe(self._publisher.start, folder, state)

    def wait_for_room(self, step: Step) -> None:
        self._run(self._publisher.wait_for_room(step))

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def find_model(config: TrainConfig) -> Path:
    """The folder of the model's small files: that of an intact checkpoint, or the one that training starts from."""
    for checkpoint in reversed(list_checkpoints(config.folder / CHECKPOINTS_FOLDER)):
        try:
            verify_checkpoint(checkpoint, MODEL)
        except CheckpointDamaged:
            continue
        return checkpoint / MODEL
    return resolve_model(config.model)
