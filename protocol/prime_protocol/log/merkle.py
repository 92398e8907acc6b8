"""The Merkle tree of the log: RFC 6962 hashing, appending, inclusion and consistency proofs.

A node is a perfect subtree, named by level and index: node (k, i) covers leaves i * 2^k to (i + 1) * 2^k - 1.
Proofs are built from nodes, which `Tree`, a database or tiles supply. Nothing here knows what a leaf says.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Self

from prime_protocol.constants import DIGEST_BYTES, LOG_ENTRIES_MAX, PROOF_HASHES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.wire.ids import Digest

LEAF_PREFIX = b"\x00"
NODE_PREFIX = b"\x01"

EMPTY_ROOT = Digest(sha256(b"").digest())
"""Root of the tree without leaves."""

TreeNode = tuple[int, int]
"""Level and index."""

GetNode = Callable[[int, int], bytes]
"""Level and index to the hash of that node."""

MerkleProof = tuple[Digest, ...]


def compute_leaf_hash(entry: bytes) -> Digest:
    return Digest(sha256(LEAF_PREFIX + entry).digest())


def compute_node_hash(left: bytes, right: bytes) -> Digest:
    return Digest(_hash_pair(left, right))


def _hash_pair(left: bytes, right: bytes) -> bytes:
    # Plain bytes: making a Digest costs as much as the hash, and only results that leave this file need one.
    return sha256(NODE_PREFIX + left + right).digest()


def _fold_peaks(peaks: Sequence[bytes]) -> bytes:
    """Root over perfect subtrees of falling size, from left to right."""
    root = peaks[-1]
    for peak in peaks[-2::-1]:
        root = _hash_pair(peak, root)
    return root


@dataclass(frozen=True, slots=True)
class Frontier:
    """All that appending and the root need: the largest perfect subtrees, from left to right. A value, free to copy."""

    size: int = 0
    peaks: tuple[bytes, ...] = ()
    """One per set bit of `size`."""

    @classmethod
    def of(cls, size: int, get_node: GetNode) -> Self:
        """The frontier of a tree that is kept elsewhere."""
        return cls(size, tuple(get_node(*node) for node in peak_nodes(size)))

    def append(self, leaf: bytes) -> "Frontier":
        peaks, size = self.peaks, self.size
        # Each trailing one bit of the size is a subtree that this leaf closes into one twice as large.
        while size & 1:
            leaf = _hash_pair(peaks[-1], leaf)
            peaks = peaks[:-1]
            size >>= 1
        return Frontier(self.size + 1, (*peaks, leaf))

    def append_many(self, leaves: Iterable[bytes]) -> "Frontier":
        size, peaks = self.size, list(self.peaks)
        for leaf in leaves:
            carry = size
            while carry & 1:
                leaf = _hash_pair(peaks.pop(), leaf)
                carry >>= 1
            peaks.append(leaf)
            size += 1
        return Frontier(size, tuple(peaks))

    def root(self) -> Digest:
        return Digest(_fold_peaks(self.peaks)) if self.peaks else EMPTY_ROOT


def count_trailing_ones(number: int) -> int:
    return (~number & (number + 1)).bit_length() - 1


class MerkleTree:
    """Every perfect subtree's hash in memory, one byte string per level: 64 bytes an entry."""

    __slots__ = ("_levels", "size")

    def __init__(self, leaves: Iterable[bytes] = ()) -> None:
        self.size = 0
        self._levels = [bytearray()]
        self.append_many(leaves)

    def append(self, leaf: bytes) -> None:
        index = self.size
        self._levels[0] += leaf
        level = 0
        while index & 1:
            leaf = sha256(NODE_PREFIX + self._levels[level][-2 * DIGEST_BYTES :]).digest()
            level += 1
            if level == len(self._levels):
                self._levels.append(bytearray())
            self._levels[level] += leaf
            index >>= 1
        self.size += 1

    def append_many(self, leaves: Iterable[bytes]) -> None:
        """Level by level: faster than leaf by leaf, see bench/log.py."""
        added = b"".join(leaves)
        assert len(added) % DIGEST_BYTES == 0
        self._levels[0] += added
        self.size += len(added) // DIGEST_BYTES
        level = 0
        while pairs := self._unhashed_pairs(level):
            level += 1
            if level == len(self._levels):
                self._levels.append(bytearray())
            starts = range(0, len(pairs), 2 * DIGEST_BYTES)
            self._levels[level] += b"".join(
                [sha256(NODE_PREFIX + pairs[start : start + 2 * DIGEST_BYTES]).digest() for start in starts]
            )

    def _unhashed_pairs(self, level: int) -> bytes:
        """The hashes of a level that have a sibling and no parent yet."""
        row = self._levels[level]
        hashed = len(self._levels[level + 1]) * 2 if level + 1 < len(self._levels) else 0
        return bytes(row[hashed : len(row) - len(row) % (2 * DIGEST_BYTES)])

    def get_node(self, level: int, index: int) -> Digest:
        start = index * DIGEST_BYTES
        return Digest(bytes(self._levels[level][start : start + DIGEST_BYTES]))

    def root(self) -> Digest:
        return compute_root(self.size, self.get_node)


