"""Claims about what a step costs the host: as many operations for many rows as for few."""

from pathlib import Path

import pytest
import torch

from prime_node.engine.torch.engine import TorchEngine
from prime_protocol.proofs import sampling_torch
from prime_trainer.model.tiny import make_tiny_checkpoint
from support.dispatches import count_dispatches, count_step_dispatches, use_operations_of_a_gpu
from support.logits import make_draws

VOCABULARY = 1000
FEW, MANY = 16, 256
"""Rows."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("wide"), vocabulary=512, hidden=64, layers=1, eos=None)


def count_both(folder: Path, lengths: range) -> tuple[float, float]:
    engine = TorchEngine(device="cpu", precision="float32", batch_max=MANY)
    engine.load(folder)
    few, many = (
        count_step_dispatches(engine, [lengths[row % len(lengths)] for row in range(rows)]) for rows in (FEW, MANY)
    )
    return few, many


@pytest.mark.parametrize("lengths", [range(8, 9), range(3, 40)], ids=["equal lengths", "mixed lengths"])
@pytest.mark.parametrize("is_gpu", [False, True], ids=["as on a CPU", "as on a GPU"])
def test_a_step_of_many_rows_has_the_operations_of_one_of_few(
    is_gpu: bool, lengths: range, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_gpu:
        use_operations_of_a_gpu(monkeypatch.setattr)
    few, many = count_both(folder, lengths)
    # Equal but for the first steps, in which rows join.
    assert few > 20
    assert abs(many - few) <= 0.02 * few


def test_sampling_with_torch_has_as_many_operations_for_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_torch, "TILE_COLUMNS", VOCABULARY // 3)

    def count(rows: int) -> int:
        seeds, positions = make_draws(rows, 1.0).send(torch.device("cpu"))
        logits = torch.zeros(rows, VOCABULARY)
        return count_dispatches(lambda: sampling_torch.scan_rows_torch(logits, 1.0, seeds, positions))

    assert count(FEW) == count(MANY)


def test_a_loop_over_rows_would_be_seen() -> None:
    def work(rows: int) -> int:
        return count_dispatches(lambda: [row.sum() for row in torch.zeros(rows, 4)])

    assert work(MANY) > 10 * work(FEW)
