"""Rollout tokens per second of the torch engine, proofs included, against transformers' generate and vLLM on the CPU.

    python bench/engine.py [--rounds 5] [--prompts 256] [--precision float32] [--vocabulary 151936]

One Qwen2 of a million parameters with random weights, the same prompts and lengths for all, sampling on, one thread, 64
sequences at once. Two kinds of work:

equal    every completion has 128 tokens, and nothing ends a sequence before.
heavy    lengths from a log-normal (median 48, sigma 1.2, 4 to 512 tokens). Ours end at an end token, with seeds picked
         from a pool so that the lengths come out so; vLLM's at a limit for each request. `generate` gets the lengths as
         a stopping criterion for each row, which works as its end token does: a row that is done is filled up until the
         longest of its batch is done, as it is for its users.

Prompts all have 16 tokens, so `generate` has no padding either. Contenders take turns; the median of the rounds counts.
Tokens are counted per CPU second of the whole process, proofs' thread included: other load on the machine then costs
little. vLLM needs .vllm/ (`make .vllm/ready`), and runs without our sampling and proofs.

What proofs cost is less than two turns differ by. So the engine runs with and without them in pairs, one right after
the other and each first in turn; the median over the pairs counts. Beside it stand the ratio of the fastest turns, and
the share of the time that is spent inside the code of the proofs, which knows nothing of what they do to caches.

The same comparison with transformers and vLLM then runs once with the vocabulary of Qwen, where the draw and the head
are most of the work of so small a model (engine_vocabulary.py), with the share of time in draw, proofs and head.
`dispatches_growth` is how many operations a step of 256 rows asks a GPU for, over those of one with 16.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from benchmark import BenchmarkParser, print_result
from engine_vocabulary import TimedProofs, measure_dispatches, measure_shares, report_shares

from prime_node.engine.interface import GenerateRequest, Sampling
from prime_node.engine.torch.engine import TorchEngine
from prime_node.engine.torch.generation import ProofBuilder
from prime_node.selftest.probe import NoProofs
from prime_trainer.model.tiny import make_tiny_checkpoint

ROOT = Path(__file__).resolve().parents[1]
VLLM = ROOT / ".vllm" / "bin" / "python"
PROMPT_TOKENS = 16
END_SHARE = 64
"""One token in so many ends a sequence."""
POOL_SHARE = 8
"""Sequences tried for each one that is taken."""
PAIRS = 4
"""Turns with and without proofs in each round."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is generated."""

    vocabulary: int = 512
    rows: int = 64
    """At once."""
    equal_tokens: int = 128
    tokens_max: int = 512
    median_tokens: int = 48

    @property
    def eos(self) -> frozenset[int]:
        return frozenset(range(self.vocabulary // END_SHARE))


Work = tuple[list[GenerateRequest], list[int]]
Contender = Callable[[Work], None]
Turns = dict[tuple[str, str], list[float]]
"""CPU seconds, by kind of work and contender."""


def make_requests(setting: Setting, count: int) -> list[GenerateRequest]:
    dice = np.random.default_rng(1)
    prompts = dice.integers(len(setting.eos), setting.vocabulary, (count, PROMPT_TOKENS), dtype=np.int32)
    seeds = dice.integers(0, 2**64, count, dtype=np.uint64).tolist()
    return [
        GenerateRequest(number=n, prompt=prompt, seed=seed)
        for n, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
    ]


def pick_heavy(setting: Setting, engine: TorchEngine, count: int) -> Work:
    """Requests whose lengths are spread as a log-normal is, in random order."""
    pool = make_requests(setting, POOL_SHARE * count)
    sampling = Sampling(temperature=1.0, eos=setting.eos, tokens_max=setting.tokens_max)
    lengths = {done.number: len(done.tokens) for done in engine.generate(pool, sampling)}
    normal = statistics.NormalDist(np.log(setting.median_tokens), 1.2)
    wanted = [np.exp(normal.inv_cdf((place + 0.5) / count)).clip(4, setting.tokens_max) for place in range(count)]
    taken = []
    for length in reversed(wanted):
        nearest = min(lengths, key=lambda number: abs(lengths[number] - length))
        taken.append((pool[nearest], lengths.pop(nearest)))
    np.random.default_rng(2).shuffle(taken)
    return [request for request, _ in taken], [length for _, length in taken]


class Lengths(transformers.StoppingCriteria):
    """Each row is done at its own length."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.ends = torch.tensor(lengths) + PROMPT_TOKENS

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return input_ids.shape[1] >= self.ends


class Generate:
    """transformers' own, a full batch at a time."""

    def __init__(self, setting: Setting, folder: Path, precision: str) -> None:
        self.rows = setting.rows
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, precision))

    def __call__(self, work: Work) -> None:
        requests, lengths = work
        for start in range(0, len(requests), self.rows):
            here = slice(start, start + self.rows)
            prompts = torch.tensor(np.stack([request.prompt for request in requests[here]])).long()
            self.model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                eos_token_id=None,
                pad_token_id=0,
                max_new_tokens=max(lengths[here]),
                stopping_criteria=transformers.StoppingCriteriaList([Lengths(lengths[here])]),
            )


