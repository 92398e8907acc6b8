"""What a trainer does about checkpoints that are not as they were written: it says which, sets them aside, goes on.

Where the damaged one's step was not published, the step is learnt again from the checkpoint before. Where it was, the
next one must come of what everybody has: the published weights go with the optimizer's state of the checkpoint before.
What is lost is one update of that state, and what bf16 does not hold of the weights.
"""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import NodeId, Step
from prime_runtime.lock import lock_file
from prime_runtime.shardcast.notes import verify_folder
from prime_runtime.shardcast.store import ShardStore
from prime_trainer.checkpoints import DAMAGED, OPTIMIZER, WEIGHTS, Damaged, Found, Position, Saved, plan_file, write
from prime_trainer.config import PublishConfig
from prime_trainer.publishing import LOCK_NAME

log = logging.getLogger(__name__)


def mend(config: PublishConfig, trainer: NodeId, checkpoints: Path, found: Found, latest: int) -> Saved | None:
    """What to go on from, given the run's newest published step; None: the first start. LocalError says what to do."""
    if not found.damaged:
        return found.saved
    for each in found.damaged:
        log.error("the checkpoint %s is damaged: %s", each.folder, each.problem)
    step = found.saved.position.step if found.saved else -1
    with lock_file(config.store / LOCK_NAME, "publish", advice="give --store a folder"):
        store = ShardStore(config.store, network=config.network_id, run=config.run_id, trainer=trainer)
        if step < latest <= found.damaged[0].step:
            published = find_published(store, latest, found)
            set_aside(checkpoints, found.damaged)
            saved: Saved | None = write_again(checkpoints, published, Step(latest), found.saved)
        else:
            set_aside(checkpoints, found.damaged)
            saved = found.saved
        forget(store, latest)
    log.warning("training goes on from step %d", saved.position.step if saved else 0)
    return saved


def find_published(store: ShardStore, step: int, found: Found) -> Path:
    """The whole checkpoint of this step, every byte of it as its manifest says."""
    advice = f"restore {found.damaged[0].folder} from a copy"
    if found.saved is None and step:
        raise LocalError(f"no checkpoint before step {step} is whole; {advice}")
    signed = next((each for each in store.checkpoints().values() if each.manifest.step == step), None)
    if signed is None:
        raise LocalError(f"the store {store.folder} does not have step {step}, which is published; {advice}")
    path = store.checkpoint_path(signed.root)
    try:
        verify_folder(path, signed.manifest, threads=1)
    except RemoteError as error:
        raise LocalError(f"the published weights in {path} are damaged too: {error}; {advice}") from None
    return path


def set_aside(checkpoints: Path, damaged: Sequence[Damaged]) -> None:
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


def write_again(checkpoints: Path, published: Path, step: Step, before: Saved | None) -> Saved:
    """A checkpoint of the published weights, with what the one before knows of optimizer and gradients."""
    known = before.position if before else Position(step=Step(0))
    position = Position(step=step, updates=known.updates, norms=known.norms)
    with safe_open(published / WEIGHTS, "pt") as file:
        weights = plan_file(file, torch.float32)
        if before is None:
            return Saved(write(checkpoints, published, position, weights, ()), position)
        with safe_open(before.folder / OPTIMIZER, "pt") as moments:
            return Saved(write(checkpoints, published, position, weights, plan_file(moments, torch.float32)), position)


def forget(store: ShardStore, latest: int) -> None:
    """What the log does not name is of the damaged checkpoint: the step will be another one, and no base of a delta."""
    for stock in [stock for stock in store.stocks.values() if stock.manifest.step > latest]:
        store.remove(stock.digest)
    for root, signed in store.checkpoints().items():
        if signed.manifest.step > latest:
            store.remove_checkpoint(root)
