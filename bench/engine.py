"""Rollout tokens per second of the torch engine, proofs included, against transformers' generate and vLLM on the CPU.

    python bench/engine.py [--rounds 5] [--prompts 256] [--precision float32]

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

from prime_node.engine.interface import GenerateRequest, Sampling
from prime_node.engine.torch.engine import TorchEngine
from prime_node.engine.torch.generation import ProofBuilder
from prime_trainer.model.tiny import make_tiny_checkpoint

ROOT = Path(__file__).resolve().parents[1]
VLLM = ROOT / ".vllm" / "bin" / "python"
VOCABULARY, PROMPT_TOKENS, ROWS, EQUAL_TOKENS, TOKENS_MAX = 512, 16, 64, 128, 512
EOS = frozenset(range(8))
"""One token in 64 ends a sequence."""
POOL_SHARE = 8
"""Sequences tried for each one that is taken."""
PAIRS = 4
"""Turns with and without proofs in each round."""
Work = tuple[list[GenerateRequest], list[int]]
Contender = Callable[[Work], None]
Turns = dict[tuple[str, str], list[float]]
"""CPU seconds, by kind of work and contender."""


class NoProofs(ProofBuilder):
    """The engine without its proofs, for what they cost."""

    def join(self, generation: Any) -> None:
        generation.proof_page = 0

    def record_states(self, lineup: Any, hidden: Any) -> None:
        pass

    def finish(self, generation: Any) -> None:
        pass

    def is_ready(self, generation: Any) -> bool:
        return True

    def take(self, generation: Any) -> bytes:
        return b""


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


def make_requests(count: int) -> list[GenerateRequest]:
    dice = np.random.default_rng(1)
    prompts = dice.integers(len(EOS), VOCABULARY, (count, PROMPT_TOKENS), dtype=np.int32)
    seeds = dice.integers(0, 2**64, count, dtype=np.uint64).tolist()
    return [
        GenerateRequest(number=n, prompt=prompt, seed=seed)
        for n, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
    ]


def pick_heavy(engine: TorchEngine, count: int) -> Work:
    """Requests whose lengths are spread as a log-normal is, in random order."""
    pool = make_requests(POOL_SHARE * count)
    sampling = Sampling(temperature=1.0, eos=EOS, tokens_max=TOKENS_MAX)
    lengths = {done.number: len(done.tokens) for done in engine.generate(pool, sampling)}
    normal = statistics.NormalDist(np.log(48), 1.2)
    wanted = [np.exp(normal.inv_cdf((place + 0.5) / count)).clip(4, TOKENS_MAX) for place in range(count)]
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

    def __init__(self, folder: Path, precision: str) -> None:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, precision))

    def __call__(self, work: Work) -> None:
        requests, lengths = work
        for start in range(0, len(requests), ROWS):
            prompts = torch.tensor(np.stack([request.prompt for request in requests[start : start + ROWS]])).long()
            here = lengths[start : start + ROWS]
            self.model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                eos_token_id=None,
                pad_token_id=0,
                max_new_tokens=max(here),
                stopping_criteria=transformers.StoppingCriteriaList([Lengths(here)]),
            )


class Ours:
    """The torch engine."""

    def __init__(self, folder: Path, precision: str, proofs: type[ProofBuilder] = ProofBuilder) -> None:
        self.engine = TorchEngine(device="cpu", precision=precision, threads=1, batch_max=ROWS, proofs=proofs)
        self.engine.load(folder)

    def __call__(self, work: Work) -> None:
        requests, lengths = work
        is_equal = len(set(lengths)) == 1
        eos, tokens_max = (frozenset[int](), lengths[0]) if is_equal else (EOS, TOKENS_MAX)
        done = self.engine.generate(requests, Sampling(temperature=1.0, eos=eos, tokens_max=tokens_max))
        total = sum(len(completion.tokens) for completion in done)
        assert abs(total - sum(lengths)) <= 0.01 * total, "lengths differ from the ones picked"


class Vllm:
    """bench/engine_vllm.py in .vllm/, told when to run."""

    def __init__(self, folder: Path, precision: str) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        command = [str(VLLM), str(ROOT / "bench" / "engine_vllm.py"), str(folder), precision, str(ROWS)]
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
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    flags = parser.parse()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = make_tiny_checkpoint(Path(place), vocabulary=VOCABULARY, hidden=128, layers=4, eos=None)
        return compare(
            folder, flags.rounds, flags.prompts, flags.precision, with_vllm=VLLM.exists() and not flags.smoke
        )


def compare(folder: Path, rounds: int, prompts: int, precision: str, *, with_vllm: bool) -> int:
    ours = Ours(folder, precision)
    contenders: dict[str, Any] = {"torch engine": ours, "transformers generate": Generate(folder, precision)}
    if with_vllm:
        contenders["vLLM on the CPU"] = Vllm(folder, precision)
    works = {"heavy": pick_heavy(ours.engine, prompts), "equal": (make_requests(prompts), [EQUAL_TOKENS] * prompts)}
    turns: Turns = {(kind, name): [] for kind in works for name in contenders}
    for number in range(rounds + 1):
        for kind, name in turns:
            took_s = measure(contenders[name], works[kind])
            turns[kind, name] += [took_s] if number else []
    if with_vllm:
        contenders["vLLM on the CPU"].close()
    report(
        turns, works, rounds, {kind: measure_proofs(folder, precision, work, rounds) for kind, work in works.items()}
    )
    return 0


@dataclass(frozen=True, slots=True)
class ProofCost:
    """What proofs add to the CPU time of the same work without them."""

    median: float
    """Over pairs of turns."""
    fastest: float
    """Of the fastest turn with them and the fastest without."""
    inside: float
    """Time inside their code, over all the other time."""


def measure_proofs(folder: Path, precision: str, work: Work, rounds: int) -> ProofCost:
    sides = Ours(folder, precision), Ours(folder, precision, NoProofs)
    pairs = []
    for number in range(PAIRS * rounds + 1):
        took_s = {side: measure(side, work) for side in (sides if number % 2 else sides[::-1])}
        pairs += [[took_s[side] for side in sides]] if number else []
    timed, timed_s = Ours(folder, precision, TimedProofs), 0.0
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


def report(turns: Turns, works: dict[str, Work], rounds: int, costs: dict[str, ProofCost]) -> None:
    speeds = {key: sum(works[key[0]][1]) / statistics.median(times) for key, times in turns.items()}
    lengths = works["heavy"][1]
    print(
        f"{len(lengths)} prompts, {ROWS} at once, one thread, median of {rounds}; heavy: {sum(lengths)} tokens, ",
        end="",
    )
    print(f"median {statistics.median(lengths):.0f}, longest {max(lengths)}; equal: {EQUAL_TOKENS} each")
    names = list(dict.fromkeys(name for _, name in speeds))
    print(f"{'tokens per CPU second':<32}{'heavy':>10}{'equal':>10}{'ours over it':>16}")
    ratios = {name: [speeds[kind, "torch engine"] / speeds[kind, name] for kind in works] for name in names}
    for name in names:
        heavy, equal = ratios[name]
        print(f"{name:<32}{speeds['heavy', name]:>10.0f}{speeds['equal', name]:>10.0f}{heavy:>9.2f}{equal:>7.2f}")
    print(f"{'what proofs cost':<32}{'heavy':>10}{'equal':>10}")
    for text, name in (
        (f"median of {PAIRS * rounds} pairs", "median"),
        ("fastest turns", "fastest"),
        ("time inside their code", "inside"),
    ):
        print(f"{text:<32}" + "".join(f"{getattr(costs[kind], name):>10.1%}" for kind in works))
    heavy, equal = ratios["transformers generate"]
    vllm = "missing" if "vLLM on the CPU" not in ratios else f"{min(ratios['vLLM on the CPU']):.2f}"
    if vllm == "missing":
        print("without vLLM: `make .vllm/ready` installs it, --smoke leaves it out")
    overhead = max(cost.median for cost in costs.values())
    print_result(
        vs_hf_generate=f"{heavy:.2f}",
        vs_hf_equal=f"{equal:.2f}",
        proof_overhead=f"{overhead:.3f}",
        vs_vllm_cpu=vllm,
    )


if __name__ == "__main__":
    sys.exit(main())
