"""The log as files: names, contents, and which files a proof needs."""

import pytest

from prime_protocol.constants import LOG_ENTRIES_MAX, LOG_ENTRY_BYTES_MAX, TILE_HASHES
from prime_protocol.errors import RemoteError
from prime_protocol.log.merkle import (
    MerkleTree,
    build_consistency_proof,
    build_inclusion_proof,
    compute_leaf_hash,
    compute_root,
    verify_inclusion,
)
from prime_protocol.log.tiles import (
    EntryBundle,
    Tile,
    check_tile,
    compute_prefix_root,
    decode_bundle,
    encode_bundle,
    encode_tile,
    list_consistency_tiles,
    list_inclusion_tiles,
    list_new_bundles,
    list_new_tiles,
    make_node_reader,
    parse_tile_path,
)
from prime_protocol.wire.ids import Digest

SIZE = 70_000
TREE = MerkleTree(compute_leaf_hash(b"%d" % number) for number in range(SIZE))


@pytest.mark.parametrize(
    ("place", "path"),
    [
        (Tile(0, 0, 256), "tile/0/000"),
        (Tile(0, 273, 112), "tile/0/273.p/112"),
        (Tile(1, 1_234_067, 256), "tile/1/x001/x234/067"),
        (Tile(2, 1000, 1), "tile/2/x001/000.p/1"),
        (Tile(7, 0, 127), "tile/7/000.p/127"),
        (EntryBundle(1_234_067, 8), "tile/entries/x001/x234/067.p/8"),
        (EntryBundle((LOG_ENTRIES_MAX - 255) // 256, 255), "tile/entries/x036/x028/x797/x018/x963/967.p/255"),
    ],
)
def test_places_have_the_paths_of_the_spec(place: Tile | EntryBundle, path: str) -> None:
    assert place.path == path
    assert parse_tile_path(path) == place


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("", "tile.path"),
        ("checkpoint", "tile.path"),
        ("/tile/0/000", "tile.path"),
        ("tile/0/000/", "tile.path"),
        ("tile/0/000\n", "tile.path"),
        ("tile/00/000", "tile.path"),
        ("tile/0/0", "tile.path"),
        ("tile/0/x000/001", "tile.path"),
        ("tile/0/001/001", "tile.path"),
        ("tile/0/x001/x001", "tile.path"),
        ("tile/0/٠٠٠", "tile.path"),
        ("tile/0/../000", "tile.path"),
        ("tile/0/000.p/0", "tile.path"),
        ("tile/0/000.p/01", "tile.path"),
        ("tile/0/000.p/256", "tile.path"),
        ("tile/0/000.p/257", "tile.width"),
        ("tile/8/000", "tile.level"),
        ("tile/7/000", "tile.index"),
        ("tile/7/001.p/1", "tile.index"),
        ("tile/entries/x036/x028/x797/x018/x963/968.p/1", "tile.index"),
    ],
)
def test_any_other_path_is_refused(path: str, field: str) -> None:
    with pytest.raises(RemoteError) as caught:
        parse_tile_path(path)
    assert caught.value.field == field


def test_a_tree_has_the_tiles_that_the_spec_counts() -> None:
    tiles = list(list_new_tiles(0, SIZE))
    full = [Tile(0, index, 256) for index in range(273)] + [Tile(1, 0, 256)]
    assert sorted(tiles) == sorted([*full, Tile(0, 273, 112), Tile(1, 1, 17), Tile(2, 0, 1)])
    assert list(list_new_tiles(0, 256)) == [Tile(0, 0, 256), Tile(1, 0, 1)]
    assert len(list(list_new_bundles(0, SIZE))) == 274


