"""Proofs made while sequences are written: hidden states wait until they are a chunk, then they become a proof.

Beside a GPU another thread does it, and the GPU goes on with the next token meanwhile. On a CPU it is done at once: to
share the interpreter between two threads costs more than the proofs.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from prime_node.engine.torch_steps import keep_rows
from prime_node.engine.writing import Lineup, Writing
from prime_protocol.constants import TOPLOC_CHUNK_TOKENS, TOPLOC_PROOF_BYTES
from prime_protocol.toploc import bits_of_tensor, build_chunks
from prime_protocol.toploc_plain import Bits

CHUNKS_AT_ONCE = 16
"""Whole chunks collected for one call, which costs about as much as two of them."""

Part = tuple["Future[bytes]", int]
"""Proofs of some chunks end to end, and which of them is meant."""


class AtOnce(Executor):
    """Does what it is given before it returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def choose_executor(device: torch.device) -> Executor:
    """Who builds proofs of what is computed there."""
    return AtOnce() if device.type == "cpu" else ThreadPoolExecutor(1, "proofs")


class ProofMaker:
    """Hidden states of up to `rows` sequences at a time, on the model's device, in pages of one chunk.

    A full page is set aside and the sequence goes on with another one, so nothing is copied while it waits.
    """

    def __init__(self, *, rows: int, hidden: int, device: torch.device, builder: Executor) -> None:
        # Everybody has a page, and all may fill theirs at the same token while some are still waiting.
        count = 2 * rows + CHUNKS_AT_ONCE
        self._pages = torch.empty((count, TOPLOC_CHUNK_TOKENS, hidden), dtype=torch.bfloat16, device=device)
        self._free = list(range(count))
        self._builder = builder
        self._full: list[tuple[Writing, int, int]] = []
        """Whose, which page, how many tokens."""
        self._parts: dict[Writing, list[Part]] = {}

    def join(self, writing: Writing) -> None:
        """A page to begin with. Who was in a batch before still has its own: half a chunk lies there."""
        if writing.page is None:
            writing.page = self._free.pop()

    def note(self, lineup: Lineup, hidden: Tensor) -> None:
        """The states that give each sequence its next token, before it has it.

        Where memory runs out, nothing has happened that must not happen again.
        """
        if len(self._full) >= CHUNKS_AT_ONCE:
            self.hand_over()
        for row in keep_rows(hidden, lineup.pages, lineup.written, self._pages).tolist():
            writing = lineup.writings[row]
            self._full.append((writing, get_page(writing), TOPLOC_CHUNK_TOKENS))
            writing.page = lineup.pages[row] = self._free.pop()

    def finish(self, writing: Writing) -> None:
        """Nothing follows: what is on its page is its last chunk."""
        page = get_page(writing)
        if rest := len(writing.output) % TOPLOC_CHUNK_TOKENS:
            self._full.append((writing, page, rest))
        else:
            self._free.append(page)

    def is_ready(self, writing: Writing) -> bool:
        """Whether the proofs of a finished sequence are all made."""
        parts = self._parts.get(writing, [])
        chunks = -(-len(writing.output) // TOPLOC_CHUNK_TOKENS)
        return len(parts) == chunks and all(future.done() for future, _ in parts)

    def take(self, writing: Writing) -> bytes:
        """All proofs of a finished sequence, once they are handed over; waits for them."""
        spans = [(future.result(), number * TOPLOC_PROOF_BYTES) for future, number in self._parts.pop(writing)]
        return b"".join(proofs[start : start + TOPLOC_PROOF_BYTES] for proofs, start in spans)

    def hand_over(self) -> None:
        """Have proofs made of everything that is set aside."""
        if not self._full:
            return
        pages = [page for _, page, _ in self._full]
        bits, numbers = self._get_bits(pages)
        chunks = [(number, tokens) for number, (_, _, tokens) in zip(numbers, self._full, strict=True)]
        future = self._builder.submit(build_chunks, bits, chunks)
        for number, (writing, _, _) in enumerate(self._full):
            self._parts.setdefault(writing, []).append((future, number))
        self._free += pages
        self._full = []

    def _get_bits(self, pages: list[int]) -> tuple[Bits, Iterable[int]]:
        """What is on the pages, and which ones they are there. On a CPU proofs are made at once: nothing is copied."""
        if self._pages.device.type == "cpu":
            return bits_of_tensor(self._pages), pages
        copied = self._pages[torch.tensor(pages, device=self._pages.device)]
        return bits_of_tensor(copied), range(len(pages))


def get_page(writing: Writing) -> int:
    assert writing.page is not None, "who is in a batch has a page"
    return writing.page
