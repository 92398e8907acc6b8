"""Proofs made while sequences are written: hidden states wait until they are a chunk, then they become a proof.

Beside a GPU another thread does it, and the GPU goes on with the next token meanwhile. On a CPU it is done at once: to
share the interpreter between two threads costs more than the proofs.
"""

from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from prime_node.engine.torch_steps import keep_rows
from prime_node.engine.writing import Lineup, Writing
from prime_protocol.constants import TOPLOC_CHUNK_TOKENS, TOPLOC_PROOF_BYTES
from prime_protocol.toploc import bits_of_tensor, build_proofs

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
    """Hidden states of `slots` sequences at a time, on the model's device."""

    def __init__(self, *, slots: int, hidden: int, device: torch.device, builder: Executor) -> None:
        self._states = torch.empty((slots, TOPLOC_CHUNK_TOKENS, hidden), dtype=torch.bfloat16, device=device)
        self._flat = self._states.flatten(0, 1)
        self._builder = builder
        self._collected: list[tuple[Writing, Tensor]] = []
        self._parts: dict[Writing, list[Part]] = {}

    def note(self, lineup: Lineup, hidden: Tensor) -> None:
        """The states that give each sequence its next token, before it has it. Noting them again is no harm."""
        fill = lineup.written % TOPLOC_CHUNK_TOKENS
        where = torch.from_numpy(lineup.slots * TOPLOC_CHUNK_TOKENS + fill).to(hidden.device)
        keep_rows(hidden, where, self._flat)
        whole = np.flatnonzero(fill == TOPLOC_CHUNK_TOKENS - 1)
        if len(whole):
            slots = torch.from_numpy(lineup.slots[whole]).to(hidden.device)
            writings = [lineup.writings[row] for row in whole.tolist()]
            self._collected += zip(writings, self._states.index_select(0, slots).cpu(), strict=True)
        if len(self._collected) >= CHUNKS_AT_ONCE:
            self._hand_over()

    def finish(self, writing: Writing) -> int:
        """Its last chunk, whole or not; the slot that is free now."""
        slot = get_slot(writing)
        if rest := len(writing.output) % TOPLOC_CHUNK_TOKENS:
            tail = self._states[slot, :rest].to("cpu", copy=True)
            self._hand_over()
            self._parts.setdefault(writing, []).append((self._builder.submit(build, [tail]), 0))
        elif any(w is writing for w, _ in self._collected):
            self._hand_over()
        return slot

    def is_ready(self, writing: Writing) -> bool:
        return all(future.done() for future, _ in self._parts[writing])

    def take(self, writing: Writing) -> bytes:
        """All proofs of a finished sequence; waits for them."""
        spans = [(future.result(), number * TOPLOC_PROOF_BYTES) for future, number in self._parts.pop(writing)]
        return b"".join(proofs[start : start + TOPLOC_PROOF_BYTES] for proofs, start in spans)

    def _hand_over(self) -> None:
        if not self._collected:
            return
        future = self._builder.submit(build, [chunk for _, chunk in self._collected])
        for number, (writing, _) in enumerate(self._collected):
            self._parts.setdefault(writing, []).append((future, number))
        self._collected = []


def get_slot(writing: Writing) -> int:
    assert writing.slot is not None, "who is in a batch has a slot"
    return writing.slot


def build(chunks: list[Tensor]) -> bytes:
    """Proofs of chunks end to end; whichever sequences they are of, each proof covers its own chunk."""
    return build_proofs(bits_of_tensor(torch.cat(chunks))).blob
