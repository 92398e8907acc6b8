"""The logits processor and worker extension that vLLM loads by name. They draw tokens and record hidden states.

vLLM samples greedily in float32 from what the logits processor returns. The winner is therefore found before, in
float64 and with the noise of prime_protocol.proofs.sampling, and returned as logits of 1 for the winner and 0 for all
others: vLLM then picks that token, whatever its own rounding or tie-breaking. vLLM calls the model once per step for
all requests. Hidden states are taken right after that, outside every graph and compiled part: the state that produces
a token when generating, the states of all output tokens in a forward pass. This relies on the layout of vLLM's first
model runner; see `check_runner`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from vllm.v1.sample.logits_processor import LogitsProcessor

from prime_node.engine.interface import ForwardResult, Sampling, TokenSequence
from prime_node.engine.torch.draws import Draws
from prime_node.engine.torch.model import FolderTensors
from prime_node.engine.torch.sampling import check_scores, choose_tokens, compute_scores
from prime_node.engine.vllm.records import ForwardRecord, GenerationRecord
from prime_protocol.errors import LocalError
from prime_protocol.proofs.toploc import tensor_to_bits

PROCESSOR_CLASS = f"{__name__}:SeededSampling"

DrawTokens = Callable[[Tensor], Tensor | None]
"""From the logits of a step to the token of each row; None during forward passes."""


class SeededSampling(LogitsProcessor):
    """Hands each step's logits to the worker, which knows the request of each row and sets `draw`."""

    draw: DrawTokens | None = None

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        """vLLM passes these arguments; none is needed."""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        """Not needed: the worker reads vLLM's batch when it draws the tokens."""

    def apply(self, logits: Tensor) -> Tensor:
        tokens = self.draw(logits) if self.draw else None
        if tokens is None:
            return logits
        return logits.zero_().scatter_(1, tokens[:, None], 1.0)


WORKER_CLASS = f"{__name__}.PrimeWorker"
LOGITS_MAX = 2**24
"""Logits at once in a forward pass: 64 MiB in float32."""
RUNNER_NEEDS = (
    "execute_model",
    "execute_model_state",
    "input_batch",
    "requests",
    "query_start_loc",
    "discard_request_mask",
)
INPUT_BATCH_NEEDS = ("req_ids", "num_computed_tokens_cpu", "logitsprocs")


