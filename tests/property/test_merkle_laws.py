"""Laws of the tree, its heads and its tiles, over sizes and places that nobody chose by hand."""

from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_protocol.constants import COSIGNATURE_TIME_S_MAX, LOG_ENTRIES_MAX, TILE_HASHES, TILE_HEIGHT, TILE_LEVEL_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.log.merkle import (
    Frontier,
    MerkleTree,
    build_consistency_proof,
    build_inclusion_proof,
    compute_leaf_hash,
    compute_root,
    verify_consistency,
    verify_inclusion,
)
from prime_protocol.log.tiles import (
    EntryBundle,
    Tile,
    decode_bundle,
    encode_bundle,
    encode_tile,
    make_node_reader,
    parse_tile_path,
)
from prime_protocol.log.tree_head import (
    SignatureKind,
    SignedNote,
    TreeHead,
    VerifierKey,
    cosign_tree_head,
    open_cosigned_tree_head,
    sign_tree_head,
)
from prime_protocol.wire.ids import Digest

LEAVES = [compute_leaf_hash(number.to_bytes(2, "big")) for number in range(600)]
TREE = MerkleTree(LEAVES)
NAIVE: dict[tuple[int, int], bytes] = {}


def naive_root(start: int, end: int) -> bytes:
    """RFC 9162 2.1.1, word for word."""
    if start == end:
        return sha256(b"").digest()
    if end - start == 1:
        return LEAVES[start]
    if (start, end) not in NAIVE:
        k = 1
        while 2 * k < end - start:
            k *= 2
        pair = naive_root(start, start + k) + naive_root(start + k, end)
        NAIVE[start, end] = sha256(b"\x01" + pair).digest()
    return NAIVE[start, end]


def naive_path(m: int, start: int, end: int) -> list[bytes]:
    """RFC 9162 2.1.3.1, word for word."""
    if end - start == 1:
        return []
    k = 1
    while 2 * k < end - start:
        k *= 2
    if m < k:
        return [*naive_path(m, start, start + k), naive_root(start + k, end)]
    return [*naive_path(m - k, start + k, end), naive_root(start, start + k)]


def naive_subproof(m: int, start: int, end: int, whole: bool) -> list[bytes]:
    """RFC 9162 2.1.4.1, word for word."""
    if m == end - start:
        return [] if whole else [naive_root(start, end)]
    k = 1
    while 2 * k < end - start:
        k *= 2
    if m <= k:
        return [*naive_subproof(m, start, start + k, whole), naive_root(start + k, end)]
    return [*naive_subproof(m - k, start + k, end, False), naive_root(start, start + k)]


sizes = st.integers(1, len(LEAVES))


@st.composite
def places(draw: st.DrawFn) -> tuple[int, int]:
    size = draw(sizes)
    return draw(st.integers(0, size - 1)), size


@st.composite
def growths(draw: st.DrawFn, steps: int = 2) -> list[int]:
    return sorted(draw(st.lists(sizes, min_size=steps, max_size=steps)))


def get_root(size: int) -> Digest:
    return compute_root(size, TREE.get_node)


@given(st.lists(st.integers(0, 40), max_size=12))
def test_frontier_tree_and_the_definition_agree_however_leaves_arrive(batches: list[int]) -> None:
    frontier, tree = Frontier(), MerkleTree()
    for number, batch in enumerate(batches):
        leaves = LEAVES[tree.size : tree.size + batch]
        if number % 2:
            frontier = frontier.append_many(leaves)
            tree.append_many(leaves)
        else:
            for leaf in leaves:
                frontier = frontier.append(leaf)
                tree.append(leaf)
        assert frontier.size == tree.size
        assert frontier.root() == tree.root() == naive_root(0, tree.size)


@given(places())
def test_an_inclusion_proof_is_the_definitions_and_verifies(place: tuple[int, int]) -> None:
    index, size = place
    proof = build_inclusion_proof(index, size, TREE.get_node)
    assert list(proof) == naive_path(index, 0, size)
    verify_inclusion(LEAVES[index], proof, index=index, size=size, root=get_root(size))


@given(growths())
def test_a_consistency_proof_is_the_definitions_and_verifies(growth: list[int]) -> None:
    old, new = growth
    proof = build_consistency_proof(old, new, TREE.get_node)
    assert list(proof) == naive_subproof(old, 0, new, True)
    verify_consistency(proof, old_size=old, old_root=get_root(old), new_size=new, new_root=get_root(new))


@given(places(), st.data())
def test_a_damaged_inclusion_proof_is_refused(place: tuple[int, int], data: st.DataObject) -> None:
    index, size = place
    damaged = damage(data, list(build_inclusion_proof(index, size, TREE.get_node)))
    with pytest.raises(RemoteError):
        verify_inclusion(LEAVES[index], damaged, index=index, size=size, root=get_root(size))


@given(growths(), st.data())
def test_a_damaged_consistency_proof_is_refused(growth: list[int], data: st.DataObject) -> None:
    old, new = growth
    damaged = damage(data, list(build_consistency_proof(old, new, TREE.get_node)))
    with pytest.raises(RemoteError):
        verify_consistency(damaged, old_size=old, old_root=get_root(old), new_size=new, new_root=get_root(new))


