"""The interface of an engine: requests and sequences in, completions and forward results out. Pure.

An engine runs in a child process (see child.py), so nothing here knows the daemon. Tokens are int32, log-probs float32,
hidden states bf16 bit patterns. The sampling is prime_protocol.proofs.sampling's; position 0 is the first output token.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from prime_protocol.errors import LocalError
from prime_protocol.rollouts.rollout import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Properties of a loaded engine."""

    engine: str
    """`torch` or `vllm`."""
    device: str
    precision: str
    """float32 or bfloat16. In float32, hidden states are cast to bf16 for proofs only."""
    hidden: int
    vocabulary: int
    context_max: int
    """Maximum tokens of prompt and output together."""
    version: str = ""
    """Of the library that computes: torch, or vLLM."""
    attention: str = ""
    """Name of the attention backend."""
    tensor_parallel: int = 1
    """Devices that the model is split over."""
    device_model: str = ""
    """Such as NVIDIA H100 80GB HBM3, or the instruction set of a CPU."""
    driver: str = ""
    """Of the device, with the version of CUDA or ROCm; the model of a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCapacity:
    """How much a loaded engine can generate at once. It may shrink while the engine runs out of memory."""

    sequences_max: int
    """Most completions generated at once."""
    kv_tokens: int
    """Tokens of prompts and outputs that the KV cache holds; 0: unknown."""


NO_CAPACITY = EngineCapacity(sequences_max=0, kv_tokens=0)
"""Of an engine without a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineQueue:
    """The completions that an engine has been asked for and has not finished."""

    running: int = 0
    """Generated at each step."""
    waiting: int = 0
    """For a place in the running batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are chosen, and where a completion ends."""

    temperature: float
    """0 is greedy."""
    eos: frozenset[int]
    """A completion ends with the first of these tokens, which is part of the completion."""
    tokens_max: int
    """Maximum output tokens."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerateRequest:
    """One completion to generate."""

    number: int
    """Chosen by the caller; the completion carries it."""
    prompt: NDArray[np.int32]
    seed: int
    """Unsigned 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """The output for one request."""

    number: int
    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    """Log-softmax of logits / temperature at each token (of the plain logits if greedy); never above 0."""
    finish: FinishReason
    proofs: bytes
    """TOPLOC proofs of the hidden states that produced each output token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenSequence:
    """A finished prompt and output, to be checked with one forward pass."""

    number: int
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    seed: int
    is_read_twice: bool = True
    """In a bfloat16 run: whether to read it in both precisions. An engine for which that is no more work reads all so.
    """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardResult:
    """What one forward pass over a sequence gives for each output token."""

    number: int
    hidden_bits: NDArray[np.uint16]
    """bf16 bit patterns (tokens, hidden) of the states that produced each output token."""
    margins: NDArray[np.float32]
    """By how much each token's score is below that of the replayed winner."""
    logprobs: NDArray[np.float32]
    eos_logprobs: NDArray[np.float32]
    """Log-prob of the likeliest end token at each position; the lowest finite number if there is no end token."""
    bf16_hidden_bits: NDArray[np.uint16] | None = None
    bf16_logprobs: NDArray[np.float32] | None = None
    """In a bfloat16 run: the same values as this machine computes them in bfloat16. Their difference from the values
    above is the rounding noise that an honest worker may have."""


class Engine(Protocol):
    """A model on a device. Not thread-safe: one caller at a time.

    Completions are generated together, a token of each at every `step`. Requests may be added between any two steps,
    so the running batch never has to drain. Forward passes may be run between two steps as well.
    """

    @property
    def facts(self) -> EngineFacts: ...

    @property
    def capacity(self) -> EngineCapacity: ...

    @property
    def queue(self) -> EngineQueue: ...

    def load(self, checkpoint: Path, changed: frozenset[str] | None = None) -> None:
        """Load the weights of a checkpoint folder. A second call swaps the weights in place, without a restart.

        Call it only while nothing is queued: a completion must come from one checkpoint. `changed` names the tensors
        that differ from the loaded ones, if a delta says so; None: all may. LocalError if the checkpoint does not fit
        this machine or this engine.
        """
        ...

    def add(self, requests: Sequence[GenerateRequest], sampling: Sampling) -> None:
        """Queue completions. Their numbers differ from all that are queued, and so does no sampling.

        LocalError if the model cannot answer one of them; then none is queued.
        """
        ...

    def step(self) -> list[Completion]:
        """Generate a token for every running completion; returns the finished ones whose proofs are built.

        LocalError if memory does not suffice for a single completion.
        """
        ...

    def cancel(self, numbers: Collection[int]) -> None:
        """Drop these completions. Unknown and finished ones are ignored."""
        ...

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        """Completions in the order in which they finish, with nothing else queued: see batches.generate_batch."""
        ...

    def read(self, sequences: Sequence[TokenSequence], sampling: Sampling) -> Iterator[ForwardResult]:
        """One forward pass over each sequence, batched, in any order."""
        ...


@dataclass(slots=True, eq=False)
class Generation:
    """One request while its output is generated. It can leave a batch and join another one at any token."""

    request: GenerateRequest
    prompt: list[int]
    prompt_key: bytes
    """A digest of the prompt: completions with the same one share its prefill."""
    proof_page: int | None = None
    """The page that holds its hidden states until they become a proof, once it has joined a batch."""
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, request: GenerateRequest) -> "Generation":
        return cls(request, request.prompt.tolist(), sha256(request.prompt.tobytes()).digest())

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
        """The reason why it ends at its last token."""
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
    """The rows of a batch as arrays, so that a step needs no loop over them. Valid until a row joins or leaves."""

    generations: Sequence[Generation]
    seeds: NDArray[np.uint64]
    pages: NDArray[np.int64]
    written: NDArray[np.int64]
    """Output tokens of each row so far."""

    @classmethod
    def of(cls, generations: Sequence[Generation]) -> "BatchArrays":
        """Each of these is in a batch, so it has a page."""
        return cls(
            generations,
            np.array([generation.request.seed for generation in generations], np.uint64),
            np.array([generation.proof_page for generation in generations], np.int64),
            np.array([len(generation.output) for generation in generations], np.int64),
        )

    def find_ended(self, tokens: Sequence[int], sampling: Sampling) -> list[int]:
        """Rows that end with these new tokens."""
        if self.written.max() >= sampling.tokens_max:
            is_long = (self.written >= sampling.tokens_max).tolist()
            return [row for row, token in enumerate(tokens) if is_long[row] or token in sampling.eos]
        return [row for row, token in enumerate(tokens) if token in sampling.eos]


def verify_requests(
    requests: Sequence[GenerateRequest], sampling: Sampling, *, vocabulary: int, context_max: int
) -> None:
    """LocalError if the model cannot answer. A completion cut short by the context would look like fraud."""
    if sampling.tokens_max < 1:
        raise LocalError(f"tokens_max is {sampling.tokens_max}, it must be at least 1")
    for request in requests:
        if not len(request.prompt):
            raise LocalError(f"request {request.number} has no prompt; it needs at least one token")
        if request.prompt.min() < 0 or request.prompt.max() >= vocabulary:
            raise LocalError(f"request {request.number} has prompt tokens outside the vocabulary of {vocabulary}")
        if len(request.prompt) + sampling.tokens_max > context_max:
            raise LocalError(
                f"request {request.number} has {len(request.prompt)} prompt tokens and may generate "
                f"{sampling.tokens_max} more; the model's context is {context_max} tokens"
            )
