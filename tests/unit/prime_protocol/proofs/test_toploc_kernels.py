"""TOPLOC kernels: known polynomials, hard selections, and that every variant gives the same values."""

from typing import Any

import numpy as np
import pytest

from oracle.toploc_inputs import DISTRIBUTIONS, make_bits
from prime_protocol import native
from prime_protocol.constants import TOPLOC_PRIME
from prime_protocol.proofs import toploc_kernels
from prime_protocol.proofs import toploc_numpy as toploc_plain
from prime_protocol.proofs.toploc_kernels import NativeToplocKernels, ToplocKernels, get_kernels, get_native_kernels

COMPILED = get_native_kernels()
NARROW = COMPILED and NativeToplocKernels(COMPILED.selection, COMPILED.field, wide=False)
VARIANTS: list[ToplocKernels] = [toploc_plain, *(k for k in (COMPILED, NARROW) if k)]
NAMES = ["plain", "native", "native-narrow"][: len(VARIANTS)]

every_variant = pytest.mark.parametrize("kernels", VARIANTS, ids=NAMES)


def array(rows: list[list[int]], kind: type[Any]) -> Any:
    return np.array(rows, dtype=kind)


@every_variant
@pytest.mark.parametrize(
    ("indices", "values", "modulus", "coefficients"),
    [
        ([1, 2, 3], [4, 5, 6], 65_497, [3, 1, 0]),
        ([7, 70_000, 12_345, 163_839], [0x4049, 0xC0A0, 0x3F80, 0x4120], 65_497, [0xD908, 0x5140, 0x2FAA, 0x4CDE]),
        ([5, 65_502, 9], [1, 2, 3], 65_496, [0xFFD0, 0x2AA7, 0x2AA4]),
        ([42], [7], 65_497, [7]),
    ],
)
def test_known_points_give_the_known_polynomial(
    kernels: ToplocKernels, indices: list[int], values: list[int], modulus: int, coefficients: list[int]
) -> None:
    moduli, found = kernels.interpolate(array([indices], np.uint32), array([values], np.uint16))
    assert moduli.tolist() == [modulus]
    assert found.tolist() == [coefficients]
    points = array([[index % modulus for index in indices]], np.uint32)
    assert kernels.evaluate(found, points).tolist() == [values]


@every_variant
def test_indices_that_no_modulus_separates_give_the_modulus_0(kernels: ToplocKernels) -> None:
    indices = array([[5, 5, 9], [5, 6, 9]], np.uint32)
    moduli, _ = kernels.interpolate(indices, array([[1, 2, 3], [1, 2, 3]], np.uint16))
    assert moduli.tolist() == [0, TOPLOC_PRIME]


@every_variant
def test_evaluation_agrees_with_whole_number_arithmetic(kernels: ToplocKernels) -> None:
    dice = np.random.default_rng(1)
    coefficients = dice.integers(0, TOPLOC_PRIME, (3, 128), dtype=np.uint16)
    points = dice.integers(0, TOPLOC_PRIME, (3, 200), dtype=np.uint32)
    coefficients[0], points[0, :2] = TOPLOC_PRIME - 1, [TOPLOC_PRIME - 1, 0]
    expected = [
        [sum(c * pow(x, power, TOPLOC_PRIME) for power, c in enumerate(row)) % TOPLOC_PRIME for x in at]
        for row, at in zip(coefficients.tolist(), points.tolist(), strict=True)
    ]
    assert kernels.evaluate(coefficients, points).tolist() == expected


@every_variant
def test_free_points_are_new_and_not_taken_and_then_the_smallest(kernels: ToplocKernels) -> None:
    draws = array([[9, 3, 9, 7, 65_496], [1, 1, 1, 1, 1]], np.uint32)
    taken = array([[3, 5, 3], [0, 2, 4]], np.uint32)
    points, repeats = kernels.pick_free(draws, taken, 5)
    assert points.tolist() == [[9, 7, 65_496, 0, 1], [1, 3, 5, 6, 7]]
    assert repeats.tolist() == [1, 0]


@every_variant
def test_a_selection_holds_the_largest_magnitudes_with_their_patterns(kernels: ToplocKernels) -> None:
    bits = make_bits("heavy", 3, 32, 300).reshape(1, -1)
    indices, values = kernels.select(bits)
    assert len(set(indices[0].tolist())) == 128
    assert values[0].tolist() == bits[0, indices[0]].tolist()
    assert sorted(values[0] & 0x7FFF) == sorted(bits[0] & 0x7FFF)[-128:]


def pairs(selected: tuple[toploc_plain.Points, toploc_plain.Bits]) -> list[list[tuple[int, int]]]:
    """The selection as sets: its order is free."""
    indices, values = selected
    return [sorted(zip(*rows, strict=True)) for rows in zip(indices.tolist(), values.tolist(), strict=True)]


SHAPES = [(2, 16), (1, 128), (2, 129), (3, 2048), (1, 8191), (5, 8192), (2, 40_003)]
CASES = [(name, *shape) for name in DISTRIBUTIONS for shape in SHAPES if name != "stubborn" or shape[1] <= 2048]
"""Stubborn input is made for selection by partition, and slow to make."""


@pytest.mark.parametrize(("distribution", "chunks", "n"), CASES)
def test_every_variant_selects_the_same_values(distribution: str, chunks: int, n: int) -> None:
    rows = [make_bits(distribution, 10 + chunk, 1, n)[0] for chunk in range(chunks)]
    bits = np.stack(rows)
    expected = pairs(toploc_plain.select(bits))
    for kernels in VARIANTS[1:]:
        assert pairs(kernels.select(bits)) == expected


@pytest.mark.parametrize("sizes", [[128, 4096, 129], [8192, 8191, 8192, 8192, 20_000, 8192, 8192], [40, 40]])
def test_every_variant_selects_the_same_from_the_beginnings_of_rows(sizes: list[int]) -> None:
    bits = make_bits("heavy", 5, 9, 20_000)
    rows = np.random.default_rng(1).permutation(9)[: len(sizes)]
    expected = [pairs(toploc_plain.select(bits[row : row + 1, :n]))[0] for row, n in zip(rows, sizes, strict=True)]
    for kernels in VARIANTS:
        assert pairs(kernels.select_from(bits, rows, np.array(sizes))) == expected


def test_without_the_compiled_kernels_numpy_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda _: None)
    get_kernels.cache_clear()
    try:
        assert toploc_kernels.get_kernels() is toploc_plain
    finally:
        get_kernels.cache_clear()
