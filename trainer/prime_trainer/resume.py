"""How a trainer starts: from a checkpoint that the log has reached, and the batches that were trained on since.

The steps after the checkpoint are computed again, in the same order from the same batches. On one rank this gives the
same weights bit by bit. Up to the run's newest step the result is compared with what was published, and where a weight
differs (other hardware, another number of ranks, another setting) training continues from the published one, as
everybody else does. Steps beyond are published again, as the same bytes.

A damaged checkpoint is reported and quarantined, and an older one is taken. If a batch is missing, training jumps to
the published weights and keeps the optimizer's state, which then lacks an update or more.
"""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.terms import ANY_MODEL_FILES
from prime_protocol.weights.manifest import SignedManifest
from prime_protocol.wire.ids import Digest, NodeId, Step
from prime_protocol.wire.messages import RunReply
from prime_runtime.lock import hold_process_lock
from prime_runtime.shardcast.checkpoint_files import link_or_copy, verify_checkpoint_folder
from prime_runtime.shardcast.store import ShardStore
from prime_trainer.checkpoints import (
    DAMAGED,
    TENSORS,
    CheckpointScan,
    DamagedCheckpoint,
    SavedCheckpoint,
    TrainState,
    disk_errors,
    find_newest_checkpoint,
    get_step,
    list_checkpoints,
    load_tensors,
)
from prime_trainer.config import TrainConfig
from prime_trainer.data.batch_log import BatchLog
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.loading import TensorFiles, get_local, list_tensors
from prime_trainer.model.optimizer import GradientGuard, make_optimizer
from prime_trainer.model.policy import PolicyModel, resolve_model
from prime_trainer.publish.publisher import PUBLISH_LOCK_NAME
from prime_trainer.saver import BATCHES_FOLDER, CHECKPOINTS_FOLDER, OUTGOING_FOLDER
from prime_trainer.train import Learner, make_state

log = logging.getLogger(__name__)

UNPUBLISHED_MAX = 17
"""Steps that a folder may be ahead of the log: the largest `save.unpublished_max`, and one in the making."""


@dataclass(frozen=True, slots=True)
class StartPoint:
    """What training starts from."""

    model: Path
    """The folder of the model's configuration; of its weights too, where nothing is saved."""
    state: TrainState
    saved: SavedCheckpoint | None
    """None at the first start, when nothing is on disk yet."""
    latest: int = -1
    """The run's newest published step."""
    goal: int = -1
    """The step at which training must arrive first: that one, or one that is in the store and not in the log yet."""
    published: Path | None = None
    """The weights of that step in the store, if it has them."""


def choose_start_point(config: TrainConfig, saved: SavedCheckpoint | None) -> StartPoint:
    if saved is not None:
        return StartPoint(saved.model, saved.state, saved)
    return StartPoint(resolve_model(config.model), TrainState(step=Step(0)), None)


def verify_run(run: RunReply, key: NodeId, model_files: Digest, newest: int) -> None:
    """Pure. LocalError says why this folder cannot continue this run, and what to do.

    `newest` is the newest step in the folder, of a checkpoint or a batch; -1 if it has none.
    """
    trainer, wanted = run.terms.trainer, run.terms.model_files
    if trainer != key:
        raise LocalError(f"the run's trainer is {trainer}, this key is {key}; use that key, or update the run")
    if wanted not in (ANY_MODEL_FILES, model_files):
        raise LocalError(f"the run is bound to model files {wanted}, those here are {model_files}; use the run's model")
    if newest < 0 <= run.latest_step:
        raise LocalError(
            f"the run is at step {run.latest_step}, and this folder has no checkpoint of it; copy the folder of the "
            "trainer that made it, or create a new run"
        )
    ahead = 0 if run.restored_size else newest - max(run.latest_step, 0) - UNPUBLISHED_MAX
    if newest < run.latest_step or ahead > 0:
        raise LocalError(
            f"the run is at step {run.latest_step}, the folder here at step {newest}; is this the folder of this run?"
        )


