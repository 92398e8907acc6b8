"""The hidden states of running sequences until they fill a chunk, in the host's memory.

On a CPU a step's states are written where they belong at once. Those of a GPU are copied to pinned memory, once per
step for all rows, while the GPU goes on with the next token; a thread sorts them into pages when the copy is done.
"""

from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prime_node.engine.torch.kernels import store_bf16_rows
from prime_protocol.constants import TOPLOC_CHUNK_TOKENS

STEPS_IN_FLIGHT = 4
"""Copies that may wait for the thread: it is behind while it builds proofs."""

RowNumbers = NDArray[np.int64]


class StatePages(Protocol):
    """Pages of TOPLOC_CHUNK_TOKENS lines."""

    @property
    def memory(self) -> Tensor:
        """(pages, lines, hidden) in bfloat16, on the CPU. To be read in the executor: what was stored is there then."""
        ...

    def store(self, hidden: Tensor, pages: RowNumbers, written: RowNumbers) -> RowNumbers:
        """Append the state of each row to its page; returns the rows whose page is now full.

        `written` counts a sequence's states over all of its pages. If memory runs out, nothing has changed.
        """
        ...


def open_pages(count: int, *, rows: int, hidden: int, device: torch.device, builder: Executor) -> StatePages:
    """`rows`: the most that are stored at once."""
    memory = torch.empty((count, TOPLOC_CHUNK_TOKENS, hidden), dtype=torch.bfloat16)
    return (
        DirectPages(memory) if device.type == "cpu" else StagedPages(memory, rows=rows, device=device, builder=builder)
    )


@dataclass(frozen=True, slots=True, eq=False)
class DirectPages:
    """For states that are on the CPU."""

    memory: Tensor

    def store(self, hidden: Tensor, pages: RowNumbers, written: RowNumbers) -> RowNumbers:
        return store_bf16_rows(hidden, pages, written, self.memory)


class StagedPages:
    """For states on a GPU."""

    def __init__(self, memory: Tensor, *, rows: int, device: torch.device, builder: Executor) -> None:
        self.memory = memory
        self._builder = builder
        self._is_cuda = device.type == "cuda"
        size = (STEPS_IN_FLIGHT, rows, memory.shape[2])
        self._buffers = torch.empty(size, dtype=memory.dtype, pin_memory=self._is_cuda)
        self._tasks: list[Future[None] | None] = [None] * STEPS_IN_FLIGHT
        self._step = 0

    def store(self, hidden: Tensor, pages: RowNumbers, written: RowNumbers) -> RowNumbers:
        place = self._step % STEPS_IN_FLIGHT
        if (task := self._tasks[place]) is not None:
            task.result()
        buffer = self._buffers[place, : len(hidden)]
        buffer.copy_(hidden.to(buffer.dtype), non_blocking=True)
        copied = torch.cuda.current_stream(hidden.device).record_event() if self._is_cuda else None
        lines = written % TOPLOC_CHUNK_TOKENS
        places = torch.from_numpy(pages * TOPLOC_CHUNK_TOKENS + lines)
        self._tasks[place] = self._builder.submit(self._sort, buffer, copied, places)
        self._step += 1
        return np.flatnonzero(lines == TOPLOC_CHUNK_TOKENS - 1)

    def _sort(self, buffer: Tensor, copied: Any, places: Tensor) -> None:
        if copied is not None:
            copied.synchronize()
        self.memory.flatten(0, 1).index_copy_(0, places, buffer)
