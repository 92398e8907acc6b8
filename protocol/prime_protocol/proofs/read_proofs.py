"""Looks: a few numbers by which a verdict shows that its author read the file with the model. Pure.

Each is the difference of the hidden states of two output tokens, of length one, along a direction of plus and minus
ones. Places and directions come from the submission and the reader's own name, so what one reader found says nothing
about what another must find, and all of it can be found by anybody who reads the file. It takes two places because
states of one model have much in common, which who never read the file could have learnt from others.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import shake_256
from math import inf, sqrt

import numpy as np
from numpy.typing import NDArray

from prime_protocol.constants import READ_PROOF_BYTES, READ_PROOF_ERROR_MAX, READ_PROOF_PROBES
from prime_protocol.ledger.randomness import encode_u64
from prime_protocol.proofs.toploc_numpy import Bits
from prime_protocol.wire.ids import Digest, NodeId, digest_fields

PROJECTION_STEPS = 1024
"""A look is told in parts of this: far finer than two machines agree."""
PROJECTION_DTYPE = np.dtype("<i2")
REFUTED_ERROR_STEPS = int(READ_PROOF_ERROR_MAX * PROJECTION_STEPS)

TokenPosition = tuple[int, int]
"""Row of the file, and output token of the row."""


@dataclass(frozen=True, slots=True)
class ReadProofProbe:
    """What one look is taken at."""

    here: TokenPosition
    there: TokenPosition
    direction: Digest


def draw_probes(submission: Digest, reader: NodeId, lengths: Sequence[int]) -> list[ReadProofProbe]:
    """A reader's own, in a file whose rows have so many output tokens; none where there are no two tokens."""
    total = sum(lengths)
    if total < 2:
        return []
    ends = np.cumsum(lengths)
    glances = []
    for number in range(READ_PROOF_PROBES):
        drawn = digest_fields("look/1", submission, reader, encode_u64(number))
        here = int.from_bytes(drawn[:8], "big") % total
        there = (here + 1 + int.from_bytes(drawn[8:16], "big") % (total - 1)) % total
        glances.append(ReadProofProbe(_find_token(ends, here), _find_token(ends, there), drawn))
    return glances


def _find_token(ends: NDArray[np.int64], token: int) -> TokenPosition:
    row = int(np.searchsorted(ends, token, side="right"))
    return row, token - (int(ends[row - 1]) if row else 0)


@dataclass(frozen=True, slots=True)
class ReadProofRequest:
    """Whose looks at which submission are wanted."""

    submission: Digest
    readers: tuple[NodeId, ...]


NO_READ_PROOFS = ReadProofRequest(Digest(bytes(Digest.SIZE)), ())


class ReadProofBuilder:
    """Takes the looks of some readers while the rows of a file are read, in any order."""

    def __init__(self, onlookers: ReadProofRequest, lengths: Sequence[int]) -> None:
        self._glances = {reader: draw_probes(onlookers.submission, reader, lengths) for reader in onlookers.readers}
        self._wanted: dict[int, set[int]] = {}
        self._states: dict[TokenPosition, Bits] = {}
        for glances in self._glances.values():
            for row, token in (place for glance in glances for place in (glance.here, glance.there)):
                self._wanted.setdefault(row, set()).add(token)

    def add_row(self, row: int, hidden_bits: Bits) -> None:
        """The bf16 patterns (tokens, hidden) of a row: the few that are needed are kept."""
        for token in self._wanted.get(row, ()):
            self._states[row, token] = hidden_bits[token].copy()

    def finish(self) -> dict[NodeId, bytes]:
        """Every reader's looks, when all rows were seen."""
        return {reader: encode_read_proof(self._take(glances)) for reader, glances in self._glances.items()}

    def _take(self, glances: list[ReadProofProbe]) -> Iterator[float]:
        for glance in glances:
            yield compute_projection(self._states[glance.here], self._states[glance.there], glance.direction)


def compute_projection(here: Bits, there: Bits, direction: Digest) -> float:
    """How far two states differ along a direction, as a part of how far they differ at all; about normal over many."""
    difference = _widen(here) - _widen(there)
    length = float(np.linalg.norm(difference))
    if not 0.0 < length < np.inf:
        return 0.0
    flips = np.unpackbits(np.frombuffer(shake_256(direction).digest(-(-len(difference) // 8)), np.uint8))
    signs = 1.0 - 2.0 * flips[: len(difference)]
    return float(signs @ difference) / length


def _widen(bits: Bits) -> NDArray[np.float64]:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def encode_read_proof(looks: Iterable[float]) -> bytes:
    limits = np.iinfo(PROJECTION_DTYPE)
    steps = np.rint(np.fromiter(looks, np.float64) * PROJECTION_STEPS).clip(limits.min, limits.max)
    return steps.astype(PROJECTION_DTYPE).tobytes()


def compute_read_proof_error(said: bytes, found: bytes) -> float:
    """Root mean square by which two readings of the same looks differ; endless where there is nothing to compare."""
    total = _sum_squares(said, found)
    return inf if total is None else sqrt(total / READ_PROOF_PROBES) / PROJECTION_STEPS


def is_read_proof_refuted(said: bytes, found: bytes) -> bool:
    """Whether these cannot be the looks of who read the file. In integers: everybody must find the same."""
    total = _sum_squares(said, found)
    return total is None or total > READ_PROOF_PROBES * REFUTED_ERROR_STEPS**2


def _sum_squares(said: bytes, found: bytes) -> int | None:
    if not len(said) == len(found) == READ_PROOF_BYTES:
        return None
    steps = np.frombuffer(said, PROJECTION_DTYPE).astype(np.int64) - np.frombuffer(found, PROJECTION_DTYPE)
    return int(steps @ steps)
