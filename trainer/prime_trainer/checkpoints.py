"""Checkpoints to resume from: model, optimizer and training state, written atomically and verified by digest.

    checkpoints/step-00000012/model/              a model folder, in float32
                              optimizer.safetensors
                              state.json          the training state, and a digest of every file

A step is published from its checkpoint, and only after the checkpoint is on disk. A trainer that is killed at any
moment can therefore resume from what it has published, and publishes the same bytes again. Tensors are written one at a
time, so saving needs memory for one tensor only. What to do about a damaged checkpoint is in resume.py.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import Digest, Step
from prime_trainer.model.distributed import RankGroup, gather_full, scatter_like

Tensor = Any

MODEL, WEIGHTS, OPTIMIZER, STATE = "model", "model.safetensors", "optimizer.safetensors", "state.json"
MOMENTS = ("exp_avg", "exp_avg_sq")
DRAFT, DAMAGED = ".draft", ".damaged"
CHECKPOINT_NAME = re.compile(r"step-(\d{8})")
DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}
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
        return int(self.folder.name.removesuffix(DAMAGED).removeprefix("step-"))


@dataclass(frozen=True, slots=True)
class CheckpointScan:
    """The checkpoints of a folder, as far as a start needs them."""

    saved: SavedCheckpoint | None
    """The newest intact one."""
    damaged: tuple[DamagedCheckpoint, ...]
    """Damaged ones that are newer, newest first."""


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor to be written. Its shape is known before its values are fetched."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    get: Callable[[], Tensor]

    @property
    def size_bytes(self) -> int:
        return int(self.dtype.itemsize * math.prod(self.shape))


@contextmanager
def disk_errors(action: str) -> Iterator[None]:
    """Turn an error of this machine's disk into a LocalError that says what failed."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise LocalError(f"cannot {action}: {reason}; check free space and permissions there") from None


# --- Writing ----------------------------------------------------------------------------------------------------------


def save_checkpoint(
    folder: Path, model_files: Path, model: Any, optimizer: Any, state: TrainState, ranks: RankGroup, *, keep: int
) -> Path:
    """Save and fsync a checkpoint; return its folder. All ranks call it, only the first one writes.

    `model_files` is the model folder whose configuration and tokenizer are copied.
    """
    weights, moments = list_weights(model), list_moments(model, optimizer)
    if not ranks.is_first:
        # Gathering a sharded tensor is a collective operation: every rank takes part in the same order.
        for each in (*weights, *moments):
            each.get()
        return get_checkpoint_folder(folder, state.step)
    final = write_checkpoint(folder, model_files, state, weights, moments)
    with disk_errors(f"remove old checkpoints in {folder}"):
        for old in list_checkpoints(folder)[:-keep]:
            shutil.rmtree(old)
    return final


def get_checkpoint_folder(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08}"


def write_checkpoint(
    folder: Path, model_files: Path, state: TrainState, weights: Sequence[LazyTensor], moments: Sequence[LazyTensor]
) -> Path:
    """Write into a draft folder that gets its final name only after everything is on disk."""
    final = get_checkpoint_folder(folder, state.step)
    draft = final.with_name(final.name + DRAFT)
    with disk_errors(f"write the checkpoint {final}"):
        shutil.rmtree(draft, ignore_errors=True)
        (draft / MODEL).mkdir(parents=True)
        digests = copy_model_files(model_files, draft / MODEL)
        digests[f"{MODEL}/{WEIGHTS}"] = write_tensors(draft / MODEL / WEIGHTS, weights)
        digests[OPTIMIZER] = write_tensors(draft / OPTIMIZER, moments)
        (draft / STATE).write_text(encode_state(state, digests))
        fsync_tree(draft)
        draft.rename(final)
        fsync_path(folder)
    return final


def list_weights(model: Any) -> list[LazyTensor]:
    """Every tensor of the model once, under the name that it has in public model files."""
    parameters = dict(model.named_parameters())
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - parameters.keys()
    buffers = {name: value for name, value in model.state_dict().items() if name not in parameters.keys() | tied}
    return [_make_lazy(name, value) for name, value in sorted({**parameters, **buffers}.items())]


def list_moments(model: Any, optimizer: Any) -> list[LazyTensor]:
    return [
        _make_lazy(f"{name}.{moment}", optimizer.state[parameter][moment])
        for name, parameter in sorted(model.named_parameters())
        if parameter in optimizer.state
        for moment in MOMENTS
    ]


def _make_lazy(name: str, value: Any) -> LazyTensor:
    return LazyTensor(name, tuple(value.shape), torch.float32, lambda: gather_full(value))


def list_file_tensors(file: Any, dtype: Any) -> list[LazyTensor]:
    """The tensors of an open safetensors file, converted to `dtype`."""
    return [
        LazyTensor(name, tuple(file.get_slice(name).get_shape()), dtype, partial(file.get_tensor, name))
        for name in sorted(file.keys())
    ]


def write_tensors(path: Path, tensors: Sequence[LazyTensor]) -> str:
    """Write a safetensors file tensor by tensor; return its digest."""
    offset, entries = 0, {}
    for each in tensors:
        span = [offset, offset + each.size_bytes]
        entries[each.name] = {"dtype": DTYPE_NAMES[each.dtype], "shape": list(each.shape), "data_offsets": span}
        offset += each.size_bytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    digest = blake3()
    with path.open("wb") as file:
        for part in (len(header).to_bytes(8, "little"), header):
            file.write(part)
            digest.update(part)
        for each in tensors:
            values = each.get().detach().to("cpu", each.dtype).contiguous()
            assert values.shape == each.shape, f"{each.name} has another shape than announced"
            # A scalar cannot be viewed as bytes, so it becomes a vector of one.
            raw = (values if values.ndim else values[None]).view(torch.uint8).numpy().data
            file.write(raw)
            digest.update(raw)
    return digest.hexdigest()


def copy_model_files(source: Path, target: Path) -> dict[str, str]:
    """Copy all files but the tensors and their index; return their digests by name."""
    names = [
        path.name
        for path in sorted(source.iterdir())
        if path.is_file() and not path.name.startswith(".") and not path.name.endswith((".safetensors", ".index.json"))
    ]
    for name in names:
        shutil.copyfile(source / name, target / name)
    return {f"{MODEL}/{name}": digest_file(target / name) for name in names}


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


def find_newest_checkpoint(folder: Path) -> CheckpointScan:
    """Find the newest checkpoint whose every byte matches its digest."""
    damaged = [DamagedCheckpoint(path, "was quarantined earlier") for path in folder.glob(f"step-*{DAMAGED}")]
    saved = None
    for path in reversed(list_checkpoints(folder)):
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


def load_optimizer(saved: SavedCheckpoint, model: Any, optimizer: Any) -> None:
    """Load the moments into a new optimizer; each rank keeps its shard."""
    path = saved.folder / OPTIMIZER
    with disk_errors(f"read {path}"), safe_open(path, "pt") as file:
        names = set(file.keys())
        for name, parameter in model.named_parameters():
            if f"{name}.{MOMENTS[0]}" in names:
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(saved.state.updates), device=parameter.device),
                    **{each: scatter_like(file.get_tensor(f"{name}.{each}"), parameter) for each in MOMENTS},
                }
