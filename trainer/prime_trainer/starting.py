"""How a trainer begins: from its newest checkpoint or from the model it was given, and whether that fits the run."""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from prime_protocol.errors import LocalError
from prime_protocol.ids import Digest, NodeId, Step
from prime_protocol.terms import ANY_MODEL_FILES
from prime_trainer.checkpoints import Position, Saved, load_optimizer
from prime_trainer.hub import find_model
from prime_trainer.learning import Learner
from prime_trainer.listing import RunSeen
from prime_trainer.optimizer import GradientGuard, make_optimizer
from prime_trainer.policy import Policy
from prime_trainer.ranks import Ranks
from prime_trainer.train_config import TrainConfig

log = logging.getLogger(__name__)

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True, slots=True)
class Start:
    """What training begins with."""

    model: Path
    position: Position
    saved: Saved | None
    """None: the first start, nothing is on disk yet."""


def choose_start(config: TrainConfig, saved: Saved | None) -> Start:
    if saved is not None:
        return Start(saved.model, saved.position, saved)
    return Start(find_model(config.model), Position(step=Step(0)), None)


def check_run(seen: RunSeen, key: NodeId, model_files: Digest, start: Start) -> None:
    """Pure. LocalError says why this folder cannot go on with this run, and what to do."""
    if seen.trainer != key:
        raise LocalError(f"the run's trainer is {seen.trainer}, this key is {key}; use that key, or update the run")
    if seen.model_files not in (ANY_MODEL_FILES, model_files):
        raise LocalError(
            f"the run is bound to model files {seen.model_files}, those here are {model_files}; take the run's model"
        )
    step = start.position.step
    if start.saved is None and seen.latest >= 0:
        raise LocalError(
            f"the run is at step {seen.latest}, and this folder has no checkpoint of it; bring the folder of the "
            "trainer that made it, or create a new run"
        )
    if start.saved is not None and step not in (seen.latest, seen.latest + 1):
        raise LocalError(
            f"the run is at step {seen.latest}, the checkpoint here at step {step}; is this the folder of this run?"
        )


def make_learner(config: TrainConfig, ranks: Ranks, start: Start) -> Learner:
    """Every rank reads the same folder and keeps its part."""
    torch.set_num_threads(config.threads)
    policy = Policy.load(
        start.model,
        device=config.device,
        precision=config.precision,
        gradient_checkpointing=config.gradient_checkpointing,
    )
    ranks.split(policy.model, config.precision)
    optimizer = make_optimizer(policy.model, config.optimizer)
    if start.saved is not None:
        load_optimizer(start.saved, policy.model, optimizer)
    return Learner(
        policy=policy,
        optimizer=optimizer,
        guard=GradientGuard(config.optimizer.outlier, start.position.norms),
        ranks=ranks,
        loss=config.loss,
        batch=config.batch,
        schedule=config.optimizer,
        reference=make_reference(config, ranks) if config.loss.kl_weight else None,
        updates=start.position.updates,
    )


def make_reference(config: TrainConfig, ranks: Ranks) -> Policy:
    reference = Policy.load(find_model(config.model), device=config.device, precision=config.precision)
    reference.model.requires_grad_(False)
    ranks.split(reference.model, config.precision)
    return reference
