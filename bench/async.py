"""Whether asynchronous training is faster: the same training steps with rollout times of a heavy tail, both ways.

    python bench/async.py [--steps 10] [--workers 16] [--seed 0]

Synchronous: the rollouts of a step start when its weights are published, and the trainer waits for all of them.
Asynchronous: a worker takes the next slot at once, a step uses the rollouts that have arrived, and a rollout may be
older than the weights by up to the lag. The trainer runs its own code: buffer, loop, loss, checkpoint on disk, bf16
copy, delta, store. A rollout is a graded group that was drawn before, and a real wait.
"""

import heapq
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmark import BenchmarkParser, print_result
from digit_runs import Digits, make_learner, make_warm_start

from prime_protocol.wire.ids import Digest, NetworkId, RunId, Step
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import SystemClock
from prime_runtime.keys import SequenceCounter
from prime_runtime.shardcast.publish import publish_checkpoint
from prime_runtime.shardcast.store import ShardStore
from prime_trainer.checkpoints import TrainState
from prime_trainer.config import AdvantageConfig, BatchConfig, SaveConfig
from prime_trainer.data.rollout_buffer import GradedSubmission, RolloutBuffer, RolloutGroup, TrainingBatch
from prime_trainer.saver import CheckpointSaver, SavePaths
from prime_trainer.train import TrainContext, train

GROUPS = 32
"""With a signal, that make a step."""
SLOTS = 40
"""Of a step: more are not begun with its weights, as a run has no more to give out."""
POLL_S = 0.002
LAG_MAX = 4
TIME_MEDIAN_S, TIME_SPREAD = 0.12, 1.3
"""Lognormal: of 100 rollouts the slowest takes about twenty times as long as the median."""
KEY = WalletKey.from_secret(sha256(b"bench trainer").digest())


class Releases:
    """When each step's weights were out."""

    def __init__(self) -> None:
        self._at_s: list[float] = []
        self._changed = threading.Condition()

    def add(self) -> None:
        with self._changed:
            self._at_s.append(time.monotonic())
            self._changed.notify_all()

    def newest(self, at_s: float) -> int:
        """The step whose weights a worker has at that time."""
        return sum(each <= at_s for each in self._at_s) - 1

    def get(self, step: int) -> float | None:
        """When this step's weights came out; None: not yet."""
        return self._at_s[step] if step < len(self._at_s) else None

    def wait(self, step: int) -> float:
        with self._changed:
            self._changed.wait_for(lambda: len(self._at_s) > step)
            return self._at_s[step]


@dataclass
class Workers:
    """Workers that draw one group at a time, each as long as it takes."""

    pool: list[RolloutGroup]
    workers: int
    releases: Releases
    dice: np.random.Generator
    made: int = 0

    def draw_s(self) -> float:
        return float(self.dice.lognormal(np.log(TIME_MEDIAN_S), TIME_SPREAD))

    def deliver(self, step: int) -> GradedSubmission:
        """The next group, drawn with the weights of `step`."""
        self.made += 1
        name = Digest(sha256(str(self.made).encode()).digest())
        return GradedSubmission(name, Step(step), (self.pool[self.made % len(self.pool)],))


class Synchronous(Workers):
    """All wait for each other: the synchronous way."""

    def next_batch(self, step: Step) -> TrainingBatch | None:
        began_s = self.releases.wait(step)
        free = [began_s] * self.workers
        buffer = RolloutBuffer(BatchConfig(groups=GROUPS))
        for _ in range(GROUPS):
            heapq.heappush(free, heapq.heappop(free) + self.draw_s())
            buffer.add(self.deliver(step))
        time.sleep(max(0.0, max(free) - time.monotonic()))
        return buffer.take_batch(step)

    def mark_trained(self, names: tuple[Digest, ...], step: Step) -> None:
        pass


class Asynchronous(Workers):
    """Asynchronous: no worker waits while there are slots."""

    def begin(self) -> None:
        self.buffer = RolloutBuffer(BatchConfig(groups=GROUPS))
        self.begun: Counter[int] = Counter()
        self.running: list[tuple[float, int]] = []
        self.idle = [self.releases.wait(0)] * self.workers

    def next_batch(self, step: Step) -> TrainingBatch | None:
        if step == 0:
            self.begin()
        while True:
            self.buffer.expire(step, LAG_MAX)
            if self.buffer.is_enough():
                return self.buffer.take_batch(step)
            self.lease()
            if not self.running or self.running[0][0] > time.monotonic():
                time.sleep(POLL_S)
                continue
            done_s, drawn_with = heapq.heappop(self.running)
            self.buffer.add(self.deliver(drawn_with))
            self.idle.append(done_s)

    def lease(self) -> None:
        """Idle workers start if the newest step has a slot left; the time counts from when both were true."""
        waiting, self.idle = self.idle, []
        for since_s in waiting:
            step = self.releases.newest(since_s)
            if self.begun[step] >= SLOTS:
                step, since_s = step + 1, self.releases.get(step + 1)
            if since_s is None or self.begun[step] >= SLOTS:
                self.idle.append(time.monotonic() if since_s is None else since_s)
                continue
            self.begun[step] += 1
            heapq.heappush(self.running, (since_s + self.draw_s(), step))

    def mark_trained(self, names: tuple[Digest, ...], step: Step) -> None:
        self.buffer.mark_trained(names, step)


