"""What an engine is to the node: the values that go in and come out, and the few things it can be asked to do.

An engine runs in a child process (see child.py), so nothing here knows of the daemon. Tokens are int32, log-probs
float32, hidden states bf16 patterns; the sampling is prime_protocol.sampling's, position 0 being the first output
token.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from prime_protocol.rollouts import Finish


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
class Order:
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
    finish: Finish
    proofs: bytes
    """TOPLOC proofs of the hidden states that gave each output token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Text:
    """A finished sequence to read again."""

    number: int
    prompt: NDArray[np.int32]
    output: NDArray[np.int32]
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """What one pass over a text says of each of its output tokens."""

    number: int
    hidden_bits: NDArray[np.uint16]
    """bf16 patterns (tokens, hidden) of the states that gave each output token."""
    margins: NDArray[np.float32]
    """By how much each token loses against the replayed winner."""
    logprobs: NDArray[np.float32]
    eos_logprobs: NDArray[np.float32]
    """Log-prob of the likeliest end token at each place; the lowest finite number where there is no end token."""
    own_hidden_bits: NDArray[np.uint16] | None = None
    own_logprobs: NDArray[np.float32] | None = None
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
        self, orders: Sequence[Order], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        """Completions in the order they get done. Ends early once `is_wanted` says no."""
        ...

    def read(self, texts: Sequence[Text], sampling: Sampling) -> Iterator[Reading]:
        """One prefill for each text, batched, in any order."""
        ...
