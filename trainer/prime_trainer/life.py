"""One process of a trainer, from the lock to the last word. The first rank talks to the world; the others only train.

Training runs in a thread of its own, since it computes for minutes; everything that waits for others is in the loop.
"""

import asyncio
import logging
import random
import signal
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from prime_protocol.ids import Digest, Step
from prime_protocol.signing import WalletKey
from prime_runtime.clock import Clock, SystemClock
from prime_runtime.door import Door
from prime_runtime.http_client import HttpClient, open_client
from prime_runtime.lock import Lock, lock_file
from prime_runtime.model_files import ModelFiles
from prime_runtime.sandbox import Sandbox
from prime_runtime.supervision import Part, Supervisor
from prime_trainer.checkpoints import Position, find_newest, get_folder
from prime_trainer.collecting import Collector
from prime_trainer.harvest import Batch, Harvest
from prime_trainer.learning import Learner
from prime_trainer.measuring import Measurer
from prime_trainer.mending import mend
from prime_trainer.notes import Notes
from prime_trainer.publication import Publisher
from prime_trainer.ranks import Ranks
from prime_trainer.starting import CHECKPOINTS, Start, check_run, choose_start, make_learner
from prime_trainer.status import Report
from prime_trainer.train import Desk, keep, train
from prime_trainer.train_config import LOCK_NAME, TrainConfig

log = logging.getLogger(__name__)

T = TypeVar("T")

THREADS = 4
"""One learns, one publishes, one tries checkpoints, one reads what comes in. Python's own number grows with cores,
and the allocator keeps for each thread what it once had: on many cores that would be a model for each of them."""


def start(config: TrainConfig) -> int:
    """Until the last step, SIGTERM, SIGINT or `stop`."""
    ranks = Ranks.join(config.device)
    try:
        return asyncio.run(Trainer(config, ranks, SystemClock()).run()) if ranks.is_first else follow(config, ranks)
    finally:
        ranks.leave()


def follow(config: TrainConfig, ranks: Ranks) -> int:
    """Every rank but the first: learn what it is told to, and leave when the first one does."""
    for number in (signal.SIGTERM, signal.SIGINT):
        # torchrun tells all ranks at once; one that left in the middle of a step would take the others down with it.
        signal.signal(number, signal.SIG_IGN)
    begin: Start = ranks.share(None)  # type: ignore[assignment]
    learner = make_learner(config, ranks, begin)
    desk = Desk(
        checkpoints=config.folder / CHECKPOINTS,
        model=begin.model,
        kept=config.checkpoints_kept,
        source=Nobody(),
        outlet=Nobody(),
        note=lambda facts: None,
        clock=SystemClock(),
    )
    if begin.saved is None:
        keep(learner, begin.position, desk, begin.model)
    train(learner, begin.position, desk, steps=config.steps)
    return 0


class Nobody:
    """Whom a rank that is not the first gets batches from and gives checkpoints to."""

    def next_batch(self, step: Step) -> Batch | None:
        raise AssertionError("only the first rank asks")

    def learnt(self, names: tuple[Digest, ...], step: Step) -> None:
        raise AssertionError("only the first rank tells")

    def publish(self, position: Position) -> None:
        raise AssertionError("only the first rank publishes")

    def wait(self) -> None:
        raise AssertionError("only the first rank publishes")


