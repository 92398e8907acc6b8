"""Proofs made while sequences are written: hidden states wait until they are a chunk, then they become a proof.

Beside a GPU another thread does it, and the GPU goes on with the next token meanwhile. On a CPU it is done at once: to
share the interpreter between two threads costs more than the proofs.

One call of generate: who is writing, who waits in line, who is done and waits for proofs.

Sequences that finish leave their row at once and the next in line take it, so that long completions hold nobody up.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from prime_node.engine.interface import BatchArrays, Completion, GenerateRequest, Generation, Sampling
from prime_node.engine.torch.kernels import store_bf16_rows
from prime_node.engine.torch.model import DecodeBatch, TorchModel
from prime_node.engine.torch.sampling import Draws, choose_tokens
from prime_protocol.constants import TOPLOC_CHUNK_TOKENS, TOPLOC_PROOF_BYTES
from prime_protocol.proofs.toploc import build_chunk_proofs, tensor_to_bits
from prime_protocol.proofs.toploc_numpy import Bits
from prime_protocol.rollouts.rollout import FinishReason

CHUNKS_AT_ONCE = 16
"""Whole chunks collected for one call, which costs about as much as two of them."""

ProofPart = tuple["Future[bytes]", int]
"""Proofs of some chunks end to end, and which of them is meant."""


class InlineExecutor(Executor):
    """Does what it is given before it returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def choose_executor(device: torch.device) -> Executor:
    """Who builds proofs of what is computed there."""
    return InlineExecutor() if device.type == "cpu" else ThreadPoolExecutor(1, "proofs")