# --- Which nodes a root or a proof is made of ---


def subtree_nodes(start: int, end: int) -> list[TreeNode]:
    """The perfect subtrees, largest first, whose fold is the hash over leaves start to end - 1 of a tree's subtree."""
    nodes = []
    while start < end:
        level = (end - start).bit_length() - 1
        nodes.append((level, start >> level))
        start += 1 << level
    return nodes


def peak_nodes(size: int) -> list[TreeNode]:
    """The nodes that the root of a tree of this size is folded from."""
    return subtree_nodes(0, size)


def split_point(width: int) -> int:
    """Leaves under the left child: the largest power of two below the width (RFC 9162 2.1.1)."""
    return 1 << (width - 1).bit_length() - 1


def inclusion_nodes(index: int, size: int) -> list[list[TreeNode]]:
    """For each hash of the inclusion proof, the nodes it is folded from (RFC 9162 2.1.3.1)."""
    assert 0 <= index < size
    start, end, siblings = 0, size, []
    while end - start > 1:
        middle = start + split_point(end - start)
        if index < middle:
            siblings.append((middle, end))
            end = middle
        else:
            siblings.append((start, middle))
            start = middle
    return [subtree_nodes(*sibling) for sibling in reversed(siblings)]


def consistency_nodes(old_size: int, new_size: int) -> list[list[TreeNode]]:
    """For each hash of the consistency proof, the nodes it is folded from (RFC 9162 2.1.4.1)."""
    assert 0 <= old_size <= new_size
    if old_size == 0:
        return []
    start, end, siblings = 0, new_size, []
    while old_size != end:
        middle = start + split_point(end - start)
        if old_size <= middle:
            siblings.append((middle, end))
            end = middle
        else:
            siblings.append((start, middle))
            start = middle
    if start != 0:
        # The verifier holds the old root; it needs the last shared subtree only if that is not the whole old tree.
        siblings.append((start, end))
    return [subtree_nodes(*sibling) for sibling in reversed(siblings)]


def compute_root(size: int, get_node: GetNode) -> Digest:
    return Frontier.of(size, get_node).root()


def build_inclusion_proof(index: int, size: int, get_node: GetNode) -> MerkleProof:
    """Proof that leaf `index` is in the tree of the first `size` leaves."""
    return _build_proof(inclusion_nodes(index, size), get_node)


def build_consistency_proof(old_size: int, new_size: int, get_node: GetNode) -> MerkleProof:
    """Proof that the tree of `old_size` leaves is a prefix of the one of `new_size`."""
    return _build_proof(consistency_nodes(old_size, new_size), get_node)