def damage(data: st.DataObject, proof: list[Digest]) -> list[Digest]:
    """One hash added, dropped, flipped or swapped."""
    at = data.draw(st.integers(0, len(proof)))
    kind = data.draw(st.sampled_from(["add", "drop", "flip", "swap"]))
    if kind == "add" or at == len(proof):
        return [*proof[:at], data.draw(st.sampled_from([LEAVES[0], *proof])), *proof[at:]]
    if kind == "drop":
        return proof[:at] + proof[at + 1 :]
    if kind == "flip":
        bit = data.draw(st.integers(0, 255))
        flipped = int.from_bytes(proof[at], "big") ^ (1 << bit)
        return [*proof[:at], Digest(flipped.to_bytes(32, "big")), *proof[at + 1 :]]
    other = (at + 1) % len(proof)
    if other == at:
        return []
    proof[at], proof[other] = proof[other], proof[at]
    return proof


@given(places(), sizes, st.integers(0, len(LEAVES)))
def test_an_inclusion_proof_holds_for_its_own_place_only(place: tuple[int, int], size: int, index: int) -> None:
    honest_index, honest_size = place
    proof = build_inclusion_proof(honest_index, honest_size, TREE.get_node)
    if index != honest_index:
        with pytest.raises(RemoteError):
            verify_inclusion(LEAVES[honest_index], proof, index=index, size=honest_size, root=get_root(honest_size))
    if size != honest_size:
        with pytest.raises(RemoteError):
            verify_inclusion(LEAVES[honest_index], proof, index=honest_index, size=size, root=get_root(size))


@given(growths(4))
def test_a_consistency_proof_holds_for_its_own_roots_only(growth: list[int]) -> None:
    first, second, third, fourth = growth
    proof = build_consistency_proof(second, third, TREE.get_node)
    for old, new in [(first, third), (second, fourth)]:
        if (old, new) != (second, third):
            with pytest.raises(RemoteError):
                verify_consistency(
                    proof, old_size=second, old_root=get_root(old), new_size=third, new_root=get_root(new)
                )


@given(growths(3))
def test_two_consistent_steps_make_one(growth: list[int]) -> None:
    for old, new in [(0, 1), (1, 2), (0, 2)]:
        sizes = {"old_size": growth[old], "new_size": growth[new]}
        roots = {"old_root": get_root(growth[old]), "new_root": get_root(growth[new])}
        verify_consistency(build_consistency_proof(growth[old], growth[new], TREE.get_node), **sizes, **roots)


@given(growths(), st.integers(0, 255))
def test_a_rewritten_history_has_no_consistency_proof(growth: list[int], at: int) -> None:
    old, new = growth
    rewritten = LEAVES[:new]
    rewritten[at % old] = compute_leaf_hash(b"rewritten")
    fork = MerkleTree(rewritten)
    with pytest.raises(RemoteError):
        verify_consistency(
            build_consistency_proof(old, new, fork.get_node),
            old_size=old,
            old_root=get_root(old),
            new_size=new,
            new_root=fork.root(),
        )


@given(sizes, st.data())
def test_a_node_from_tiles_is_the_trees_node(size: int, data: st.DataObject) -> None:
    level = data.draw(st.integers(0, size.bit_length() - 1))
    index = data.draw(st.integers(0, (size >> level) - 1))
    get_node = make_node_reader(size, lambda tile: encode_tile(tile, TREE.get_node))
    assert get_node(level, index) == TREE.get_node(level, index)


@given(st.integers(0, TILE_LEVEL_MAX), st.integers(0, LOG_ENTRIES_MAX - 1), st.booleans())
def test_every_tile_of_every_log_has_one_path(level: int, entry: int, whole: bool) -> None:
    count = LOG_ENTRIES_MAX >> TILE_HEIGHT * level
    index, rest = divmod(entry % count, TILE_HASHES)
    width = TILE_HASHES if whole and (index + 1) * TILE_HASHES <= count else rest + 1
    for place in (Tile(level, index, width), EntryBundle(index, width)):
        assert parse_tile_path(place.path) == place


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=TILE_HASHES))
def test_every_bundle_round_trips(entries: list[bytes]) -> None:
    assert decode_bundle(EntryBundle(0, len(entries)), encode_bundle(entries)) == entries


# Letters of one to four UTF-8 bytes, and the ones that mean something elsewhere in a note.
names = st.text(st.sampled_from("az09./-=_é漢—🜂"), min_size=1, max_size=60)


@settings(deadline=None)
@given(
    names, st.integers(1, LOG_ENTRIES_MAX), st.binary(min_size=32, max_size=32), st.integers(0, COSIGNATURE_TIME_S_MAX)
)
def test_every_signed_and_cosigned_head_opens_and_prints_the_same(
    name: str, size: int, seed: bytes, time_s: int
) -> None:
    key = Ed25519PrivateKey.from_private_bytes(seed)
    log, witness = VerifierKey.of(name, key), VerifierKey.of(name, key, SignatureKind.COSIGNATURE)
    head = TreeHead(name, size, Digest(seed))
    raw = cosign_tree_head(sign_tree_head(head, key), name, key, time_s=time_s)
    opened, (cosignature,) = open_cosigned_tree_head(raw, [log, witness])
    assert (opened, cosignature.witness, cosignature.time_s) == (head, witness, time_s)
    assert SignedNote.parse(raw).encode() == raw
    assert VerifierKey.parse(str(witness)) == witness


@settings(deadline=None)
@given(st.data())
def test_no_bit_of_a_signed_head_can_be_changed(data: st.DataObject) -> None:
    key = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
    raw = sign_tree_head(TreeHead("prime.example/log", 600, TREE.root()), key)
    at, bit = data.draw(st.integers(0, len(raw) - 1)), data.draw(st.integers(0, 7))
    changed = raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]
    with pytest.raises(RemoteError):
        open_cosigned_tree_head(changed, [VerifierKey.of("prime.example/log", key)])
