"""How much faster is it to check completions than to write them? Audit tokens per second over generated ones.

    python bench/audit.py [--rounds 5] [--precision float32]

The same torch engine and model (a Qwen2 of a million parameters, random weights) on one thread: it writes completions
of 512 tokens with proofs, then audits them as a validator does: one pass over each, sampling replayed, proofs verified
with decoys, all numbers judged. How much faster that is depends on how many sequences are written at once, as one alone
leaves most of the machine idle; so several numbers are measured. The audit reads as many texts at once as it likes.
Tokens are counted per CPU second of the whole process, so that other load costs little. Contenders take turns.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from tiny_models import make_checkpoint

from prime_node.checks import find_model_flaws
from prime_node.engine.measuring import Claim, measure
from prime_node.engine.seam import Completion, Order, Sampling, Text
from prime_node.engine.torch_engine import TorchEngine
from prime_protocol.ids import Digest
from prime_protocol.tolerance import Tolerance

VOCABULARY, PROMPT_TOKENS, TOKENS = 512, 16, 512
SAMPLING = Sampling(temperature=1.0, eos=frozenset(), tokens_max=TOKENS)
AT_ONCE = (1, 2, 4, 16, 64)
ORDERS_MIN = 4
"""Completions of a round where fewer are written at once."""
T = TypeVar("T")


def make_orders(count: int) -> list[Order]:
    dice = np.random.default_rng(1)
    prompts = dice.integers(0, VOCABULARY, (count, PROMPT_TOKENS), dtype=np.int32)
    return [Order(number=number, prompt=prompt, seed=number) for number, prompt in enumerate(prompts)]


def generate(engine: TorchEngine, orders: list[Order]) -> dict[int, Completion]:
    return {completion.number: completion for completion in engine.generate(orders, SAMPLING)}


def audit(engine: TorchEngine, orders: list[Order], done: dict[int, Completion]) -> None:
    texts = [Text(number=o.number, prompt=o.prompt, output=done[o.number].tokens, seed=o.seed) for o in orders]
    numbers = []
    for reading in engine.read(texts, SAMPLING):
        given = done[reading.number]
        claim = Claim(text=texts[reading.number], logprobs=given.logprobs, proofs=given.proofs)
        numbers.append(measure(claim, reading, seed=Digest(bytes(32))))
    assert not find_model_flaws(numbers, Tolerance()), "an honest completion was refused"


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """With CPU seconds."""
    started = time.process_time()
    return work(), time.process_time() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = make_checkpoint(Path(place), vocabulary=VOCABULARY, hidden=128, layers=4, eos=None)
        compare(folder, flags.rounds, flags.precision)
    return 0


def compare(folder: Path, rounds: int, precision: str) -> None:
    engines = {rows: TorchEngine(device="cpu", precision=precision, threads=1, batch_max=rows) for rows in AT_ONCE}
    for engine in engines.values():
        engine.load(folder)
    generated: dict[int, list[float]] = {rows: [] for rows in AT_ONCE}
    audited: list[float] = []
    for number in range(rounds + 1):
        for rows, engine in engines.items():
            orders = make_orders(max(rows, ORDERS_MIN))
            done, took_s = timed(partial(generate, engine, orders))
            _, audit_s = timed(partial(audit, engine, orders, done))
            if number:
                generated[rows].append(len(orders) * TOKENS / took_s)
                audited.append(len(orders) * TOKENS / audit_s)
    report({rows: statistics.median(speeds) for rows, speeds in generated.items()}, statistics.median(audited))


def report(generated: dict[int, float], audited: float) -> None:
    print(f"completions of {TOKENS} tokens, one thread; audited: {audited:.0f} tokens per CPU second")
    print(f"{'written at once':<20}{'tokens per CPU s':>18}{'audit over it':>16}")
    for rows, speed in generated.items():
        print(f"{rows:<20}{speed:>18.0f}{audited / speed:>15.1f}x")
    others = " ".join(f"at_{rows}={audited / speed:.1f}" for rows, speed in generated.items() if rows > 1)
    print(f"RESULT audit_vs_generate={audited / generated[1]:.1f} {others}")


if __name__ == "__main__":
    sys.exit(main())
