"""The C kernels and numpy give the same bytes, and the bytes mean what the format says."""

import ctypes

import numpy as np
import pytest

from prime_protocol.native import library
from prime_protocol.weights import delta_lanes
from prime_protocol.weights.delta_lanes import (
    PIECE_BYTES,
    Bytes,
    decode_gaps,
    decode_zigzag,
    encode_gaps,
    encode_zigzag,
    get_kernels,
    scan,
    scan_native,
    scan_numpy,
    scatter,
    scatter_native,
    scatter_numpy,
)

WIDTHS = [1, 2, 4]
DENSITIES = [0.0, 0.001, 0.01, 0.3, 1.0]


@pytest.fixture
def kernels() -> ctypes.CDLL:
    found = get_kernels()
    if found is None:
        pytest.skip("the C kernels are not built here")
    return found


def make_pair(width: int, density: float, lanes: int = 5003, skew: int = 0) -> tuple[Bytes, Bytes]:
    """Two blocks of an odd number of lanes that start `skew` bytes off any alignment."""
    dice = np.random.default_rng([width, lanes, skew])
    old = dice.integers(0, 256, lanes * width + skew, dtype=np.uint8)[skew:]
    new = np.concatenate([np.zeros(skew, np.uint8), old])[skew:]
    lanes_changed = np.flatnonzero(dice.random(lanes) < density)
    new[lanes_changed * width + dice.integers(0, width, lanes_changed.size)] ^= 0x81
    return old, new


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("skew", [0, 1])
def test_all_three_scanners_give_the_same_bytes(kernels: ctypes.CDLL, width: int, density: float, skew: int) -> None:
    old, new = make_pair(width, density, skew=skew)
    expected_gaps, expected_planes = scan_numpy(old, new, width)
    for wide in (True, False):
        gaps, planes = scan_native(kernels, old, new, width, wide=wide)
        assert gaps.tobytes() == expected_gaps.tobytes()
        assert planes.tobytes() == expected_planes.tobytes()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("lanes", [0, 1, 7, 8, 31, 32, 33, 63, 64, 65, 127, 128, 2047, 2048, 2049, 2112])
def test_scanners_agree_at_the_edges_of_a_vector(kernels: ctypes.CDLL, width: int, lanes: int) -> None:
    old, new = make_pair(width, 1.0, lanes)
    for wide in (True, False):
        gaps, planes = scan_native(kernels, old, new, width, wide=wide)
        assert gaps.tobytes() == bytes(lanes)
        assert planes.tobytes() == scan_numpy(old, new, width)[1].tobytes()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("density", DENSITIES)
def test_both_scatters_rebuild_the_new_block(kernels: ctypes.CDLL, width: int, density: float) -> None:
    old, new = make_pair(width, density)
    gaps, planes = scan_numpy(old, new, width)
    by_numpy, by_kernel = old.copy(), old.copy()
    scatter_numpy(by_numpy, gaps, planes)
    scatter_native(kernels, by_kernel, gaps, planes)
    assert by_numpy.tobytes() == new.tobytes()
    assert by_kernel.tobytes() == new.tobytes()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("density", [0.0, 3e-6, 0.01, 1.0])
def test_piece_by_piece_is_the_same_as_at_once(kernels: ctypes.CDLL, width: int, density: float) -> None:
    lanes = 2 * PIECE_BYTES // width + 77
    old, new = make_pair(width, density, lanes)
    gaps, planes = scan_numpy(old, new, width)
    seen: list[bytes] = []
    found = scan_native(kernels, old, new, width, lambda piece: seen.append(piece.tobytes()))
    assert found[0].tobytes() == gaps.tobytes()
    assert found[1].tobytes() == planes.tobytes()
    assert [len(piece) for piece in seen] == [PIECE_BYTES, PIECE_BYTES, 77 * width]
    scatter_native(kernels, old, gaps, planes, lambda piece: seen.append(piece.tobytes()))
    assert old.tobytes() == new.tobytes()
    assert b"".join(seen) == new.tobytes() * 2, "what is seen is seen after it was patched"


def test_a_library_that_was_not_built_is_none() -> None:
    assert library("not-built") is None


def test_without_kernels_numpy_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_lanes, "library", lambda name: None)
    old, new = make_pair(2, 0.01)
    seen: list[Bytes] = []
    gaps, planes = scan(old, new, 2, seen.append)
    target = old.copy()
    scatter(target, gaps, planes, seen.append)
    assert target.tobytes() == new.tobytes()
    assert [piece.tobytes() for piece in seen] == [new.tobytes()] * 2


@pytest.mark.parametrize(
    ("positions", "codes"),
    [
        ([], []),
        ([0], [0]),
        ([0, 1, 2], [0, 0, 0]),
        ([254], [254]),
        ([255], [255, 0]),
        ([256], [255, 1]),
        ([3, 3 + 1 + 510], [3, 255, 255, 0]),
    ],
)
def test_gap_codes_are_the_documented_ones(positions: list[int], codes: list[int]) -> None:
    encoded = encode_gaps(np.array(positions, np.int64))
    assert encoded.tolist() == codes
    assert decode_gaps(encoded).tolist() == positions


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_small_steps_fold_to_small_numbers_and_back(bits: int) -> None:
    steps = np.array([0, -1, 1, -2, 2, -100], np.int64).astype(f"u{bits // 8}")
    folded = encode_zigzag(steps)
    assert folded.tolist() == [0, 1, 2, 3, 4, 199]
    assert decode_zigzag(folded).tolist() == steps.tolist()
