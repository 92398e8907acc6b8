"""What a trainer does about checkpoints that are not as they were written: it says which, sets them aside, goes on.

Where the damaged one's step was not published, the step is learnt again from the checkpoint before. Where it was, the
next one must come of what everybody has: the published weights go with the optimizer's state of the checkpoint before.
What is lost is one update of that state, and what bf16 does not hold of the weights.

How a trainer begins: from its newest checkpoint or from the model it was given, and whether that fits the run.
"""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.terms import ANY_MODEL_FILES
from prime_protocol.wire.ids import Digest, NodeId, Step
from prime_runtime.lock import hold_process_lock
from prime_runtime.shardcast.checkpoint_files import verify_checkpoint_folder
from prime_runtime.shardcast.store import ShardStore
from prime_trainer.checkpoints import (
    DAMAGED,
    OPTIMIZER,
    WEIGHTS,
    CheckpointScan,
    DamagedCheckpoint,
    SavedCheckpoint,
    TrainState,
    list_file_tensors,
    load_optimizer,
    write_checkpoint,
)
from prime_trainer.config import PublishConfig, TrainConfig
from prime_trainer.data.submissions import TrainerRunInfo
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.optimizer import GradientGuard, make_optimizer
from prime_trainer.model.policy import PolicyModel, resolve_model
from prime_trainer.publish.publisher import PUBLISH_LOCK_NAME
from prime_trainer.train import Learner

log = logging.getLogger(__name__)


def repair_checkpoints(
    config: PublishConfig, trainer: NodeId, checkpoints: Path, found: CheckpointScan, latest: int
) -> SavedCheckpoint | None:
    """What to go on from, given the run's newest published step; None: the first start. LocalError says what to do."""
    if not found.damaged:
        return found.saved
    for each in found.damaged:
        log.error("the checkpoint %s is damaged: %s", each.folder, each.problem)
    step = found.saved.state.step if found.saved else -1
    with hold_process_lock(config.store / PUBLISH_LOCK_NAME, "publish", advice="give --store a folder"):
        store = ShardStore(config.store, network=config.network_id, run=config.run_id, trainer=trainer)
        if step < latest <= found.damaged[0].step:
            published = find_published(store, latest, found)
            quarantine(checkpoints, found.damaged)
            saved: SavedCheckpoint | None = rebuild_checkpoint(checkpoints, published, Step(latest), found.saved)
        else:
            quarantine(checkpoints, found.damaged)
            saved = found.saved
        remove_unpublished(store, latest)
    log.warning("training goes on from step %d", saved.state.step if saved else 0)
    return saved


def find_published(store: ShardStore, step: int, found: CheckpointScan) -> Path:
    """The whole checkpoint of this step, every byte of it as its manifest says."""
    advice = f"restore {found.damaged[0].folder} from a copy"
    if found.saved is None and step:
        raise LocalError(f"no checkpoint before step {step} is whole; {advice}")
    signed = next((each for each in store.checkpoints().values() if each.manifest.step == step), None)
    if signed is None:
        raise LocalError(f"the store {store.folder} does not have step {step}, which is published; {advice}")
    path = store.checkpoint_path(signed.root)
    try:
        verify_checkpoint_folder(path, signed.manifest, threads=1)
    except RemoteError as error:
        raise LocalError(f"the published weights in {path} are damaged too: {error}; {advice}") from None
    return path


def quarantine(checkpoints: Path, damaged: Sequence[DamagedCheckpoint]) -> None:
    """For the owner to look at; those of earlier times go."""
    names = {each.folder.name.removesuffix(DAMAGED) + DAMAGED for each in damaged}
    for old in checkpoints.glob(f"step-*{DAMAGED}"):
        if old.name not in names:
            shutil.rmtree(old)
    for each in damaged:
        if not each.folder.name.endswith(DAMAGED):
            target = each.folder.with_name(each.folder.name + DAMAGED)
            shutil.rmtree(target, ignore_errors=True)
            each.folder.rename(target)


