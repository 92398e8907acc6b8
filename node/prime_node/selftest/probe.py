"""One engine in its own interpreter: kernels beside numpy, the model beside transformers, and its speed.

    python -m prime_node.selftest.probe '{"engine": "torch", "device": "auto", ...}'

Prints one line of JSON. A part that fails says why, and the others go on: the machine is not known yet.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from prime_node.engine.child import list_software
from prime_node.engine.interface import (
    BatchArrays,
    Completion,
    Engine,
    GenerateRequest,
    Generation,
    Sampling,
)
from prime_node.engine.torch.draws import Draws, Sampler
from prime_node.engine.torch.generation import ProofBuilder
from prime_node.engine.torch.sampling import choose_sampler
from prime_node.selftest.report import ProbeOptions
from prime_protocol.proofs.sampling import compute_margins, sample_tokens

ODD_VOCABULARY = 4097
"""One more than a tile of the kernels."""
PROMPT_TOKENS = 64
COMPARED, COMPARED_TOKENS = 4, 48
"""Completions that transformers reads as well, and their tokens."""
REPEATS = 5
MARGIN_TOLERANCE = 1e-9
"""Between logarithms in float64 on two devices."""


class NoProofs(ProofBuilder):
    """The torch engine without its proofs, for what they cost."""

    def join(self, generation: Generation) -> None:
        generation.proof_page = 0

    def record_states(self, arrays: BatchArrays, hidden: torch.Tensor) -> None:
        pass

    def finish(self, generation: Generation) -> None:
        pass

    def is_ready(self, generation: Generation) -> bool:
        return True

    def take(self, generation: Generation) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class KernelCase:
    """Logits of one kind on which the device's sampler is compared with numpy."""

    name: str
    logits: NDArray[np.float32]
    temperature: float


def make_cases(vocabulary: int, rows: int) -> Iterator[KernelCase]:
    dice = np.random.default_rng(1)

    def draw_logits(scale: float, size: int = vocabulary) -> NDArray[np.float32]:
        return (scale * dice.standard_normal((rows, size))).astype(np.float32)

    yield KernelCase("flat", draw_logits(0.1), 1.0)
    yield KernelCase("usual", draw_logits(3.0), 1.0)
    yield KernelCase("cold", draw_logits(3.0), 0.01)
    yield KernelCase("greedy, with ties", np.round(draw_logits(1.0)), 0.0)
    yield KernelCase("all equal", np.zeros((rows, vocabulary), np.float32), 1.0)
    yield KernelCase("odd size", draw_logits(3.0, ODD_VOCABULARY), 0.6)
    yield KernelCase("extreme", draw_logits(1e38, ODD_VOCABULARY).clip(-3.4e38, 3.4e38), 0.001)


def probe_kernels(device: torch.device, vocabulary: int, rows: int) -> dict[str, Any]:
    """Winners and margins of the device's sampler beside those of numpy, and its time for a row."""
    sampler, dice = choose_sampler(device.type), np.random.default_rng(2)
    seeds, positions = dice.integers(0, 2**64, rows, dtype=np.uint64), np.arange(rows, dtype=np.int64)
    cases: list[dict[str, Any]] = []
    for case in make_cases(vocabulary, rows):
        logits = torch.from_numpy(case.logits).to(device)
        draws = Draws(case.temperature, seeds, positions)
        tokens = np.arange(rows) * 7919 % case.logits.shape[1]
        drawn = sampler.scan(logits, draws).fetch()
        scores = sampler.scan(logits, draws, torch.from_numpy(tokens).to(device)).fetch()
        wanted = compute_margins(case.logits, tokens, seeds, positions, case.temperature)
        off = np.abs(scores[1] - wanted) / (1 + np.abs(wanted))
        cases.append(
            {
                "name": case.name,
                "winners": bool(
                    np.array_equal(drawn[0], sample_tokens(case.logits, case.temperature, seeds, positions))
                ),
                "margin_error": float(off.max()),
                "row_us": time_rows(sampler, logits, draws),
            }
        )
    is_right = all(case["winners"] and case["margin_error"] <= MARGIN_TOLERANCE for case in cases)
    return {"sampler": type(sampler).__name__, "rows": rows, "cases": cases, "ok": is_right}


def time_rows(sampler: Sampler, logits: torch.Tensor, draws: Draws) -> float:
    """Microseconds of a row, in the fastest of some repetitions."""
    return min(measure_s(lambda: sampler.scan(logits, draws).fetch()) for _ in range(REPEATS)) / len(logits) * 1e6


