"""The way to wanted weights: fewest bytes, the same for every node, none if there is none."""

from dataclasses import replace
from itertools import permutations

import pytest

from prime_protocol.weights.manifest_builder import SourceFile, build_keyframe
from prime_protocol.weights.safetensors_header import parse_safetensors_header
from prime_protocol.weights.transfer import ManifestLink, make_manifest_link, plan_manifest_path
from prime_protocol.wire.ids import Digest, RunId, Step

ROOTS = [Digest(bytes([number]) * 32) for number in range(8)]


def delta(base: int, root: int, transport_bytes: int = 10) -> ManifestLink:
    return ManifestLink(root=ROOTS[root], base=ROOTS[base], transport_bytes=transport_bytes)


def keyframe(root: int, transport_bytes: int = 1000) -> ManifestLink:
    return ManifestLink(root=ROOTS[root], base=None, transport_bytes=transport_bytes)


LINKS = [keyframe(0), delta(0, 1), delta(1, 2), delta(2, 3), keyframe(3), delta(3, 4), delta(4, 5)]


def plan(wanted: int, held: list[int], links: list[ManifestLink]) -> list[ManifestLink] | None:
    path = plan_manifest_path(ROOTS[wanted], {ROOTS[number] for number in held}, links)
    return None if path is None else list(path)


def test_held_weights_need_nothing() -> None:
    assert plan(3, [3], LINKS) == []
    assert plan(3, [3], []) == []


def test_a_held_base_needs_one_delta() -> None:
    assert plan(3, [2], LINKS) == [delta(2, 3)]


def test_an_older_base_needs_a_chain() -> None:
    assert plan(5, [2, 0], LINKS) == [delta(2, 3), delta(3, 4), delta(4, 5)]


def test_with_nothing_held_the_nearest_keyframe_starts_the_chain() -> None:
    assert plan(5, [], LINKS) == [keyframe(3), delta(3, 4), delta(4, 5)]
    assert plan(2, [], LINKS) == [keyframe(0), delta(0, 1), delta(1, 2)]


def test_a_keyframe_wins_over_a_chain_that_weighs_more() -> None:
    links = [delta(0, 1, 600), delta(1, 2, 600), keyframe(2)]
    assert plan(2, [0], links) == [keyframe(2)]


def test_without_a_way_there_is_no_plan() -> None:
    assert plan(6, [0], LINKS) is None
    assert plan(2, [5], [delta(0, 1), delta(1, 2)]) is None


def test_circles_end() -> None:
    assert plan(1, [], [delta(2, 1), delta(1, 2), delta(1, 1)]) is None
    assert plan(1, [3], [delta(2, 1), delta(1, 2), delta(3, 2)]) == [delta(3, 2), delta(2, 1)]


def test_the_shorter_of_two_equal_ways_wins() -> None:
    assert plan(3, [0], [delta(0, 1, 5), delta(1, 3, 5), delta(0, 3, 10)]) == [delta(0, 3, 10)]


@pytest.mark.parametrize("order", list(permutations(range(5))))
def test_the_plan_does_not_depend_on_the_order_of_the_links(order: tuple[int, ...]) -> None:
    links = [delta(0, 1, 20), delta(0, 1, 10), delta(1, 3, 20), delta(0, 2, 20), delta(2, 3, 10)]
    assert plan(3, [0], [links[index] for index in order]) == [delta(0, 1, 10), delta(1, 3, 20)]


def test_a_link_says_what_its_manifest_does() -> None:
    text = b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'
    file = len(text).to_bytes(8, "little") + text + b"xy"
    header = parse_safetensors_header(file[:-2], file_bytes=len(file))
    source = SourceFile(name="m", header=header, data=file)
    manifest = build_keyframe(RunId("run"), Step(0), [source])
    link = make_manifest_link(manifest)
    assert link == ManifestLink(root=manifest.root, base=None, transport_bytes=len(file))
    assert replace(link, base=ROOTS[0]) != link
