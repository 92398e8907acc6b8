"""What the torch engine asks of a model, whichever way it is computed. torch_dense_model.py is the fast way."""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from prime_node.engine.torch_weights import FolderTensors
from prime_node.engine.writing import Writing


class Batch(Protocol):
    """Sequences that are written together. After an error it is of no use any more."""

    def pick(self, waiting: deque[Writing], room: int) -> list[Writing]:
        """Take those that join now from the front of the line, at most `room`; somebody joins an empty batch."""
        ...

    def advance(self, running: Sequence[Writing], joined: int) -> Tensor:
        """Final hidden states (rows, hidden) of every sequence's last token. The last `joined` ones are new."""
        ...

    def leave(self, gone: Sequence[int]) -> list[int]:
        """Rows that are done; which row each place takes over."""
        ...


class Model(Protocol):
    """Weights on a device."""

    def swap(self, tensors: FolderTensors, changed: frozenset[str] | None) -> None:
        """Other weights into the same storage. LocalError before anything is changed, or `is_whole` stays False."""
        ...

    @property
    def is_whole(self) -> bool:
        """Whether all weights are of one checkpoint."""
        ...

    def open_batch(self, *, rows: int, length_max: int, cache_bytes: int | None) -> Batch: ...

    def read(self, sequences: Sequence[NDArray[np.int64]], firsts: Sequence[int]) -> Tensor:
        """Final hidden states from each sequence's place `firsts` on, end to end."""
        ...

    def get_logits(self, hidden: Tensor) -> Tensor:
        """In float32."""
        ...
