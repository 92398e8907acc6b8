"""What an engine is to the node: the values that go in and come out, and the few things it can be asked to do.

An engine runs in a child process (see child.py), so nothing here knows of the daemon. Tokens are int32, log-probs
float32, hidden states bf16 patterns; the sampling is prime_protocol.proofs.sampling's, position 0 being the first
output
token.

A completion while it is being written: what it answers to and what it has so far. Pure.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from prime_protocol.errors import LocalError
from prime_protocol.rollouts.rollout import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What a loaded engine is."""

    engine: str
    """`torch` or `vllm`."""
    device: str
    precision: str
    """What it computes in: float32 or bfloat16. Hidden states are cast to bf16 for proofs only."""
    hidden: int
    vocabulary: int
    context_max: int
    """Most tokens of prompt and output together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen, and where a completion ends."""

    temperature: float
    """0 is greedy."""
    eos: frozenset[int]
    """A completion ends with the first of these; it is part of the completion."""
    tokens_max: int
    """Most output tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerateRequest:
    """One completion to generate."""

    number: int
    """The caller's; it comes back with the completion."""
    prompt: NDArray[np.int32]
    seed: int
    """Unsigned 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """What was generated for an order."""

    number: int
    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    """Log-softmax of logits / temperature at each token (of the logits themselves where greedy); never above 0."""
    finish: FinishReason
    proofs: bytes
    """TOPLOC proofs of the hidden states that gave each output token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenSequence:
    """A finished sequence to read again."""

    number: int
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardResult:
    """What one pass over a text says of each of its output tokens."""

    number: int
    hidden_bits: NDArray[np.uint16]
    """bf16 patterns (tokens, hidden) of the states that gave each output token."""
    margins: NDArray[np.float32]
    """By how much each token loses against the replayed winner."""
    logprobs: NDArray[np.float32]
    eos_logprobs: NDArray[np.float32]
    """Log-prob of the likeliest end token at each place; the lowest finite number where there is no end token."""
    bf16_hidden_bits: NDArray[np.uint16] | None = None
    bf16_logprobs: NDArray[np.float32] | None = None
    """The same as bfloat16 rounds it here, in a run in bfloat16: what an honest worker's may be noisy by."""


class Engine(Protocol):
    """A model on a device. Not thread-safe: one caller at a time."""

    @property
    def facts(self) -> EngineFacts: ...

    def load(self, checkpoint: Path, changed: frozenset[str] | None = None) -> None:
        """Take the weights of a checkpoint folder. Again with another one: swapped in place, nothing is restarted.

        `changed` names the tensors that differ from what is loaded, where a delta said so; None: all may.
        LocalError where the folder does not fit this machine or this engine.
        """
        ...

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        """Completions in the order they get done. Ends early once `is_wanted` says no."""
        ...

    def read(self, sequences: Sequence[TokenSequence], sampling: Sampling) -> Iterator[ForwardResult]:
        """One prefill for each text, batched, in any order."""
        ...


@dataclass(slots=True, eq=False)
class Generation:
    """One order on its way. It can leave a batch and join another one at any token."""

    request: GenerateRequest
    prompt: list[int]
    proof_page: int | None = None
    """Where its hidden states wait for their proof, once it has joined a batch."""
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    def append(self, token: int, logprob: float) -> None:
        self.output.append(token)
        self.logprobs.append(logprob)

    def get_finish(self, sampling: Sampling) -> FinishReason:
        """Why it ends here."""
        return FinishReason.EOS if self.output[-1] in sampling.eos else FinishReason.LENGTH

    def complete(self, finish: FinishReason, proofs: bytes) -> Completion:
        return Completion(
            number=self.request.number,
            tokens=np.array(self.output, np.int32),
            logprobs=np.array(self.logprobs, np.float32),
            finish=finish,
            proofs=proofs,
        )


@dataclass(slots=True, eq=False)
class BatchArrays:
    """The rows of a batch as arrays, so that a step needs no loop over them. Good until somebody joins or leaves."""

    generations: Sequence[Generation]
    seeds: NDArray[np.uint64]
    pages: NDArray[np.int64]
    written: NDArray[np.int64]
    """Tokens that each has so far."""

    @classmethod
    def of(cls, generations: Sequence[Generation]) -> "BatchArrays":
        """Everybody in a batch has a page."""
        return cls(
            generations,
            np.array([generation.request.seed for generation in generations], np.uint64),
            np.array([generation.proof_page for generation in generations], np.int64),
            np.array([len(generation.output) for generation in generations], np.int64),
        )

    def find_ended(self, tokens: Sequence[int], sampling: Sampling) -> list[int]:
        """Rows that end with the tokens they have just got."""
        if self.written.max() >= sampling.tokens_max:
            is_long = (self.written >= sampling.tokens_max).tolist()
            return [row for row, token in enumerate(tokens) if is_long[row] or token in sampling.eos]
        return [row for row, token in enumerate(tokens) if token in sampling.eos]


def verify_requests(
    requests: Sequence[GenerateRequest], sampling: Sampling, *, vocabulary: int, context_max: int
) -> None:
    """LocalError where the model cannot answer: a completion cut short by the context would look like a lie."""
    if sampling.tokens_max < 1:
        raise LocalError(f"tokens_max is {sampling.tokens_max}, it must be at least 1")
    for request in requests:
        if not len(request.prompt):
            raise LocalError(f"request {request.number} has no prompt; it needs at least one token")
        if request.prompt.min() < 0 or request.prompt.max() >= vocabulary:
            raise LocalError(
                f"the prompt of request {request.number} has tokens outside the vocabulary of {vocabulary}"
            )
        if len(request.prompt) + sampling.tokens_max > context_max:
            raise LocalError(
                f"request {request.number} has {len(request.prompt)} prompt tokens and may generate"
                f" {sampling.tokens_max}; the model's context is {context_max} tokens"
            )
