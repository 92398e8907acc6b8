"""Whether TOPLOC proofs fit activations that we computed ourselves: numbers per chunk first, then a pure decision.

Comparing the proof with our own largest values detects another model, prompt or precision. It does not detect a proof
that was made without a model. Threat: large activations share few exponents, so a constant, or any polynomial of low
degree that stays near a likely value, also has the right exponent at most indices. So the proof is also evaluated at
decoys: points that no honest prover interpolated, drawn from a seed that is not known when the proof is made. There an
honest polynomial of degree 127 takes values as good as uniform in the field, and rarely hits an exponent of ours; a
smooth forgery hits as often as at the true indices. Zero leading coefficients, and a modulus under which our indices
collide, are two other ways to make one value fit many indices. Each has its own limit.
"""

import hashlib
from functools import cache
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prime_protocol.constants import (
    TOPLOC_COLLISIONS_MAX,
    TOPLOC_DECOY_DRAWS,
    TOPLOC_DECOY_RANGE_MIN,
    TOPLOC_DECOYS,
    TOPLOC_FALSE_REJECTION,
    TOPLOC_K,
    TOPLOC_LEADING_ZEROS_MAX,
    TOPLOC_MODULUS_MIN,
    TOPLOC_PRIME,
)
from prime_protocol.errors import LocalError
from prime_protocol.proofs.tolerance import MANTISSA_ERROR_NONE, ToplocThresholds
from prime_protocol.proofs.toploc import ToplocProofs, get_proof_layout, select_values
from prime_protocol.proofs.toploc_kernels import ToplocKernels, get_kernels
from prime_protocol.proofs.toploc_numpy import Bits, Points
from prime_protocol.wire.ids import Digest

DECOY_DOMAIN = b"prime-swarm/toploc-decoys/1\0"


class ChunkReport(NamedTuple):
    """What comparing one proof with our activations gave."""

    k: int
    """Values compared."""
    exponent_mismatches: int
    sign_mismatches: int
    """Values with the right exponent and the wrong sign. The public package does not compare signs."""
    mantissa_error_sum: int
    """Over the values with the right exponent, whatever their sign; 128 if there are none."""
    mantissa_error_median: int
    """The upper of the two middle ones, as in the public package; 128 if there are none."""
    decoy_hits: int
    """Decoys with an exponent that our values have too."""
    exponents_seen: int
    """Different exponents among our values. With it grow the hits that chance explains."""
    collisions: int
    """Our indices that fall on another one under the proof's modulus."""
    leading_zeros: int
    """Highest coefficients that are zero."""

    @property
    def mantissa_error_mean(self) -> float:
        return self.mantissa_error_sum / max(1, self.k - self.exponent_mismatches)


class ProofFault(NamedTuple):
    """One number of one chunk that is above its limit."""

    chunk: int
    check: str
    value: float
    limit: float


def verify_proofs(
    proofs: ToplocProofs, hidden_bits: Bits, *, seed: Digest, kernels: ToplocKernels | None = None
) -> list[ChunkReport]:
    """Compare proofs with our own hidden states. `seed` must be one that was not known when the proofs were made."""
    if (layout := get_proof_layout(hidden_bits)) != proofs.layout:
        raise LocalError(f"proofs of {proofs.layout} compared with hidden states of {layout}")
    kernels = kernels or get_kernels()
    draws = draw_decoys(seed, layout.chunks)
    reports: list[ChunkReport] = []
    selected = select_values(hidden_bits, layout, kernels)
    for (part, size, indices, values), (moduli, coefficients) in zip(selected, proofs.get_polynomials(), strict=True):
        wide_moduli = moduli[:, None].astype(np.uint32)
        # By the modulus of the proof, not by the prime: with random indices 5 to 9 % of honest chunks (hidden sizes of
        # 4096 to 8192) need a smaller one. The Python path of the public package ignores it and rejects those.
        places = indices % wide_moduli
        drawn = scale_to_indices(draws[part.first : part.first + part.chunks], size) % wide_moduli
        decoys, collisions = kernels.pick_free(drawn, places, TOPLOC_DECOYS)
        claimed = kernels.evaluate(coefficients, np.hstack([places, decoys]))
        columns = [
            np.full(part.chunks, part.k),
            *compare_values(claimed[:, : part.k], values),
            *count_decoy_hits(claimed[:, part.k :], values),
            collisions,
            count_leading_zeros(coefficients),
        ]
        reports += map(ChunkReport._make, np.stack(columns, axis=1).tolist())
    return reports


def draw_decoys(seed: Digest, chunks: int) -> Points:
    """Per chunk 128 numbers of 32 bits, from SHAKE-128: unpredictable for the prover, equal for every verifier."""
    stream = hashlib.shake_128(DECOY_DOMAIN + seed).digest(chunks * TOPLOC_DECOY_DRAWS * 4)
    return np.frombuffer(stream, dtype=">u4").reshape(chunks, TOPLOC_DECOY_DRAWS).astype(np.uint32)


