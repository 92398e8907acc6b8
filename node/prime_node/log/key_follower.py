"""Which keys the log has: kept on disk, and followed when one is rotated.

A node trusts the keys that its owner pinned. It learns of a rotation from the coordinator's list of keys, and takes it
only if the list contains the pinned keys and continues the one that it knows, and if inclusion proofs show that every
rotation is in the log with the newest head. Whether that head continues the history of the node is decided by the
caller, which has the node's newest head. The cost is a few tiles for each rotation, whatever the length of the log.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from prime_node.log.log_sources import LogSource
from prime_protocol.constants import KEY_FILE_BYTES_MAX, NOTE_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.keys.chain import KeyChain, KeyFile
from prime_protocol.log.merkle import build_inclusion_proof, compute_leaf_hash, verify_inclusion
from prime_protocol.log.tiles import CHECKPOINT_PATH, KEYS_PATH, list_inclusion_tiles, make_node_reader
from prime_protocol.log.tree_head import TreeHead, VerifierKey
from prime_protocol.wire.ids import NetworkId, NodeId
from prime_runtime.files import write_atomic
from prime_runtime.log_files import read_bounded

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FetchedKeys:
    """A list of keys whose rotations are all in the log with this head."""

    keys: KeyFile
    chain: KeyChain
    head: TreeHead
    note: bytes


class KeyFollower:
    """The chain of keys that this node trusts."""

    def __init__(
        self, source: LogSource, folder: Path, *, network: NetworkId, coordinator: NodeId, log_key: VerifierKey | None
    ) -> None:
        self._source = source
        self._path = folder / KEYS_PATH
        self._network = network
        self._coordinator = coordinator
        self._log_key = log_key
        self.chain = read_saved_chain(folder, network)
        """None until the log's keys are known."""
        if self.chain is not None and not self._is_pinned(self.chain):
            log.warning("%s is of another log, and is ignored", self._path)
            self.chain = None

    async def fetch(self) -> FetchedKeys:
        """The coordinator's list. LocalError: it is not there now. RemoteError: it does not follow from our keys."""
        note, raw = await self._get(CHECKPOINT_PATH, NOTE_BYTES_MAX), await self._get(KEYS_PATH, KEY_FILE_BYTES_MAX)
        keys = KeyFile.parse(raw)
        chain = KeyChain.of_leaves(keys.leaves, self._network)
        if not self._is_pinned(chain):
            raise RemoteError("keys", f"are of a log of {chain.founder}, and not of the one that this node pinned")
        if self.chain is not None and not self.chain.is_continued_by(chain):
            raise RemoteError("keys", "do not continue those that this node knows: the log has forked, or is older")
        head = chain.open_head(note)
        await self._verify_inclusion(keys, chain, head)
        return FetchedKeys(keys, chain, head, note)

    def accept(self, fetched: FetchedKeys) -> None:
        """Trust the list from now on."""
        if fetched.chain == self.chain:
            return
        if self.chain is None:
            log.info("the log's key is %s; compare it with the key that the operator publishes", fetched.chain.log_key)
        else:
            log.warning("the log's keys were rotated: the newest rotation is entry %d", fetched.chain.newest_index)
        write_atomic(self._path, fetched.keys.encode())
        self.chain = fetched.chain

    def _is_pinned(self, chain: KeyChain) -> bool:
        return chain.has_coordinator(self._coordinator) and (self._log_key is None or chain.has_log_key(self._log_key))

    async def _verify_inclusion(self, keys: KeyFile, chain: KeyChain, head: TreeHead) -> None:
        for index, leaf in zip(chain.get_indexes(), keys.leaves, strict=True):
            if index >= head.size:
                raise RemoteError("keys", f"name entry {index}, the head covers {head.size}")
            tiles = await self._source.fetch_tiles(list_inclusion_tiles(index, head.size))
            proof = build_inclusion_proof(index, head.size, make_node_reader(head.size, tiles.__getitem__))
            verify_inclusion(compute_leaf_hash(leaf), proof, index=index, size=head.size, root=head.root)

    async def _get(self, path: str, bytes_max: int) -> bytes:
        raw = await self._source.fetch_file(path, bytes_max)
        if raw is None:
            raise LocalError(f"{self._source.url} has no {path} yet")
        return raw


def read_saved_chain(folder: Path, network: NetworkId) -> KeyChain | None:
    """The keys that this node has followed the log to; None if there are none yet."""
    path = folder / KEYS_PATH
    if not path.exists():
        return None
    try:
        return KeyChain.of_leaves(KeyFile.parse(read_bounded(path, KEY_FILE_BYTES_MAX)).leaves, network)
    except (LocalError, RemoteError) as error:
        log.warning("ignoring %s: %s", path, error)
        return None
