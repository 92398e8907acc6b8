"""Parts for tests of the trainer: samples to learn from, and what learns."""

from pathlib import Path
from typing import Any

import numpy as np

from prime_trainer.config import BatchConfig, LossConfig, OptimizerConfig
from prime_trainer.data.packing import Sample
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.optimizer import GradientGuard, make_optimizer
from prime_trainer.model.policy import PolicyModel
from prime_trainer.train import Learner


def make_sample(seed: int, *, prompt: int, output: int, vocabulary: int = 32) -> Sample:
    """Random tokens with believable log-probs, and an advantage of either sign."""
    dice = np.random.default_rng(seed)
    return Sample(
        prompt_tokens=dice.integers(0, vocabulary, prompt, dtype=np.int32),
        output_tokens=dice.integers(0, vocabulary, output, dtype=np.int32),
        sampled_logprobs=-3 * dice.random(output, dtype=np.float32),
        advantage=float(dice.uniform(-1, 1)),
        temperature=1.0,
    )


def make_learner(folder: Path, *, reference: bool = False, **changes: Any) -> Learner:
    policy = PolicyModel.load(folder)
    schedule = OptimizerConfig(**{"learning_rate": 1e-3, "warmup_steps": 0, "weight_decay": 0.0, **changes})
    return Learner(
        policy=policy,
        optimizer=make_optimizer(policy.model, schedule),
        guard=GradientGuard(schedule.outlier),
        ranks=RankGroup(),
        loss=LossConfig(kl_weight=10.0 if reference else 0.0),
        batch=BatchConfig(pack_tokens=32),
        schedule=schedule,
        reference=PolicyModel.load(folder) if reference else None,
    )


def flip_bit(path: Path) -> None:
    """One, in the middle of a file."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