def scale_to_indices(draws: Points, size: int) -> Points:
    """From 32-bit numbers to indices of a chunk, or of the least range."""
    reach = np.uint64(max(size, TOPLOC_DECOY_RANGE_MIN))
    return (draws.astype(np.uint64) * reach >> np.uint64(32)).astype(np.uint32)


def compare_values(claimed: Bits, values: Bits) -> list[NDArray[np.int64]]:
    """Per chunk: exponent mismatches, sign mismatches, sum and median of the mantissa errors."""
    differs = claimed ^ values
    matches = (differs & 0x7F80) == 0
    count = matches.sum(axis=1)
    errors = np.abs((claimed & 0x7F).astype(np.int8) - (values & 0x7F).astype(np.int8)).astype(np.uint8)
    # Mantissas are compared only where the exponents match; the others sort behind every possible error.
    errors[~matches] = MANTISSA_ERROR_NONE
    ranked = np.sort(errors, axis=1)
    median = ranked[np.arange(len(ranked)), count // 2].astype(np.int64)
    total = np.where(count > 0, (errors * matches).sum(axis=1, dtype=np.int64), MANTISSA_ERROR_NONE)
    return [matches.shape[1] - count, (matches & (differs > 0x7FFF)).sum(axis=1), total, median]


def count_decoy_hits(claimed: Bits, values: Bits) -> list[NDArray[np.int64]]:
    """Per chunk: decoys whose exponent is among ours, and how many exponents ours are."""
    seen = np.zeros((len(values), 256), dtype=np.bool_)
    rows = np.arange(len(values))[:, None]
    seen[rows, values >> 7 & 0xFF] = True
    return [seen[rows, claimed >> 7 & 0xFF].sum(axis=1), seen.sum(axis=1)]


def count_leading_zeros(coefficients: Bits) -> NDArray[np.int64]:
    """Zero coefficients above the highest other one; all of them for the zero polynomial. They show a low degree."""
    nonzero = coefficients[:, ::-1] != 0
    zeros: NDArray[np.int64] = np.where(nonzero.any(axis=1), nonzero.argmax(axis=1), coefficients.shape[1])
    return zeros


@cache
def get_decoy_limit(exponents_seen: int) -> int:
    """Most decoy hits that an honest polynomial has, but for one chunk in 1e12.

    At a point that was not interpolated, its value is as good as uniform in the field, where each exponent has 256
    patterns (128 mantissas, two signs). A decoy may also fall on an index that only the prover chose: at most k of at
    least 2^15 points.
    """
    chance = min(1.0, exponents_seen * 256 / TOPLOC_PRIME + TOPLOC_K / TOPLOC_MODULUS_MIN)
    limit, above = TOPLOC_DECOYS, 0.0
    while (above := above + compute_binomial(limit, chance)) <= TOPLOC_FALSE_REJECTION:
        limit -= 1
    return limit


def compute_binomial(hits: int, chance: float) -> float:
    """Chance of exactly so many hits among the decoys."""
    return comb(TOPLOC_DECOYS, hits) * chance**hits * (1 - chance) ** (TOPLOC_DECOYS - hits)


def find_faults(reports: list[ChunkReport], thresholds: ToplocThresholds) -> list[ProofFault]:
    """Everything that is above its limit. The proofs are accepted if nothing is."""
    assert reports, "a completion has at least one chunk"
    return [fault for chunk, report in enumerate(reports) for fault in find_chunk_faults(chunk, report, thresholds)]


def find_chunk_faults(chunk: int, report: ChunkReport, thresholds: ToplocThresholds) -> list[ProofFault]:
    """Counts are allowed in proportion where a short tail has fewer values."""
    checks = (
        ("exponent_mismatches", report.exponent_mismatches, thresholds.exponent_mismatches_max * report.k // TOPLOC_K),
        ("sign_mismatches", report.sign_mismatches, thresholds.sign_mismatches_max * report.k // TOPLOC_K),
        ("mantissa_error_mean", report.mantissa_error_mean, thresholds.mantissa_error_mean_max),
        ("mantissa_error_median", report.mantissa_error_median, thresholds.mantissa_error_median_max),
        ("decoy_hits", report.decoy_hits, get_decoy_limit(report.exponents_seen)),
        ("collisions", report.collisions, TOPLOC_COLLISIONS_MAX),
        ("leading_zeros", report.leading_zeros, TOPLOC_LEADING_ZEROS_MAX),
    )
    return [ProofFault(chunk, check, value, limit) for check, value, limit in checks if value > limit]
