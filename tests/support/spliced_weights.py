"""Checkpoints made of others: some tensors of another one, as a step of training leaves them, or experts joined."""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from prime_protocol.weights.safetensors_header import LENGTH, get_header_bytes, parse_safetensors_header
from prime_runtime.random_model import write_safetensors

WEIGHTS = "model.safetensors"


def splice_checkpoint(folder: Path, first: Path, second: Path, names: Iterable[str]) -> Path:
    """`first` with the named tensors of `second`, whose files are laid out alike."""
    shutil.copytree(first, folder)
    mixed, other = bytearray((first / WEIGHTS).read_bytes()), (second / WEIGHTS).read_bytes()
    head = bytes(mixed[: get_header_bytes(bytes(mixed[: LENGTH.size]))])
    assert other.startswith(head)
    spans = {tensor.name: tensor for tensor in parse_safetensors_header(head, file_bytes=len(mixed)).tensors}
    for name in names:
        place = slice(spans[name].offset, spans[name].offset + spans[name].size)
        mixed[place] = other[place]
    (folder / WEIGHTS).write_bytes(mixed)
    return folder


EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def join_experts(folder: Path, source: Path) -> Path:
    """The same weights with one tensor for all experts of a layer, as transformers keeps and saves them."""
    shutil.copytree(source, folder)
    raw = (source / WEIGHTS).read_bytes()
    head = raw[: get_header_bytes(raw[: LENGTH.size])]
    tensors = {
        tensor.name: np.frombuffer(raw, np.uint16, tensor.size // 2, tensor.offset).reshape(tensor.shape)
        for tensor in parse_safetensors_header(head, file_bytes=len(raw)).tensors
    }
    joined = {name: bits for name, bits in tensors.items() if not EXPERT.fullmatch(name)}
    for place in sorted({found[1] for name in tensors if (found := EXPERT.fullmatch(name))}):
        experts = range(sum(name.startswith(f"{place}.") for name in tensors) // 3)
        gate, up, down = (
            np.stack([tensors[f"{place}.{expert}.{part}_proj.weight"] for expert in experts])
            for part in ("gate", "up", "down")
        )
        joined |= {f"{place}.gate_up_proj": np.concatenate((gate, up), axis=1), f"{place}.down_proj": down}
    write_safetensors(folder / WEIGHTS, dict(sorted(joined.items())))
    return folder