class ProofBuilder:
    """Hidden states of up to `rows` sequences at a time, on the model's device, in pages of one chunk.

    A full page is set aside and the sequence goes on with another one, so nothing is copied while it waits.
    """

    def __init__(self, *, rows: int, hidden: int, device: torch.device, builder: Executor) -> None:
        # Everybody has a page, and all may fill theirs at the same token while some are still waiting.
        count = 2 * rows + CHUNKS_AT_ONCE
        self._pages = torch.empty((count, TOPLOC_CHUNK_TOKENS, hidden), dtype=torch.bfloat16, device=device)
        self._free = list(range(count))
        self._builder = builder
        self._full: list[tuple[Generation, int, int]] = []
        """Whose, which page, how many tokens."""
        self._parts: dict[Generation, list[ProofPart]] = {}

    def join(self, generation: Generation) -> None:
        """A page to begin with. Who was in a batch before still has its own: half a chunk lies there."""
        if generation.proof_page is None:
            generation.proof_page = self._free.pop()

    def record_states(self, lineup: BatchArrays, hidden: Tensor) -> None:
        """The states that give each sequence its next token, before it has it.

        Where memory runs out, nothing has happened that must not happen again.
        """
        if len(self._full) >= CHUNKS_AT_ONCE:
            self.submit_full_pages()
        for row in store_bf16_rows(hidden, lineup.pages, lineup.written, self._pages).tolist():
            generation = lineup.generations[row]
            self._full.append((generation, get_proof_page(generation), TOPLOC_CHUNK_TOKENS))
            generation.proof_page = lineup.pages[row] = self._free.pop()

    def finish(self, generation: Generation) -> None:
        """Nothing follows: what is on its page is its last chunk."""
        page = get_proof_page(generation)
        if rest := len(generation.output) % TOPLOC_CHUNK_TOKENS:
            self._full.append((generation, page, rest))
        else:
            self._free.append(page)

    def is_ready(self, generation: Generation) -> bool:
        """Whether the proofs of a finished sequence are all made."""
        parts = self._parts.get(generation, [])
        chunks = -(-len(generation.output) // TOPLOC_CHUNK_TOKENS)
        return len(parts) == chunks and all(future.done() for future, _ in parts)

    def take(self, generation: Generation) -> bytes:
        """All proofs of a finished sequence, once they are handed over; waits for them."""
        spans = [(future.result(), number * TOPLOC_PROOF_BYTES) for future, number in self._parts.pop(generation)]
        return b"".join(proofs[start : start + TOPLOC_PROOF_BYTES] for proofs, start in spans)

    def submit_full_pages(self) -> None:
        """Have proofs made of everything that is set aside."""
        if not self._full:
            return
        pages = [page for _, page, _ in self._full]
        bits, numbers = self._get_bits(pages)
        chunks = [(number, tokens) for number, (_, _, tokens) in zip(numbers, self._full, strict=True)]
        future = self._builder.submit(build_chunk_proofs, bits, chunks)
        for number, (generation, _, _) in enumerate(self._full):
            self._parts.setdefault(generation, []).append((future, number))
        self._free += pages
        self._full = []

    def _get_bits(self, pages: list[int]) -> tuple[Bits, Iterable[int]]:
        """What is on the pages, and which ones they are there. On a CPU proofs are made at once: nothing is copied."""
        if self._pages.device.type == "cpu":
            return tensor_to_bits(self._pages), pages
        copied = self._pages[torch.tensor(pages, device=self._pages.device)]
        return tensor_to_bits(copied), range(len(pages))


def get_proof_page(generation: Generation) -> int:
    assert generation.proof_page is not None, "who is in a batch has a page"
    return generation.proof_page


class GenerationScheduler:
    """Orders on their way. `proofs` has room for each sequence that is in a batch."""

    def __init__(self, requests: Sequence[GenerateRequest], sampling: Sampling, proofs: ProofBuilder) -> None:
        self.sampling = sampling
        self.proofs = proofs
        self.waiting = deque(Generation(request, request.prompt.tolist()) for request in requests)
        self.running: list[Generation] = []
        """By row of the batch."""
        self._arrays: BatchArrays | None = None
        """Of those, while they are the same."""
        self.ending: deque[tuple[Generation, FinishReason]] = deque()
        """Done, in the order in which their proofs will be."""

    @property
    def is_busy(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self, model: TorchModel, batch: DecodeBatch, room: int) -> None:
        """One token for everybody. If memory runs out, nobody has got one, and `requeue` is all that is left to do."""
        joining = batch.admit(self.waiting, room - len(self.running))
        self.running += joining
        for generation in joining:
            self.proofs.join(generation)
        if joining or self._arrays is None:
            self._arrays = BatchArrays.of(self.running)
        lineup = self._arrays
        hidden = batch.advance(self.running, len(joining))
        draws = Draws(self.sampling.temperature, lineup.seeds, lineup.written)
        tokens, logprobs = choose_tokens(model.get_logits(hidden), draws)
        self.proofs.record_states(lineup, hidden)
        for generation, token, logprob in zip(self.running, tokens, logprobs, strict=True):
            generation.append(token, logprob)
        lineup.written += 1
        self._retire_rows(batch, lineup.find_ended(tokens, self.sampling))

    def requeue(self) -> None:
        """Everybody back to the front of the line, with what they have written."""
        self.waiting.extendleft(reversed(self.running))
        self.running = []
        self._arrays = None

    def take_ready(self, *, is_last: bool = False) -> Iterator[Completion]:
        """Completions whose proofs are made; with `is_last` all, however long that takes."""
        if is_last:
            self.proofs.submit_full_pages()
        while self.ending and (is_last or self.proofs.is_ready(self.ending[0][0])):
            generation, finish = self.ending.popleft()
            yield generation.complete(finish, self.proofs.take(generation))

    def _retire_rows(self, batch: DecodeBatch, gone: list[int]) -> None:
        for row in gone:
            generation = self.running[row]
            self.ending.append((generation, generation.get_finish(self.sampling)))
            self.proofs.finish(generation)
        if gone:
            rows = self.running
            self._arrays = None
            # First without them: moving rows may run out of memory, and who is done must not be requeued.
            self.running = [generation for row, generation in enumerate(rows) if row not in gone]
            self.running = [rows[row] for row in batch.remove_rows(gone)]
