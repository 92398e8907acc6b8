"""What was seen of a completion while vLLM wrote it, and of a text while vLLM read it. No vLLM here, only arrays.

vLLM may put a request aside, read its tokens anew and go on, or read a prompt in parts. A record takes one row for each
output token, in order, and refuses everything else: a row too few, too many or twice would be a proof of nothing.

Which tensors of a checkpoint vLLM must be given together. No vLLM here.
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
    """A completion as far as it is written. Each 32 tokens become a proof, so their hidden states can be forgotten."""

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
        """All proofs, with that of the short chunk at the end."""
        rest = len(self.tokens) % TOPLOC_CHUNK_TOKENS
        return b"".join(self.proofs) + (build_proofs(self.chunk[:rest]).blob if rest else b"")


@dataclass(slots=True, eq=False)
class ForwardRecord:
    """A text as far as it is read. It is fed without its last token, which no hidden state follows from."""

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
        """The place of the token whose hidden state gave the first output token."""
        return len(self.sequence.prompt) - 1

    def wanted(self, start: int, stop: int) -> range:
        """Which output tokens the hidden states of the fed tokens from `start` to `stop` gave."""
        if start == 0:
            # Put aside for lack of room and taken up again.
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


LAYER_PREFIX = re.compile(r"^.*?\.[0-9]+\.")
"""Up to the first number in a tensor's name: the layer it belongs to."""


def expand_to_layers(changed: Collection[str], names: Collection[str]) -> frozenset[str]:
    """All tensors of the layers that have a changed one.

    vLLM keeps several tensors of a layer as one (queries, keys and values; the gates of all experts), and forgets the
    rest of it when one is replaced.
    """
    layers = {get_layer(name) for name in changed}
    return frozenset(name for name in names if get_layer(name) in layers)


def get_layer(name: str) -> str:
    found = LAYER_PREFIX.match(name)
    return found[0] if found else name
