"""What the benchmarks share: sizes and `--smoke`, taking turns, the RESULT line, and what to do without a peer.

A benchmark is a script of this folder that ends with one RESULT line. With `--smoke` it runs the same code at its
smallest size: that shows that it still works, the figures mean nothing. bench/run_all.py runs them all.
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
# Some benchmarks use the tests' helpers: networks, processes, tiny models.
sys.path.insert(0, str(ROOT / "tests"))


class BenchmarkParser(argparse.ArgumentParser):
    """Arguments of one benchmark. Each size has a default, and a smaller value that `--smoke` takes."""

    def __init__(self, description: str | None) -> None:
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        self._sizes: dict[str, tuple[Any, Any]] = {}
        self.add_argument("--smoke", action="store_true", help="the smallest size: shows only that it runs")

    def add_size(self, flag: str, default: Any, smoke: Any, text: str = "") -> None:
        kind = type(default)
        self.add_argument(flag, type=kind, help=f"{text} (default {default}, {smoke} with --smoke)".strip())
        self._sizes[flag.strip("-").replace("-", "_")] = (default, smoke)

    def parse(self) -> argparse.Namespace:
        args = self.parse_args()
        for name, (default, smoke) in self._sizes.items():
            if getattr(args, name) is None:
                setattr(args, name, smoke if args.smoke else default)
        return args


def take_turns(
    works: Mapping[str, Callable[[], Any]], *, rounds: int, calls: int = 1, warm_up: bool = False
) -> dict[str, list[float]]:
    """Seconds of one call, by work and round. The works take turns, so that a busy moment slows all of them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + warm_up):
        for name, work in works.items():
            started = time.perf_counter()
            for _ in range(calls):
                work()
            if number or not warm_up:
                seconds[name].append((time.perf_counter() - started) / calls)
    return seconds


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Wall seconds of one call, and what it returned."""
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def print_result(**figures: object) -> None:
    print("RESULT", *(f"{name}={value}" for name, value in figures.items()))


def stop_without(reason: str, *, smoke: bool) -> NoReturn:
    """A peer or a tool is missing: an error, but no failure of a smoke run."""
    if smoke:
        print(f"SKIPPED {reason}")
        raise SystemExit(0)
    raise SystemExit(reason)
