"""Our hooks on vLLM's two model runners: what a step computed, and the place where its tokens are drawn.

vLLM's default on GPUs is its second runner; the first serves what the second does not support, and CPUs without Triton.
Both compute all requests in one call of the model and then sample. The worker gets the same `StepBatch` from either.
Must not import vLLM: the tests of the names below read the sources of a wheel that cannot run here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prime_protocol.errors import LocalError

VLLM_TESTED = ("0.32.0", "0.33.0")
"""Oldest and newest version whose hooks were checked, on 2026-11-19: 0.32 ran, both runners, on a CPU; of 0.33, the
newest wheel for GPUs on that day, the sources were read."""
VLLM_ADVICE = f"install vllm {VLLM_TESTED[0]} to {VLLM_TESTED[1]}, or use --engine torch"

DrawTokens = Callable[[Tensor], list[int] | None]
"""From the logits of a step to the token of each row; None: no row is drawn by us."""


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """What one call of the model computed, by request."""

    names: list[str]
    """vLLM's internal request ids."""
    computed: NDArray[np.int64]
    """Tokens of each request that were computed before this step."""
    starts: NDArray[np.int64]
    """Where each request's hidden states begin, and the end of the last."""
    unfinished: NDArray[np.bool_]
    """Requests whose prompt goes on in the next step. vLLM discards the token that is drawn for them."""
    hidden: Tensor
    """Of all tokens of this step; rows after the last request's are padding."""
    outputs: Tensor
    """Of each request's last token: what its next token is drawn from."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each request that are computed after this step."""
        return self.computed + np.diff(self.starts)


class RunnerHooks(Protocol):
    """One of vLLM's model runners."""

    def describe_step(self) -> StepBatch | None:
        """The step that the model has just computed; None if it computed nothing. The states are overwritten by the
        next step."""
        ...

    def set_draw(self, draw: DrawTokens) -> None:
        """From now on `draw` names the tokens."""
        ...


class FirstRunner:
    """vllm/v1/worker/gpu_model_runner.py. Samples greedily from what our logits processor makes of the logits."""

    NEEDS = ("execute_model", "execute_model_state", "input_batch", "query_start_loc", "discard_request_mask")
    BATCH_NEEDS = ("req_ids", "num_computed_tokens_cpu", "logitsprocs")

    def __init__(self, runner: Any) -> None:
        require(runner, self.NEEDS)
        require(runner.input_batch, self.BATCH_NEEDS)
        self._runner = runner

    def describe_step(self) -> StepBatch | None:
        runner = self._runner
        if (state := runner.execute_model_state) is None:
            return None
        names = list(runner.input_batch.req_ids)
        count = len(names)
        return StepBatch(
            names=names,
            computed=runner.input_batch.num_computed_tokens_cpu[:count].astype(np.int64),
            starts=runner.query_start_loc.np[: count + 1].astype(np.int64),
            unfinished=runner.discard_request_mask.np[:count].astype(bool),
            hidden=state.hidden_states,
            outputs=state.sample_hidden_states,
        )

    def set_draw(self, draw: DrawTokens) -> None:
        for processor in self._runner.input_batch.logitsprocs.all:
            if hasattr(processor, "prime_draw"):
                processor.prime_draw = draw
                return
        raise LocalError(f"vLLM did not load our logits processor: {VLLM_ADVICE}")


class SecondRunner:
    """vllm/v1/worker/gpu/model_runner.py. Takes the tokens from us in place of its own sampling."""

    NEEDS = ("execute_model", "execute_model_state", "sampler", "req_states")
    STATE_NEEDS = ("input_batch", "hidden_states")
    BATCH_NEEDS = (
        "req_ids",
        "num_computed_tokens_np",
        "num_scheduled_tokens",
        "prefill_len_np",
        "query_start_loc_np",
        "logits_indices",
    )

    def __init__(self, runner: Any) -> None:
        require(runner, self.NEEDS)
        require(runner.sampler, ("sample",))
        if getattr(runner, "batch_sharder", None) is not None:
            raise LocalError("vLLM shards its sampling over the ranks: set enable_batch_sharded_sampling to false")
        self._runner = runner

    def describe_step(self) -> StepBatch | None:
        state = self._runner.execute_model_state
        if state is None:
            return None
        require(state, self.STATE_NEEDS)
        batch = state.input_batch
        require(batch, self.BATCH_NEEDS)
        count = len(batch.req_ids)
        computed = batch.num_computed_tokens_np[:count].astype(np.int64)
        lengths = computed + batch.num_scheduled_tokens[:count]
        return StepBatch(
            names=list(batch.req_ids),
            computed=computed,
            starts=batch.query_start_loc_np[: count + 1].astype(np.int64),
            unfinished=lengths < batch.prefill_len_np[:count],
            hidden=state.hidden_states,
            outputs=state.hidden_states[batch.logits_indices],
        )

    def set_draw(self, draw: DrawTokens) -> None:
        sampler, sample = self._runner.sampler, self._runner.sampler.sample

        def sample_ours(logits: Tensor, *args: Any, **kwargs: Any) -> Any:
            tokens = draw(logits)
            if tokens is None:
                return sample(logits, *args, **kwargs)
            return torch.tensor(tokens, dtype=torch.int64, device=logits.device), logits

        sampler.sample = sample_ours


def open_runner(runner: Any) -> RunnerHooks:
    """LocalError if this version of vLLM has another layout than the code here relies on."""
    return SecondRunner(runner) if hasattr(runner, "req_states") else FirstRunner(runner)


def require(owner: Any, names: tuple[str, ...]) -> None:
    lacks = [name for name in names if not hasattr(owner, name)]
    if lacks:
        raise LocalError(
            f"this version of vLLM is not supported ({type(owner).__name__} has no {lacks[0]}): {VLLM_ADVICE}"
        )