class PrimeWorker:
    """Methods added to vLLM's worker, called by name. The prefix prime_ avoids clashes with vLLM's own methods."""

    model_runner: Any
    rank: int

    def prime_install(self, hidden: int) -> None:
        """Wrap the model runner. Called once, before the first request."""
        runner = self.model_runner
        check_runner(runner)
        self.prime_hidden = hidden
        self.prime_is_recorder = self.rank == 0
        """All ranks of a split model draw the same tokens from the same logits; the first one records."""
        self.prime_sampling = Sampling(temperature=0.0, eos=frozenset(), tokens_max=1)
        self.prime_reading_sampling = self.prime_sampling
        self.prime_seeds: dict[str, int] = {}
        self.prime_writings: dict[str, GenerationRecord] = {}
        self.prime_readings: dict[str, ForwardRecord] = {}
        self.prime_states: Tensor | None = None
        execute = runner.execute_model

        def execute_and_see(*args: Any, **kwargs: Any) -> Any:
            output = execute(*args, **kwargs)
            if (state := runner.execute_model_state) is not None:
                self.prime_states = state.sample_hidden_states
                self.prime_see(state.hidden_states)
            return output

        runner.execute_model = execute_and_see
        find_sampling(runner).draw = self.prime_draw

    def prime_get_attention(self) -> str:
        """Names of the attention backends that vLLM has chosen for the model's layers."""
        groups = [group for kind in self.model_runner.attn_groups for group in kind]
        return " ".join(sorted({group.backend.get_name() for group in groups}))

    def prime_load(self, folder: str, names: frozenset[str] | None) -> None:
        """Load weights in place. `names` must name whole layers, as vLLM fuses some of their tensors."""
        worker: Any = self
        tensors = FolderTensors.open(Path(folder))
        wanted = [name for name in tensors.tensors if names is None or name in names]
        worker.reload_weights(weights_iterator=((name, tensors.get(name)) for name in wanted))
        # A tied output layer is not in the checkpoint, so vLLM does not process it again. On a CPU it would keep using
        # the old weights, which were packed when the model was started.
        head = getattr(self.model_runner.get_model(), "lm_head", None)
        if head is not None and hasattr(head, "quant_method"):
            head.quant_method.process_weights_after_loading(head)

    # --- Generation -------------------------------------------------------------------------------------------------

    def prime_begin_writing(self, sampling: Sampling) -> None:
        """Set the sampling of the next completions and drop the records of earlier ones."""
        self.prime_sampling = sampling
        self.prime_seeds.clear()
        self.prime_writings.clear()

    def prime_forget(self, names: Sequence[str]) -> None:
        """Drop the records of aborted requests."""
        for name in names:
            for table in (self.prime_seeds, self.prime_writings, self.prime_readings):
                table.pop(name, None)

    def prime_write(self, name: str, seed: int) -> None:
        """Register a request whose tokens are drawn here."""
        self.prime_seeds[name] = seed
        self.prime_writings[name] = GenerationRecord(self.prime_hidden)

    def prime_take(self, name: str) -> GenerationRecord:
        """The record of a finished request."""
        del self.prime_seeds[name]
        return self.prime_writings.pop(name)

    def prime_draw(self, logits: Tensor) -> Tensor | None:
        """The tokens of this step, one for each row."""
        if not self.prime_seeds:
            return None
        runner, states = self.model_runner, self.prime_states
        names = runner.input_batch.req_ids
        if states is None or not len(names) == len(logits) == len(states):
            raise LocalError("vLLM draws other than one token for each request: this version is not supported")
        positions = [len(runner.requests[name].output_token_ids) for name in names]
        # A sequence that is read in the same step gets a token as well, which no record takes: any seed will do.
        seeds = np.array([self.prime_seeds.get(name, 0) for name in names], np.uint64)
        draws = Draws(self.prime_sampling.temperature, seeds, np.array(positions, np.int64))
        tokens, logprobs = choose_tokens(logits, draws)
        if not self.prime_is_recorder:
            return torch.tensor(tokens, device=logits.device)
        hidden_bits = tensor_to_bits(states.to(torch.bfloat16))
        # A request with an unfinished prefill gets a token too, which vLLM discards.
        unread = runner.discard_request_mask.np[: len(names)].tolist()
        for row, name in enumerate(names):
            if not unread[row] and name in self.prime_writings:
                self.prime_writings[name].add(
                    position=positions[row], token=tokens[row], logprob=logprobs[row], hidden_bits=hidden_bits[row]
                )
        return torch.tensor(tokens, device=logits.device)

    # --- Forward passes ---------------------------------------------------------------------------------------------

    def prime_begin_reading(self, sampling: Sampling) -> None:
        """Set the sampling that the next sequences are compared with, and drop the records of earlier ones."""
        self.prime_reading_sampling = sampling
        self.prime_readings.clear()

    def prime_read(self, name: str, sequence: TokenSequence) -> None:
        """Register a request that feeds a sequence."""
        self.prime_readings[name] = ForwardRecord(sequence)

    def prime_take_reading(self, name: str) -> ForwardResult | None:
        """None on the ranks that keep no records; only the first one's reply is sent."""
        found = self.prime_readings.pop(name)
        return found.finish() if self.prime_is_recorder else None

    def prime_see(self, states: Tensor) -> None:
        """Record the hidden states and scores of this step's output tokens."""
        batch, starts = self.model_runner.input_batch, self.model_runner.query_start_loc.np
        parts: list[tuple[ForwardRecord, range, int]] = []
        for row, name in enumerate(batch.req_ids):
            if (result := self.prime_readings.get(name)) is None:
                continue
            first, count = int(batch.num_computed_tokens_cpu[row]), int(starts[row + 1] - starts[row])
            wanted = result.wanted(first, first + count)
            if len(wanted):
                parts.append((result, wanted, int(starts[row]) + wanted.start + result.first - first))
        if not parts:
            return
        places = np.concatenate([np.arange(start, start + len(wanted)) for _, wanted, start in parts])
        rows = states[torch.from_numpy(places).to(states.device)]
        numbers = self.prime_judge(rows, [(result.sequence, wanted) for result, wanted, _ in parts])
        if not self.prime_is_recorder:
            return
        hidden_bits = tensor_to_bits(rows.to(torch.bfloat16))
        cuts = np.cumsum([len(wanted) for _, wanted, _ in parts])[:-1]
        for (result, _, _), bits, part in zip(
            parts, np.split(hidden_bits, cuts), np.split(numbers, cuts, axis=1), strict=True
        ):
            result.add(bits, part)

    def prime_judge(self, rows: Tensor, parts: Sequence[tuple[TokenSequence, range]]) -> NDArray[np.float32]:
        """Margins, log-probs and end log-probs of the output tokens that these hidden states produced."""
        tokens = np.concatenate([sequence.output[wanted.start : wanted.stop] for sequence, wanted in parts]).astype(
            np.int64
        )
        seeds = np.concatenate([np.full(len(wanted), sequence.seed, np.uint64) for sequence, wanted in parts])
        positions = np.concatenate([np.arange(wanted.start, wanted.stop) for _, wanted in parts])
        sampling, model = self.prime_reading_sampling, self.model_runner.get_model()
        step = max(1, LOGITS_MAX // self.model_runner.model_config.get_vocab_size())
        numbers = []
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            logits = model.compute_logits(rows[part]).float()
            drawn = torch.from_numpy(tokens[part]).to(rows.device)
            draws = Draws(sampling.temperature, seeds[part], positions[part])
            numbers.append(compute_scores(logits, drawn, draws, sampling.eos))
        return check_scores(torch.cat(numbers, dim=1))


def check_runner(runner: Any) -> None:
    """LocalError if this version of vLLM has another layout than the code here relies on."""
    lacks = [name for name in RUNNER_NEEDS if not hasattr(runner, name)]
    lacks += [name for name in INPUT_BATCH_NEEDS if not lacks and not hasattr(runner.input_batch, name)]
    if lacks:
        raise LocalError(
            f"this version of vLLM is not supported (it has no {lacks[0]}): install vllm 0.32, or use --engine torch"
        )


def find_sampling(runner: Any) -> SeededSampling:
    for processor in runner.input_batch.logitsprocs.all:
        if isinstance(processor, SeededSampling):
            return processor
    raise LocalError("vLLM did not load our logits processor: install vllm 0.32, or use --engine torch")
