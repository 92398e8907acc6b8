"""What a rank does in tests of several: learn a few steps, keep a checkpoint, resume from it, learn on."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from integration.trainer_child import be_rank
from trainer_parts import make_sample

from prime_protocol.ids import Step
from prime_trainer.checkpoints import Position, Saved, save
from prime_trainer.learning import Learner
from prime_trainer.ranks import Ranks
from prime_trainer.starting import Start, make_learner
from prime_trainer.train_config import BatchConfig, LossConfig, OptimizerConfig, TrainConfig

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


def learn_in_rank(folder: Path, rank: int, size: int, port: int) -> None:
    """As one of several processes; the first writes down what it saw."""
    be_rank(rank, size, port)
    ranks = Ranks.join("cpu")
    try:
        facts = learn_and_resume(folder, ranks)
    finally:
        ranks.leave()
    if ranks.is_first:
        (folder / "facts.json").write_text(json.dumps(facts))


def learn_and_resume(folder: Path, ranks: Ranks) -> list[dict[str, Any]]:
    """Steps, a checkpoint, and as many steps again from it."""
    config = make_config(folder)
    learner = make_learner(config, ranks, Start(config.model, Position(step=Step(0)), None))
    facts = [learner.learn(SAMPLES, step) for step in range(1, STEPS + 1)]
    position = Position(step=Step(STEPS), updates=learner.updates, norms=learner.guard.norms)
    path = keep(learner, config, position)
    saved = ranks.share(Saved(path, position))
    again = make_learner(config, ranks, Start(saved.model, saved.position, saved))
    facts += [again.learn(SAMPLES, step) for step in range(STEPS + 1, 2 * STEPS + 1)]
    keep(again, config, replace(position, step=Step(2 * STEPS), updates=again.updates))
    return facts


def keep(learner: Learner, config: TrainConfig, position: Position) -> Path:
    model = learner.policy.model
    return save(config.folder, config.model, model, learner.optimizer, position, learner.ranks, keep=2)
