"""TOPLOC verification: honest noise passes, and proofs made without running the model do not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from oracle.toploc_inputs import Bits, disturb, make_bits, to_bf16
from prime_protocol.constants import TOPLOC_DECOYS, TOPLOC_FALSE_REJECTION, TOPLOC_PRIME
from prime_protocol.errors import LocalError
from prime_protocol.proofs import toploc_numpy as toploc_plain
from prime_protocol.proofs.tolerance import ToplocThresholds
from prime_protocol.proofs.toploc import ToplocProofs, build_proofs, parse_proofs
from prime_protocol.proofs.toploc_verify import (
    ChunkReport,
    ProofFault,
    compute_binomial,
    find_faults,
    get_decoy_limit,
    verify_proofs,
)
from prime_protocol.wire.ids import Digest

SEED = Digest(bytes(range(32)))
TOKENS, HIDDEN = 64, 1024
HONEST = ChunkReport(128, 0, 0, 0, 0, 0, 3, 0, 0)
Dice = np.random.Generator


def gaussian(dice: Dice, scale: float) -> NDArray[np.float32]:
    return (dice.standard_normal((TOKENS, HIDDEN)) * scale).astype(np.float32)


def student(dice: Dice, scale: float) -> NDArray[np.float32]:
    return (dice.standard_t(4, (TOKENS, HIDDEN)) * scale).astype(np.float32)


def massive(dice: Dice, scale: float) -> NDArray[np.float32]:
    """Eight channels that dwarf the others at every token, and so are known to everybody."""
    values = gaussian(dice, scale)
    values[:, :: HIDDEN // 8] *= 30
    return values


ACTIVATIONS = [(make, scale) for make in (gaussian, student, massive) for scale in (0.5, 0.7, 1.0, 1.4)]
every_activation = pytest.mark.parametrize(
    ("make", "scale"), ACTIVATIONS, ids=lambda value: getattr(value, "__name__", value)
)
Make = Callable[[Dice, float], NDArray[np.float32]]


def faults(proofs: ToplocProofs, bits: Bits, thresholds: ToplocThresholds | None = None) -> set[str]:
    return {
        fault.check for fault in find_faults(verify_proofs(proofs, bits, seed=SEED), thresholds or ToplocThresholds())
    }


def forge(rows: list[list[int]], modulus: int = TOPLOC_PRIME) -> ToplocProofs:
    words = np.array([[modulus, *row] for row in rows], dtype=">u2")
    return parse_proofs(words.tobytes(), tokens=TOKENS, hidden=HIDDEN)


def learn_constant(dice: Dice, make: Make, scale: float) -> int:
    """The pattern that fits the largest values of other completions best."""
    bits = to_bf16(make(dice, scale))
    _, values = toploc_plain.select(bits.reshape(TOKENS // 32, -1))
    patterns, counts = np.unique(values & 0x7F80, return_counts=True)
    exponent = int(patterns[counts.argmax()])
    return exponent | int(np.median(values[(values & 0x7F80) == exponent] & 0x7F))


@every_activation
@pytest.mark.parametrize("reach", [0, 1, 3])
def test_honest_proofs_pass_in_spite_of_noise(make: Make, scale: float, reach: int) -> None:
    bits = to_bf16(make(np.random.default_rng(1), scale))
    assert faults(build_proofs(bits), disturb(bits, 2, reach)) == set()


@every_activation
def test_another_completions_proofs_fail(make: Make, scale: float) -> None:
    dice = np.random.default_rng(3)
    mine, other = to_bf16(make(dice, scale)), to_bf16(make(dice, scale))
    assert "exponent_mismatches" in faults(build_proofs(other), mine)


@every_activation
def test_a_learned_constant_fails_at_the_decoys_and_by_its_degree(make: Make, scale: float) -> None:
    dice = np.random.default_rng(4)
    constant = learn_constant(dice, make, scale)
    bits = to_bf16(make(dice, scale))
    lax = ToplocThresholds(
        exponent_mismatches_max=127,
        sign_mismatches_max=127,
        mantissa_error_mean_max=127,
        mantissa_error_median_max=127,
    )
    assert faults(forge([[constant] + [0] * 127] * 2), bits, lax) == {"decoy_hits", "leading_zeros"}


def test_without_decoys_a_constant_fits_gaussian_activations_but_for_its_sign() -> None:
    dice = np.random.default_rng(5)
    bits = to_bf16(gaussian(dice, 0.7))
    found = faults(forge([[learn_constant(dice, gaussian, 0.7)] + [0] * 127] * 2), bits)
    assert found == {"decoy_hits", "leading_zeros", "sign_mismatches"}
    assert faults(forge([[learn_constant(dice, gaussian, 0.7)] + [0] * 127] * 2), bits & 0x7FFF) == {
        "decoy_hits",
        "leading_zeros",
    }


@every_activation
@pytest.mark.parametrize("degree", [1, 8, 16, 32, 64, 124])
def test_a_polynomial_of_low_degree_fails(make: Make, scale: float, degree: int) -> None:
    """Through the right constant at as many indices as it can have, chosen where large values are likely."""
    dice = np.random.default_rng(6)
    constant = learn_constant(dice, make, scale)
    bits = to_bf16(make(dice, scale))
    guesses = (np.arange(degree + 1) * HIDDEN // 8)[None].astype(np.uint32)
    values = np.full((1, degree + 1), constant, dtype=np.uint16)
    values[0, 1::2] ^= 1
    _, coefficients = toploc_plain.interpolate(guesses, values)
    row = coefficients[0].tolist() + [0] * (127 - degree)
    assert "leading_zeros" in faults(forge([row] * 2), bits)


@every_activation
def test_full_degree_through_guessed_points_fails(make: Make, scale: float) -> None:
    """128 indices in the channels that are large in `massive`, arbitrary ones elsewhere, with the learned constant."""
    dice = np.random.default_rng(7)
    constant = learn_constant(dice, make, scale)
    bits = to_bf16(make(dice, scale))
    guesses = np.sort(dice.permutation(256)[:128] * HIDDEN // 8)[None].astype(np.uint32)
    values = np.full((1, 128), constant, dtype=np.uint16)
    values[0, 1::2] ^= 0x8001
    _, coefficients = toploc_plain.interpolate(guesses, values)
    assert {"exponent_mismatches", "sign_mismatches"} & faults(forge([coefficients[0].tolist()] * 2), bits)


def test_a_modulus_that_folds_known_channels_together_fails() -> None:
    """Under 2^15 the tokens of a chunk share few points for a channel, so 128 points would cover four times as much."""
    bits = make_bits("gaussian", 8, 32, 4096)
    bits[:, 100:116] = 0x4200 + (bits[:, 100:116] & 0xFF)
    proofs = parse_proofs(np.array([2**15, *[7] * 128], dtype=">u2").tobytes(), tokens=32, hidden=4096)
    (report,) = verify_proofs(proofs, bits, seed=SEED)
    assert report.collisions > 8
    assert "collisions" in {fault.check for fault in find_faults([report], ToplocThresholds())}


def test_flipped_signs_are_counted_and_fail() -> None:
    bits = to_bf16(gaussian(np.random.default_rng(9), 1.0))
    (first, second) = verify_proofs(build_proofs(bits ^ 0x8000), bits, seed=SEED)
    assert (first.exponent_mismatches, first.sign_mismatches, second.sign_mismatches) == (0, 128, 128)
    assert faults(build_proofs(bits ^ 0x8000), bits) == {"sign_mismatches"}


def test_another_seed_draws_other_decoys_and_the_same_seed_the_same() -> None:
    dice = np.random.default_rng(10)
    bits = to_bf16(student(dice, 1.0))
    proofs = forge([dice.integers(0, TOPLOC_PRIME, 128).tolist() for _ in range(2)])
    reports = [verify_proofs(proofs, bits, seed=Digest(bytes([number]) * 32)) for number in (*range(20), 0)]
    assert reports[0] == reports[-1]
    assert len({chunk.decoy_hits for report in reports for chunk in report}) > 2


def test_honest_decoy_hits_stay_near_their_expectation() -> None:
    """The binomial model of get_decoy_limit, measured: 1,000 chunks, 64 decoys each."""
    bits = make_bits("heavy", 11, 32_000, 16)
    reports = verify_proofs(build_proofs(bits), bits, seed=SEED)
    hits = sum(report.decoy_hits for report in reports)
    expected = sum(report.exponents_seen * 256 / TOPLOC_PRIME * TOPLOC_DECOYS for report in reports)
    assert abs(hits - expected) < 6 * expected**0.5
    assert find_faults(reports, ToplocThresholds()) == []


def test_a_chunk_where_no_exponent_matches_has_the_largest_error() -> None:
    bits = np.full((1, 128), 0x4000, dtype=np.uint16)
    proofs = parse_proofs(np.array([TOPLOC_PRIME, 0x100] + [0] * 127, dtype=">u2").tobytes(), tokens=1, hidden=128)
    (report,) = verify_proofs(proofs, bits, seed=SEED)
    assert (report.exponent_mismatches, report.mantissa_error_mean, report.mantissa_error_median) == (128, 128.0, 128)


def test_the_zero_polynomial_has_only_leading_zeros() -> None:
    (first, _) = verify_proofs(forge([[0] * 128] * 2), to_bf16(gaussian(np.random.default_rng(12), 1.0)), seed=SEED)
    assert first.leading_zeros == 128


def test_mean_and_median_are_over_the_matching_values_and_the_median_is_the_upper_one() -> None:
    """Four errors of 1, four of 3: the mean is 2, the upper middle 3; eight other exponents do not count."""
    bits = 0x4010 + np.arange(16, dtype=np.uint16)[None] * 4
    theirs = bits.copy()
    theirs[0, :4] += 1
    theirs[0, 4:8] -= 3
    theirs[0, 8:] ^= 0x0800
    (report,) = verify_proofs(build_proofs(bits), theirs, seed=SEED)
    assert (report.k, report.exponent_mismatches, report.sign_mismatches) == (16, 8, 0)
    assert (report.mantissa_error_mean, report.mantissa_error_median) == (2.0, 3)


def test_activations_of_another_shape_are_our_mistake() -> None:
    bits = make_bits("gaussian", 13, 40, 64)
    with pytest.raises(LocalError, match="tokens=40"):
        verify_proofs(build_proofs(bits), bits[:39], seed=SEED)


def test_our_own_broken_activations_are_our_mistake() -> None:
    bits = make_bits("gaussian", 14, 40, 64)
    proofs = build_proofs(bits)
    bits[39, 0] = 0x7F80
    with pytest.raises(LocalError, match="chunk 1"):
        verify_proofs(proofs, bits, seed=SEED)


@pytest.mark.parametrize(
    ("field", "at_limit", "limit"),
    [
        ("exponent_mismatches", 38, 38),
        ("sign_mismatches", 8, 8),
        ("mantissa_error_median", 8, 8),
        ("decoy_hits", 14, 14),
        ("collisions", 8, 8),
        ("leading_zeros", 2, 2),
    ],
)
def test_a_number_at_its_limit_passes_and_the_next_one_is_a_fault(field: str, at_limit: int, limit: int) -> None:
    reports = [HONEST, HONEST._replace(**{field: at_limit})]
    assert find_faults(reports, ToplocThresholds()) == []
    reports[1] = HONEST._replace(**{field: at_limit + 1})
    assert find_faults(reports, ToplocThresholds()) == [ProofFault(1, field, at_limit + 1, limit)]


def test_the_mean_error_is_compared_as_a_fraction() -> None:
    assert find_faults([HONEST._replace(mantissa_error_sum=1280)], ToplocThresholds()) == []
    assert find_faults([HONEST._replace(mantissa_error_sum=1281)], ToplocThresholds()) == [
        ProofFault(0, "mantissa_error_mean", 1281 / 128, 10.0)
    ]


def test_a_short_tail_is_allowed_mismatches_in_proportion() -> None:
    tail = HONEST._replace(k=64, exponent_mismatches=19)
    assert find_faults([tail], ToplocThresholds()) == []
    assert find_faults([tail._replace(exponent_mismatches=20)], ToplocThresholds()) == [
        ProofFault(0, "exponent_mismatches", 20, 19)
    ]


@pytest.mark.parametrize("exponents", [1, 2, 3, 8, 16, 64, 128, 254])
def test_the_decoy_limit_is_the_smallest_that_keeps_the_promise(exponents: int) -> None:
    limit = get_decoy_limit(exponents)
    chance = min(1.0, exponents * 256 / TOPLOC_PRIME + 128 / 2**15)
    above = [sum(compute_binomial(hits, chance) for hits in range(start + 1, 65)) for start in (limit - 1, limit)]
    assert above[1] <= TOPLOC_FALSE_REJECTION < above[0]


def test_forgers_who_must_hit_seven_in_ten_exceed_the_decoy_limit() -> None:
    for exponents in range(1, 13):
        survives = sum(compute_binomial(hits, 0.7) for hits in range(get_decoy_limit(exponents) + 1))
        assert survives < 1e-9, exponents


@pytest.mark.parametrize(
    "wrong",
    [
        {"exponent_mismatches_max": -1},
        {"exponent_mismatches_max": 128},
        {"sign_mismatches_max": 128},
        {"mantissa_error_mean_max": float("nan")},
        {"mantissa_error_median_max": 128},
    ],
)
def test_thresholds_that_would_accept_anything_or_nothing_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(LocalError, match=next(iter(wrong))):
        replace(ToplocThresholds(), **wrong)


def test_no_chunks_are_not_a_pass() -> None:
    with pytest.raises(AssertionError):
        find_faults([], ToplocThresholds())
