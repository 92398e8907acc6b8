"""The tree against published vectors, an independent implementation, and hostile proofs."""

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from prime_protocol.constants import LOG_ENTRIES_MAX, PROOF_HASHES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.log.merkle import (
    EMPTY_ROOT,
    Frontier,
    MerkleProof,
    MerkleTree,
    build_consistency_proof,
    build_inclusion_proof,
    compute_leaf_hash,
    compute_node_hash,
    compute_root,
    count_trailing_ones,
    verify_consistency,
    verify_inclusion,
)
from prime_protocol.wire.ids import Digest

VECTORS = Path(__file__).parents[3] / "vectors"
RFC: dict[str, Any] = json.loads((VECTORS / "merkle_rfc6962.json").read_text())
PYMERKLE: dict[str, Any] = json.loads((VECTORS / "merkle.json").read_text())

RFC_LEAVES = [compute_leaf_hash(bytes.fromhex(entry)) for entry in RFC["entries"]]
LEAVES = [compute_leaf_hash(b"entry %d" % number) for number in range(300)]
SUITES = [(RFC, MerkleTree(RFC_LEAVES)), (PYMERKLE, MerkleTree(LEAVES))]
TREE = SUITES[1][1]
EVERY = range(1, PYMERKLE["every_size"] + 1)


def roots(suite: dict[str, Any]) -> list[Digest]:
    return [Digest(bytes.fromhex(root)) for root in suite["roots"]]


def proof_of(vector: dict[str, Any]) -> MerkleProof:
    return tuple(Digest(bytes.fromhex(digest)) for digest in vector["proof"])


@pytest.mark.parametrize(("suite", "tree"), SUITES)
def test_every_published_root_comes_from_nodes_and_from_appending(suite: dict[str, Any], tree: MerkleTree) -> None:
    frontier = Frontier()
    for size, root in enumerate(roots(suite)):
        assert compute_root(size, tree.get_node) == root
        assert frontier.root() == root
        assert Frontier.of(size, tree.get_node) == frontier
        if size < tree.size:
            frontier = frontier.append(tree.get_node(0, size))
    assert tree.root() == root


@pytest.mark.parametrize(("suite", "tree"), SUITES)
def test_published_inclusion_proofs_are_made_and_verified(suite: dict[str, Any], tree: MerkleTree) -> None:
    known = roots(suite)
    for vector in suite["inclusion"]:
        index, size, proof = vector["index"], vector["size"], proof_of(vector)
        assert build_inclusion_proof(index, size, tree.get_node) == proof
        verify_inclusion(tree.get_node(0, index), proof, index=index, size=size, root=known[size])


@pytest.mark.parametrize(("suite", "tree"), SUITES)
def test_published_consistency_proofs_are_made_and_verified(suite: dict[str, Any], tree: MerkleTree) -> None:
    known = roots(suite)
    for vector in suite["consistency"]:
        old, new, proof = vector["old"], vector["new"], proof_of(vector)
        assert build_consistency_proof(old, new, tree.get_node) == proof
        verify_consistency(proof, old_size=old, old_root=known[old], new_size=new, new_root=known[new])


def digest_of(proofs: Iterable[MerkleProof]) -> str:
    state = sha256()
    for proof in proofs:
        state.update(bytes([len(proof)]) + b"".join(proof))
    return state.hexdigest()


def test_every_inclusion_proof_up_to_130_entries_equals_pymerkles() -> None:
    made = (build_inclusion_proof(index, size, TREE.get_node) for size in EVERY for index in range(size))
    assert digest_of(made) == PYMERKLE["every_inclusion_sha256"]


def test_every_consistency_proof_up_to_130_entries_equals_pymerkles() -> None:
    made = (build_consistency_proof(old, new, TREE.get_node) for new in EVERY for old in range(1, new + 1))
    assert digest_of(made) == PYMERKLE["every_consistency_sha256"]


def test_leaves_and_nodes_are_hashed_under_different_prefixes() -> None:
    left, right = LEAVES[:2]
    assert compute_leaf_hash(b"") == Digest(sha256(b"\x00").digest())
    assert compute_node_hash(left, right) == Digest(sha256(b"\x01" + left + right).digest())
    assert compute_leaf_hash(left + right) != compute_node_hash(left, right)


@pytest.mark.parametrize("split", [0, 1, 2, 3, 7, 8, 100, 255, 256, 300])
def test_appending_in_bulk_equals_appending_one_by_one(split: int) -> None:
    one_by_one, bulk = MerkleTree(), MerkleTree(LEAVES[:split])
    bulk.append_many(LEAVES[split:])
    for leaf in LEAVES:
        one_by_one.append(leaf)
    assert bulk.size == one_by_one.size == 300
    assert bulk.root() == one_by_one.root()
    for level in range(9):
        for index in range(300 >> level):
            assert bulk.get_node(level, index) == one_by_one.get_node(level, index)
    assert Frontier().append_many(LEAVES[:split]).append_many(LEAVES[split:]).root() == bulk.root()


