"""Signed heads and Merkle proofs, from the files of the mirror. A proof is verified before it is shown."""

from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from prime_protocol.errors import RemoteError
from prime_protocol.log.merkle import (
    GetNode,
    build_consistency_proof,
    build_inclusion_proof,
    compute_root,
    verify_consistency,
    verify_inclusion,
)
from prime_protocol.log.tiles import make_node_reader
from prime_protocol.log.tree_head import SignedNote, TreeHead
from prime_protocol.wire.ids import Digest
from prime_runtime.log_files import read_tile, read_tree_head


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadView:
    """The newest signed tree head."""

    size: int
    root: str
    note: str
    """As signed: c2sp.org/tlog-checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyView:
    """Proof that one tree is the beginning of another."""

    old_size: int
    old_root: str
    new_size: int
    new_root: str
    proof: tuple[str, ...]
    """Consistency proof of RFC 9162."""


def read_newest_head(mirror: Path) -> HeadView:
    raw = read_tree_head(mirror)
    head = TreeHead.parse(SignedNote.parse(raw).text)
    return HeadView(size=head.size, root=str(head.root), note=raw.decode())


def prove_inclusion(mirror: Path, head: HeadView, index: int, leaf: Digest) -> tuple[str, ...]:
    proof = build_inclusion_proof(index, head.size, read_nodes(mirror, head.size))
    verify_inclusion(leaf, proof, index=index, size=head.size, root=Digest.parse(head.root))
    return tuple(map(str, proof))


def prove_consistency(mirror: Path, old_size: int, new_size: int | None) -> ConsistencyView:
    """Between any two sizes up to the newest head; neither needs a signed head of its own."""
    newest = read_newest_head(mirror).size
    new_size = newest if new_size is None else new_size
    if not old_size <= new_size <= newest:
        raise RemoteError("old" if old_size > new_size else "new", f"must be at most {min(new_size, newest)}")
    get_node = read_nodes(mirror, newest)
    old_root, new_root = compute_root(old_size, get_node), compute_root(new_size, get_node)
    proof = build_consistency_proof(old_size, new_size, get_node)
    verify_consistency(proof, old_size=old_size, old_root=old_root, new_size=new_size, new_root=new_root)
    return ConsistencyView(
        old_size=old_size,
        old_root=str(old_root),
        new_size=new_size,
        new_root=str(new_root),
        proof=tuple(map(str, proof)),
    )


def read_nodes(mirror: Path, size: int) -> GetNode:
    """Reads nodes of the tree of this size; each tile is read once."""
    return make_node_reader(size, cache(partial(read_tile, mirror)))
