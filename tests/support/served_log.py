"""A log for tests: its leaves, signed heads, and the files that its coordinator or a mirror would serve."""

import asyncio
from collections.abc import Callable, Sequence

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_node.log.signed_heads import SignedHead
from prime_node.log.tree_heads import HeadMonitor
from prime_protocol.constants import TILE_HASHES
from prime_protocol.keys.chain import CoordinatorPeriod, KeyChain, KeyFile, LogKeyPeriod
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash, compute_root
from prime_protocol.log.tiles import Tile, encode_bundle, encode_tile, list_new_bundles, list_new_tiles
from prime_protocol.log.tree_head import TreeHead, VerifierKey, sign_tree_head
from prime_protocol.wire.ids import NetworkId, NodeId
from prime_runtime.clock import SystemClock
from prime_runtime.http.config import ServerAddress
from prime_runtime.http.server_keys import ServerKeys

LOG_KEY = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)
ORIGIN = "prime-swarm/testnet"
VKEY = VerifierKey.of(ORIGIN, LOG_KEY)


def make_keys(coordinator: NodeId, key: VerifierKey = VKEY) -> KeyChain:
    """Of a log whose keys were never rotated."""
    return KeyChain(NetworkId("testnet"), (LogKeyPeriod(0, key),), (CoordinatorPeriod(0, coordinator),))


KEYS = make_keys(NodeId(bytes(20)))


class ServedLog:
    """The files of a log. Has the `get` of an HttpClient, whichever server is asked."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self.leaves = list(leaves)
        self.tree = MerkleTree([compute_leaf_hash(leaf) for leaf in self.leaves])
        self.asked: list[str] = []
        self.server_keys = ServerKeys(NetworkId("testnet"), SystemClock())
        self._files: dict[str, bytes] = {}

    def append(self, *leaves: bytes) -> None:
        for leaf in leaves:
            self.leaves.append(leaf)
            self.tree.append(compute_leaf_hash(leaf))
        self._files = {}

    def note(self, size: int, key: Ed25519PrivateKey = LOG_KEY) -> bytes:
        return sign_tree_head(TreeHead(ORIGIN, size, compute_root(size, self.tree.get_node)), key)

    def seen(self, size: int | None = None) -> SignedHead:
        return SignedHead.open(self.note(len(self.leaves) if size is None else size), KEYS)

    def read_tile(self, tile: Tile) -> bytes:
        return encode_tile(tile, self.tree.get_node)

    def files(self) -> dict[str, bytes]:
        if not self._files:
            self._files = self._make_files()
        return self._files

    def _make_files(self) -> dict[str, bytes]:
        size = len(self.leaves)
        files = {f"/log/{tile.path}": self.read_tile(tile) for tile in list_new_tiles(0, size)}
        for bundle in list_new_bundles(0, size):
            first = bundle.index * TILE_HASHES
            files[f"/log/{bundle.path}"] = encode_bundle(self.leaves[first : first + bundle.width])
        return files | {"/log/checkpoint": self.note(size), "/log/keys": KeyFile(tuple(self.leaves[:1])).encode()}

    async def get(self, server: ServerAddress, path: str, *, bytes_max: int) -> bytes | None:
        """As HttpClient.get."""
        self.asked.append(path)
        return self.files().get(path)


async def run_monitor_until(monitor: HeadMonitor, holds: Callable[[], bool]) -> None:
    """Run a node's head monitor until a condition holds."""
    task = asyncio.create_task(monitor.run())
    try:
        async with asyncio.timeout(30):
            while not holds():
                assert not task.done(), task.exception()
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
