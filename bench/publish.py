"""The share of time that training waits for publishing and saving, against doing both before the next step.

    python bench/publish.py [--steps 12]

A model of 20 million parameters learns from batches as in bench/trainer.py, with a vocabulary of 32,000. After each
step its weights go to a shard store, and every fourth step a checkpoint is saved. `waits` does that as the trainer
does, in the background; `stops` finishes it before the next step begins. Both must publish the same bytes.
"""

import tempfile
import threading
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmark import BenchmarkParser, print_result
from trainer_batch import LENGTH_MAX, make_batch

from prime_protocol.wire.ids import Digest, NetworkId, RunId, Step
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import SystemClock
from prime_runtime.keys import SequenceCounter
from prime_runtime.shardcast.publish import publish_checkpoint
from prime_runtime.shardcast.store import ShardStore
from prime_trainer.checkpoints import TrainState
from prime_trainer.config import BatchConfig, LossConfig, OptimizerConfig, SaveConfig
from prime_trainer.data.packing import Sample
from prime_trainer.data.rollout_buffer import TrainingBatch
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.optimizer import GradientGuard, make_optimizer
from prime_trainer.model.policy import PolicyModel
from prime_trainer.saver import CheckpointSaver, SavePaths
from prime_trainer.train import Learner, TrainContext, train

KEY = WalletKey.from_secret(sha256(b"bench trainer").digest())
VOCABULARY, SAMPLES, PACK_TOKENS = 32_000, 16, 1024
SAVE_EVERY = 4


def make_model(folder: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=2 * LENGTH_MAX,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def make_learner(folder: Path) -> Learner:
    policy, schedule = PolicyModel.load(folder), OptimizerConfig(learning_rate=1e-5, warmup_steps=0)
    return Learner(
        policy=policy,
        optimizer=make_optimizer(policy.model, schedule),
        guard=GradientGuard(schedule.outlier),
        ranks=RankGroup(),
        loss=LossConfig(correct=False),
        batch=BatchConfig(pack_tokens=PACK_TOKENS),
        schedule=schedule,
    )


class Batches:
    """Endless."""

    def next_batch(self, step: Step) -> TrainingBatch:
        batch = make_batch(int(step), VOCABULARY, SAMPLES)
        samples = tuple(
            Sample(np.array(prompt, np.int32), np.array(output, np.int32), np.zeros(len(output), np.float32), pull, 1.0)
            for prompt, output, pull in zip(batch["prompts"], batch["outputs"], batch["advantages"], strict=True)
        )
        return TrainingBatch((), samples, {})

    def mark_trained(self, names: tuple[Digest, ...], step: Step) -> None:
        pass


class Store:
    """Publishes into a shard store in the thread of the saver, which stands for the trainer's publisher."""

    def __init__(self, folder: Path) -> None:
        self._store = ShardStore(folder, network=NetworkId("bench"), run=RunId("bench"), trainer=KEY.node)
        self._sequence = SequenceCounter()
        self.roots: list[str] = []
        self.changed = threading.Condition()

    def publish(self, folder: Path, state: TrainState) -> None:
        made = publish_checkpoint(
            self._store,
            folder,
            key=KEY,
            step=state.step,
            sequence=self._sequence,
            now_ms=SystemClock().now_ms(),
            keyframe=False,
            threads=1,
        )
        with self.changed:
            self.roots.append(str(made[0].root))
            self.changed.notify_all()

    def wait_for_room(self, step: Step) -> None:
        with self.changed:
            self.changed.wait_for(lambda: len(self.roots) - 1 > step - SaveConfig().unpublished_max)


class StoppingStore(Store):
    """Nothing else happens until a step is published and saved."""

    saver: CheckpointSaver

    def wait_for_room(self, step: Step) -> None:
        began_s = time.monotonic()
        self.saver.wait()
        self.saver.waited_ms += round(1000 * (time.monotonic() - began_s))


def run(kind: type[Store], steps: int) -> tuple[float, float, list[str]]:
    """Seconds of all steps, seconds that training waited, and what was published."""
    with tempfile.TemporaryDirectory(prefix="prime-publish-") as name:
        folder = Path(name)
        for each in ("checkpoints", "outgoing", "store"):
            (folder / each).mkdir()
        make_model(folder / "model")
        learner, store, clock = make_learner(folder / "model"), kind(folder / "store"), SystemClock()
        config = replace(SaveConfig(), every_steps=SAVE_EVERY)
        saver = CheckpointSaver(
            SavePaths(folder, folder / "model"), config, learner.ranks, clock, on_weights=store.publish
        )
        if isinstance(store, StoppingStore):
            store.saver = saver
        facts: list[dict[str, Any]] = []
        context = TrainContext(source=Batches(), sink=store, saver=saver, write_metrics=facts.append, clock=clock)
        state = TrainState(step=Step(0))
        saver.save_state(learner, state)
        saver.publish_weights(saver.stage_weights(learner), state)
        saver.wait()
        saver.waited_ms, began_s = 0, time.monotonic()
        train(learner, state, context, steps=steps)
        learnt_s = sum(each["learnt_s"] for each in facts)
        waited_s = sum(each["waited_s"] for each in facts) if kind is Store else 0.0
        waited_s += saver.waited_ms / 1000
        took_s = time.monotonic() - began_s
        print(f"{kind.__name__:<16}{took_s:>8.1f} s, learnt {learnt_s:.1f} s, waited {waited_s:.2f} s", flush=True)
        return learnt_s + waited_s, waited_s, store.roots


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--steps", 12, 2)
    args = parser.parse()
    torch.set_num_threads(1)
    took_s, waited_s, roots = run(Store, args.steps)
    stopped_s, stopping_s, same = run(StoppingStore, args.steps)
    assert roots == same, "the same weights, whenever they are written"
    print_result(wait_share=f"{waited_s / took_s:.3f}", wait_share_stopping=f"{stopping_s / stopped_s:.3f}")


if __name__ == "__main__":
    main()
