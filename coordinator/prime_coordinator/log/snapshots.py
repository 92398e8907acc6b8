"""Snapshots of the ledger state on disk: written by a forked child, noted in the log, read at the next start.

A child has the state as it was at the fork, so the coordinator goes on while the child encodes it. The file goes into
the mirror once the log has its digest (`SnapshotNoted`): standbys and auditors can begin from it too. A snapshot that
is missing, damaged or not noted costs time at the next start, never correctness.
"""

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from prime_coordinator.log.store import LogStore
from prime_protocol.constants import SNAPSHOT_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import SnapshotNoted
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.ledger.snapshots.snapshot import (
    SNAPSHOT_FORMAT,
    compute_snapshot_digest,
    decode_snapshot,
    encode_snapshot,
)
from prime_protocol.ledger.state import LedgerState
from prime_protocol.wire.codec import decode
from prime_protocol.wire.ids import Digest, NetworkId
from prime_runtime.files import write_atomic
from prime_runtime.log_files import list_snapshots, read_bounded, snapshot_path

log = logging.getLogger(__name__)

SNAPSHOTS_KEPT = 3
DRAFT_NAME = "unnoted"
"""Of a snapshot whose digest is not in the log yet."""
CHILD_S_MAX = 300.0
"""Longest time that a child may take. A state of 10,000 nodes takes half a second."""
CHILD_POLL_S = 0.05
NICENESS = 10
"""The coordinator and its file checkers have priority over the child."""


class SnapshotWriter:
    """Writes snapshots into one mirror, one at a time."""

    def __init__(self, mirror: Path, network: NetworkId, *, entries: int) -> None:
        self._mirror = mirror
        self._network = network
        self._entries = entries

    def is_due(self, state: LedgerState) -> bool:
        return state.size - state.snapshot_size >= self._entries

    async def write(self, state: LedgerState) -> SnapshotNoted:
        """Write the state as it is now; the entry to append. LocalError if the child failed."""
        size, draft = state.size, self._mirror / snapshot_path(DRAFT_NAME)
        started = time.perf_counter()
        child = fork_writer(draft, self._network, state)
        log.debug("forked in %.1f ms to write a snapshot", 1000 * (time.perf_counter() - started))
        await _wait_for_child(child)
        data = await asyncio.to_thread(read_bounded, draft, SNAPSHOT_BYTES_MAX)
        return SnapshotNoted(size=size, digest=compute_snapshot_digest(data), format=SNAPSHOT_FORMAT)

    def publish(self, noted: SnapshotNoted) -> None:
        """The log has the digest: put the file into the mirror, and drop old ones."""
        try:
            (self._mirror / snapshot_path(DRAFT_NAME)).replace(self._mirror / snapshot_path(noted.size))
            for size in list_snapshots(self._mirror)[SNAPSHOTS_KEPT:]:
                (self._mirror / snapshot_path(size)).unlink(missing_ok=True)
        except OSError as error:
            log.warning("the snapshot of %d entries is not in the mirror: %s", noted.size, error.strerror)


def fork_writer(path: Path, network: NetworkId, state: LedgerState) -> int:
    """Start a child that writes the state as it is now; returns its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        # The child must not hold sockets, the database or the folder's lock if the coordinator is killed meanwhile. It
        # must not collect garbage, because that would copy every page that it shares with the coordinator.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        signal.set_wakeup_fd(-1)
        gc.disable()
        os.nice(NICENESS)
        write_atomic(path, encode_snapshot(network, state))
        code = 0
    finally:
        # No exception, no handler of the parent and no buffered output may survive in the copy of the process.
        os._exit(code)


async def _wait_for_child(child: int) -> None:
    deadline = time.monotonic() + CHILD_S_MAX
    try:
        while (status := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                raise LocalError(f"writing a snapshot took more than {CHILD_S_MAX:.0f} s")
            await asyncio.sleep(CHILD_POLL_S)
    except BaseException:  # boundary: the child must not outlive a coordinator that stops waiting
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    if status[1]:
        raise LocalError("a snapshot could not be written; is there space on the disk?")


async def read_noted_snapshots(store: LogStore) -> dict[int, Digest]:
    """The digests that the newest entries of the log note, by size."""
    rows = await store.list_entries(kinds=[SnapshotNoted.__name__], limit=2 * SNAPSHOTS_KEPT)
    noted = [decode(SnapshotNoted, decode_leaf(row.leaf)[1].body) for row in rows]
    return {entry.size: entry.digest for entry in noted}


def load_newest_snapshot(
    mirror: Path, network: NetworkId, noted: Mapping[int, Digest], *, size_max: int
) -> LedgerState | None:
    """The state of the newest snapshot that is good; None if there is none."""
    for size in list_snapshots(mirror):
        if size > size_max or size not in noted:
            continue
        try:
            return read_snapshot_file(mirror, network, size, noted[size], is_own=True)
        except (LocalError, RemoteError) as error:
            log.warning("the snapshot of %d entries is not used, so the start takes longer: %s", size, error)
    return None


def read_snapshot_file(
    mirror: Path, network: NetworkId, size: int, digest: Digest, *, is_own: bool = False
) -> LedgerState:
    """The state in a snapshot of the mirror, if it is the one with this digest; `is_own` if this party encoded it."""
    path = mirror / snapshot_path(size)
    data = read_bounded(path, SNAPSHOT_BYTES_MAX)
    found = compute_snapshot_digest(data)
    if found != digest:
        raise RemoteError(snapshot_path(size), f"has digest {found}, the log notes {digest}")
    state = decode_snapshot(network, data, is_canonical=is_own)
    if state.size != size:
        raise RemoteError(snapshot_path(size), f"is a state after {state.size} entries")
    return state
