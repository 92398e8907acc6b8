"""A checkpoint in which some tensors are those of another one: what a step of training leaves behind, in small."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from prime_protocol.weights.safetensors_header import LENGTH, get_header_bytes, parse_safetensors_header

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
