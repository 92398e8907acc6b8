"""Safetensors files written tensor by tensor: one of them at a time is in memory, and the digest of all comes free.

Checkpoints to resume from: model, optimizer, schedule and data position, written whole and checked by digest.

    checkpoints/step-00000012/model/              a model folder, in float32
                              optimizer.safetensors
                              position.json       the rest, and a digest of every file

A step is published from its checkpoint and only after that is on disk. So whatever moment a trainer is killed at, what
it has published it can go on from, and what it publishes again is the same. What to do about a checkpoint that is not
as it was written is in mending.py.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors import safe_open

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import Digest, Step
from prime_trainer.model.distributed import RankGroup, gather_full, scatter_like

Tensor = Any

DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}
READ_CHUNK_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class LazyTensor:
    """A tensor that will be written: its form is known before its values."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    get: Callable[[], Tensor]

    @property
    def size_bytes(self) -> int:
        count = self.dtype.itemsize
        for side in self.shape:
            count *= side
        return int(count)


def write_tensors(path: Path, tensors: Sequence[LazyTensor]) -> str:
    """The digest of the file that was written."""
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
            assert values.shape == each.shape, f"{each.name} is not what was planned"
            raw = values.view(torch.uint8).numpy().data if values.ndim else values[None].view(torch.uint8).numpy().data
            file.write(raw)
            digest.update(raw)
    return digest.hexdigest()


def digest_file(path: Path) -> str:
    digest = blake3()
    try:
        with path.open("rb") as file:
            while chunk := file.read(READ_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error.strerror}") from None
    return digest.hexdigest()


def fsync_tree(folder: Path) -> None:
    """A folder and all that is in it are on disk when this returns."""
    for path in folder.rglob("*"):
        fsync_path(path)
    fsync_path(folder)


