"""TOPLOC proofs: commitments to the largest activations of a completion, 258 bytes per 32 tokens.

The scheme is that of the TOPLOC paper (arXiv:2501.16007), and the encoding that of the public toploc package. A proof
covers the k largest magnitudes of the final hidden states of a chunk. Another precision, batch size or kernel changes
these values slightly, but rarely which indices are largest or their exponents, so honest machines agree; another model,
prompt or quantisation changes both. A proof is a polynomial over a prime field that goes through the points (index,
bf16 pattern). So it takes two bytes per value and stores no index: the verifier evaluates it at the indices that it
selected itself.

Here are the chunks, building proofs, and the one accepted encoding. toploc_verify.py compares proofs with activations.
The rollout root binds a proof to a run, a checkpoint and tokens; nothing here knows of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from prime_protocol.constants import (
    TOPLOC_CHUNK_TOKENS,
    TOPLOC_HIDDEN_MAX,
    TOPLOC_HIDDEN_MIN,
    TOPLOC_K,
    TOPLOC_MODULUS_MIN,
    TOPLOC_PRIME,
    TOPLOC_PROOF_BYTES,
    TOPLOC_TOKENS_MAX,
)
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.proofs.toploc_kernels import ToplocKernels, get_kernels
from prime_protocol.proofs.toploc_numpy import Bits, Points

if TYPE_CHECKING:
    import torch


INFINITY = 0x7F80
"""Magnitude of the bf16 infinity; NaN is above it, every finite value below."""


class ChunkGroup(NamedTuple):
    """Chunks of equal size: the whole ones, or the short one at the end."""

    first: int
    """Number of its first chunk."""
    chunks: int
    tokens: int
    """Tokens per chunk."""
    k: int
    """Values covered per chunk."""

    @property
    def numbers(self) -> range:
        """Of its chunks."""
        return range(self.first, self.first + self.chunks)


@dataclass(frozen=True, slots=True)
class ProofLayout:
    """How the proofs of a completion are laid out: chunks of 32 tokens, then what is left."""

    tokens: int
    hidden: int

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= TOPLOC_TOKENS_MAX:
            raise LocalError(f"proofs for {self.tokens} tokens, allowed is 1 to {TOPLOC_TOKENS_MAX}")
        if not TOPLOC_HIDDEN_MIN <= self.hidden <= TOPLOC_HIDDEN_MAX:
            raise LocalError(f"a hidden size of {self.hidden}, allowed is {TOPLOC_HIDDEN_MIN} to {TOPLOC_HIDDEN_MAX}")

    @property
    def chunks(self) -> int:
        return -(-self.tokens // TOPLOC_CHUNK_TOKENS)

    @property
    def bytes(self) -> int:
        """Exact length of the proofs."""
        return self.chunks * TOPLOC_PROOF_BYTES

    def parts(self) -> list[ChunkGroup]:
        whole, rest = divmod(self.tokens, TOPLOC_CHUNK_TOKENS)
        parts = [
            ChunkGroup(0, whole, TOPLOC_CHUNK_TOKENS, TOPLOC_K),
            ChunkGroup(whole, 1, rest, min(TOPLOC_K, rest * self.hidden)),
        ]
        return [part for part in parts if part.chunks and part.tokens]


@dataclass(frozen=True, slots=True)
class ToplocProofs:
    """The proofs of one completion. `blob` is their encoding, checked."""

    layout: ProofLayout
    blob: bytes

    def get_words(self) -> Bits:
        """One row per chunk: the modulus, then 128 coefficients with the lowest first."""
        return np.frombuffer(self.blob, dtype=">u2").reshape(self.layout.chunks, 1 + TOPLOC_K).astype(np.uint16)

    def get_polynomials(self) -> Iterator[tuple[Bits, Bits]]:
        """Per part: moduli, and as many coefficients as there are values."""
        words = self.get_words()
        for part in self.layout.parts():
            rows = words[part.first : part.first + part.chunks]
            yield rows[:, 0], np.ascontiguousarray(rows[:, 1 : 1 + part.k])


def build_proofs(hidden_bits: Bits, kernels: ToplocKernels | None = None) -> ToplocProofs:
    """Proofs of the final hidden states, bf16 patterns of shape (tokens, hidden), that produced each token."""
    layout = get_proof_layout(hidden_bits)
    kernels = kernels or get_kernels()
    # A short tail covers fewer values; its unused coefficients are zero, which parse_proofs requires.
    words = np.zeros((layout.chunks, 1 + TOPLOC_K), dtype=">u2")
    for part, _, indices, values in select_values(hidden_bits, layout, kernels):
        rows = words[part.first : part.first + part.chunks]
        rows[:, 0], rows[:, 1 : 1 + part.k] = interpolate(indices, values, part.numbers, kernels)
    return ToplocProofs(layout, words.tobytes())


def build_chunk_proofs(pages: Bits, chunks: Sequence[tuple[int, int]], kernels: ToplocKernels | None = None) -> bytes:
    """The proofs of some chunks end to end, whichever completions they are of: many together cost little more than one.

    A page (tokens, hidden) holds one chunk, or its beginning. A chunk is the number of its page, and its tokens.
    """
    kernels = kernels or get_kernels()
    rows, tokens = np.array(chunks, np.int64).T.copy()
    assert pages.dtype == np.uint16
    assert ((rows >= 0) & (rows < len(pages))).all()
    assert ((tokens >= 1) & (tokens <= pages.shape[1])).all()
    sizes, flat = tokens * pages.shape[2], pages.reshape(len(pages), -1)
    words = np.zeros((len(chunks), 1 + TOPLOC_K), dtype=">u2")
    # One k for nearly all: only a short chunk of a narrow model has fewer values.
    for k in np.unique(np.minimum(sizes, TOPLOC_K)).tolist():
        places = np.flatnonzero(np.minimum(sizes, TOPLOC_K) == k)
        indices, values = kernels.select_from(flat, rows[places], sizes[places])
        check_finite(values, places.tolist())
        words[places, 0], words[places, 1 : 1 + k] = interpolate(indices, values, places.tolist(), kernels)
    return words.tobytes()


def interpolate(indices: Points, values: Bits, numbers: Sequence[int], kernels: ToplocKernels) -> tuple[Bits, Bits]:
    """Moduli and coefficients of the chunks with these numbers."""
    moduli, coefficients = kernels.interpolate(indices, values)
    if not moduli.all():
        raise LocalError(f"no modulus keeps the indices of chunk {numbers[int(moduli.argmin())]} apart")
    return moduli, coefficients


def parse_proofs(blob: bytes, *, tokens: int, hidden: int) -> ToplocProofs:
    """The only way from bytes to ToplocProofs: exact length, moduli and coefficients in range.

    Each check closes a hole of the public package. Its C++ verifier divides by the modulus, so a proof with modulus 0
    crashes it. It takes coefficients at or above the prime, which gives one proof two encodings. It compares as
    many chunks as there are proofs, so it never checks the tokens behind a list that is too short.
    """
    if not 1 <= tokens <= TOPLOC_TOKENS_MAX:
        raise RemoteError("tokens", f"is {tokens}, allowed is 1 to {TOPLOC_TOKENS_MAX}")
    layout = ProofLayout(tokens, hidden)
    if len(blob) != layout.bytes:
        raise RemoteError(
            "proofs", f"{len(blob)} bytes, expected {layout.bytes} for {tokens} tokens in {layout.chunks} chunks"
        )
    proofs = ToplocProofs(layout, blob)
    words = proofs.get_words()
    moduli, coefficients = words[:, 0], words[:, 1:]
    if (bad := (moduli < TOPLOC_MODULUS_MIN) | (moduli > TOPLOC_PRIME)).any():
        chunk = int(bad.argmax())
        raise RemoteError(
            f"proofs[{chunk}].modulus", f"is {moduli[chunk]}, allowed is {TOPLOC_MODULUS_MIN} to {TOPLOC_PRIME}"
        )
    if (bad := coefficients >= TOPLOC_PRIME).any():
        chunk, place = divmod(int(bad.argmax()), TOPLOC_K)
        raise RemoteError(
            f"proofs[{chunk}].coefficients[{place}]",
            f"is {coefficients[chunk, place]}, must be below {TOPLOC_PRIME}",
        )
    tail = layout.parts()[-1]
    if (unused := coefficients[-1, tail.k :]).any():
        place = tail.k + int((unused != 0).argmax())
        raise RemoteError(
            f"proofs[{layout.chunks - 1}].coefficients[{place}]",
            f"is {coefficients[-1, place]}, must be 0 as the chunk has {tail.k} values",
        )
    return proofs


def tensor_to_bits(hidden_states: "torch.Tensor") -> Bits:
    """The bf16 patterns of a tensor, on the CPU. Shares memory where it can."""
    import torch

    if hidden_states.dtype != torch.bfloat16:
        raise LocalError(f"hidden states are {hidden_states.dtype}; proofs cover bfloat16, convert them first")
    bits: Bits = hidden_states.detach().cpu().contiguous().view(torch.uint16).numpy()
    return bits


def get_proof_layout(hidden_bits: Bits) -> ProofLayout:
    if hidden_bits.dtype != np.uint16 or hidden_bits.ndim != 2:
        raise LocalError(
            f"hidden states are {hidden_bits.dtype} with {hidden_bits.ndim} axes; "
            "expected bf16 patterns as uint16, by token and channel"
        )
    return ProofLayout(*hidden_bits.shape)


def select_values(
    hidden_bits: Bits, layout: ProofLayout, kernels: ToplocKernels
) -> Iterator[tuple[ChunkGroup, int, Points, Bits]]:
    """Per part: values in a chunk, then indices and patterns of the ones that a proof covers, one row per chunk."""
    start = 0
    for part in layout.parts():
        end = start + part.chunks * part.tokens
        bits = np.ascontiguousarray(hidden_bits[start:end]).reshape(part.chunks, -1)
        indices, values = kernels.select(bits)
        check_finite(values, part.numbers)
        yield part, bits.shape[1], indices, values
        start = end


def check_finite(values: Bits, numbers: Sequence[int]) -> None:
    """Refuse infinities and NaN. Their magnitude is above every finite value, so selection always includes them."""
    if (broken := ((values & 0x7FFF) >= INFINITY).any(axis=1)).any():
        raise LocalError(
            f"the hidden states of chunk {numbers[int(broken.argmax())]} hold an infinity or NaN: "
            "the model, its weights or its precision is broken on this machine"
        )
