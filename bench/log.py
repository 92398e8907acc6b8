"""How fast the log's Merkle tree grows, and what a proof costs, at a million entries.

    python bench/log.py [--entries 1000000] [--peer FOLDER]

The peer is pymerkle. It is GPLv3+, so never a dependency: `pip install --target FOLDER pymerkle`, then name the folder.
Without it the naive way, which keeps the leaves and hashes them all again for a root or a proof, is the only peer.
"""

import importlib
import random
import sys
import time
import tracemalloc
from hashlib import sha256
from typing import Any

from benchmark import BenchmarkParser, print_result, timed

from prime_protocol.log.merkle import (
    Frontier,
    MerkleTree,
    build_consistency_proof,
    build_inclusion_proof,
    compute_leaf_hash,
    verify_consistency,
    verify_inclusion,
)

PROOFS = 2_000


def naive_root(leaves: list[bytes]) -> bytes:
    """The definition, iteratively: hash the whole level, promote a last odd hash."""
    while len(leaves) > 1:
        pairs = zip(leaves[::2], leaves[1::2], strict=False)
        odd = leaves[-1:] if len(leaves) % 2 else []
        leaves = [sha256(b"\x01" + left + right).digest() for left, right in pairs] + odd
    return leaves[0]


def append_one_by_one(frontier: Frontier, leaves: list[bytes]) -> Frontier:
    for leaf in leaves:
        frontier = frontier.append(leaf)
    return frontier


def grow(tree: MerkleTree, leaves: list[bytes]) -> MerkleTree:
    for leaf in leaves:
        tree.append(leaf)
    return tree


def row(what: str, seconds: float, count: int, note: str = "") -> None:
    print(f"{what:<44} {count / seconds:>12,.0f} /s {seconds / count * 1e6:>12.2f} us  {note}")


def bench_appends(entries: list[bytes]) -> tuple[MerkleTree, float]:
    count = len(entries)
    seconds, leaves = timed(lambda: [compute_leaf_hash(entry) for entry in entries])
    row("leaf hash, 139-byte entries", seconds, count)
    seconds, frontier = timed(lambda: append_one_by_one(Frontier(), leaves))
    row("append, frontier, a new value each", seconds, count, f"{len(frontier.peaks)} hashes kept")
    appends_per_s = count / seconds
    seconds, bulk = timed(lambda: Frontier().append_many(leaves))
    row("append, frontier, in bulk", seconds, count)
    seconds, single = timed(lambda: grow(MerkleTree(), leaves))
    row("append, tree, one by one", seconds, count)
    tracemalloc.start()
    tree = MerkleTree()
    tree.append_many(leaves)
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    seconds, tree = timed(lambda: MerkleTree(leaves))
    row("append, tree, in bulk", seconds, count, f"{memory / count:.0f} bytes/entry kept")
    seconds, root = timed(lambda: naive_root(list(leaves)))
    row("peer naive: one root over all leaves", seconds, 1)
    assert frontier.root() == bulk.root() == single.root() == tree.root() == root
    return tree, appends_per_s


def bench_proofs(tree: MerkleTree) -> tuple[int, float]:
    size, root, dice = tree.size, tree.root(), random.Random(0)
    places = [dice.randrange(size) for _ in range(PROOFS)]
    seconds, proofs = timed(lambda: [build_inclusion_proof(index, size, tree.get_node) for index in places])
    proof_bytes = max(map(len, proofs)) * 32
    row("inclusion proof, build", seconds, PROOFS, f"at most {proof_bytes} bytes")
    proof_us = seconds / PROOFS * 1e6
    leaves = [tree.get_node(0, index) for index in places]
    started = time.perf_counter()
    for leaf, proof, index in zip(leaves, proofs, places, strict=True):
        verify_inclusion(leaf, proof, index=index, size=size, root=root)
    row("inclusion proof, verify", time.perf_counter() - started, PROOFS)
    olds = [index + 1 for index in places]
    seconds, proofs = timed(lambda: [build_consistency_proof(old, size, tree.get_node) for old in olds])
    row("consistency proof, build", seconds, PROOFS, f"at most {max(map(len, proofs)) * 32} bytes")
    old_roots = [Frontier.of(old, tree.get_node).root() for old in olds]
    started = time.perf_counter()
    for proof, old, old_root in zip(proofs, olds, old_roots, strict=True):
        verify_consistency(proof, old_size=old, old_root=old_root, new_size=size, new_root=root)
    row("consistency proof, verify", time.perf_counter() - started, PROOFS)
    return proof_bytes, proof_us


def bench_peer(folder: str | None, entries: list[bytes], root: bytes) -> None:
    if folder:
        sys.path.append(folder)
    try:
        pymerkle: Any = importlib.import_module("pymerkle")
    except ImportError:
        print("peer pymerkle: absent (see --peer)")
        return
    peer = pymerkle.InmemoryTree(algorithm="sha256")
    seconds, _ = timed(lambda: [peer.append_entry(entry) for entry in entries])
    row("peer pymerkle: append, leaf hash included", seconds, len(entries))
    seconds, found = timed(peer.get_root)
    assert found == root, "pymerkle has another root"
    dice, count = random.Random(0), 200
    places = [dice.randrange(len(entries)) + 1 for _ in range(count)]
    seconds, _ = timed(lambda: [peer.prove_inclusion(index) for index in places])
    row("peer pymerkle: inclusion proof, build", seconds, count)


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--entries", 1_000_000, 5_000)
    parser.add_argument("--peer", help="folder that holds pymerkle")
    options = parser.parse()
    entries = [number.to_bytes(139, "big") for number in range(options.entries)]
    print(f"{options.entries:,} entries, Python {sys.version.split()[0]}, one thread")
    tree, appends_per_s = bench_appends(entries)
    proof_bytes, proof_us = bench_proofs(tree)
    bench_peer(options.peer, entries, tree.root())
    print_result(appends_per_s=f"{appends_per_s:.0f}", proof_bytes=proof_bytes, proof_us=f"{proof_us:.1f}")


if __name__ == "__main__":
    main()