def find_newest_step(folder: Path) -> int:
    """The newest step that a trainer's folder knows of; -1 if none."""
    saved = [get_step(path) for path in (folder / CHECKPOINTS_FOLDER).glob("step-*") if path.suffix in ("", DAMAGED)]
    return max([*saved, *BatchLog(folder / BATCHES_FOLDER).list_steps()], default=-1)


def make_learner(config: TrainConfig, ranks: RankGroup, start: StartPoint) -> Learner:
    """Every rank reads the same folder and keeps its shard."""
    torch.set_num_threads(config.threads)
    make = PolicyModel.load if start.saved is None else PolicyModel.build
    policy = make(
        start.model,
        ranks=ranks,
        device=config.device,
        precision=config.precision,
        head_precision=config.head_precision,
        gradient_checkpointing=config.gradient_checkpointing,
        is_offloading=config.offload_activations,
    )
    optimizer = make_optimizer(policy.model, config.optimizer)
    if start.saved is not None:
        load_tensors(start.saved, policy.model, optimizer, ranks)
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


# --- Steps that are computed again ------------------------------------------------------------------------------------


def catch_up(learner: Learner, start: StartPoint, batches: BatchLog, *, now_ms: int) -> TrainState:
    """Compute the steps after the checkpoint again, up to the goal. Every rank runs this."""
    state, ranks = start.state, learner.ranks
    if state.step >= start.goal:
        return state
    while state.step < start.goal:
        step = Step(state.step + 1)
        batch = ranks.broadcast(batches.read(step) if ranks.is_first else None)
        if batch is None:
            log.warning("the batch of step %d is lost: training jumps to the weights of step %d", step, start.goal)
            break
        facts = learner.train_step(batch.samples, step)
        state = make_state(learner, step, batch, {**facts, "waited_s": 0.0, "learnt_s": 0.0}, at_ms=now_ms)
        log.info("step %d is computed again", step)
    changed = 0 if start.published is None else adopt_published(learner, start.published)
    if changed:
        log.warning("%d weights differ from those of step %d: taking the published ones", changed, start.goal)
    return state if state.step == start.goal else replace(state, step=Step(start.goal), trained_on=(), metrics={})


@torch.no_grad()  # type: ignore[untyped-decorator]
def adopt_published(learner: Learner, folder: Path) -> int:
    """Take the published weights where ours do not round to them; return their number, on all ranks."""
    source, changed = TensorFiles(folder), torch.zeros(1, dtype=torch.int64)
    tensors, _ = list_tensors(learner.policy.model)
    for name, tensor in tensors.items():
        local, rows = get_local(tensor)
        published = source.read(name, rows).to(local.device)
        differs = local.to(published.dtype) != published
        local.copy_(torch.where(differs, published.to(local.dtype), local))
        changed += differs.sum().cpu()
    return int(learner.ranks.all_reduce(changed))


# --- Where to start ---------------------------------------------------------------------------------------------------