class Store:
    """Publishes into a shard store, in a thread, as the trainer does before it tells the log."""

    def __init__(self, folder: Path, releases: Releases) -> None:
        self._store = ShardStore(folder / "store", network=NetworkId("bench"), run=RunId("bench"), trainer=KEY.node)
        self._sequence = SequenceCounter()
        self._releases = releases
        self._published = threading.Semaphore(0)
        self._waited = -1

    def publish(self, folder: Path, position: TrainState) -> None:
        now_ms, step = SystemClock().now_ms(), position.step
        publish_checkpoint(
            self._store,
            folder,
            key=KEY,
            step=step,
            sequence=self._sequence,
            now_ms=now_ms,
            keyframe=step == 0,
            threads=1,
        )
        self._releases.add()
        self._published.release()

    def wait_for_room(self, step: Step) -> None:
        while self._waited < step:
            self._published.acquire()
            self._waited += 1


def run(kind: type[Synchronous] | type[Asynchronous], pool: list[RolloutGroup], args: Any) -> dict[str, float]:
    """Wall time of all steps, from the first weights to the last."""
    with tempfile.TemporaryDirectory(prefix="prime-async-") as name:
        folder = Path(name)
        for name in ("checkpoints", "outgoing", "store"):
            (folder / name).mkdir()
        learner = make_learner(make_warm_start(folder / "model", args.seed), correct=True, steps=args.steps)
        releases = Releases()
        workers = kind(pool, args.workers, releases, np.random.default_rng(args.seed))
        facts: list[dict[str, Any]] = []
        store, clock = Store(folder, releases), SystemClock()
        paths = SavePaths(folder, folder / "model")
        saver = CheckpointSaver(paths, SaveConfig(), learner.ranks, clock, on_weights=store.publish)
        context = TrainContext(source=workers, sink=store, saver=saver, write_metrics=facts.append, clock=clock)
        position = TrainState(step=Step(0))
        saver.save_state(learner, position)
        saver.publish_weights(saver.stage_weights(learner), position)
        store.wait_for_room(position.step)
        began_s = time.monotonic()
        train(learner, position, context, steps=args.steps)
        took_s = time.monotonic() - began_s
    return {
        "took_s": took_s,
        "groups": sum(each["groups"] for each in facts),
        "dropped": workers.made - sum(each["submissions"] for each in facts),
        "waited_s": sum(each["waited_s"] for each in facts),
        "learnt_s": sum(each["learnt_s"] for each in facts),
        "lag_mean": float(np.mean([each["lag_mean"] for each in facts])),
    }


def make_pool(seed: int) -> list[RolloutGroup]:
    """Groups with a signal, drawn with the first weights."""
    with tempfile.TemporaryDirectory(prefix="prime-async-") as name:
        learner = make_learner(make_warm_start(Path(name), seed), correct=True, steps=1)
        digits = Digits(seed)
        groups = digits.draw(digits.copy_weights(learner.policy), 1, AdvantageConfig(scale_max=100.0))
    found = [group for group in groups if group.has_signal]
    return [replace(group, slot=number) for number, group in enumerate(found)]


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--steps", 10, 1)
    parser.add_size("--workers", 16, 64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse()
    torch.set_num_threads(1)
    pool = make_pool(args.seed)
    print(f"{args.steps} steps of {GROUPS} groups, {args.workers} workers, rollouts of {TIME_MEDIAN_S} s in the median")
    print(f"{'':<14}{'wall s':>8}{'waited':>8}{'learnt':>8}{'groups':>8}{'dropped':>8}{'lag':>6}")
    found = {}
    for name, kind in (("synchronous", Synchronous), ("asynchronous", Asynchronous)):
        found[name] = facts = run(kind, pool, args)
        print(
            f"{name:<14}{facts['took_s']:>8.2f}{facts['waited_s']:>8.2f}{facts['learnt_s']:>8.2f}"
            f"{facts['groups']:>8.0f}{facts['dropped']:>8.0f}{facts['lag_mean']:>6.2f}"
        )
    print_result(speedup=f"{found['synchronous']['took_s'] / found['asynchronous']['took_s']:.2f}")


if __name__ == "__main__":
    main()