def _build_proof(parts: list[list[TreeNode]], get_node: GetNode) -> MerkleProof:
    return tuple(Digest(_fold_peaks([get_node(*node) for node in nodes])) for nodes in parts)


# --- Verifying ---


def verify_inclusion(leaf: Digest, proof: Sequence[Digest], *, index: int, size: int, root: Digest) -> None:
    """RFC 9162 2.1.3.2. Returns if leaf `index` of the tree (size, root) is this one; else RemoteError."""
    _check_size("inclusion.size", size)
    _check_length("inclusion.proof", proof)
    if not 0 <= index < size:
        raise RemoteError("inclusion.index", f"is {index} in a tree of {size}")
    low, high, found = index, size - 1, bytes(leaf)
    for sibling in proof:
        if high == 0:
            raise RemoteError("inclusion.proof", "has too many hashes")
        if low & 1 or low == high:
            found = _hash_pair(sibling, found)
            while not low & 1 and low:
                low, high = low >> 1, high >> 1
        else:
            found = _hash_pair(found, sibling)
        low, high = low >> 1, high >> 1
    if high != 0:
        raise RemoteError("inclusion.proof", "has too few hashes")
    if found != root:
        raise RemoteError("inclusion.proof", f"leads to root 0x{found.hex()}, expected {root}")


def verify_consistency(
    proof: Sequence[Digest], *, old_size: int, old_root: Digest, new_size: int, new_root: Digest
) -> None:
    """RFC 9162 2.1.4.2. Returns if the old tree is a prefix of the new one; else RemoteError."""
    _check_size("consistency.new_size", new_size)
    _check_length("consistency.proof", proof)
    if not 0 <= old_size <= new_size:
        raise RemoteError("consistency.old_size", f"is {old_size}, the new size is {new_size}")
    if old_size in (0, new_size):
        _verify_trivial(proof, old_root, new_root if old_size else EMPTY_ROOT)
        return
    low, high = old_size - 1, new_size - 1
    shared = count_trailing_ones(low)
    low, high = low >> shared, high >> shared
    # An old tree that is one perfect subtree is its own first hash.
    path = (old_root, *proof) if low == 0 else tuple(proof)
    if not path:
        raise RemoteError("consistency.proof", "has too few hashes")
    old_found = new_found = bytes(path[0])
    for sibling in path[1:]:
        if high == 0:
            raise RemoteError("consistency.proof", "has too many hashes")
        if low & 1 or low == high:
            old_found, new_found = _hash_pair(sibling, old_found), _hash_pair(sibling, new_found)
            while not low & 1 and low:
                low, high = low >> 1, high >> 1
        else:
            new_found = _hash_pair(new_found, sibling)
        low, high = low >> 1, high >> 1
    if high != 0:
        raise RemoteError("consistency.proof", "has too few hashes")
    if old_found != old_root:
        raise RemoteError("consistency.proof", f"leads to old root 0x{old_found.hex()}, expected {old_root}")
    if new_found != new_root:
        raise RemoteError("consistency.proof", f"leads to new root 0x{new_found.hex()}, expected {new_root}")


def _verify_trivial(proof: Sequence[Digest], old_root: Digest, expected: Digest) -> None:
    """An empty old tree, or two trees of one size: nothing to prove but the old root."""
    if proof:
        raise RemoteError("consistency.proof", "has too many hashes")
    if old_root != expected:
        raise RemoteError("consistency.old_root", f"is {old_root}, expected {expected}")


def _check_size(field: str, size: int) -> None:
    if not 0 <= size <= LOG_ENTRIES_MAX:
        raise RemoteError(field, f"is {size}, the limit is {LOG_ENTRIES_MAX}")


def _check_length(field: str, proof: Sequence[Digest]) -> None:
    if len(proof) > PROOF_HASHES_MAX:
        raise RemoteError(field, f"has {len(proof)} hashes, the limit is {PROOF_HASHES_MAX}")
