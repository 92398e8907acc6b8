"""Checkpoints to resume from: tensors, training state and the model's small files, written atomically.

    checkpoints/step-00000012/model/      configuration and tokenizer
                              tensors/    weights in float32 and optimizer state, in torch's distributed format
                              state.json  the training state, and a digest of every file

Every rank writes its own shards, so no rank ever holds more, and any number of ranks can read them. saver.py decides
when to write one and does it in the background, from copies. The steps after the newest checkpoint are computed again
at a start (resume.py); until a step is published, the batch that made it is kept (data/batch_log.py).
"""

import json
import logging
import os
import pickle
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from blake3 import blake3
from safetensors import SafetensorError
from torch.distributed.checkpoint.staging import BlockingAsyncStager

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import Digest, Step
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.loading import list_tensors
from prime_trainer.model.optimizer import MOMENTS, make_moments

Tensor = Any

MODEL, TENSORS, STATE = "model", "tensors", "state.json"
WEIGHTS = "model.safetensors"
"""The file of the weights in a model folder as it is published."""
OPTIMIZER = "optimizer"
DRAFT, DAMAGED = ".draft", ".damaged"
CHECKPOINT_NAME = re.compile(r"step-(\d{8})")
DCP_LOGGER = "c10d-NullHandler-dcp_logger"
"""Where torch's distributed checkpointing logs each tensor, whatever level the root logger has."""
READ_CHUNK_BYTES = 8 * 2**20


class CheckpointDamaged(LocalError):
    """A file of a checkpoint differs from what was written. The trainer falls back to an older checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """Everything needed to resume, except the tensors."""

    step: Step
    trained_on: tuple[Digest, ...] = ()
    """Submissions that this step was trained on: its lineage. The log has those of earlier steps."""
    updates: int = 0
    """Optimizer updates so far."""
    gradient_norms: tuple[float, ...] = ()
    """Norms of the last gradients, for the gradient guard."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The metrics of this step."""


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """An intact checkpoint on disk."""

    folder: Path
    state: TrainState

    @property
    def model(self) -> Path:
        return self.folder / MODEL


@dataclass(frozen=True, slots=True)
class DamagedCheckpoint:
    """A checkpoint with at least one file that differs from what was written."""

    folder: Path
    problem: str

    @property
    def step(self) -> int:
        return get_step(self.folder)


@dataclass(frozen=True, slots=True)
class CheckpointScan:
    """The checkpoints of a folder, as far as a start needs them."""

    saved: SavedCheckpoint | None
    """The newest intact one that is not too new."""
    damaged: tuple[DamagedCheckpoint, ...]
    """Damaged ones that are newer, newest first."""


@contextmanager
def disk_errors(action: str) -> Iterator[None]:
    """Turn an error of this machine's disk into a LocalError that says what failed."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise LocalError(f"cannot {action}: {reason}; check free space and permissions there") from None


# --- Writing ----------------------------------------------------------------------------------------------------------


def list_state(model: Any, optimizer: Any) -> dict[str, Tensor]:
    """Every tensor of a checkpoint by name: weights, buffers that are saved, and the optimizer's moments."""
    tensors, _ = list_tensors(model)
    state = {f"{MODEL}.{name}": value.detach() for name, value in tensors.items()}
    for name, parameter in model.named_parameters():
        moments = optimizer.state.get(parameter, {})
        state |= {f"{OPTIMIZER}.{name}.{each}": moments[each] for each in MOMENTS if each in moments}
    return state


def stage_state(model: Any, optimizer: Any) -> dict[str, Tensor]:
    """A copy of this rank's shards in the memory of the host, so that training can go on."""
    staged: dict[str, Tensor] = BlockingAsyncStager().stage(list_state(model, optimizer))
    return staged


def get_checkpoint_folder(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08}"


def write_checkpoint(
    folder: Path, model_files: Path, state: TrainState, tensors: Mapping[str, Tensor], ranks: RankGroup
) -> Path:
    """Write and fsync a checkpoint in a draft folder that then gets its name. All ranks call it, in the background.

    `model_files` is the model folder whose configuration and tokenizer are copied.
    """
    final = get_checkpoint_folder(folder, state.step)
    draft = final.with_name(final.name + DRAFT)

    def start_draft() -> None:
        shutil.rmtree(draft, ignore_errors=True)
        (draft / MODEL).mkdir(parents=True)
        copy_model_files(model_files, draft / MODEL)

    def write_tensors() -> None:
        writer = dcp.FileSystemWriter(draft / TENSORS, sync_files=True)
        with quiet_about_one_process():
            dcp.save(dict(tensors), storage_writer=writer, process_group=ranks.background, no_dist=ranks.size == 1)

    def finish_draft() -> None:
        names = sorted(path.relative_to(draft).as_posix() for path in draft.rglob("*") if path.is_file())
        (draft / STATE).write_text(encode_state(state, {name: digest_file(draft / name) for name in names}))
        fsync_tree(draft)
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
        fsync_path(folder)

    action = f"write the checkpoint {final}"
    ranks.do_first(action, start_draft)
    ranks.do_all(action, write_tensors)
    ranks.do_first(action, finish_draft)
    return final


def remove_old_checkpoints(folder: Path, *, keep: int, published: int) -> int:
    """Keep the newest ones, and the newest that is published: a start goes back to it. Returns the oldest step kept."""
    with disk_errors(f"remove old checkpoints in {folder}"):
        paths = list_checkpoints(folder)
        kept = [path for path in paths if get_step(path) <= published][-1:] + paths[-keep:]
        for path in paths:
            if path not in kept:
                shutil.rmtree(path)
    return min(map(get_step, kept), default=0)