class Ours:
    """The torch engine."""

    def __init__(
        self, setting: Setting, folder: Path, precision: str, proofs: type[ProofBuilder] = ProofBuilder
    ) -> None:
        self.setting = setting
        self.engine = TorchEngine(device="cpu", precision=precision, threads=1, batch_max=setting.rows, proofs=proofs)
        self.engine.load(folder)

    def __call__(self, work: Work) -> None:
        requests, lengths = work
        is_equal = len(set(lengths)) == 1
        eos, tokens_max = (frozenset[int](), lengths[0]) if is_equal else (self.setting.eos, self.setting.tokens_max)
        done = self.engine.generate(requests, Sampling(temperature=1.0, eos=eos, tokens_max=tokens_max))
        total = sum(len(completion.tokens) for completion in done)
        assert abs(total - sum(lengths)) <= 0.01 * total, "lengths differ from the ones picked"


class Vllm:
    """bench/engine_vllm.py in .vllm/, told when to run."""

    def __init__(self, setting: Setting, folder: Path, precision: str) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        command = [str(VLLM), str(ROOT / "bench" / "engine_vllm.py"), str(folder), precision, str(setting.rows)]
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def measure(self, work: Work) -> float:
        """CPU seconds."""
        requests, lengths = work
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([[request.prompt.tolist() for request in requests], lengths]) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("CPU_SECONDS "):
                return float(line.split()[1])
        raise SystemExit(f"bench/engine_vllm.py ended with {self.process.wait()}: run it by hand to see why")

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def measure(contender: Contender, work: Work) -> float:
    """CPU seconds."""
    if isinstance(contender, Vllm):
        return contender.measure(work)
    started = time.process_time()
    contender(work)
    return time.process_time() - started


def main() -> int:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--rounds", 5, 1)
    parser.add_size("--prompts", 256, 2)
    parser.add_size("--vocabulary", 151_936, 2048, "of the second comparison")
    parser.add_size("--vocabulary-prompts", 32, 2, "of the second comparison")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    flags = parser.parse()
    torch.set_num_threads(1)
    has_vllm = VLLM.exists() and not flags.smoke
    with tempfile.TemporaryDirectory() as place:
        tiny, real = Setting(), Setting(flags.vocabulary, rows=32, equal_tokens=32, tokens_max=192, median_tokens=24)
        folders = [
            make_tiny_checkpoint(Path(place) / name, vocabulary=each.vocabulary, hidden=128, layers=4, eos=None)
            for name, each in (("tiny", tiny), ("real", real))
        ]
        turns, works = compare(tiny, folders[0], flags.rounds, flags.prompts, flags.precision, with_vllm=has_vllm)
        ratios = report(tiny, turns, works)
        costs = {
            kind: measure_proofs(tiny, folders[0], flags.precision, work, flags.rounds) for kind, work in works.items()
        }
        report_costs(costs, flags.rounds)
        turns, works = compare(real, folders[1], 1, flags.vocabulary_prompts, flags.precision, with_vllm=has_vllm)
        real_ratios = report(real, turns, works)
        report_shares(measure_shares(Ours(real, folders[1], flags.precision, TimedProofs), works["heavy"]))
        growth = measure_dispatches(folders[0])
    if not has_vllm:
        print("without vLLM: `make .vllm/ready` installs it, --smoke leaves it out")
    heavy, equal = ratios["transformers generate"]
    print_result(
        vs_hf_generate=f"{heavy:.2f}",
        vs_hf_equal=f"{equal:.2f}",
        proof_overhead=f"{max(cost.median for cost in costs.values()):.3f}",
        vs_vllm_cpu=f"{min(ratios['vLLM on the CPU']):.2f}" if has_vllm else "missing",
        dispatches_growth=f"{growth:.3f}",
        real_vocab_vs_hf=f"{real_ratios['transformers generate'][0]:.2f}",
    )
    return 0


