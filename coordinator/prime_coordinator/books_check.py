"""Check a whole log, offline, with no trust in the coordinator: signed head, every entry, every rule, every tile.

Pure: the files come in through functions.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prime_protocol.errors import RemoteError
from prime_protocol.ledger import Ledger, replay
from prime_protocol.merkle import Tree, leaf_hash
from prime_protocol.note import Note, VerifierKey
from prime_protocol.tiles import Tile, encode_tile, tiles_written
from prime_protocol.treehead import TreeHead, network_of, open_tree_head


@dataclass(frozen=True, slots=True)
class CheckedLog:
    """A log whose books hold."""

    head: TreeHead
    key: VerifierKey
    key_is_given: bool
    """False: the key came from the log itself, so only its consistency is shown, not whose log it is."""
    ledger: Ledger


def check_log(
    signed_head: bytes,
    read_leaves: Callable[[int], Iterable[bytes]],
    read_tile: Callable[[Tile], bytes],
    given_key: VerifierKey | None,
) -> CheckedLog:
    """Everything that can be checked from the files alone; RemoteError names the first thing that does not hold."""
    claimed = TreeHead.parse(Note.parse(signed_head).text)
    leaves = list(read_leaves(claimed.size))
    ledger = replay(network_of(claimed.origin), leaves)
    key = given_key or VerifierKey.parse(ledger.state.log_key)
    head = open_tree_head(signed_head, [key])
    if ledger.state.frontier.root() != head.root:
        raise RemoteError("tree_head.root", f"is {head.root}, the entries have {ledger.state.frontier.root()}")
    tree = Tree([leaf_hash(leaf) for leaf in leaves])
    for tile in tiles_written(0, len(leaves)):
        if read_tile(tile) != encode_tile(tile, tree.get_node):
            raise RemoteError(tile.path, "does not hold the hashes of the entries")
    assert ledger.state.books.is_conserved()
    return CheckedLog(head, key, given_key is not None, ledger)