def fsync_path(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


MODEL, WEIGHTS, OPTIMIZER, STATE = "model", "model.safetensors", "optimizer.safetensors", "position.json"
MOMENTS = ("exp_avg", "exp_avg_sq")
DRAFT, DAMAGED = ".draft", ".damaged"
CHECKPOINT_NAME = re.compile(r"step-(\d{8})")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainState:
    """Where training stands, apart from the tensors."""

    step: Step
    trained_on: tuple[Digest, ...] = ()
    """Submissions that this step learnt from: its lineage. The log knows those of the steps before."""
    updates: int = 0
    """Of the optimizer."""
    gradient_norms: tuple[float, ...] = ()
    """Of the last gradients, for the guard."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """What the monitors say of this step."""


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint on disk."""

    folder: Path
    state: TrainState

    @property
    def model(self) -> Path:
        return self.folder / MODEL


@dataclass(frozen=True, slots=True)
class DamagedCheckpoint:
    """A checkpoint that is not as it was written."""

    folder: Path
    problem: str

    @property
    def step(self) -> int:
        return int(self.folder.name.removesuffix(DAMAGED).removeprefix("step-"))


@dataclass(frozen=True, slots=True)
class CheckpointScan:
    """What there is to go on from."""

    saved: SavedCheckpoint | None
    """The newest one that is whole."""
    damaged: tuple[DamagedCheckpoint, ...]
    """Newer ones, newest first."""


# --- Writing ----------------------------------------------------------------------------------------------------------


def save_checkpoint(
    folder: Path, model_files: Path, model: Any, optimizer: Any, position: TrainState, ranks: RankGroup, *, keep: int
) -> Path:
    """The checkpoint's folder, on disk when this returns. All ranks call it, the first one writes.

    `model_files` is the model folder whose configuration and tokenizer go along.
    """
    weights, moments = list_weights(model), list_moments(model, optimizer)
    if not ranks.is_first:
        for each in (*weights, *moments):
            each.get()
        return get_checkpoint_folder(folder, position.step)
    final = write_checkpoint(folder, model_files, position, weights, moments)
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def get_checkpoint_folder(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08}"


def write_checkpoint(
    folder: Path, model_files: Path, position: TrainState, weights: Sequence[LazyTensor], moments: Sequence[LazyTensor]
) -> Path:
    """The checkpoint's folder, which has its name only once all of it is on disk."""
    final = get_checkpoint_folder(folder, position.step)
    draft = final.with_name(final.name + DRAFT)
    try:
        shutil.rmtree(draft, ignore_errors=True)
        (draft / MODEL).mkdir(parents=True)
        digests = copy_model_files(model_files, draft / MODEL)
        digests[f"{MODEL}/{WEIGHTS}"] = write_tensors(draft / MODEL / WEIGHTS, weights)
        digests[OPTIMIZER] = write_tensors(draft / OPTIMIZER, moments)
        (draft / STATE).write_text(encode_state(position, digests))
        fsync_tree(draft)
        draft.rename(final)
        fsync_path(folder)
    except OSError as error:
        raise LocalError(f"cannot write the checkpoint {final}: {error.strerror}; make room there") from None
    return final


def list_weights(model: Any) -> list[LazyTensor]:
    """Every tensor of the model once, under the name that its public files have."""
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
    """The tensors of an open safetensors file, as another type of number."""
    return [
        LazyTensor(name, tuple(file.get_slice(name).get_shape()), dtype, partial(file.get_tensor, name))
        for name in sorted(file.keys())
    ]


def copy_model_files(source: Path, target: Path) -> dict[str, str]:
    """All but the tensors and the index of them; digests by name."""
    names = [
        path.name
        for path in sorted(source.iterdir())
        if path.is_file() and not path.name.startswith(".") and not path.name.endswith((".safetensors", ".index.json"))
    ]
    for name in names:
        shutil.copyfile(source / name, target / name)
    return {f"{MODEL}/{name}": digest_file(target / name) for name in names}


def encode_state(position: TrainState, digests: Mapping[str, str]) -> str:
    facts = {
        "step": position.step,
        "trained_on": [str(name) for name in position.trained_on],
        "updates": position.updates,
        "norms": list(position.gradient_norms),
        "facts": dict(position.metrics),
        "files": dict(digests),
    }
    return json.dumps({**facts, "digest": digest_json(facts)}, indent=1) + "\n"


def digest_json(facts: Mapping[str, Any]) -> str:
    return blake3(json.dumps(facts, sort_keys=True).encode()).hexdigest()


# --- Reading ----------------------------------------------------------------------------------------------------------


def list_checkpoints(folder: Path) -> list[Path]:
    """Oldest first; what was being written when a trainer ended is not among them."""
    return sorted(path for path in folder.glob("step-*") if CHECKPOINT_NAME.fullmatch(path.name))


def find_newest_checkpoint(folder: Path) -> CheckpointScan:
    """The newest checkpoint of which every byte is as it was written."""
    damaged = [DamagedCheckpoint(path, "was set aside before") for path in folder.glob(f"step-*{DAMAGED}")]
    saved = None
    for path in reversed(list_checkpoints(folder)):
        try:
            saved = SavedCheckpoint(path, verify_checkpoint(path))
            break
        except RemoteError as error:
            damaged.append(DamagedCheckpoint(path, str(error)))
    newer = [each for each in damaged if saved is None or each.step > saved.state.step]
    return CheckpointScan(saved, tuple(sorted(newer, key=lambda each: -each.step)))


def verify_checkpoint(checkpoint: Path, part: str = "") -> TrainState:
    """RemoteError names the file that is not as it was written. `part` is all that is looked at, where it is given."""
    try:
        facts = json.loads((checkpoint / STATE).read_text())
        digest = facts.pop("digest")
        if digest != digest_json(facts):
            raise RemoteError(STATE, "is not as it was written")
        position = TrainState(
            step=Step(facts["step"]),
            trained_on=tuple(map(Digest.parse, facts["trained_on"])),
            updates=facts["updates"],
            gradient_norms=tuple(facts["norms"]),
            metrics=facts["facts"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RemoteError(STATE, f"cannot be read: {error}") from None
    for name, digest in facts["files"].items():
        if name.startswith(part) and not is_intact(checkpoint / name, digest):
            raise RemoteError(name, "is not as it was written")
    return position


def is_intact(path: Path, digest: str) -> bool:
    return path.is_file() and digest_file(path) == digest


def load_optimizer(saved: SavedCheckpoint, model: Any, optimizer: Any) -> None:
    """The moments back into a new optimizer, each rank its part of them."""
    with safe_open(saved.folder / OPTIMIZER, "pt") as file:
        names = set(file.keys())
        for name, parameter in model.named_parameters():
            if f"{name}.{MOMENTS[0]}" in names:
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(saved.state.updates)),
                    **{each: scatter_like(file.get_tensor(f"{name}.{each}"), parameter) for each in MOMENTS},
                }
