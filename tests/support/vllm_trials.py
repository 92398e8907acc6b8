"""vLLM put under pressure, in its own interpreter: run by tests/unit/prime_node/engine/vllm/test_engine.py.

    .vllm/bin/python tests/support/vllm_trials.py FOLDER CHANGED

Without CHANGED it only puts a model that is split over two ranks under pressure.

VLLM_USE_V2_MODEL_RUNNER=1 runs them on vLLM's second model runner; see interpreted_triton.py for what it needs.

FOLDER holds the checkpoints; CHANGED names the tensor that differs between `first` and `partly`. Prints what happened
as one line of JSON. Nothing is judged here.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1":
    # Before vLLM is imported, which looks for Triton at once.
    from support.interpreted_triton import offer_interpreter

    offer_interpreter()

import numpy as np
import torch

from prime_node.engine.interface import Completion, EngineQueue, GenerateRequest, Sampling, TokenSequence
from prime_node.engine.measurement import ClaimedRow, measure_row
from prime_node.engine.torch.engine import TorchEngine
from prime_node.engine.vllm.engine import VllmEngine
from prime_node.engine.vllm.launch import VllmLimits
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import Digest
from prime_runtime.model_files import ModelFiles

EOS = frozenset({12})
"""As in the checkpoints."""
SAMPLING = Sampling(temperature=1.0, eos=EOS, tokens_max=40)
LONG = Sampling(temperature=1.0, eos=frozenset(), tokens_max=100)
STEP_TOKENS = 48
SHARED_PROMPT_TOKENS, SHARED_SAMPLES = 150, 3
CACHE_BYTES = 640 * 512
"""640 tokens of 512 bytes, for 16 requests of up to 200 tokens each."""


def make_orders() -> list[GenerateRequest]:
    dice = np.random.default_rng(5)
    lengths = [*dice.integers(1, 60, 14).tolist(), 100, 1]
    return [
        GenerateRequest(number=n, prompt=dice.integers(0, 32, length).astype(np.int32), seed=2**64 - 1 - n)
        for n, length in enumerate(lengths)
    ]


def make_texts(orders: list[GenerateRequest], done: list[Completion]) -> list[TokenSequence]:
    places = {order.number: order for order in orders}
    return [
        TokenSequence(number=c.number, prompt=places[c.number].prompt, output=c.tokens, seed=places[c.number].seed)
        for c in done
    ]


def read(
    engine: VllmEngine, orders: list[GenerateRequest], done: list[Completion], sampling: Sampling
) -> dict[str, Any]:
    """Read what was written, and say by how much it differs at most."""
    claims = {
        text.number: ClaimedRow(sequence=text, logprobs=completion.logprobs, proofs=completion.proofs)
        for text, completion in zip(make_texts(orders, done), done, strict=True)
    }
    readings = engine.read([claim.sequence for claim in claims.values()], sampling)
    rows = [measure_row(claims[reading.number], reading, seed=Digest(bytes(32))) for reading in readings]
    return {
        "rows": sorted(row.row for row in rows),
        "problems": [row.proof_problem for row in rows if row.proof_problem],
        "exponent_mismatches": max(chunk.exponent_mismatches for row in rows for chunk in row.chunks),
        "margin": max(row.margin_max for row in rows),
        "logprob_error": max(row.logprob_error_max for row in rows),
    }


def get_tokens(done: list[Completion]) -> dict[int, list[int]]:
    return {completion.number: completion.tokens.tolist() for completion in sorted(done, key=lambda c: c.number)}


def count_calls(owner: Any, name: str) -> list[int]:
    """A list that grows with every call of a method."""
    calls: list[int] = []
    original = getattr(owner, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return original(*args, **kwargs)

    setattr(owner, name, counted)
    return calls


def run_out_of_memory(runner: Any, most: int) -> Any:
    """From now on a step with more than `most` requests fails as a full GPU does. Returns what was there before."""
    execute = runner.execute_model

    def limited(output: Any, *args: Any, **kwargs: Any) -> Any:
        if len(output.num_scheduled_tokens) > most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return execute(output, *args, **kwargs)

    runner.execute_model = limited
    return execute


def join_running_batch(engine: VllmEngine, orders: list[GenerateRequest]) -> dict[str, Any]:
    """Half of the rows join when the others are under way, one is dropped, and texts are read in the same steps."""
    texts = make_texts(orders, list(engine.generate(orders[:4], SAMPLING)))
    engine.add(orders[:8], SAMPLING)
    done = [completion for _ in range(3) for completion in engine.step()]
    engine.add(orders[8:], SAMPLING)
    done += engine.step()
    engine.cancel({orders[-1].number})
    readings = list(engine.read(texts, SAMPLING))
    while engine.queue != EngineQueue():
        done += engine.step()
    return {
        "joined": get_tokens(done),
        "joined_read": read(engine, orders, done, SAMPLING),
        "margin_meanwhile": max(float(reading.margins.max()) for reading in readings),
        "kv_tokens": engine.capacity.kv_tokens,
    }


def read_in_turns(engine: VllmEngine, orders: list[GenerateRequest]) -> dict[str, Any]:
    """Steps of completions between two rows of a forward pass finish the rest of it; the next one is given up."""
    texts = make_texts(orders, list(engine.generate(orders, SAMPLING)))
    engine.add(orders[:2], LONG)
    reading = engine.read(texts, SAMPLING)
    readings, done = [next(reading)], list[Completion]()
    while engine.queue != EngineQueue():
        done += engine.step()
    waited = len(engine._reading.done)
    readings += reading
    engine.add(orders[:2], LONG)
    given_up = engine.read(texts, SAMPLING)
    next(given_up)
    engine.step()
    given_up.close()
    again = []
    while engine.queue != EngineQueue():
        again += engine.step()
    return {
        "waited": waited,
        "rows": sorted(each.number for each in readings),
        "texts": sorted(text.number for text in texts),
        "margin": max(float(each.margins.max()) for each in readings),
        "is_same": get_tokens(done) == get_tokens(again),
        "left": len(engine._reading.running),
    }


def count_prefill(engine: VllmEngine, runner: Any) -> dict[str, int]:
    """Tokens that vLLM computes for samples of one prompt, each with one output token."""
    prompt = np.random.default_rng(7).integers(0, 32, SHARED_PROMPT_TOKENS).astype(np.int32)
    samples = [GenerateRequest(number=n, prompt=prompt, seed=n) for n in range(SHARED_SAMPLES)]
    execute, counts = runner.execute_model, list[int]()

    def counted(output: Any, *args: Any, **kwargs: Any) -> Any:
        counts.append(output.total_num_scheduled_tokens)
        return execute(output, *args, **kwargs)

    runner.execute_model = counted
    list(engine.generate(samples, Sampling(temperature=1.0, eos=EOS, tokens_max=1)))
    runner.execute_model = execute
    block = engine._llm.vllm_config.cache_config.block_size
    return {"computed": sum(counts), "prompt": len(prompt), "samples": len(samples), "block": block}


def refusal(act: Any) -> str:
    try:
        act()
    except (LocalError, RemoteError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(folder: Path, changed: str) -> None:
    first = folder / "first"
    orders: list[GenerateRequest] = make_orders()
    found: dict[str, Any] = {"eos": sorted(ModelFiles.open(first).eos)}
    limits = VllmLimits(batch_max=16, step_tokens=STEP_TOKENS, cache_bytes=CACHE_BYTES)
    engine = VllmEngine(device="cpu", limits=limits)
    engine.load(first)
    core = engine._llm.engine_core.engine_core
    runner = engine._llm.model_executor.driver_worker.worker.model_runner
    put_aside = count_calls(core.scheduler, "_preempt_request")

    done = list(engine.generate(orders, LONG))
    found["runner"] = type(runner).__module__
    found["put_aside"], found["step_tokens"] = len(put_aside), STEP_TOKENS
    found["longest_prompt"] = max(len(order.prompt) for order in orders)
    found["long_read"] = read(engine, orders, done, LONG)

    done = list(engine.generate(orders, SAMPLING))
    found["first"], found["finishes"] = get_tokens(done), sorted({completion.finish.name for completion in done})
    found["read"] = read(engine, orders, done, SAMPLING)

    greedy = Sampling(temperature=0.0, eos=EOS, tokens_max=20)
    found["greedy_read"] = read(engine, orders, list(engine.generate(orders, greedy)), greedy)

    turns = iter([True] * 20)
    some = list(engine.generate(orders, SAMPLING, lambda: next(turns, False)))
    found["abandoned"] = len(some)

    found |= join_running_batch(engine, orders)
    found["turns"] = read_in_turns(engine, orders)
    found["shared"] = count_prefill(engine, runner)

    execute = run_out_of_memory(runner, most=3)
    found["short_of_memory"] = get_tokens(list(engine.generate(orders, SAMPLING)))
    found["room_left"] = engine._batch_limit
    runner.execute_model = execute
    run_out_of_memory(runner, most=0)
    found["no_memory"] = refusal(lambda: list(engine.generate(orders[:1], SAMPLING)))
    runner.execute_model = execute

    engine.load(folder / "second")
    found["second"] = get_tokens(list(engine.generate(orders, SAMPLING)))
    engine.load(first)
    found["first_again"] = get_tokens(list(engine.generate(orders, SAMPLING)))
    engine.load(folder / "partly", frozenset({changed}))
    found["partly"] = get_tokens(list(engine.generate(orders, SAMPLING)))
    engine.load(folder / "partly")
    found["partly_whole"] = get_tokens(list(engine.generate(orders, SAMPLING)))

    foreign = TokenSequence(number=0, prompt=orders[0].prompt, output=np.array([32], np.int32), seed=0)
    found["foreign_token"] = refusal(lambda: list(engine.read([foreign], SAMPLING)))
    long = GenerateRequest(number=0, prompt=np.zeros(700, np.int32), seed=0)
    found["too_long"] = refusal(lambda: list(engine.generate([long], SAMPLING)))

    engine.load(folder / "deeper")
    found["deeper_read"] = read(engine, orders, list(engine.generate(orders, SAMPLING)), SAMPLING)
    found["small_heads"] = refusal(lambda: engine.load(folder / "small_heads"))
    found["nothing_whole"] = refusal(lambda: list(engine.generate(orders, SAMPLING)))
    print(json.dumps(found))


def press_split_model(folder: Path) -> None:
    """A cache that is too small for the requests, on two ranks."""
    orders = make_orders()
    limits = VllmLimits(batch_max=16, step_tokens=STEP_TOKENS, cache_bytes=CACHE_BYTES, tensor_parallel=2)
    engine = VllmEngine(device="cpu", limits=limits)
    engine.load(folder / "first")
    put_aside = count_calls(engine._llm.engine_core.engine_core.scheduler, "_preempt_request")
    done = list(engine.generate(orders, LONG))
    found: dict[str, Any] = {
        "put_aside": len(put_aside),
        "tokens": get_tokens(done),
        "read": read(engine, orders, done, LONG),
    }
    reference = TorchEngine(device="cpu", precision="float32", batch_max=4)
    reference.load(folder / "first")
    found["torch"] = get_tokens(list(reference.generate(orders, LONG)))
    print(json.dumps(found), flush=True)
    engine._llm.engine_core.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 2 else press_split_model(Path(sys.argv[1]))
