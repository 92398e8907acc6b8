"""What the torch engine needs of a model: the tensors of a checkpoint folder, and the interface of model and batch."""

import math
import warnings
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prime_node.engine.interface import Generation
from prime_protocol.errors import LocalError
from prime_protocol.weights.safetensors_header import Dtype, SafetensorsTensor
from prime_runtime.shardcast.checkpoint_files import map_checkpoint

DTYPES = {Dtype.BF16: torch.bfloat16, Dtype.F16: torch.float16, Dtype.F32: torch.float32}
NAMES_LISTED_MAX = 3
"""Tensors named in an error; the others are counted."""

TensorShapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class FolderTensors:
    """The tensors of a checkpoint folder by name. Their bytes are memory-mapped until they are copied."""

    folder: Path
    tensors: dict[str, tuple[SafetensorsTensor, memoryview]]

    @classmethod
    def open(cls, folder: Path) -> "FolderTensors":
        tensors: dict[str, tuple[SafetensorsTensor, memoryview]] = {}
        for span, data in map_checkpoint(folder).tensors():
            if span.name in tensors:
                raise LocalError(f"{folder} holds the tensor {span.name} twice")
            if span.dtype not in DTYPES:
                raise LocalError(f"{span.name} in {folder} is {span.dtype}; weights must be BF16, F16 or F32")
            tensors[span.name] = span, data
        return cls(folder, tensors)

    @property
    def parameters(self) -> int:
        return sum(math.prod(span.shape) for span, _ in self.tensors.values())

    def check(self, wanted: TensorShapes) -> None:
        """LocalError unless the folder has exactly the wanted tensors with their shapes."""
        for problem, names in (
            ("lacks", sorted(wanted.keys() - self.tensors.keys())),
            ("has more than the model takes:", sorted(self.tensors.keys() - wanted.keys())),
        ):
            if names:
                raise LocalError(f"the checkpoint in {self.folder} {problem} {list_names(names)}")
        for name, shape in wanted.items():
            if (given := self.tensors[name][0].shape) != shape:
                raise LocalError(f"{name} in {self.folder} has the shape {given}, the model wants {shape}")

    def get(self, name: str) -> Tensor:
        """A view of the mapped file. Must never be written to."""
        span, data = self.tensors[name]
        if not span.size:
            return torch.empty(span.shape, dtype=DTYPES[span.dtype])
        with warnings.catch_warnings():
            # torch cannot mark a tensor as read-only, and warns for every one.
            warnings.simplefilter("ignore", UserWarning)
            return torch.frombuffer(data, dtype=DTYPES[span.dtype]).view(span.shape)

    def copy_into(self, places: Mapping[str, Tensor], names: Iterable[str]) -> None:
        """Copy each into its target, which keeps its storage, device and precision."""
        for name in names:
            places[name].copy_(self.get(name))


def choose_names(known: Iterable[str], changed: frozenset[str] | None) -> list[str]:
    """The tensors to copy: all, or those that a delta named."""
    names = list(known)
    if changed is None:
        return names
    if unknown := sorted(changed - set(names)):
        raise LocalError(f"the delta names tensors that the model does not have: {list_names(unknown)}")
    return [name for name in names if name in changed]


def list_names(names: list[str]) -> str:
    more = len(names) - NAMES_LISTED_MAX
    return ", ".join(names[:NAMES_LISTED_MAX]) + (f" and {more} more" if more > 0 else "")


class DecodeBatch(Protocol):
    """Sequences that are decoded together. After an error it must be discarded."""

    def resize(self, rows: int, length_max: int) -> None:
        """Make room for more rows, or for longer ones. It never shrinks."""
        ...

    def admit(self, waiting: deque[Generation], slots: int, running: Sequence[Generation]) -> list[Generation]:
        """Take those that join now from the front of the queue, at most `slots`; an empty batch admits at least one.

        Prompts of `running`, by row, need not be computed again.
        """
        ...

    def advance(self, running: Sequence[Generation], joined: int) -> Tensor:
        """Final hidden states (rows, hidden) of every sequence's last token. The last `joined` sequences are new."""
        ...

    def remove_rows(self, gone: Sequence[int]) -> list[int]:
        """Remove finished rows; returns the old row of each remaining one."""
        ...


class TorchModel(Protocol):
    """A model's weights on a device and its forward pass. dense.py is the fast implementation."""

    def swap_weights(self, tensors: FolderTensors, changed: frozenset[str] | None) -> None:
        """Copy other weights into the same storage. LocalError before any change; if it fails later, not `is_whole`."""
        ...

    @property
    def is_whole(self) -> bool:
        """Whether all weights belong to one checkpoint."""
        ...

    def open_batch(self, *, rows: int, length_max: int, cache_bytes: int | None) -> DecodeBatch: ...

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of the cache that a token takes; 0: unknown."""
        ...

    def read(self, sequences: Sequence[NDArray[np.int64]], firsts: Sequence[int]) -> Tensor:
        """Final hidden states of each sequence from position `firsts` on, concatenated."""
        ...

    def get_logits(self, hidden: Tensor) -> Tensor:
        """In float32."""
        ...
