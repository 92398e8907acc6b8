"""Proofs about the log, from the tiles of the coordinator's own mirror; each is verified before it is given out."""

from functools import cache, partial
from pathlib import Path

from prime_coordinator.rows import ConsistencyRow, HeadRow
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest
from prime_protocol.merkle import (
    GetNode,
    consistency_proof,
    inclusion_proof,
    root_of,
    verify_consistency,
    verify_inclusion,
)
from prime_protocol.note import Note
from prime_protocol.tiles import nodes_from_tiles
from prime_protocol.treehead import TreeHead
from prime_runtime.mirror import read_head, read_tile


def read_head_row(folder: Path) -> HeadRow:
    """The newest head whose files are all there."""
    raw = read_head(folder)
    head = TreeHead.parse(Note.parse(raw).text)
    return HeadRow(size=head.size, root=str(head.root), note=raw.decode())


def prove_inclusion(folder: Path, head: HeadRow, index: int, leaf: Digest) -> tuple[str, ...]:
    proof = inclusion_proof(index, head.size, read_nodes(folder, head.size))
    verify_inclusion(leaf, proof, index=index, size=head.size, root=Digest.parse(head.root))
    return tuple(map(str, proof))


def prove_consistency(folder: Path, old_size: int, new_size: int | None) -> ConsistencyRow:
    """Between any two sizes up to the newest head, of which the newer one need not have been signed."""
    newest = read_head_row(folder).size
    new_size = newest if new_size is None else new_size
    if not old_size <= new_size <= newest:
        raise RemoteError("old" if old_size > new_size else "new", f"must be at most {min(new_size, newest)}")
    get_node = read_nodes(folder, newest)
    old_root, new_root = root_of(old_size, get_node), root_of(new_size, get_node)
    proof = consistency_proof(old_size, new_size, get_node)
    verify_consistency(proof, old_size=old_size, old_root=old_root, new_size=new_size, new_root=new_root)
    return ConsistencyRow(
        old_size=old_size,
        old_root=str(old_root),
        new_size=new_size,
        new_root=str(new_root),
        proof=tuple(map(str, proof)),
    )


def read_nodes(folder: Path, size: int) -> GetNode:
    """Nodes of the tree of this size, each tile read once."""
    return nodes_from_tiles(size, cache(partial(read_tile, folder)))
