"""How a trainer starts: from its newest intact checkpoint, or from the model it was given.

A damaged checkpoint is reported and quarantined. If its step was not published, the step is trained again from the
checkpoint before. If it was published, the next step must continue from what everybody has: the published weights are
combined with the optimizer state of the checkpoint before. That loses one optimizer update, and the bits of the weights
that bf16 cannot hold.
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
from prime_protocol.wire.messages import RunReply
from prime_runtime.lock import hold_process_lock
from prime_runtime.shardcast.checkpoint_files import verify_checkpoint_folder
from prime_runtime.shardcast.store import ShardStore
from prime_trainer.checkpoints import (
    DAMAGED,
    OPTIMIZER,
    WEIGHTS,
    CheckpointDamaged,
    CheckpointScan,
    DamagedCheckpoint,
    SavedCheckpoint,
    TrainState,
    disk_errors,
    list_checkpoints,
    list_file_tensors,
    load_optimizer,
    verify_checkpoint,
    write_checkpoint,
)
from prime_trainer.config import PublishConfig, TrainConfig
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.optimizer import GradientGuard, make_optimizer
from prime_trainer.model.policy import PolicyModel, resolve_model
from prime_trainer.publish.publisher import PUBLISH_LOCK_NAME
from prime_trainer.train import Learner

log = logging.getLogger(__name__)

CHECKPOINTS_FOLDER = "checkpoints"


@dataclass(frozen=True, slots=True)
class StartPoint:
    """What training starts from."""

    model: Path
    state: TrainState
    saved: SavedCheckpoint | None
    """None at the first start, when nothing is on disk yet."""


def choose_start_point(config: TrainConfig, saved: SavedCheckpoint | None) -> StartPoint:
    if saved is not None:
        return StartPoint(saved.model, saved.state, saved)
    return StartPoint(resolve_model(config.model), TrainState(step=Step(0)), None)


def verify_run(run: RunReply, key: NodeId, model_files: Digest, start: StartPoint) -> None:
    """Pure. LocalError says why this folder cannot continue this run, and what to do."""
    trainer, wanted = run.terms.trainer, run.terms.model_files
    if trainer != key:
        raise LocalError(f"the run's trainer is {trainer}, this key is {key}; use that key, or update the run")
    if wanted not in (ANY_MODEL_FILES, model_files):
        raise LocalError(f"the run is bound to model files {wanted}, those here are {model_files}; use the run's model")
    step = start.state.step
    if start.saved is None and run.latest_step >= 0:
        raise LocalError(
            f"the run is at step {run.latest_step}, and this folder has no checkpoint of it; copy the folder of the "
            "trainer that made it, or create a new run"
        )
    if start.saved is not None and step not in (run.latest_step, run.latest_step + 1):
        raise LocalError(
            f"the run is at step {run.latest_step}, the checkpoint here at step {step}; is this the folder of this run?"
        )


def make_learner(config: TrainConfig, ranks: RankGroup, start: StartPoint) -> Learner:
    """Every rank reads the same folder and keeps its shard."""
    torch.set_num_threads(config.threads)
    policy = PolicyModel.load(
        start.model,
        ranks=ranks,
        device=config.device,
        precision=config.precision,
        head_precision=config.head_precision,
        gradient_checkpointing=config.gradient_checkpointing,
    )
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
    reference = PolicyModel.load(
        resolve_model(config.model),
        ranks=ranks,
        device=config.device,
        precision=config.precision,
        head_precision=config.head_precision,
    )
    reference.model.requires_grad_(False)
    return reference


# --- Damaged checkpoints ----------------------------------------------------------------------------------------------


def repair_checkpoints(
    config: PublishConfig, trainer: NodeId, checkpoints: Path, scan: CheckpointScan, latest: int
) -> SavedCheckpoint | None:
    """Choose the checkpoint to resume from, given the run's newest published step; None at the first start."""
    if not scan.damaged:
        return scan.saved
    for each in scan.damaged:
        log.error("the checkpoint %s is damaged: %s", each.folder, each.problem)
    step = scan.saved.state.step if scan.saved else -1
    with (
        hold_process_lock(config.store / PUBLISH_LOCK_NAME, "publish", advice="give --store a folder"),
        disk_errors(f"repair the checkpoints in {checkpoints}"),
    ):
        store = ShardStore(config.store, network=config.network_id, run=config.run_id, trainer=trainer)
        saved = scan.saved
        if step < latest <= scan.damaged[0].step:
            published = find_published(store, latest, scan)
            quarantine(checkpoints, scan.damaged)
            saved = rebuild_checkpoint(checkpoints, published, Step(latest), scan.saved)
        else:
            quarantine(checkpoints, scan.damaged)
        remove_unpublished(store, latest)
    log.warning("training resumes from step %d", saved.state.step if saved else 0)
    return saved


def set_lost_aside(checkpoints: Path, scan: CheckpointScan, latest: int) -> CheckpointScan:
    """After a restore of the coordinator: go back to the first step that its log lacks, which is published again."""
    if scan.saved is None or scan.saved.state.step <= latest + 1:
        return scan
    lost = list(scan.damaged)
    for path in reversed(list_checkpoints(checkpoints)):
        try:
            state = verify_checkpoint(path)
        except CheckpointDamaged as error:
            lost += [] if any(each.folder == path for each in lost) else [DamagedCheckpoint(path, str(error))]
            continue
        if state.step <= latest + 1:
            return CheckpointScan(SavedCheckpoint(path, state), tuple(lost))
        lost.append(DamagedCheckpoint(path, "the coordinator lost this step in a restore of its log"))
    return scan


def find_published(store: ShardStore, step: int, scan: CheckpointScan) -> Path:
    """The published checkpoint of this step, after comparing every byte with its manifest."""
    advice = f"restore {scan.damaged[0].folder} from a copy"
    if scan.saved is None and step:
        raise LocalError(f"no checkpoint before step {step} is intact; {advice}")
    signed = next((each for each in store.checkpoints().values() if each.manifest.step == step), None)
    if signed is None:
        raise LocalError(f"step {step} is published, but the store {store.folder} does not have it; {advice}")
    path = store.checkpoint_path(signed.root)
    try:
        verify_checkpoint_folder(path, signed.manifest, threads=1)
    except RemoteError as error:
        raise LocalError(f"the published weights in {path} are damaged too: {error}; {advice}") from None
    return path


def quarantine(checkpoints: Path, damaged: Sequence[DamagedCheckpoint]) -> None:
    """Rename damaged checkpoints for the owner to inspect; remove those of earlier starts."""
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
    """Write a checkpoint from the published weights and the optimizer state of the checkpoint before."""
    known = before.state if before else TrainState(step=Step(0))
    state = TrainState(step=step, updates=known.updates, gradient_norms=known.gradient_norms)
    with safe_open(published / WEIGHTS, "pt") as file:
        weights = list_file_tensors(file, torch.float32)
        if before is None:
            return SavedCheckpoint(write_checkpoint(checkpoints, published, state, weights, ()), state)
        with safe_open(before.folder / OPTIMIZER, "pt") as optimizer:
            moments = list_file_tensors(optimizer, torch.float32)
            return SavedCheckpoint(write_checkpoint(checkpoints, published, state, weights, moments), state)


def remove_unpublished(store: ShardStore, latest: int) -> None:
    """Remove what the log does not name. It came from the damaged checkpoint, so it must not become a delta's base."""
    for shard_set in [each for each in store.shard_sets.values() if each.manifest.step > latest]:
        store.remove(shard_set.digest)
    for root, signed in store.checkpoints().items():
        if signed.manifest.step > latest:
            store.remove_checkpoint(root)
