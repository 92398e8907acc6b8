"""Read proofs: a few numbers that only a validator who ran the model on the file can compute. Pure.

Threat: a lazy validator accepts every file, or copies the verdict of another, without running the model.

A probe takes the hidden states of two output tokens, normalises their difference to length 1 and projects it on a
direction of random signs. Tokens and directions are derived from the submission and the validator's address. So the
proof of one validator says nothing about the proof of another, and anyone with the model can recompute all of them.
A probe uses two tokens because the hidden states of one model share a large common part: the projection of a single
state could be guessed from other files.

A file is read in blocks of whole rows, in its order. Every block has probes of its own, and a read proof is the sum of
the projections of all blocks read, divided by the root of their number: it stays as large, and as noisy, as one
projection. So a validator that stops at the block that convicts has a proof of exactly the blocks that it read. Its
verdict says how many they are, and an inspector sums up the same ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import shake_256
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from prime_protocol.constants import READ_BLOCK_TOKENS, READ_PROOF_BYTES, READ_PROOF_ERROR_MAX, READ_PROOF_PROBES
from prime_protocol.ledger.randomness import encode_u64
from prime_protocol.proofs.toploc_numpy import Bits
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import Digest, NodeId, digest_fields

PROJECTION_STEPS = 1024
"""Resolution of a projection: far finer than the noise between two machines."""
PROJECTION_DTYPE = np.dtype("<i2")
REFUTED_ERROR_STEPS = int(READ_PROOF_ERROR_MAX * PROJECTION_STEPS)

TokenPosition = tuple[int, int]
"""Row of the block, and output token of the row."""


@dataclass(frozen=True, slots=True)
class ReadProofProbe:
    """Two output tokens and the direction that their difference is projected on."""

    here: TokenPosition
    there: TokenPosition
    direction: Digest


@dataclass(frozen=True, slots=True)
class ReadCoverage:
    """A validator, and how much of the file its read proof covers."""

    reader: NodeId
    blocks: Uint
    """Blocks from the start, where reading stopped because they convict; 0: the whole file."""


def split_blocks(lengths: Sequence[int]) -> list[range]:
    """The rows of each block; `lengths` are the tokens of prompt and output of each row.

    A file has at least one row. A row longer than READ_BLOCK_TOKENS is a block of its own.
    """
    blocks, start, tokens = [], 0, 0
    for row, length in enumerate(lengths):
        if row > start and tokens + length > READ_BLOCK_TOKENS:
            blocks.append(range(start, row))
            start, tokens = row, 0
        tokens += length
    return [*blocks, range(start, len(lengths))]


def draw_probes(submission: Digest, reader: NodeId, block: int, lengths: Sequence[int]) -> list[ReadProofProbe]:
    """One reader's probes of a block; `lengths` are the output tokens of its rows. Empty if it has fewer than two."""
    total = sum(lengths)
    if total < 2:
        return []
    ends = np.cumsum(lengths)
    probes = []
    for number in range(READ_PROOF_PROBES):
        drawn = digest_fields("read-proof/2", submission, reader, encode_u64(block), encode_u64(number))
        here = int.from_bytes(drawn[:8], "big") % total
        there = (here + 1 + int.from_bytes(drawn[8:16], "big") % (total - 1)) % total
        probes.append(ReadProofProbe(_find_token(ends, here), _find_token(ends, there), drawn))
    return probes


def _find_token(ends: NDArray[np.int64], token: int) -> TokenPosition:
    row = int(np.searchsorted(ends, token, side="right"))
    return row, token - (int(ends[row - 1]) if row else 0)


@dataclass(frozen=True, slots=True)
class ReadProofRequest:
    """The validators whose projections of one block of a submission are wanted."""

    submission: Digest
    readers: tuple[NodeId, ...]
    block: int = 0


NO_READ_PROOFS = ReadProofRequest(Digest(bytes(Digest.SIZE)), ())


class BlockProjections:
    """Computes the projections of some readers while the rows of a block are processed, in any order."""

    def __init__(self, request: ReadProofRequest, lengths: Sequence[int]) -> None:
        self._probes = {
            reader: draw_probes(request.submission, reader, request.block, lengths) for reader in request.readers
        }
        self._wanted: dict[int, set[int]] = {}
        self._states: dict[TokenPosition, Bits] = {}
        for probes in self._probes.values():
            for row, token in (place for probe in probes for place in (probe.here, probe.there)):
                self._wanted.setdefault(row, set()).add(token)

    def add_row(self, row: int, hidden_bits: Bits) -> None:
        """Keep the few states that are needed of a row's bf16 patterns (tokens, hidden)."""
        for token in self._wanted.get(row, ()):
            self._states[row, token] = hidden_bits[token].copy()

    def finish(self) -> dict[NodeId, tuple[float, ...]]:
        """The projections of every reader, after all rows were added. None of a block without two output tokens."""
        return {reader: tuple(self._take(probes)) for reader, probes in self._probes.items()}

    def _take(self, probes: list[ReadProofProbe]) -> Iterator[float]:
        for probe in probes:
            yield compute_projection(self._states[probe.here], self._states[probe.there], probe.direction)


class ReadProofSum:
    """The read proof of one reader, block by block."""

    def __init__(self) -> None:
        self._sums = np.zeros(READ_PROOF_PROBES)
        self._blocks = 0

    def add(self, projections: Sequence[float]) -> None:
        if projections:
            self._sums += projections
            self._blocks += 1

    def encode(self) -> bytes:
        """Empty where no block had two output tokens."""
        return encode_read_proof(self._sums / sqrt(self._blocks)) if self._blocks else b""


def compute_projection(here: Bits, there: Bits, direction: Digest) -> float:
    """The normalised difference of two states along a direction. Over many directions it is about standard normal."""
    difference = _widen(here) - _widen(there)
    length = float(np.linalg.norm(difference))
    if not 0.0 < length < np.inf:
        return 0.0
    flips = np.unpackbits(np.frombuffer(shake_256(direction).digest(-(-len(difference) // 8)), np.uint8))
    signs = 1.0 - 2.0 * flips[: len(difference)]
    return float(signs @ difference) / length


def _widen(bits: Bits) -> NDArray[np.float64]:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def encode_read_proof(projections: Iterable[float]) -> bytes:
    limits = np.iinfo(PROJECTION_DTYPE)
    steps = np.rint(np.fromiter(projections, np.float64) * PROJECTION_STEPS).clip(limits.min, limits.max)
    return steps.astype(PROJECTION_DTYPE).tobytes()


def compute_read_proof_error(said: bytes, found: bytes) -> float:
    """Root mean square difference of two read proofs; infinite if one is missing."""
    total = _sum_squares(said, found)
    return inf if total is None else sqrt(total / READ_PROOF_PROBES) / PROJECTION_STEPS


def is_read_proof_refuted(said: bytes, found: bytes) -> bool:
    """Whether `said` cannot come from the file. In integers, because every replay must decide alike."""
    total = _sum_squares(said, found)
    return total is None or total > READ_PROOF_PROBES * REFUTED_ERROR_STEPS**2


def _sum_squares(said: bytes, found: bytes) -> int | None:
    if not len(said) == len(found) == READ_PROOF_BYTES:
        return None
    steps = np.frombuffer(said, PROJECTION_DTYPE).astype(np.int64) - np.frombuffer(found, PROJECTION_DTYPE)
    return int(steps @ steps)
