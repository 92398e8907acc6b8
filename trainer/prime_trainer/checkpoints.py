"""Checkpoints to resume from: model, optimizer, schedule and data position, written whole and checked by digest.

    checkpoints/step-00000012/model/              a model folder, in float32
                              optimizer.safetensors
                              position.json       the rest, and a digest of every file

A step is published from its checkpoint and only after that is on disk. So whatever moment a trainer is killed at, what
it has published it can go on from, and what it publishes again is the same. What to do about a checkpoint that is not
as it was written is in mending.py.
"""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors import safe_open

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import Digest, Step
from prime_trainer.ranks import Ranks, gather, scatter_like
from prime_trainer.tensor_files import Planned, digest_file, sync, sync_tree, write_tensors

MODEL, WEIGHTS, OPTIMIZER, POSITION = "model", "model.safetensors", "optimizer.safetensors", "position.json"
MOMENTS = ("exp_avg", "exp_avg_sq")
DRAFT, DAMAGED = ".draft", ".damaged"
NAME = re.compile(r"step-(\d{8})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where training stands, apart from the tensors."""

    step: Step
    trained_on: tuple[Digest, ...] = ()
    """Submissions that this step learnt from: its lineage. The log knows those of the steps before."""
    updates: int = 0
    """Of the optimizer."""
    norms: tuple[float, ...] = ()
    """Of the last gradients, for the guard."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the monitors say of this step."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint on disk."""

    folder: Path
    position: Position

    @property
    def model(self) -> Path:
        return self.folder / MODEL


@dataclass(frozen=True, slots=True)
class Damaged:
    """A checkpoint that is not as it was written."""

    folder: Path
    problem: str

    @property
    def step(self) -> int:
        return int(self.folder.name.removesuffix(DAMAGED).removeprefix("step-"))


@dataclass(frozen=True, slots=True)
class Found:
    """What there is to go on from."""

    saved: Saved | None
    """The newest one that is whole."""
    damaged: tuple[Damaged, ...]
    """Newer ones, newest first."""


# --- Writing ----------------------------------------------------------------------------------------------------------


def save(
    folder: Path, model_files: Path, model: Any, optimizer: Any, position: Position, ranks: Ranks, *, keep: int
) -> Path:
    """The checkpoint's folder, on disk when this returns. All ranks call it, the first one writes.

    `model_files` is the model folder whose configuration and tokenizer go along.
    """
    weights, moments = plan_weights(model), plan_moments(model, optimizer)
    if not ranks.is_first:
        for each in (*weights, *moments):
            each.get()
        return get_folder(folder, position.step)
    final = write(folder, model_files, position, weights, moments)
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return final


def get_folder(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08}"


def write(
    folder: Path, model_files: Path, position: Position, weights: Sequence[Planned], moments: Sequence[Planned]
) -> Path:
    """The checkpoint's folder, which has its name only once all of it is on disk."""
    final = get_folder(folder, position.step)
    draft = final.with_name(final.name + DRAFT)
    try:
        shutil.rmtree(draft, ignore_errors=True)
        (draft / MODEL).mkdir(parents=True)
        digests = copy_files(model_files, draft / MODEL)
        digests[f"{MODEL}/{WEIGHTS}"] = write_tensors(draft / MODEL / WEIGHTS, weights)
        digests[OPTIMIZER] = write_tensors(draft / OPTIMIZER, moments)
        (draft / POSITION).write_text(render(position, digests))
        sync_tree(draft)
        draft.rename(final)
        sync(folder)
    except OSError as error:
        raise LocalError(f"cannot write the checkpoint {final}: {error.strerror}; make room there") from None
    return final


def plan_weights(model: Any) -> list[Planned]:
    """Every tensor of the model once, under the name that its public files have."""
    parameters = dict(model.named_parameters())
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)} - parameters.keys()
    buffers = {name: value for name, value in model.state_dict().items() if name not in parameters.keys() | tied}
    return [_plan(name, value) for name, value in sorted({**parameters, **buffers}.items())]