def rebuild_checkpoint(
    checkpoints: Path, published: Path, step: Step, before: SavedCheckpoint | None
) -> SavedCheckpoint:
    """A checkpoint of the published weights, with what the one before knows of optimizer and gradients."""
    known = before.state if before else TrainState(step=Step(0))
    position = TrainState(step=step, updates=known.updates, gradient_norms=known.gradient_norms)
    with safe_open(published / WEIGHTS, "pt") as file:
        weights = list_file_tensors(file, torch.float32)
        if before is None:
            return SavedCheckpoint(write_checkpoint(checkpoints, published, position, weights, ()), position)
        with safe_open(before.folder / OPTIMIZER, "pt") as moments:
            return SavedCheckpoint(
                write_checkpoint(checkpoints, published, position, weights, list_file_tensors(moments, torch.float32)),
                position,
            )


def remove_unpublished(store: ShardStore, latest: int) -> None:
    """What the log does not name is of the damaged checkpoint: the step will be another one, and no base of a delta."""
    for stock in [stock for stock in store.shard_sets.values() if stock.manifest.step > latest]:
        store.remove(stock.digest)
    for root, signed in store.checkpoints().items():
        if signed.manifest.step > latest:
            store.remove_checkpoint(root)


CHECKPOINTS_FOLDER = "checkpoints"


@dataclass(frozen=True, slots=True)
class StartPoint:
    """What training begins with."""

    model: Path
    state: TrainState
    saved: SavedCheckpoint | None
    """None: the first start, nothing is on disk yet."""


def choose_start_point(config: TrainConfig, saved: SavedCheckpoint | None) -> StartPoint:
    if saved is not None:
        return StartPoint(saved.model, saved.state, saved)
    return StartPoint(resolve_model(config.model), TrainState(step=Step(0)), None)


def verify_run(seen: TrainerRunInfo, key: NodeId, model_files: Digest, start: StartPoint) -> None:
    """Pure. LocalError says why this folder cannot go on with this run, and what to do."""
    if seen.trainer != key:
        raise LocalError(f"the run's trainer is {seen.trainer}, this key is {key}; use that key, or update the run")
    if seen.model_files not in (ANY_MODEL_FILES, model_files):
        raise LocalError(
            f"the run is bound to model files {seen.model_files}, those here are {model_files}; take the run's model"
        )
    step = start.state.step
    if start.saved is None and seen.latest_step >= 0:
        raise LocalError(
            f"the run is at step {seen.latest_step}, and this folder has no checkpoint of it; bring the folder of the "
            "trainer that made it, or create a new run"
        )
    if start.saved is not None and step not in (seen.latest_step, seen.latest_step + 1):
        raise LocalError(
            f"the run is at step {seen.latest_step}, the checkpoint here at step {step};"
            " is this the folder of this run?"
        )


def make_learner(config: TrainConfig, ranks: RankGroup, start: StartPoint) -> Learner:
    """Every rank reads the same folder and keeps its part."""
    torch.set_num_threads(config.threads)
    policy = PolicyModel.load(
        start.model,
        device=config.device,
        precision=config.precision,
        gradient_checkpointing=config.gradient_checkpointing,
    )
    ranks.shard(policy.model, config.precision)
    optimizer = make_optimizer(policy.model, config.optimizer)
    if start.saved is not None:
        load_optimizer(start.saved, policy.model, optimizer)
    return Learner(
        policy=policy,
        optimizer=optimizer,
        guard=GradientGuard(config.optimizer.outlier, start.state.gradient_norms),
        ranks=ranks,
        loss=config.loss,
        batch=config.batch,
        schedule=config.optimizer,
        reference=load_reference(config, ranks) if config.loss.kl_weight else None,
        updates=start.state.updates,
    )


def load_reference(config: TrainConfig, ranks: RankGroup) -> PolicyModel:
    reference = PolicyModel.load(resolve_model(config.model), device=config.device, precision=config.precision)
    reference.model.requires_grad_(False)
    ranks.shard(reference.model, config.precision)
    return reference
