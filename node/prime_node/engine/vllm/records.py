"""Records of a generation and of a forward pass in vLLM, and which tensors it must load together. Must not import vLLM.

vLLM may preempt a request, recompute its tokens and continue, or prefill a prompt in parts. A record accepts exactly
one row per output token, in order, and refuses everything else: a missing or repeated row makes a proof worthless.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from prime_node.engine.interface import ForwardResult, TokenSequence
from prime_protocol.constants import TOPLOC_CHUNK_TOKENS
from prime_protocol.errors import LocalError
from prime_protocol.proofs.toploc import build_proofs
from prime_protocol.proofs.toploc_numpy import Bits


@dataclass(slots=True)
class GenerationRecord:
    """A generation so far. Each full chunk of tokens becomes a proof, so its hidden states need not be kept."""

    hidden: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    proofs: list[bytes] = field(default_factory=list)
    chunk: Bits = field(init=False)

    def __post_init__(self) -> None:
        self.chunk = np.empty((TOPLOC_CHUNK_TOKENS, self.hidden), np.uint16)

    def add(self, *, position: int, token: int, logprob: float, hidden_bits: Bits) -> None:
        if position != len(self.tokens):
            raise LocalError(
                f"vLLM drew output token {position} of a completion that has {len(self.tokens)}: "
                "this version of vLLM is not supported"
            )
        place = position % TOPLOC_CHUNK_TOKENS
        self.chunk[place] = hidden_bits
        self.tokens.append(token)
        self.logprobs.append(logprob)
        if place == TOPLOC_CHUNK_TOKENS - 1:
            self.proofs.append(build_proofs(self.chunk).blob)

    def finish(self) -> bytes:
        """All proofs, including that of the last, shorter chunk."""
        rest = len(self.tokens) % TOPLOC_CHUNK_TOKENS
        return b"".join(self.proofs) + (build_proofs(self.chunk[:rest]).blob if rest else b"")


@dataclass(slots=True, eq=False)
class ForwardRecord:
    """A forward pass so far. The sequence is fed without its last token, whose hidden state is not needed."""

    sequence: TokenSequence
    hidden_bits: list[Bits] = field(default_factory=list)
    numbers: list[NDArray[np.float32]] = field(default_factory=list)
    """Margins, log-probs and end log-probs, three rows for each part."""
    read: int = 0

    @property
    def fed(self) -> list[int]:
        tokens: list[int] = np.concatenate([self.sequence.prompt, self.sequence.output[:-1]]).tolist()
        return tokens

    @property
    def first(self) -> int:
        """Position of the token whose hidden state produced the first output token."""
        return len(self.sequence.prompt) - 1

    def wanted(self, start: int, stop: int) -> range:
        """The output tokens that the hidden states of the fed tokens from `start` to `stop` produced."""
        if start == 0:
            # vLLM preempted the request and starts it again.
            self.hidden_bits.clear()
            self.numbers.clear()
        elif start != self.read:
            raise LocalError(
                f"vLLM read a text from token {start}, expected {self.read}: this version of vLLM is not supported"
            )
        self.read = stop
        return range(max(start, self.first) - self.first, max(stop, self.first) - self.first)

    def add(self, hidden_bits: Bits, numbers: NDArray[np.float32]) -> None:
        self.hidden_bits.append(hidden_bits)
        self.numbers.append(numbers)

    def finish(self) -> ForwardResult:
        seen = sum(len(part) for part in self.hidden_bits)
        if seen != len(self.sequence.output):
            raise LocalError(
                f"vLLM gave {seen} hidden states for {len(self.sequence.output)} tokens: this version is not supported"
            )
        margins, logprobs, eos_logprobs = np.concatenate(self.numbers, axis=1)
        return ForwardResult(
            number=self.sequence.number,
            hidden_bits=np.concatenate(self.hidden_bits),
            margins=margins,
            logprobs=logprobs,
            eos_logprobs=eos_logprobs,
        )


EXPERTS = ".experts."


def is_mixture(names: Collection[str]) -> bool:
    """Whether these are the tensors of a mixture of experts, apart or joined."""
    return any(EXPERTS in name for name in names)


LAYER_PREFIX = re.compile(r"^.*?\.[0-9]+\.")
"""A tensor's name up to the first number: the layer it belongs to."""


def expand_to_layers(changed: Collection[str], names: Collection[str]) -> frozenset[str]:
    """All tensors of the layers with a changed one.

    vLLM fuses several tensors of a layer (queries, keys and values; the gates of all experts), and loses the other
    parts when one is replaced alone.
    """
    layers = {get_layer(name) for name in changed}
    return frozenset(name for name in names if get_layer(name) in layers)


def get_layer(name: str) -> str:
    found = LAYER_PREFIX.match(name)
    return found[0] if found else name
