"""Laws of deltas and manifests: any two tensors, any bits, any chunks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_protocol.constants import SHARD_BYTES_MIN
from prime_protocol.weights.delta import compute_record_bytes_max, encode_record, patch_blocks
from prime_protocol.weights.delta_lanes import get_kernels, scan_native, scan_numpy, scatter_numpy
from prime_protocol.weights.manifest import compute_blake3, cut_shards
from prime_protocol.weights.manifest_builder import RangeHasher
from prime_protocol.weights.safetensors_header import Dtype
from prime_protocol.weights.transfer import ManifestLink, plan_manifest_path
from prime_protocol.wire.ids import Digest

KERNELS = get_kernels()
WIDTHS = st.sampled_from([1, 2, 4])


@st.composite
def pairs(draw: st.DrawFn) -> tuple[int, bytes, bytes]:
    """Lane width, old and new bytes: from nothing changed to everything, with runs, at any place."""
    width = draw(WIDTHS)
    lanes = draw(st.integers(0, 3000))
    dice = np.random.default_rng(draw(st.integers(0, 2**32)))
    old = dice.integers(0, draw(st.sampled_from([1, 4, 256])), lanes * width, dtype=np.uint8)
    new = old.copy()
    for start in draw(st.lists(st.integers(0, 12_000), max_size=8)):
        length = draw(st.integers(1, 40))
        new[start : start + length] = dice.integers(0, 256, new[start : start + length].size, dtype=np.uint8)
    if draw(st.booleans()):
        new ^= (dice.random(new.size) < draw(st.sampled_from([0.001, 0.05, 0.9]))).astype(np.uint8)
    return width, old.tobytes(), new.tobytes()


@given(pairs())
@settings(deadline=None, max_examples=300)
def test_old_and_record_give_new(pair: tuple[int, bytes, bytes]) -> None:
    width, old, new = pair
    record = b"".join(encode_record(old, new, width))
    assert len(record) <= compute_record_bytes_max(len(new), width)
    target = np.frombuffer(bytearray(old), np.uint8)
    made = b"".join(
        block.tobytes() for block in patch_blocks(record, len(new), width, lambda start, stop: target[start:stop])
    )
    assert made == new
    assert target.tobytes() == new


@pytest.mark.skipif(KERNELS is None, reason="the C kernels are not built here")
@given(pairs())
@settings(deadline=None, max_examples=300)
def test_numpy_and_c_write_the_same_bytes(pair: tuple[int, bytes, bytes]) -> None:
    assert KERNELS is not None
    width, old, new = pair
    before, after = np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)
    gaps, planes = scan_numpy(before, after, width)
    target = before.copy()
    scatter_numpy(target, gaps, planes)
    assert target.tobytes() == new
    for wide in (True, False):
        got_gaps, got_planes = scan_native(KERNELS, before, after, width, wide=wide)
        assert (got_gaps.tobytes(), got_planes.tobytes()) == (gaps.tobytes(), planes.tobytes())


@given(st.lists(st.integers(1, 5 * SHARD_BYTES_MIN), min_size=1, max_size=6), st.integers(SHARD_BYTES_MIN, 20_000))
def test_shards_cover_every_byte_once(sizes: list[int], shard_bytes: int) -> None:
    ends = [0] * len(sizes)
    for file, offset, length in cut_shards(sizes, shard_bytes):
        assert 1 <= length <= shard_bytes
        assert offset == ends[file]
        ends[file] += length
    assert ends == sizes


@given(
    st.binary(max_size=300), st.lists(st.tuples(st.integers(0, 9), st.integers(1, 30))), st.lists(st.integers(0, 40))
)
def test_range_digests_do_not_depend_on_the_chunks(data: bytes, spans: list[tuple[int, int]], cuts: list[int]) -> None:
    ranges, position = [], 0
    for hole, length in spans:
        ranges.append((position + hole, length))
        position += hole + length
    hasher = RangeHasher(iter(ranges))
    rest = data
    for cut in cuts:
        hasher.feed(rest[:cut])
        rest = rest[cut:]
    hasher.feed(rest)
    assert hasher.finish() == [
        compute_blake3(data[start : start + size]) for start, size in ranges if start < len(data)
    ]


@st.composite
def link_sets(draw: st.DrawFn) -> list[ManifestLink]:
    roots = st.integers(0, 5).map(lambda number: Digest(bytes([number]) * 32))
    return draw(
        st.lists(
            st.builds(ManifestLink, root=roots, base=st.none() | roots, transport_bytes=st.integers(1, 9)), max_size=14
        )
    )


def cheapest(wanted: Digest, held: set[Digest], links: list[ManifestLink], left: int) -> float:
    """The least bytes, by trying every chain of at most `left` links."""
    if wanted in held:
        return 0
    into = [link for link in links if link.root == wanted] if left else []
    costs = [
        link.transport_bytes + (0 if link.base is None else cheapest(link.base, held, links, left - 1)) for link in into
    ]
    return min(costs, default=float("inf"))


@given(link_sets(), st.sets(st.integers(0, 5), max_size=2))
@settings(deadline=None)
def test_a_plan_is_a_chain_from_what_is_held_and_none_is_cheaper(links: list[ManifestLink], held: set[int]) -> None:
    wanted = Digest(bytes(32))
    holding = {Digest(bytes([number]) * 32) for number in held}
    path = plan_manifest_path(wanted, holding, links)
    best = cheapest(wanted, holding, links, 6)
    if path is None:
        assert best == float("inf")
        return
    assert sum(link.transport_bytes for link in path) == best
    have: Digest | None = wanted if wanted in holding else None
    for link in path:
        assert link.base is None or link.base == have or link.base in holding
        have = link.root
    assert have == wanted


@given(st.sampled_from(list(Dtype)))
def test_an_element_is_a_whole_number_of_lanes(dtype: Dtype) -> None:
    assert dtype.item_bytes % dtype.lane_bytes == 0
