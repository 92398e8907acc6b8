"""What must survive a crash: the agent's state, and the files that wait to be uploaded.

The state is one file, written atomically. The spool is a folder of rollouts and evidence, each under its digest: a file
is complete before an entry names it, and stays until no entry does.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any

from prime_node.agent.events import LeaseAnswer, PendingEntry, SavedState
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import NodeRegistered
from prime_protocol.wire.codec import Size, decode, encode
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import Digest, RunId
from prime_protocol.wire.messages import AUTHORED_ENTRIES
from prime_runtime.files import write_atomic

log = logging.getLogger(__name__)


ENTRY_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in AUTHORED_ENTRIES}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntry:
    kind: str
    body: bytes
    run: RunId | None
    until_ms: Uint
    file: Digest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    pending: Annotated[tuple[StoredEntry, ...], Size(0, 10_000)]
    answers: Annotated[tuple[LeaseAnswer, ...], Size(0, 10_000)]
    is_staked: bool
    registered: NodeRegistered | None
    committed: Annotated[tuple[StoredEntry, ...], Size(0, 10_000)] = ()


def encode_state(state: SavedState) -> bytes:
    stored = StoredState(
        pending=tuple(map(_store_entry, state.pending)),
        answers=state.answers,
        is_staked=state.is_staked,
        registered=state.registered,
        committed=tuple(map(_store_entry, state.committed)),
    )
    return encode(stored)


def _store_entry(entry: PendingEntry) -> StoredEntry:
    kind, body = type(entry.entry).__name__, encode(entry.entry)
    return StoredEntry(kind=kind, body=body, run=entry.run, until_ms=entry.until_ms, file=entry.file)


def decode_state(raw: bytes) -> SavedState:
    """RemoteError: the file is damaged, or of another version."""
    stored = decode(StoredState, raw)
    return SavedState(
        tuple(map(_load_entry, stored.pending)),
        stored.answers,
        stored.is_staked,
        stored.registered,
        tuple(map(_load_entry, stored.committed)),
    )


def _load_entry(stored: StoredEntry) -> PendingEntry:
    if stored.kind not in ENTRY_KINDS:
        raise RemoteError("kind", f"{stored.kind} is not an entry that a node writes")
    return PendingEntry(decode(ENTRY_KINDS[stored.kind], stored.body), stored.run, stored.until_ms, stored.file)


class SavedStateFile:
    """The agent's state on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, state: SavedState) -> None:
        write_atomic(self._path, encode_state(state))

    def load(self) -> SavedState:
        """Empty where the file is missing or damaged: the coordinator's replies then restore the leases and audits."""
        try:
            return decode_state(self._path.read_bytes())
        except FileNotFoundError:
            return SavedState()
        except (OSError, RemoteError) as error:
            log.warning("the saved state in %s is lost: %s", self._path, error)
            return SavedState()


class UploadSpool:
    """Files that wait to be uploaded, in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, data: bytes) -> Digest:
        """LocalError: the disk is full."""
        digest = Digest(sha256(data).digest())
        path = self._path(digest)
        if not path.exists():
            write_atomic(path, data)
        return digest

    def get(self, digest: Digest) -> bytes | None:
        """None where the file is missing or damaged."""
        try:
            data = self._path(digest).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LocalError(f"cannot read {self._path(digest)}: {error.strerror}") from None
        if Digest(sha256(data).digest()) != digest:
            log.warning("removing the damaged file %s", digest)
            self.remove(digest)
            return None
        return data

    def has(self, digest: Digest) -> bool:
        """Whether there is such a file, which may be damaged."""
        return self._path(digest).exists()

    def remove(self, digest: Digest) -> None:
        self._path(digest).unlink(missing_ok=True)

    def remove_unnamed(self, named: Collection[Digest]) -> int:
        """Removes all other files, drafts too. Returns how many."""
        keep, removed = {self._path(digest).name for digest in named}, 0
        for path in self._folder.glob("*"):
            if path.name not in keep:
                path.unlink(missing_ok=True)
                removed += 1
        return removed

    def _path(self, digest: Digest) -> Path:
        return self._folder / digest.hex()
