"""Where the torch engine spends its time, and how many operations a step has: parts of bench/engine.py."""

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmark import ROOT

from prime_node.engine.torch import generation
from prime_node.engine.torch.dense import DenseModel
from prime_node.engine.torch.engine import TorchEngine
from prime_node.engine.torch.generation import ProofBuilder
from support.dispatches import count_step_dispatches, use_operations_of_a_gpu

assert ROOT.is_dir(), "benchmark.py has put the tests' helpers on the path"
FEW, MANY = 16, 256
"""Rows of the two steps whose operations are counted."""


class TimedProofs(ProofBuilder):
    """Proofs that know how long they took. On a CPU all of it is done inside these calls."""

    spent_s = 0.0
    is_inside = False

    def join(self, generation: Any) -> None:
        self._time(super().join, generation)

    def record_states(self, lineup: Any, hidden: Any) -> None:
        self._time(super().record_states, lineup, hidden)

    def finish(self, generation: Any) -> None:
        self._time(super().finish, generation)

    def is_ready(self, generation: Any) -> bool:
        return bool(self._time(super().is_ready, generation))

    def take(self, generation: Any) -> bytes:
        return bytes(self._time(super().take, generation))

    def submit_full_pages(self) -> None:
        self._time(super().submit_full_pages)

    def _time(self, work: Callable[..., Any], *given: Any) -> Any:
        if self.is_inside:
            return work(*given)
        self.is_inside, started = True, time.thread_time()
        found = work(*given)
        TimedProofs.spent_s += time.thread_time() - started
        self.is_inside = False
        return found


class Stopwatch:
    """Wraps a function and adds up its CPU time."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self._work = work
        self.spent_s = 0.0

    def __call__(self, *given: Any, **named: Any) -> Any:
        started = time.thread_time()
        found = self._work(*given, **named)
        self.spent_s += time.thread_time() - started
        return found


def measure_shares(contender: Callable[[Any], None], work: Any) -> dict[str, float]:
    """Shares of the CPU time. The contender is the torch engine with TimedProofs."""
    contender(work)
    draw, head = Stopwatch(generation.choose_tokens), Stopwatch(DenseModel.get_logits)
    replaced = [(generation, "choose_tokens", draw), (DenseModel, "get_logits", lambda *given: head(*given))]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    try:
        for owner, name, value in replaced:
            setattr(owner, name, value)
        TimedProofs.spent_s = 0.0
        started = time.process_time()
        contender(work)
        total_s = time.process_time() - started
    finally:
        for owner, name, value in originals:
            setattr(owner, name, value)
    return {
        "draw": draw.spent_s / total_s,
        "proofs": TimedProofs.spent_s / total_s,
        "head": head.spent_s / total_s,
    }


def report_shares(shares: dict[str, float]) -> None:
    print("share of the time: " + ", ".join(f"{name} {share:.1%}" for name, share in shares.items()))


def measure_dispatches(folder: Path) -> float:
    """Operations that a step of MANY rows asks a GPU for, over those of a step of FEW. It changes the engine's
    operations for the rest of the process, so it comes last."""

    def replace(path: str, value: Any) -> None:
        module, _, name = path.rpartition(".")
        setattr(import_module(module), name, value)

    use_operations_of_a_gpu(replace)
    engine = TorchEngine(device="cpu", precision="float32", batch_max=MANY)
    engine.load(folder)
    few, many = (count_step_dispatches(engine, [3 + row % 37 for row in range(rows)]) for rows in (FEW, MANY))
    return many / few
