"""How much faster it is to audit completions than to generate them: audited tokens per second over generated ones.

    python bench/audit.py [--rounds 5] [--precision float32] [--model FOLDER] [--at-once 1,2,4,16,64] [--least 4]

The same torch engine and model (a Qwen2 of a million parameters with random weights, or the checkpoint in a folder) run
on one thread. The engine generates completions of 512 tokens with proofs, then audits them as a validator does: one
pass over each, sampling replayed, proofs verified with decoys, all numbers judged. The audit may read any number of
texts at once.

The ratio depends on how many sequences are generated at once: each step of generation reads all weights once for all of
them, and an audit reads them once for thousands of tokens. So several numbers are measured, and `audit_vs_generate` is
against one sequence at a time. Tokens are counted per CPU second of the whole process, so that other load matters
little. Contenders take turns.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from benchmark import BenchmarkParser, print_result

from prime_node.engine.interface import Completion, GenerateRequest, Sampling, TokenSequence
from prime_node.engine.measurement import ClaimedRow, measure_row
from prime_node.engine.torch.engine import TorchEngine
from prime_node.jobs.file_checks import weigh_rows
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.wire.ids import Digest
from prime_trainer.model.tiny import make_tiny_checkpoint

VOCABULARY, PROMPT_TOKENS, TOKENS = 512, 16, 512
SAMPLING = Sampling(temperature=1.0, eos=frozenset(), tokens_max=TOKENS)
T = TypeVar("T")


def make_requests(count: int) -> list[GenerateRequest]:
    dice = np.random.default_rng(1)
    prompts = dice.integers(0, VOCABULARY, (count, PROMPT_TOKENS), dtype=np.int32)
    return [GenerateRequest(number=number, prompt=prompt, seed=number) for number, prompt in enumerate(prompts)]


def generate(engine: TorchEngine, requests: list[GenerateRequest]) -> dict[int, Completion]:
    return {completion.number: completion for completion in engine.generate(requests, SAMPLING)}


def audit(engine: TorchEngine, requests: list[GenerateRequest], done: dict[int, Completion]) -> float:
    """CPU seconds of it that went into proofs and the verdict, once all was read."""
    texts = [
        TokenSequence(number=o.number, prompt=o.prompt, output=done[o.number].tokens, seed=o.seed) for o in requests
    ]
    readings = list(engine.read(texts, SAMPLING))
    started, numbers = time.process_time(), []
    for reading in readings:
        given = done[reading.number]
        claim = ClaimedRow(sequence=texts[reading.number], logprobs=given.logprobs, proofs=given.proofs)
        numbers.append(measure_row(claim, reading, seed=Digest(bytes(32))))
    assert not weigh_rows(numbers, Tolerance())[1], "an honest completion was refused"
    return time.process_time() - started


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """With CPU seconds."""
    started = time.process_time()
    return work(), time.process_time() - started


def main() -> int:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--rounds", 5, 1)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--model", type=Path, help="a checkpoint to run instead of the small one")
    parser.add_size("--at-once", "1,2,4,16,64", "1,4", "how many sequences are generated at once, with commas")
    parser.add_size("--least", 4, 1, "completions of a round where fewer are generated at once")
    flags = parser.parse()
    at_once = [int(rows) for rows in flags.at_once.split(",")]
    with tempfile.TemporaryDirectory() as place:
        folder = flags.model or make_tiny_checkpoint(Path(place), vocabulary=VOCABULARY, hidden=128, layers=4, eos=None)
        engines = {
            rows: TorchEngine(device="cpu", precision=flags.precision, threads=1, batch_max=rows) for rows in at_once
        }
        for engine in engines.values():
            engine.load(folder)
        compare(engines, flags.rounds, flags.least)
    return 0


def compare(engines: dict[int, TorchEngine], rounds: int, least: int) -> None:
    generated: dict[int, list[float]] = {rows: [] for rows in engines}
    audited: list[float] = []
    judging: list[float] = []
    for number in range(rounds + 1):
        for rows, engine in engines.items():
            requests = make_requests(max(rows, least))
            done, took_s = timed(partial(generate, engine, requests))
            judged_s, audit_s = timed(partial(audit, engine, requests, done))
            if number:
                generated[rows].append(len(requests) * TOKENS / took_s)
                audited.append(len(requests) * TOKENS / audit_s)
                judging.append(judged_s / audit_s)
    speeds = {rows: statistics.median(found) for rows, found in generated.items()}
    report(speeds, statistics.median(audited), statistics.median(judging))


def report(generated: dict[int, float], audited: float, judging: float) -> None:
    print(f"completions of {TOKENS} tokens, one thread; audited: {audited:.0f} tokens per CPU second, ", end="")
    print(f"of which {judging:.0%} goes into proofs and verdicts, the rest into the pass over the texts")
    print(f"{'written at once':<20}{'tokens per CPU s':>18}{'audit over it':>16}")
    for rows, speed in generated.items():
        print(f"{rows:<20}{speed:>18.1f}{audited / speed:>15.1f}x")
    others = {f"at_{rows}": f"{audited / speed:.1f}" for rows, speed in generated.items() if rows > 1}
    alone = f"{audited / generated[1]:.1f}" if 1 in generated else "missing"
    print_result(audit_vs_generate=alone, **others)


if __name__ == "__main__":
    sys.exit(main())
