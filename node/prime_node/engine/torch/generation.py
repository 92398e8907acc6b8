"""The queue of completions, the running batch, sampled tokens, and TOPLOC proofs built meanwhile.

A finished sequence leaves its row at once and the next in the queue takes it, so that long completions delay no other.
Hidden states are collected until they fill a chunk, then they become a proof: beside a GPU in another thread, so that
the GPU continues with the next token; on a CPU inline. proof_pages.py keeps them meanwhile.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from prime_node.engine.interface import BatchArrays, Completion, GenerateRequest, Generation, Sampling
from prime_node.engine.torch.draws import Draws
from prime_node.engine.torch.model import DecodeBatch, TorchModel
from prime_node.engine.torch.proof_pages import open_pages
from prime_node.engine.torch.sampling import choose_tokens
from prime_protocol.constants import TOPLOC_CHUNK_TOKENS, TOPLOC_PROOF_BYTES
from prime_protocol.proofs.toploc import build_chunk_proofs, tensor_to_bits
from prime_protocol.rollouts.rollout import FinishReason

CHUNKS_AT_ONCE = 16
"""Chunks collected for one call, whose overhead is about that of two chunks."""

PROOF_STEPS_MAX = 8
"""Steps that a finished sequence waits for more chunks to share that call. Its lease may wait for nothing else."""

ProofPart = tuple["Future[bytes]", int]
"""Concatenated proofs of some chunks, and the index of one of them."""


class InlineExecutor(Executor):
    """Runs each task before `submit` returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def choose_executor(device: torch.device) -> Executor:
    """A thread beside a GPU; inline on a CPU, where a second thread costs more than the proofs."""
    return InlineExecutor() if device.type == "cpu" else ThreadPoolExecutor(1, "proofs")


