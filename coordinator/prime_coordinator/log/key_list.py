"""The log's keys, read from the entries in the database, and the file of the mirror that names them to others."""

from pathlib import Path

from prime_coordinator.log.store import LogStore
from prime_protocol.constants import KEY_ROTATIONS_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.keys.chain import ROTATION_KINDS, KeyChain, KeyFile
from prime_protocol.log.tiles import KEYS_PATH
from prime_protocol.wire.ids import NetworkId
from prime_runtime.files import write_atomic


async def read_key_file(store: LogStore) -> KeyFile:
    """Entry 0 and every rotation in the database; it holds a log."""
    rows = await store.list_entries(kinds=ROTATION_KINDS, limit=KEY_ROTATIONS_MAX)
    return KeyFile((*await store.read(0, 1), *(row.leaf for row in reversed(rows))))


async def read_key_chain(store: LogStore, network: NetworkId) -> KeyChain:
    """LocalError: the entries are damaged, or of another network."""
    return make_key_chain(await read_key_file(store), network)


def make_key_chain(keys: KeyFile, network: NetworkId) -> KeyChain:
    try:
        return KeyChain.of_leaves(keys.leaves, network)
    except RemoteError as error:
        raise LocalError(f"the log in the database is damaged, in an entry about its keys: {error}") from None


def write_key_file(mirror: Path, keys: KeyFile) -> None:
    """Before a head that a new key signs."""
    write_atomic(mirror / KEYS_PATH, keys.encode())
