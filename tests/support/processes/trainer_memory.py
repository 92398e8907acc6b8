"""A trainer's step in a process of its own, which writes down the most memory that it took.

python tests/support/processes/trainer_memory.py MODEL OUT TOKENS
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from prime_trainer.config import BatchConfig, LossConfig, MomentStorage, OptimizerConfig
from prime_trainer.data.packing import Sample
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.optimizer import GradientGuard, make_optimizer
from prime_trainer.model.policy import PolicyModel
from prime_trainer.train import Learner
from support.process_memory import watching_memory

SHAPE = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
"""24 million parameters: its tensors outweigh what the allocator and Python keep for themselves."""
TINY = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}


def measure_peak(model: Path, out: Path, tokens: int, gradient_checkpointing: bool, moments: str) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(1)
    AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2", **{**SHAPE, **TINY})).save_pretrained(model / "tiny")
    AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2", **SHAPE)).save_pretrained(model)
    # Imports all that this needs.
    run_steps(model / "tiny", 16, gradient_checkpointing=gradient_checkpointing, moments=moments)
    gc.collect()
    with watching_memory() as peak:
        run_steps(model, tokens, gradient_checkpointing=gradient_checkpointing, moments=moments)
    out.write_text(json.dumps({"peak_bytes": peak.grown_bytes}))


def run_steps(model: Path, tokens: int, *, gradient_checkpointing: bool, moments: str) -> None:
    """A short one that makes the moments, and one of two packs of so many tokens."""
    policy = PolicyModel.load(model, gradient_checkpointing=gradient_checkpointing)
    schedule = OptimizerConfig(warmup_steps=0, moments=MomentStorage(moments))
    learner = Learner(
        policy=policy,
        optimizer=make_optimizer(policy.model, schedule),
        guard=GradientGuard(schedule.outlier),
        ranks=RankGroup(),
        loss=LossConfig(),
        batch=BatchConfig(pack_tokens=tokens),
        schedule=schedule,
    )
    learner.train_step([make_sample(16)], 1)
    assert learner.train_step([make_sample(tokens), make_sample(tokens)], 2)["tokens"] == 2 * tokens


def make_sample(tokens: int) -> Sample:
    output: Any = np.arange(tokens, dtype=np.int32) % TINY["vocab_size"]
    return Sample(output[:1], output, np.zeros(tokens, np.float32), 1.0, 1.0)


if __name__ == "__main__":
    measure_peak(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), True, "float32")