def plan_moments(model: Any, optimizer: Any) -> list[Planned]:
    return [
        _plan(f"{name}.{moment}", optimizer.state[parameter][moment])
        for name, parameter in sorted(model.named_parameters())
        if parameter in optimizer.state
        for moment in MOMENTS
    ]


def _plan(name: str, value: Any) -> Planned:
    return Planned(name, tuple(value.shape), torch.float32, lambda: gather(value))


def plan_file(file: Any, dtype: Any) -> list[Planned]:
    """The tensors of an open safetensors file, as another type of number."""
    return [
        Planned(name, tuple(file.get_slice(name).get_shape()), dtype, partial(file.get_tensor, name))
        for name in sorted(file.keys())
    ]


def copy_files(source: Path, target: Path) -> dict[str, str]:
    """All but the tensors and the index of them; digests by name."""
    names = [
        path.name
        for path in sorted(source.iterdir())
        if path.is_file() and not path.name.startswith(".") and not path.name.endswith((".safetensors", ".index.json"))
    ]
    for name in names:
        shutil.copyfile(source / name, target / name)
    return {f"{MODEL}/{name}": digest_file(target / name) for name in names}


def render(position: Position, digests: Mapping[str, str]) -> str:
    facts = {
        "step": position.step,
        "trained_on": [str(name) for name in position.trained_on],
        "updates": position.updates,
        "norms": list(position.norms),
        "facts": dict(position.facts),
        "files": dict(digests),
    }
    return json.dumps({**facts, "digest": digest_facts(facts)}, indent=1) + "\n"


def digest_facts(facts: Mapping[str, Any]) -> str:
    return blake3(json.dumps(facts, sort_keys=True).encode()).hexdigest()


# --- Reading ----------------------------------------------------------------------------------------------------------


def list_checkpoints(folder: Path) -> list[Path]:
    """Oldest first; what was being written when a trainer ended is not among them."""
    return sorted(path for path in folder.glob("step-*") if NAME.fullmatch(path.name))


def find_newest(folder: Path) -> Found:
    """The newest checkpoint of which every byte is as it was written."""
    damaged = [Damaged(path, "was set aside before") for path in folder.glob(f"step-*{DAMAGED}")]
    saved = None
    for path in reversed(list_checkpoints(folder)):
        try:
            saved = Saved(path, check(path))
            break
        except RemoteError as error:
            damaged.append(Damaged(path, str(error)))
    newer = [each for each in damaged if saved is None or each.step > saved.position.step]
    return Found(saved, tuple(sorted(newer, key=lambda each: -each.step)))


def check(checkpoint: Path, part: str = "") -> Position:
    """RemoteError names the file that is not as it was written. `part` is all that is looked at, where it is given."""
    try:
        facts = json.loads((checkpoint / POSITION).read_text())
        digest = facts.pop("digest")
        if digest != digest_facts(facts):
            raise RemoteError(POSITION, "is not as it was written")
        position = Position(
            step=Step(facts["step"]),
            trained_on=tuple(map(Digest.parse, facts["trained_on"])),
            updates=facts["updates"],
            norms=tuple(facts["norms"]),
            facts=facts["facts"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RemoteError(POSITION, f"cannot be read: {error}") from None
    for name, digest in facts["files"].items():
        if name.startswith(part) and not is_file_of(checkpoint / name, digest):
            raise RemoteError(name, "is not as it was written")
    return position


def is_file_of(path: Path, digest: str) -> bool:
    return path.is_file() and digest_file(path) == digest


def load_optimizer(saved: Saved, model: Any, optimizer: Any) -> None:
    """The moments back into a new optimizer, each rank its part of them."""
    with safe_open(saved.folder / OPTIMIZER, "pt") as file:
        names = set(file.keys())
        for name, parameter in model.named_parameters():
            if f"{name}.{MOMENTS[0]}" in names:
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(saved.position.updates)),
                    **{each: scatter_like(file.get_tensor(f"{name}.{each}"), parameter) for each in MOMENTS},
                }