@pytest.mark.parametrize(("old", "new"), [(0, 1), (1, 1), (255, 256), (256, 256), (256, 257), (300, 600), (255, 513)])
def test_growing_writes_exactly_the_tiles_that_were_not_there(old: int, new: int) -> None:
    assert set(list_new_tiles(old, new)) == set(list_new_tiles(0, new)) - set(list_new_tiles(0, old))
    assert set(list_new_bundles(old, new)) == set(list_new_bundles(0, new)) - set(list_new_bundles(0, old))


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 511, 65_535, 65_536, 65_537, SIZE])
def test_proofs_from_tiles_equal_proofs_from_the_tree(size: int) -> None:
    files = {tile.path: encode_tile(tile, TREE.get_node) for tile in list_new_tiles(0, size)}
    get_node = make_node_reader(size, lambda tile: files[tile.path])
    assert compute_root(size, get_node) == compute_root(size, TREE.get_node)
    for index in {0, size // 3, size - 1}:
        assert build_inclusion_proof(index, size, get_node) == build_inclusion_proof(index, size, TREE.get_node)
        assert build_consistency_proof(index, size, get_node) == build_consistency_proof(index, size, TREE.get_node)


def test_the_tiles_named_for_a_proof_are_enough_and_all_used() -> None:
    for index in (0, 255, 256, 65_535, 65_536, SIZE - 1):
        asked: set[Tile] = set()

        def get_tile(tile: Tile, asked: set[Tile] = asked) -> bytes:
            asked.add(tile)
            return encode_tile(tile, TREE.get_node)

        get_node = make_node_reader(SIZE, get_tile)
        proof = build_inclusion_proof(index, SIZE, get_node)
        assert sorted(asked) == list_inclusion_tiles(index, SIZE)
        leaf, root = Digest(get_node(0, index)), compute_root(SIZE, get_node)
        verify_inclusion(leaf, proof, index=index, size=SIZE, root=root)

        asked.clear()
        build_consistency_proof(index, SIZE, get_node)
        compute_root(index, get_node)
        compute_root(SIZE, get_node)
        assert sorted(asked) == list_consistency_tiles(index, SIZE)


def test_the_root_of_a_prefix_comes_only_from_tiles_of_the_signed_tree() -> None:
    def get_tile(tile: Tile) -> bytes:
        return encode_tile(tile, TREE.get_node)

    root = TREE.root()
    for size in (1, 256, 65_536, SIZE):
        expected = compute_root(size, TREE.get_node)
        assert compute_prefix_root(size, size=SIZE, root=root, get_tile=get_tile) == expected
    with pytest.raises(RemoteError, match=r"^tile: leads to root"):
        compute_prefix_root(256, size=SIZE, root=Digest(bytes(32)), get_tile=get_tile)


def test_a_tile_of_another_length_is_refused_by_its_path() -> None:
    with pytest.raises(RemoteError, match=r"^tile/0/273\.p/112: is 31 bytes, expected 3584"):
        check_tile(Tile(0, 273, 112), b"x" * 31)
    with pytest.raises(RemoteError, match=r"^tile/0/273\.p/112"):
        make_node_reader(SIZE, lambda tile: b"")(0, SIZE - 1)


@pytest.mark.parametrize("entries", [[b""], [b"a", b"", b"ccc"], [b"x" * LOG_ENTRY_BYTES_MAX], [b"e"] * TILE_HASHES])
def test_a_bundle_decodes_to_what_was_encoded(entries: list[bytes]) -> None:
    assert decode_bundle(EntryBundle(0, len(entries)), encode_bundle(entries)) == entries


def test_a_bundle_is_lengths_and_entries() -> None:
    assert encode_bundle([b"a", b"bc"]) == b"\x00\x01a\x00\x02bc"


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b"", "tile/entries/000.p/2[0]"),
        (b"\x00", "tile/entries/000.p/2[0]"),
        (b"\x00\x01a", "tile/entries/000.p/2[1]"),
        (b"\x00\x01a\x00", "tile/entries/000.p/2[1]"),
        (b"\x00\x01a\x00\x02b", "tile/entries/000.p/2[1]"),
        (b"\x00\x01a\x00\x01bc", "tile/entries/000.p/2"),
    ],
)
def test_a_damaged_bundle_is_refused_by_the_number_of_its_entry(raw: bytes, field: str) -> None:
    with pytest.raises(RemoteError) as caught:
        decode_bundle(EntryBundle(0, 2), raw)
    assert caught.value.field == field