def prepare_start(config: TrainConfig, trainer: NodeId, run: RunReply) -> StartPoint:
    """Choose the checkpoint to resume from, given the run's newest step, and put the folder in order.

    A checkpoint beyond that step is removed: its steps are computed again, from the batches.
    """
    checkpoints, latest = config.folder / CHECKPOINTS_FOLDER, run.latest_step
    batches = BatchLog(config.folder / BATCHES_FOLDER)
    scan = find_newest_checkpoint(checkpoints, max(latest, 0))
    if scan.saved is not None and not (scan.saved.folder / TENSORS).is_dir():
        raise LocalError(
            f"{scan.saved.folder} was written by version 0.1.0, which cannot be resumed from: start a new run, or go "
            "on with 0.1.0; nothing was changed"
        )
    for each in scan.damaged:
        log.error("the checkpoint %s is damaged: %s", each.folder, each.problem)
    with (
        hold_process_lock(config.store / PUBLISH_LOCK_NAME, "publish", advice="give --store a folder"),
        disk_errors(f"put the checkpoints in {checkpoints} in order"),
    ):
        store = ShardStore(config.store, network=config.network_id, run=config.run_id, trainer=trainer)
        if run.restored_size:
            # The log lost these steps with the rollouts that the later ones were trained on. The first one is made
            # again, as the same bytes.
            batches.remove(after=latest + 1)
        remove_unpublished(store, latest + 1)
        goal, published = choose_goal(store, batches, scan, latest)
        quarantine(checkpoints, scan.damaged)
        shutil.rmtree(config.folder / OUTGOING_FOLDER, ignore_errors=True)
        for path in list_checkpoints(checkpoints):
            if get_step(path) > max(latest, 0):
                shutil.rmtree(path)
    start = choose_start_point(config, scan.saved)
    if scan.saved is None and published is not None:
        start = replace(start, model=published)
    if start.state.step < goal or scan.damaged:
        log.warning("training resumes from step %d", start.state.step)
    return replace(start, latest=latest, goal=goal, published=published)


def choose_goal(store: ShardStore, batches: BatchLog, scan: CheckpointScan, latest: int) -> tuple[int, Path | None]:
    """The step to arrive at, and its weights in the store. LocalError if neither batches nor the store lead there."""
    step = scan.saved.state.step if scan.saved else -1
    in_store = {int(each.manifest.step): each for each in store.checkpoints().values()}
    for goal in (latest + 1, latest):
        is_complete = scan.saved is not None and all(map(batches.read, range(step + 1, goal + 1)))
        if goal in in_store and (goal == latest or is_complete):
            return goal, find_published(store, in_store[goal], scan, is_needed=step < goal, is_spare=is_complete)
        if goal in in_store:
            # It cannot be made again, and the log does not have it.
            remove_unpublished(store, latest)
    if step < latest and not is_complete:
        raise LocalError(
            f"step {latest} is published, but the store {store.folder} does not have it; {get_advice(store, scan)}"
        )
    return latest, None


def link_published(config: TrainConfig, start: StartPoint) -> Path | None:
    """The published weights of the log's newest step, to be evaluated: the store removes its own with the next step."""
    if start.published is None or start.goal != start.latest:
        return None
    folder = config.folder / OUTGOING_FOLDER / "published"
    with disk_errors(f"write {folder}"):
        folder.mkdir(parents=True)
        for path in start.published.iterdir():
            link_or_copy(path, folder / path.name)
    return folder


def get_advice(store: ShardStore, scan: CheckpointScan) -> str:
    return f"restore {scan.damaged[0].folder if scan.damaged else store.folder} from a copy"


def find_published(
    store: ShardStore, signed: SignedManifest, scan: CheckpointScan, *, is_needed: bool, is_spare: bool
) -> Path | None:
    """The published weights of a step; if training is to arrive at them, after comparing every byte.

    None if they are damaged and the batches lead there too.
    """
    path, step = store.checkpoint_path(signed.root), signed.manifest.step
    if not is_needed:
        return path
    if scan.saved is None and step:
        raise LocalError(f"no checkpoint before step {step} is intact; {get_advice(store, scan)}")
    try:
        verify_checkpoint_folder(path, signed.manifest, threads=1)
    except RemoteError as error:
        problem = f"the published weights in {path} are damaged too: {error}"
        if not is_spare:
            raise LocalError(f"{problem}; {get_advice(store, scan)}") from None
        log.error("%s", problem)
        return None
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


def remove_unpublished(store: ShardStore, latest: int) -> None:
    """Remove what the log does not name. It came from the damaged checkpoint, so it must not become a delta's base."""
    for shard_set in [each for each in store.shard_sets.values() if each.manifest.step > latest]:
        store.remove(shard_set.digest)
    for root, signed in store.checkpoints().items():
        if signed.manifest.step > latest:
            store.remove_checkpoint(root)