class ProofBuilder:
    """Collects the hidden states of up to `rows` sequences in pages of one chunk, in the host's memory.

    A full page is set aside and the sequence continues on another page, so nothing is copied while it waits. What is
    written to pages and what is read from them goes through one executor, in order: a page can be reused at once.
    """

    def __init__(self, *, rows: int, hidden: int, device: torch.device, builder: Executor) -> None:
        # Every row has a page, and all may fill it at the same token while CHUNKS_AT_ONCE pages still wait.
        count = 2 * rows + CHUNKS_AT_ONCE
        self._pages = open_pages(count, rows=rows, hidden=hidden, device=device, builder=builder)
        self._free = list(range(count))
        self._builder = builder
        self._full: list[tuple[Generation, int, int]] = []
        """Full pages: generation, page, tokens on it."""
        self._parts: dict[Generation, list[ProofPart]] = {}

    def join(self, generation: Generation) -> None:
        """Assign a page. A generation that was in a batch before keeps its page with the partial chunk."""
        if generation.proof_page is None:
            generation.proof_page = self._free.pop()

    def record_states(self, arrays: BatchArrays, hidden: Tensor) -> None:
        """Store the states that produce each sequence's next token, before the token is appended.

        If memory runs out here, the step can be repeated: nothing has changed yet.
        """
        if len(self._full) >= CHUNKS_AT_ONCE:
            self.submit_full_pages()
        for row in self._pages.store(hidden, arrays.pages, arrays.written).tolist():
            generation = arrays.generations[row]
            self._full.append((generation, get_proof_page(generation), TOPLOC_CHUNK_TOKENS))
            generation.proof_page = arrays.pages[row] = self._free.pop()

    def finish(self, generation: Generation) -> None:
        """The sequence has ended: the rest of its page is its last chunk."""
        page = get_proof_page(generation)
        if rest := len(generation.output) % TOPLOC_CHUNK_TOKENS:
            self._full.append((generation, page, rest))
        else:
            self._free.append(page)
        generation.proof_page = None

    def is_ready(self, generation: Generation) -> bool:
        """Whether all proofs of a finished sequence are built."""
        parts = self._parts.get(generation, [])
        chunks = -(-len(generation.output) // TOPLOC_CHUNK_TOKENS)
        return len(parts) == chunks and all(future.done() for future, _ in parts)

    def take(self, generation: Generation) -> bytes:
        """All proofs of a finished sequence whose pages were submitted; waits for them."""
        spans = [(future.result(), number * TOPLOC_PROOF_BYTES) for future, number in self._parts.pop(generation)]
        return b"".join(proofs[start : start + TOPLOC_PROOF_BYTES] for proofs, start in spans)

    def drop(self, generation: Generation) -> None:
        """Free the pages of a sequence that is not wanted any more."""
        mine = [page for each, page, _ in self._full if each is generation]
        self._full = [entry for entry in self._full if entry[0] is not generation]
        if generation.proof_page is not None and generation.proof_page not in mine:
            mine.append(generation.proof_page)
        generation.proof_page = None
        self._free += mine
        self._parts.pop(generation, None)

    def submit_full_pages(self) -> None:
        """Build the proofs of all pages that are set aside."""
        if not self._full:
            return
        chunks = [(page, tokens) for _, page, tokens in self._full]
        future = self._builder.submit(build_chunk_proofs, tensor_to_bits(self._pages.memory), chunks)
        for number, (generation, _, _) in enumerate(self._full):
            self._parts.setdefault(generation, []).append((future, number))
        self._free += [page for page, _ in chunks]
        self._full = []


def get_proof_page(generation: Generation) -> int:
    assert generation.proof_page is not None, "a generation in a batch has a page"
    return generation.proof_page


class GenerationScheduler:
    """The queue, the running batch, and finished sequences that wait for proofs, all of one sampling."""

    def __init__(self, sampling: Sampling, proofs: ProofBuilder) -> None:
        self.sampling = sampling
        self.proofs = proofs
        self.waiting: deque[Generation] = deque()
        self.running: list[Generation] = []
        """By row of the batch."""
        self._arrays: BatchArrays | None = None
        """Arrays of the running rows; None after a change."""
        self.ending: deque[tuple[Generation, FinishReason]] = deque()
        """Finished generations, in the order in which their proofs get ready."""
        self._ending_steps = 0
        """Steps since the first of them finished."""

    @property
    def is_busy(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def length_max(self) -> int:
        """Most tokens that any of them can have."""
        return max(len(each.prompt) for each in (*self.waiting, *self.running)) + self.sampling.tokens_max

    def add(self, requests: Sequence[GenerateRequest]) -> None:
        self.waiting += map(Generation.of, requests)

    def cancel(self, numbers: Collection[int], batch: DecodeBatch | None) -> None:
        """Drop sequences, whether they wait, run, or have ended."""
        gone = [each for each in (*self.waiting, *self.running) if each.request.number in numbers]
        gone += [each for each, _ in self.ending if each.request.number in numbers]
        self.waiting = deque(each for each in self.waiting if each not in gone)
        self.ending = deque(entry for entry in self.ending if entry[0] not in gone)
        rows = [row for row, generation in enumerate(self.running) if generation in gone]
        if rows:
            assert batch is not None, "running sequences are in a batch"
            self._remove_rows(batch, rows)
        for generation in gone:
            self.proofs.drop(generation)

    def step(self, model: TorchModel, batch: DecodeBatch, slots: int) -> None:
        """Generate one token for every row. If memory runs out, no row has got one, and the caller must `requeue`."""
        joining = batch.admit(self.waiting, slots - len(self.running), self.running)
        self.running += joining
        for generation in joining:
            self.proofs.join(generation)
        if joining or self._arrays is None:
            self._arrays = BatchArrays.of(self.running)
        arrays = self._arrays
        hidden = batch.advance(self.running, len(joining))
        draws = Draws(self.sampling.temperature, arrays.seeds, arrays.written)
        tokens, logprobs = choose_tokens(model.get_logits(hidden), draws)
        self.proofs.record_states(arrays, hidden)
        for generation, token, logprob in zip(self.running, tokens, logprobs, strict=True):
            generation.append(token, logprob)
        arrays.written += 1
        self._retire_rows(batch, arrays.find_ended(tokens, self.sampling))

    def requeue(self) -> None:
        """Move all running generations back to the front of the queue, with their output so far."""
        self.waiting.extendleft(reversed(self.running))
        self.running = []
        self._arrays = None

    def take_ready(self) -> Iterator[Completion]:
        """Completions whose proofs are built. If nothing else is left to do, it waits for all of them."""
        is_last = not self.is_busy
        self._ending_steps = self._ending_steps + 1 if self.ending else 0
        if is_last or self._ending_steps >= PROOF_STEPS_MAX:
            self.proofs.submit_full_pages()
            self._ending_steps = 0
        while self.ending and (is_last or self.proofs.is_ready(self.ending[0][0])):
            generation, finish = self.ending.popleft()
            yield generation.complete(finish, self.proofs.take(generation))

    def _retire_rows(self, batch: DecodeBatch, gone: list[int]) -> None:
        for row in gone:
            generation = self.running[row]
            self.ending.append((generation, generation.get_finish(self.sampling)))
            self.proofs.finish(generation)
        if gone:
            self._remove_rows(batch, gone)

    def _remove_rows(self, batch: DecodeBatch, gone: list[int]) -> None:
        rows = self.running
        self._arrays = None
        # Drop these rows first: moving rows may run out of memory, and finished ones must not be requeued.
        self.running = [generation for row, generation in enumerate(rows) if row not in gone]
        self.running = [rows[row] for row in batch.remove_rows(gone)]