def test_appending_leaves_the_frontier_it_started_from_as_it_was() -> None:
    before = Frontier().append_many(LEAVES[:7])
    root = before.root()
    assert before.append(LEAVES[7]) != before.append(LEAVES[8])
    assert before.root() == root


@pytest.mark.parametrize(("number", "ones"), [(0, 0), (1, 1), (2, 0), (3, 2), (11, 2), (255, 8)])
def test_trailing_ones_are_counted(number: int, ones: int) -> None:
    assert count_trailing_ones(number) == ones


@pytest.mark.parametrize(("index", "size"), [(-1, 5), (5, 5), (0, 0), (0, -1), (0, LOG_ENTRIES_MAX + 1)])
def test_an_index_outside_the_tree_is_refused(index: int, size: int) -> None:
    with pytest.raises(RemoteError, match=r"^inclusion\.(index|size)"):
        verify_inclusion(LEAVES[0], (), index=index, size=size, root=EMPTY_ROOT)


def test_an_inclusion_proof_must_have_exactly_its_length() -> None:
    proof, root = build_inclusion_proof(3, 11, TREE.get_node), compute_root(11, TREE.get_node)
    for bad in (proof[:-1], (*proof, LEAVES[0]), (LEAVES[0],) * (PROOF_HASHES_MAX + 1)):
        with pytest.raises(RemoteError, match=r"^inclusion\.proof: has"):
            verify_inclusion(LEAVES[3], bad, index=3, size=11, root=root)


def test_an_inclusion_proof_of_another_root_is_refused() -> None:
    with pytest.raises(RemoteError, match=r"^inclusion\.proof: leads to root"):
        verify_inclusion(LEAVES[3], build_inclusion_proof(3, 11, TREE.get_node), index=3, size=11, root=EMPTY_ROOT)


def check(proof: Iterable[Digest], old: int, new: int, **changed: Any) -> None:
    known = roots(PYMERKLE)
    honest = {"old_size": old, "old_root": known[old], "new_size": new, "new_root": known[new]}
    verify_consistency(tuple(proof), **{**honest, **changed})


def test_every_tree_extends_the_empty_tree_and_itself_without_proof() -> None:
    for size in (0, 1, 7, 300):
        assert (
            build_consistency_proof(0, size, TREE.get_node) == build_consistency_proof(size, size, TREE.get_node) == ()
        )
        check((), 0, size)
        check((), size, size)


@pytest.mark.parametrize(("old", "new"), [(0, 5), (5, 5)])
def test_a_trivial_consistency_proof_holds_no_hash_and_only_for_the_right_old_root(old: int, new: int) -> None:
    with pytest.raises(RemoteError, match=r"^consistency\.proof: has too many"):
        check(LEAVES[:1], old, new)
    with pytest.raises(RemoteError, match=r"^consistency\.old_root"):
        check((), old, new, old_root=LEAVES[0])


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"old_size": 8}, "old_size"),
        ({"old_size": -1}, "old_size"),
        ({"new_size": LOG_ENTRIES_MAX + 1}, "new_size"),
        ({"old_root": EMPTY_ROOT}, "proof"),
        ({"new_root": EMPTY_ROOT}, "proof"),
    ],
)
def test_a_consistency_proof_holds_for_its_sizes_and_roots_only(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(RemoteError, match=rf"^consistency\.{field}"):
        check(build_consistency_proof(3, 7, TREE.get_node), 3, 7, **changed)


@pytest.mark.parametrize(("old", "new"), [(3, 7), (4, 7), (5, 6), (6, 7), (128, 300)])
def test_a_consistency_proof_must_have_exactly_its_length(old: int, new: int) -> None:
    proof = build_consistency_proof(old, new, TREE.get_node)
    for bad in ((), proof[:-1], (*proof, LEAVES[0]), (LEAVES[0],) * (PROOF_HASHES_MAX + 1)):
        with pytest.raises(RemoteError, match=r"^consistency\.proof: has"):
            check(bad, old, new)


def test_the_longest_proofs_fit_the_limit() -> None:
    def get_node(level: int, index: int) -> bytes:
        return LEAVES[0]

    assert len(build_inclusion_proof(0, LOG_ENTRIES_MAX, get_node)) < PROOF_HASHES_MAX
    assert len(build_consistency_proof(2**62 - 1, LOG_ENTRIES_MAX, get_node)) <= PROOF_HASHES_MAX
