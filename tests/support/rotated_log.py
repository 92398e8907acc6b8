"""A log whose keys are rotated, for tests: the list of its rotations, and heads of any size by any log key."""

from prime_protocol.keys.chain import KeyChain, KeyFile
from prime_protocol.keys.rotation import CoordinatorKeyRotated, LogKeyRotated
from prime_protocol.ledger.entries import Role
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash, compute_root
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead, sign_tree_head
from support.ledger_network import NETWORK, World, log_key

ORIGIN = ORIGIN_PREFIX + NETWORK
ROTATIONS = (LogKeyRotated.__name__, CoordinatorKeyRotated.__name__)


class RotatedLog(World):
    """A short log."""

    @classmethod
    def begun(cls, entries: int = 1) -> "RotatedLog":
        made = cls()
        made.create_network()
        made.grow(entries - 1)
        return made

    def grow(self, count: int) -> None:
        for _ in range(count):
            self.register(f"node-{len(self.leaves)}", Role.WORKER)

    @property
    def key_file(self) -> KeyFile:
        rotations = [leaf for leaf in self.leaves if decode_leaf(leaf)[1].kind in ROTATIONS]
        return KeyFile((self.leaves[0], *rotations))

    @property
    def chain(self) -> KeyChain:
        return KeyChain.of_leaves(self.key_file.leaves, NETWORK)

    def head(self, size: int | None = None, name: str = "") -> bytes:
        """Over the first `size` entries, by a log key; the newest where none is named."""
        tree = MerkleTree([compute_leaf_hash(leaf) for leaf in self.leaves])
        size = len(self.leaves) if size is None else size
        return sign_tree_head(
            TreeHead(ORIGIN, size, compute_root(size, tree.get_node)), log_key(name or self.log_key_name)
        )
