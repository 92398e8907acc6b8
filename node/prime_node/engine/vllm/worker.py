"""The logits processor and worker extension that vLLM loads by name. They draw tokens and record hidden states.

vLLM calls the model once per step for all requests. Hidden states are taken right after that, outside every graph and
compiled part: the state that produces a token when generating, the states of all output tokens in a forward pass. Then
the tokens are drawn here, in float64 and with the noise of prime_protocol.proofs.sampling. vLLM's first runner samples
greedily from logits, so it gets 1 for the drawn token and 0 for all others: it then picks that token, whatever its own
rounding or tie-breaking. Its second runner takes the tokens as they are. runners.py has the hooks on both.
"""

from collections.abc import Sequence
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
from prime_node.engine.vllm.runners import VLLM_ADVICE, DrawTokens, StepBatch, open_runner
from prime_protocol.errors import LocalError
from prime_protocol.proofs.toploc import tensor_to_bits

PROCESSOR_CLASS = f"{__name__}:SeededSampling"


class SeededSampling(LogitsProcessor):
    """Hands each step's logits to the worker, which knows the request of each row and sets `draw`."""

    prime_draw: DrawTokens | None = None

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        """vLLM passes these arguments; none is needed."""

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: Any) -> None:
        """Not needed: the worker reads vLLM's batch when it draws the tokens."""

    def apply(self, logits: Tensor) -> Tensor:
        tokens = self.prime_draw(logits) if self.prime_draw else None
        if tokens is None:
            return logits
        return logits.zero_().scatter_(1, torch.tensor(tokens, device=logits.device)[:, None], 1.0)


WORKER_CLASS = f"{__name__}.PrimeWorker"
LOGITS_MAX = 2**24
"""Logits at once in a forward pass: 64 MiB in float32."""


class PrimeWorker:
    """Methods added to vLLM's worker, called by name. The prefix prime_ avoids clashes with vLLM's own methods."""

    model_runner: Any
    rank: int

    def prime_install(self, hidden: int) -> None:
        """Wrap the model runner. Called once, before the first request."""
        runner = self.model_runner
        self.prime_hooks = open_runner(runner)
        self.prime_hidden = hidden
        self.prime_is_recorder = self.rank == 0
        """All ranks of a split model draw the same tokens from the same logits; the first one records."""
        self.prime_sampling = Sampling(temperature=0.0, eos=frozenset(), tokens_max=1)
        self.prime_reading_sampling = self.prime_sampling
        self.prime_seeds: dict[str, tuple[int, int]] = {}
        """Of each request that is generated: its seed and the tokens of its prompt."""
        self.prime_writings: dict[str, GenerationRecord] = {}
        self.prime_readings: dict[str, ForwardRecord] = {}
        self.prime_step: StepBatch | None = None
        execute = runner.execute_model

        def execute_and_see(*args: Any, **kwargs: Any) -> Any:
            output = execute(*args, **kwargs)
            self.prime_step = self.prime_hooks.describe_step()
            if self.prime_step is not None:
                self.prime_see(self.prime_step)
            return output

        runner.execute_model = execute_and_see
        self.prime_hooks.set_draw(self.prime_draw)

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

    def prime_write(self, name: str, seed: int, prompt_tokens: int) -> None:
        """Register a request whose tokens are drawn here."""
        self.prime_seeds[name] = seed, prompt_tokens
        self.prime_writings[name] = GenerationRecord(self.prime_hidden)

    def prime_take(self, name: str) -> GenerationRecord:
        """The record of a finished request."""
        del self.prime_seeds[name]
        return self.prime_writings.pop(name)

    def prime_draw(self, logits: Tensor) -> list[int] | None:
        """The tokens of this step, one for each row."""
        step = self.prime_step
        if not self.prime_seeds:
            return None
        if step is None or not len(step.names) == len(logits) == len(step.outputs):
            raise LocalError(f"vLLM draws other than one token for each request: {VLLM_ADVICE}")
        # A sequence that is read in the same step gets a token as well, which no record takes: any seed will do.
        seeds, prompts = np.array([self.prime_seeds.get(name, (0, 0)) for name in step.names], np.uint64).T
        positions = step.lengths - prompts.astype(np.int64)
        draws = Draws(self.prime_sampling.temperature, np.ascontiguousarray(seeds), positions.clip(min=0))
        tokens, logprobs = choose_tokens(logits, draws)
        if not self.prime_is_recorder:
            return tokens
        hidden_bits = tensor_to_bits(step.outputs.to(torch.bfloat16))
        unread = step.unfinished.tolist()
        for row, name in enumerate(step.names):
            if not unread[row] and name in self.prime_writings:
                self.prime_writings[name].add(
                    position=int(positions[row]), token=tokens[row], logprob=logprobs[row], hidden_bits=hidden_bits[row]
                )
        return tokens

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

    def prime_see(self, step: StepBatch) -> None:
        """Record the hidden states and scores of this step's output tokens."""
        parts: list[tuple[ForwardRecord, range, int]] = []
        for row, name in enumerate(step.names):
            if (result := self.prime_readings.get(name)) is None:
                continue
            first = int(step.computed[row])
            wanted = result.wanted(first, int(step.lengths[row]))
            if len(wanted):
                parts.append((result, wanted, int(step.starts[row]) + wanted.start + result.first - first))
        if not parts:
            return
        places = np.concatenate([np.arange(start, start + len(wanted)) for _, wanted, start in parts])
        rows = step.hidden[torch.from_numpy(places).to(step.hidden.device)]
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