def measure_s(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def make_requests(count: int, vocabulary: int, seed: int) -> list[GenerateRequest]:
    dice = np.random.default_rng(seed)
    return [
        GenerateRequest(
            number=number,
            prompt=dice.integers(0, vocabulary, PROMPT_TOKENS).astype(np.int32),
            seed=int(dice.integers(0, 2**64, dtype=np.uint64)),
        )
        for number in range(count)
    ]


def probe_transformers(engine: Engine, checkpoint: Path, device: torch.device) -> dict[str, Any]:
    """Log-probs and draws of the engine's completions from the logits of transformers in float32."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    sampling = Sampling(temperature=1.0, eos=frozenset(), tokens_max=COMPARED_TOKENS)
    requests = make_requests(COMPARED, engine.facts.vocabulary, 3)
    done = {completion.number: completion for completion in engine.generate(requests, sampling)}
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).to(device).eval()
    errors, margins = [], []
    for request in requests:
        logits = read_with_transformers(model, request, done[request.number], device)
        tokens = done[request.number].tokens
        wide = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
        logprobs = wide[np.arange(len(tokens)), tokens] - np.log(np.exp(wide).sum(axis=1))
        errors.append(np.abs(logprobs - done[request.number].logprobs))
        seeds = np.full(len(tokens), request.seed, np.uint64)
        margins.append(compute_margins(logits, tokens, seeds, np.arange(len(tokens)), 1.0))
    lost, off = np.concatenate(margins), np.concatenate(errors)
    return {
        "tokens": len(off),
        "logprob_error_mean": float(off.mean()),
        "logprob_error_max": float(off.max()),
        "margin_max": float(lost.max()),
        "losers": float((lost > 0).mean()),
    }


def read_with_transformers(
    model: Any, request: GenerateRequest, completion: Completion, device: torch.device
) -> NDArray[np.float32]:
    """Logits that each output token was drawn from."""
    fed = np.concatenate((request.prompt, completion.tokens[:-1])).astype(np.int64)
    with torch.inference_mode():
        logits = model(torch.from_numpy(fed)[None].to(device)).logits[0, len(request.prompt) - 1 :]
    found: NDArray[np.float32] = logits.float().cpu().numpy()
    return found


def probe_speed(engine: Engine, options: ProbeOptions) -> float:
    """Output tokens per second of completions of one length, generated together. The first ones warm up."""
    sampling = Sampling(temperature=1.0, eos=frozenset(), tokens_max=options.tokens)
    warm = Sampling(temperature=1.0, eos=frozenset(), tokens_max=4)
    requests = make_requests(options.sequences, engine.facts.vocabulary, 4)
    list(engine.generate(requests, warm))
    return options.sequences * options.tokens / measure_s(lambda: list(engine.generate(requests, sampling)))


def probe_torch(options: ProbeOptions) -> dict[str, Any]:
    from prime_node.engine.torch.engine import TorchEngine

    def load(proofs: type[ProofBuilder]) -> TorchEngine:
        engine = TorchEngine(
            device=options.device,
            precision=options.precision,
            threads=options.threads,
            batch_max=options.sequences,
            proofs=proofs,
        )
        engine.load(Path(options.checkpoint))
        return engine

    # One engine after the other: two may not fit into the device's memory.
    found = probe_engine(load(ProofBuilder), options)
    found["tokens_per_s_without_proofs"] = attempt(lambda: probe_speed(load(NoProofs), options))
    return found


def probe_engine(engine: Engine, options: ProbeOptions) -> dict[str, Any]:
    device = torch.device(engine.facts.device)
    return {
        "facts": asdict(engine.facts),
        "capacity": asdict(engine.capacity),
        "kernels": attempt(lambda: probe_kernels(device, options.vocabulary, options.rows)),
        "tokens_per_s": attempt(lambda: probe_speed(engine, options)),
        "transformers": attempt(lambda: probe_transformers(engine, Path(options.checkpoint), device)),
    }


def probe_vllm(options: ProbeOptions) -> dict[str, Any]:
    from prime_node.engine.vllm.engine import VllmEngine
    from prime_node.engine.vllm.launch import VllmLimits

    engine = VllmEngine(
        device=options.device,
        precision=options.precision,
        threads=options.threads,
        limits=VllmLimits(batch_max=options.sequences),
    )
    engine.load(Path(options.checkpoint))
    found = probe_engine(engine, options)
    found["tokens_per_s_without_proofs"] = attempt(lambda: probe_plain_vllm(engine, options))
    return found


def probe_plain_vllm(engine: Any, options: ProbeOptions) -> float:
    """vLLM by itself, which samples greedily and keeps no records."""
    prompts = [request.prompt.tolist() for request in make_requests(options.sequences, engine.facts.vocabulary, 5)]
    took_s = measure_s(lambda: engine.generate_plainly(prompts, options.tokens))
    return options.sequences * options.tokens / took_s


def attempt(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:  # boundary: a selftest reports what does not work on this machine
        return {"problem": f"{type(error).__name__}: {error}"[:500]}


PROBES = {"torch": probe_torch, "vllm": probe_vllm}


def main(argv: Sequence[str]) -> int:
    options = ProbeOptions(**json.loads(argv[0]))
    found = attempt(lambda: PROBES[options.engine](options))
    sys.stdout.write(json.dumps({"software": list_software(), **found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
