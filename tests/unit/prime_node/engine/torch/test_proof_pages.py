"""Claims about the pages of hidden states: those of a GPU, copied and sorted by a thread, are those of a CPU."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from prime_node.engine.interface import BatchArrays, GenerateRequest, Generation
from prime_node.engine.torch import generation as generation_module
from prime_node.engine.torch.generation import ProofBuilder
from prime_node.engine.torch.proof_pages import STEPS_IN_FLIGHT, DirectPages, StagedPages
from prime_protocol.constants import TOPLOC_CHUNK_TOKENS
from prime_protocol.proofs.toploc import build_proofs, tensor_to_bits

ROWS, HIDDEN = 5, 48
CPU = torch.device("cpu")


def make_rows(count: int) -> list[Generation]:
    request = GenerateRequest(number=0, prompt=np.zeros(1, np.int32), seed=0)
    return [Generation.of(request) for _ in range(count)]


def test_staged_states_give_the_proofs_of_whole_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_staged(
        count: int, *, rows: int, hidden: int, device: torch.device, builder: ThreadPoolExecutor
    ) -> StagedPages:
        memory = torch.empty((count, TOPLOC_CHUNK_TOKENS, hidden), dtype=torch.bfloat16)
        return StagedPages(memory, rows=rows, device=device, builder=builder)

    monkeypatch.setattr(generation_module, "open_pages", open_staged)
    states = torch.randn((3 * TOPLOC_CHUNK_TOKENS + 7, ROWS, HIDDEN), generator=torch.Generator().manual_seed(1))
    with ThreadPoolExecutor(1) as builder:
        proofs = ProofBuilder(rows=ROWS, hidden=HIDDEN, device=CPU, builder=builder)
        rows = make_rows(ROWS)
        for row in rows:
            proofs.join(row)
        arrays = BatchArrays.of(rows)
        for step in states:
            proofs.record_states(arrays, step.clone())
            for row in rows:
                row.append(1, -1.0)
            arrays.written += 1
        for row in rows:
            proofs.finish(row)
        proofs.submit_full_pages()
        for number, row in enumerate(rows):
            whole = build_proofs(tensor_to_bits(states[:, number].to(torch.bfloat16)))
            assert proofs.take(row) == whole.blob


def test_a_step_waits_for_nothing_until_the_buffers_are_all_in_use() -> None:
    memory = torch.zeros((ROWS, TOPLOC_CHUNK_TOKENS, HIDDEN), dtype=torch.bfloat16)
    is_free = threading.Event()
    with ThreadPoolExecutor(1) as builder:
        pages = StagedPages(memory, rows=ROWS, device=CPU, builder=builder)
        builder.submit(is_free.wait, 60)
        for step in range(STEPS_IN_FLIGHT):
            full = pages.store(torch.full((ROWS, HIDDEN), float(step)), np.arange(ROWS), np.full(ROWS, step))
            assert not len(full)
        assert not memory.any(), "the thread is busy, and the caller was not held up"
        is_free.set()
        full = pages.store(torch.full((ROWS, HIDDEN), 9.0), np.arange(ROWS), np.full(ROWS, TOPLOC_CHUNK_TOKENS - 1))
        assert full.tolist() == list(range(ROWS))
    assert memory[:, :STEPS_IN_FLIGHT, 0].tolist() == [[0.0, 1.0, 2.0, 3.0]] * ROWS
    assert (memory[:, -1] == 9.0).all()


def test_states_on_a_cpu_are_written_at_once() -> None:
    memory = torch.zeros((ROWS, TOPLOC_CHUNK_TOKENS, HIDDEN), dtype=torch.bfloat16)
    full = DirectPages(memory).store(torch.ones(2, HIDDEN), np.array([3, 1]), np.array([31, 64]))
    assert full.tolist() == [0]
    assert memory[3, 31].all()
    assert memory[1, 0].all()
    assert memory.count_nonzero() == 2 * HIDDEN