class Trainer:
    """The first rank."""

    def __init__(self, config: TrainConfig, ranks: Ranks, clock: Clock) -> None:
        self._config = config
        self._ranks = ranks
        self._clock = clock
        self._stop = asyncio.Event()
        self._report = Report(config, clock.now_ms())

    async def run(self) -> int:
        config = self._config
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="trainer"))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        for folder in (config.folder / CHECKPOINTS, config.store):
            folder.mkdir(parents=True, exist_ok=True)
        async with AsyncExitStack() as stack:
            lock = stack.enter_context(lock_file(config.folder / LOCK_NAME, "trainer", advice="give --folder a folder"))
            notes = Notes(config.folder, self._clock.now_ms())
            await self._open_door(lock, notes, stack)
            key = config.load_key()
            client = await stack.enter_async_context(
                open_client(
                    key=key,
                    network=config.network_id,
                    clock=self._clock,
                    dice=random.Random(),
                    limits=config.client,
                    authority=config.authority,
                )
            )
            sandbox = await stack.enter_async_context(Sandbox(jobs_max=config.jobs))
            await self._work(key, client, sandbox, notes)
        return 0

    async def _open_door(self, lock: Lock, notes: Notes, stack: AsyncExitStack) -> None:
        def stop(given: dict[str, str]) -> str:
            self._stop.set()
            return "it ends after the running step"

        door = Door(lambda: self._report.make(self._clock.now_ms()), {"stop": stop}, {"/metrics": notes.metrics.handle})
        url = await door.open(self._config.port, advice="choose another --port")
        stack.push_async_callback(door.close)
        lock.note_url(url, token=door.token)
        log.info("status and metrics are under %s", url)

    async def _work(self, key: WalletKey, client: HttpClient, sandbox: Sandbox, notes: Notes) -> None:
        config = self._config
        checkpoints = config.folder / CHECKPOINTS
        found = await asyncio.to_thread(find_newest, checkpoints)
        begin = await asyncio.to_thread(choose_start, config, found.saved)
        model_files = await asyncio.to_thread(ModelFiles.open, begin.model)
        harvest = Harvest(config.batch, dict.fromkeys(begin.position.trained_on, int(begin.position.step)))
        collector = Collector(config, client, harvest, model_files, sandbox, self._clock)
        measurer = Measurer(config, client, sandbox, notes, self._clock)
        publisher = Publisher(config, key, self._clock, self._stop, measurer.add)
        self._report.follow(collector, publisher, measurer, notes)
        seen = await collector.meet(self._stop)
        if seen is None:
            return
        saved = await asyncio.to_thread(mend, config, key.node, checkpoints, found, seen.latest)
        begin = await asyncio.to_thread(choose_start, config, saved)
        check_run(seen, key.node, model_files.digest, begin)
        notes.mend(begin.position.step, dict(begin.position.facts))
        desk = self._make_desk(begin, collector, publisher, notes)
        learner = await asyncio.to_thread(self._begin, begin, desk)
        publisher.published = Step(seen.latest)
        if begin.position.step > seen.latest:
            desk.outlet.publish(begin.position)
        else:
            # Its numbers may not have come through before the last end.
            measurer.add(begin.model.parent, begin.position)
        supervisor = Supervisor([Part("collector", collector.run), Part("measurer", measurer.run)], self._clock)
        self._report.parts = supervisor.parts
        log.info("training begins with step %d, on %d ranks", begin.position.step, self._ranks.size)
        training = asyncio.create_task(asyncio.to_thread(train, learner, begin.position, desk, steps=config.steps))
        try:
            await supervisor.run_until(asyncio.wait([training]))
        finally:
            self._stop.set()
            last = await training
        await publisher.wait()
        await measurer.finish()
        log.info("the trainer stops with step %d", last.step)

    def _begin(self, begin: Start, desk: Desk) -> Learner:
        learner = make_learner(self._config, self._ranks, self._ranks.share(begin))
        if begin.saved is None:
            keep(learner, begin.position, desk, begin.model)
        return learner

    def _make_desk(self, begin: Start, collector: Collector, publisher: Publisher, notes: Notes) -> Desk:
        config, bridge = self._config, Bridge(collector, publisher, self._stop, self._config)
        return Desk(
            checkpoints=config.folder / CHECKPOINTS,
            model=begin.model,
            kept=config.checkpoints_kept,
            source=bridge,
            outlet=bridge,
            note=notes.write,
            clock=self._clock,
        )


class Bridge:
    """From the training thread into the loop and back."""

    def __init__(self, collector: Collector, publisher: Publisher, stop: asyncio.Event, config: TrainConfig) -> None:
        self._collector = collector
        self._publisher = publisher
        self._stop = stop
        self._checkpoints = config.folder / CHECKPOINTS
        self._loop = asyncio.get_running_loop()

    def next_batch(self, step: Step) -> Batch | None:
        return self._run(self._collector.next_batch(step, self._stop))

    def learnt(self, names: tuple[Digest, ...], step: Step) -> None:
        self._loop.call_soon_threadsafe(self._collector.harvest.learnt, names, step)

    def publish(self, position: Position) -> None:
        self._loop.call_soon_threadsafe(self._publisher.begin, get_folder(self._checkpoints, position.step), position)

    def wait(self) -> None:
        self._run(self._publisher.wait())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
