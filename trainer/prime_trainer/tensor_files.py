"""Safetensors files written tensor by tensor: one of them at a time is in memory, and the digest of all comes free."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3

from prime_protocol.errors import LocalError

Tensor = Any

NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}
CHUNK_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Planned:
    """A tensor that will be written: its form is known before its values."""

    name: str
    shape: tuple[int, ...]
    dtype: Any
    get: Callable[[], Tensor]

    @property
    def size(self) -> int:
        count = self.dtype.itemsize
        for side in self.shape:
            count *= side
        return int(count)


def write_tensors(path: Path, tensors: Sequence[Planned]) -> str:
    """The digest of the file that was written."""
    offset, entries = 0, {}
    for each in tensors:
        span = [offset, offset + each.size]
        entries[each.name] = {"dtype": NAMES[each.dtype], "shape": list(each.shape), "data_offsets": span}
        offset += each.size
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
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error.strerror}") from None
    return digest.hexdigest()


def sync_tree(folder: Path) -> None:
    """A folder and all that is in it are on disk when this returns."""
    for path in folder.rglob("*"):
        sync(path)
    sync(folder)


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
