"""How many operations torch is asked for, which on a GPU is what a step costs the host."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from prime_node.engine.interface import GenerateRequest, Sampling
from prime_node.engine.torch.engine import TorchEngine

SHORT, LONG = 3, 19
"""Tokens of the two runs that are compared: their difference is steps alone."""


class DispatchCounter(TorchDispatchMode):
    """Counts while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def count_dispatches(work: Callable[[], object]) -> int:
    with DispatchCounter() as counter:
        work()
    return counter.count


def count_step_dispatches(engine: TorchEngine, prompts: Sequence[int]) -> float:
    """Of one step that gives each of these prompts, by their lengths, a token."""
    requests = [
        GenerateRequest(number=number, prompt=np.full(length, 9, np.int32), seed=number)
        for number, length in enumerate(prompts)
    ]

    def generate(tokens: int) -> None:
        sampling = Sampling(temperature=1.0, eos=frozenset(), tokens_max=tokens)
        assert len(list(engine.generate(requests, sampling))) == len(requests)

    short, long = (count_dispatches(lambda tokens=tokens: generate(tokens)) for tokens in (SHORT, LONG))
    return (long - short) / (LONG - SHORT)


def use_operations_of_a_gpu(replace: Callable[[str, Any], object]) -> None:
    """Let the engine on a CPU ask for what it asks a GPU without Triton for. `replace` sets an attribute by path."""
    from prime_node.engine.torch.attention import ATTENTION_CALL_COST
    from prime_node.engine.torch.proof_pages import StagedPages
    from prime_node.engine.torch.sampling import TorchSampler

    def open_staged(count: int, *, rows: int, hidden: int, device: torch.device, builder: Any) -> StagedPages:
        return StagedPages(
            torch.empty((count, 32, hidden), dtype=torch.bfloat16), rows=rows, device=device, builder=builder
        )

    for path, value in (
        ("kernels.get_kernels", lambda: None),
        ("attention.get_decode_kernel", lambda: None),
        ("attention.get_prefill_kernel", lambda: None),
        ("attention.ATTENTION_CALL_COST", {"cpu": ATTENTION_CALL_COST["cuda"]}),
        ("sampling.choose_sampler", lambda device: TorchSampler()),
        ("generation.open_pages", open_staged),
    ):
        replace(f"prime_node.engine.torch.{path}", value)
