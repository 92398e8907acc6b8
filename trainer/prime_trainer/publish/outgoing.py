"""The weights of a step in bfloat16, as a model folder that is published: written straight from the shards.

Each rank copies its shard to the memory of the host, in bfloat16, and lets training go on. In the background it writes
its rows to their place in one safetensors file. No full copy in float32 exists, in memory or on disk, and no rank
gathers what others hold. The same weights always give the same bytes.
"""

import json
import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from prime_trainer.checkpoints import DRAFT, WEIGHTS, copy_model_files, fsync_path, fsync_tree
from prime_trainer.model.distributed import RankGroup
from prime_trainer.model.loading import get_local, list_tensors

Tensor = Any

VALUE_BYTES = 2


@dataclass(frozen=True, slots=True)
class StagedWeights:
    """This rank's part of the file."""

    header: bytes
    parts: tuple[tuple[int, Tensor], ...]
    """Rows of a tensor in bfloat16, in the memory of the host, and their offset in the file."""
    file_bytes: int

    @property
    def size_bytes(self) -> int:
        return sum(values.nbytes for _, values in self.parts)


@torch.no_grad()  # type: ignore[untyped-decorator]
def stage_weights(model: Any, ranks: RankGroup) -> StagedWeights:
    """Copy this rank's rows. Every tensor is there once, under its name in `transformers`.

    That is its name in public model files too, except for mixtures whose experts `transformers` holds fused.
    """
    tensors, _ = list_tensors(model)
    entries, offset = {}, 0
    for name, value in sorted(tensors.items()):
        size = VALUE_BYTES * math.prod(value.shape)
        entries[name] = {"dtype": "BF16", "shape": list(value.shape), "data_offsets": [offset, offset + size]}
        offset += size
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    header = len(header).to_bytes(8, "little") + header
    parts = []
    for name, value in sorted(tensors.items()):
        local, rows = get_local(value)
        if not local.numel() or not is_writer(value, ranks):
            continue
        start = len(header) + entries[name]["data_offsets"][0]
        if value.ndim:
            start += rows.start * VALUE_BYTES * math.prod(value.shape[1:])
        parts.append((start, local.detach().to("cpu", torch.bfloat16, copy=True).contiguous()))
    return StagedWeights(header, tuple(parts), len(header) + offset)


def is_writer(value: Tensor, ranks: RankGroup) -> bool:
    """Whether this rank writes its part: of equal replicas the first, and the first rank what is not sharded."""
    if not hasattr(value, "device_mesh"):
        return ranks.is_first
    places = zip(value.device_mesh.get_coordinate(), value.placements, strict=True)
    return all(place == 0 for place, placement in places if not placement.is_shard())


def write_weights(folder: Path, model_files: Path, staged: StagedWeights, ranks: RankGroup) -> Path:
    """Write the model folder and fsync it. All ranks call it, in the background; the folder has its name at the end."""
    draft = folder.with_name(folder.name + DRAFT)

    def start_draft() -> None:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        copy_model_files(model_files, draft)
        with (draft / WEIGHTS).open("wb") as file:
            file.write(staged.header)
            file.truncate(staged.file_bytes)

    def write_parts() -> None:
        with (draft / WEIGHTS).open("r+b") as file:
            for offset, values in staged.parts:
                # A scalar cannot be viewed as bytes, so it becomes a vector of one.
                raw = (values if values.ndim else values[None]).view(torch.uint8).numpy()
                file.seek(offset)
                file.write(raw.data)
            file.flush()
            os.fsync(file.fileno())

    def finish_draft() -> None:
        fsync_tree(draft)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
        fsync_path(folder.parent)

    action = f"write {folder}"
    ranks.do_first(action, start_draft)
    ranks.do_all(action, write_parts)
    ranks.do_first(action, finish_draft)
    return folder
