"""What a rank does in tests of several: learn a few steps, keep a checkpoint, resume from it, learn on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader, load

from prime_protocol.wire.ids import Step
from prime_trainer.checkpoints import (
    TENSORS,
    SavedCheckpoint,
    TrainState,
    quiet_about_one_process,
    stage_state,
    write_checkpoint,
)
from prime_trainer.config import BatchConfig, LossConfig, OptimizerConfig, RanksConfig, TrainConfig
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.loading import find_layers, get_local
from prime_trainer.model.policy import PolicyModel
from prime_trainer.publish.outgoing import stage_weights, write_weights
from prime_trainer.resume import StartPoint, make_learner
from prime_trainer.train import Learner
from support.process_memory import watching_memory
from support.processes.killable_trainer import be_rank
from support.training_samples import make_sample

SAMPLES = [make_sample(number, prompt=2 + number % 3, output=2 + number % 7) for number in range(17)]
STEPS = 3


def make_config(folder: Path) -> TrainConfig:
    return TrainConfig(
        store=folder / "store",
        coordinator="http://127.0.0.1:1",
        coordinator_id="0x" + "11" * 20,
        run="run-1",
        folder=folder,
        model=folder.parent / "model",
        gradient_checkpointing=True,
        loss=LossConfig(kl_weight=0.1, entropy_weight=0.01),
        # Five packs for each minibatch, so that with two ranks one of them gets a blank.
        batch=BatchConfig(minibatches=2, pack_tokens=16),
        optimizer=OptimizerConfig(learning_rate=1e-3, warmup_steps=0),
    )


CUDA_ONLY = "cuda:gloo"
"""A default group for cuda tensors only, as NCCL's is: a collective of a CPU value on it fails, as it would on GPUs."""


def learn_in_rank(folder: Path, rank: int, size: int, port: int, replicas: int = 1, context: int = 1) -> None:
    """As one of several processes; the first writes down what it saw."""
    be_rank(rank, size, port)
    ranks = RankGroup.join("cpu", RanksConfig(replicas=replicas, context=context), backend=CUDA_ONLY)
    try:
        facts = learn_and_resume(folder, ranks)
    finally:
        ranks.leave()
    if ranks.is_first:
        (folder / "facts.json").write_text(json.dumps(facts))


def learn_and_resume(folder: Path, ranks: RankGroup) -> list[dict[str, Any]]:
    """Steps, a checkpoint, and as many steps again from it."""
    config = make_config(folder)
    learner = make_learner(config, ranks, StartPoint(config.model, TrainState(step=Step(0)), None))
    facts = [learner.train_step(SAMPLES, step) for step in range(1, STEPS + 1)]
    position = TrainState(step=Step(STEPS), updates=learner.updates, gradient_norms=learner.guard.norms)
    saved = SavedCheckpoint(keep(learner, config, position), position)
    again = make_learner(config, ranks, StartPoint(saved.model, saved.state, saved))
    facts += [again.train_step(SAMPLES, step) for step in range(STEPS + 1, 2 * STEPS + 1)]
    keep(again, config, replace(position, step=Step(2 * STEPS), updates=again.updates))
    return facts


def keep(learner: Learner, config: TrainConfig, position: TrainState) -> Path:
    """A checkpoint, and the weights as they are published."""
    model, ranks = learner.policy.model, learner.ranks
    staged = stage_weights(model, ranks)
    write_weights(config.folder / f"published-{position.step}", config.model, staged, ranks)
    return write_checkpoint(config.folder, config.model, position, stage_state(model, learner.optimizer), ranks)


def read_tensors(checkpoint: Path) -> dict[str, Any]:
    """All tensors of a checkpoint, in one process and whole."""
    reader = FileSystemReader(checkpoint / TENSORS)
    shapes = reader.read_metadata().state_dict_metadata
    tensors = {name: torch.zeros(each.size, dtype=each.properties.dtype) for name, each in shapes.items()}
    with quiet_about_one_process():
        load(tensors, storage_reader=reader, no_dist=True)
    return tensors


def load_in_rank(folder: Path, rank: int, size: int, port: int) -> None:
    """Load a model and write down the most memory that this took."""
    be_rank(rank, size, port)
    ranks = RankGroup.join("cpu", backend=CUDA_ONLY)
    try:
        PolicyModel.build(folder.parent / "small", ranks=ranks)  # imports all that this needs
        with watching_memory() as peak:
            policy = PolicyModel.load(folder.parent / "model", ranks=ranks)
        shard = sum(get_local(each)[0].nbytes for each in policy.model.parameters())
        layer = sum(each.nbytes for each in find_layers(policy.model)[0].parameters())
        facts = {"grown": peak.grown_bytes, "shard": shard, "layer": layer}
        (folder / f"memory-{rank}.json").write_text(json.dumps(facts))
        ranks.broadcast(None)
    finally:
        ranks.leave()