def compare(
    setting: Setting, folder: Path, rounds: int, prompts: int, precision: str, *, with_vllm: bool
) -> tuple[Turns, dict[str, Work]]:
    ours = Ours(setting, folder, precision)
    contenders: dict[str, Any] = {
        "torch engine": ours,
        "transformers generate": Generate(setting, folder, precision),
    }
    if with_vllm:
        contenders["vLLM on the CPU"] = Vllm(setting, folder, precision)
    works = {
        "heavy": pick_heavy(setting, ours.engine, prompts),
        "equal": (make_requests(setting, prompts), [setting.equal_tokens] * prompts),
    }
    turns: Turns = {(kind, name): [] for kind in works for name in contenders}
    for number in range(rounds + 1):
        for kind, name in turns:
            took_s = measure(contenders[name], works[kind])
            turns[kind, name] += [took_s] if number else []
    if with_vllm:
        contenders["vLLM on the CPU"].close()
    return turns, works


@dataclass(frozen=True, slots=True)
class ProofCost:
    """What proofs add to the CPU time of the same work without them."""

    median: float
    """Over pairs of turns."""
    fastest: float
    """Of the fastest turn with them and the fastest without."""
    inside: float
    """Time inside their code, over all the other time."""


def measure_proofs(setting: Setting, folder: Path, precision: str, work: Work, rounds: int) -> ProofCost:
    sides = Ours(setting, folder, precision), Ours(setting, folder, precision, NoProofs)
    pairs = []
    for number in range(PAIRS * rounds + 1):
        took_s = {side: measure(side, work) for side in (sides if number % 2 else sides[::-1])}
        pairs += [[took_s[side] for side in sides]] if number else []
    timed, timed_s = Ours(setting, folder, precision, TimedProofs), 0.0
    for number in range(rounds + 1):
        if number == 1:
            TimedProofs.spent_s = timed_s = 0.0
        timed_s += measure(timed, work)
    with_s, without_s = zip(*pairs, strict=True)
    return ProofCost(
        median=statistics.median(proved / bare for proved, bare in pairs) - 1,
        fastest=min(with_s) / min(without_s) - 1,
        inside=TimedProofs.spent_s / (timed_s - TimedProofs.spent_s),
    )


def report(setting: Setting, turns: Turns, works: dict[str, Work]) -> dict[str, list[float]]:
    """Our speed over that of each contender, for heavy-tailed and equal lengths."""
    speeds = {key: sum(works[key[0]][1]) / statistics.median(times) for key, times in turns.items()}
    lengths, rounds = works["heavy"][1], len(next(iter(turns.values())))
    print(f"vocabulary {setting.vocabulary}: {len(lengths)} prompts, {setting.rows} at once, one thread, ", end="")
    print(f"median of {rounds}; heavy: {sum(lengths)} tokens, median {statistics.median(lengths):.0f}, ", end="")
    print(f"longest {max(lengths)}; equal: {setting.equal_tokens} each")
    names = list(dict.fromkeys(name for _, name in speeds))
    print(f"{'tokens per CPU second':<32}{'heavy':>10}{'equal':>10}{'ours over it':>16}")
    ratios = {name: [speeds[kind, "torch engine"] / speeds[kind, name] for kind in works] for name in names}
    for name in names:
        heavy, equal = ratios[name]
        print(f"{name:<32}{speeds['heavy', name]:>10.0f}{speeds['equal', name]:>10.0f}{heavy:>9.2f}{equal:>7.2f}")
    return ratios


def report_costs(costs: dict[str, ProofCost], rounds: int) -> None:
    print(f"{'what proofs cost':<32}{'heavy':>10}{'equal':>10}")
    for text, name in (
        (f"median of {PAIRS * rounds} pairs", "median"),
        ("fastest turns", "fastest"),
        ("time inside their code", "inside"),
    ):
        print(f"{text:<32}" + "".join(f"{getattr(cost, name):>10.1%}" for cost in costs.values()))


if __name__ == "__main__":
    sys.exit(main())
