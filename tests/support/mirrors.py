"""A whole log as a mirror folder, written by the code that the coordinator extends its own with."""

from collections.abc import Sequence
from pathlib import Path

from prime_coordinator.log.writer import extend_mirror
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash


def write_mirror(folder: Path, leaves: Sequence[bytes], signed_head: bytes) -> None:
    tree = MerkleTree([compute_leaf_hash(leaf) for leaf in leaves])
    extend_mirror(folder, tree, lambda start, stop: leaves[start:stop], signed_head, old_size=0, new_size=len(leaves))