@contextmanager
def quiet_about_one_process() -> Iterator[None]:
    """torch warns that a single process is not distributed, and tells every handler about each tensor."""
    logging.getLogger(DCP_LOGGER).setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def copy_model_files(source: Path, target: Path) -> None:
    """Copy all files but the tensors, their index, and what the store of published weights adds."""
    names = [
        path.name
        for path in sorted(source.iterdir())
        if path.is_file() and not path.name.startswith(".") and not path.name.endswith((".safetensors", ".index.json"))
    ]
    for name in names:
        shutil.copyfile(source / name, target / name)


def encode_state(state: TrainState, digests: Mapping[str, str]) -> str:
    fields = {
        "step": state.step,
        "trained_on": [str(submission) for submission in state.trained_on],
        "updates": state.updates,
        "gradient_norms": list(state.gradient_norms),
        "metrics": dict(state.metrics),
        "files": dict(digests),
    }
    return json.dumps({**fields, "digest": digest_json(fields)}, indent=1) + "\n"


def digest_json(fields: Mapping[str, Any]) -> str:
    return blake3(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def digest_file(path: Path) -> str:
    digest = blake3()
    with disk_errors(f"read {path}"), path.open("rb") as file:
        while chunk := file.read(READ_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def fsync_tree(folder: Path) -> None:
    """Fsync a folder and everything in it."""
    for path in folder.rglob("*"):
        fsync_path(path)
    fsync_path(folder)


def fsync_path(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- Reading ----------------------------------------------------------------------------------------------------------


def list_checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first. Drafts of an interrupted save have other names."""
    return sorted(path for path in folder.glob("step-*") if CHECKPOINT_NAME.fullmatch(path.name))


def get_step(path: Path) -> int:
    return int(path.name.removesuffix(DAMAGED).removeprefix("step-"))


def find_newest_checkpoint(folder: Path, step_max: int | None = None) -> CheckpointScan:
    """Find the newest checkpoint, of step `step_max` at most, whose every byte matches its digest."""
    damaged = [DamagedCheckpoint(path, "was quarantined earlier") for path in folder.glob(f"step-*{DAMAGED}")]
    saved = None
    for path in reversed(list_checkpoints(folder)):
        if step_max is not None and get_step(path) > step_max:
            continue
        try:
            saved = SavedCheckpoint(path, verify_checkpoint(path))
            break
        except CheckpointDamaged as error:
            damaged.append(DamagedCheckpoint(path, str(error)))
    newer = [each for each in damaged if saved is None or each.step > saved.state.step]
    return CheckpointScan(saved, tuple(sorted(newer, key=lambda each: -each.step)))


def verify_checkpoint(checkpoint: Path, part: str = "") -> TrainState:
    """Compare every file below `part` with its digest. CheckpointDamaged names the first file that differs.

    A file that exists but cannot be read (permissions, a failing disk) is a plain LocalError: the checkpoint may be
    intact, and quarantining it would lose work.
    """
    with disk_errors(f"read {checkpoint / STATE}"):
        try:
            raw = (checkpoint / STATE).read_bytes()
        except FileNotFoundError:
            raise CheckpointDamaged(f"{STATE} is missing") from None
    state, digests = _decode_state(raw)
    for name, digest in digests.items():
        path = checkpoint / name
        if name.startswith(part) and not (path.is_file() and digest_file(path) == digest):
            raise CheckpointDamaged(f"{name} differs from what was written")
    return state


def _decode_state(raw: bytes) -> tuple[TrainState, dict[str, str]]:
    try:
        fields = json.loads(raw)
        digest = fields.pop("digest")
        if digest != digest_json(fields):
            raise CheckpointDamaged(f"{STATE} differs from what was written")
        state = TrainState(
            step=Step(fields["step"]),
            trained_on=tuple(map(Digest.parse, fields["trained_on"])),
            updates=fields["updates"],
            gradient_norms=tuple(fields["gradient_norms"]),
            metrics=fields["metrics"],
        )
        return state, fields["files"]
    except (ValueError, KeyError, TypeError, AttributeError, RemoteError) as error:
        raise CheckpointDamaged(f"{STATE} cannot be parsed: {error}") from None


def load_tensors(saved: SavedCheckpoint, model: Any, optimizer: Any, ranks: RankGroup) -> None:
    """Load weights and moments into a model and a new optimizer; each rank reads its shards."""
    path = saved.folder / TENSORS
    with disk_errors(f"read {path}"):
        try:
            reader = dcp.FileSystemReader(path)
            names = reader.read_metadata().state_dict_metadata.keys()
            for name, parameter in model.named_parameters():
                if f"{OPTIMIZER}.{name}.{MOMENTS[0]}" in names:
                    optimizer.state[parameter] = make_moments(parameter, optimizer, saved.state.updates)
            wanted = list_state(model, optimizer)
            if wanted.keys() != names:
                raise LocalError(f"the checkpoint {saved.folder} is of another model")
            with quiet_about_one_process():
                dcp.load(wanted, storage_reader=reader, process_group=ranks.background, no_dist=ranks.size == 1)
        except (dcp.CheckpointException, EOFError, pickle.UnpicklingError) as error:
            raise LocalError(f"cannot read {path}: {error}") from None
