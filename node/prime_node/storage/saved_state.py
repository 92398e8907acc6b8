"""What must survive a crash, as a file: entries on their way, answers given, what the log was told. Written whole.

Files of this node on their way to the coordinator, each under its digest: rollouts and evidence.

A file is here, whole, before anything names it, and stays until nothing does any more.
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
from prime_runtime.log_files import write_atomic

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
class StoredLeaseAnswer:
    lease: Uint
    submission: Digest
    deadline_ms: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredState:
    pending: Annotated[tuple[StoredEntry, ...], Size(0, 10_000)]
    answers: Annotated[tuple[StoredLeaseAnswer, ...], Size(0, 10_000)]
    is_staked: bool
    registered: NodeRegistered | None


def encode_state(memory: SavedState) -> bytes:
    parcels = [
        StoredEntry(
            kind=type(parcel.entry).__name__,
            body=encode(parcel.entry),
            run=parcel.run,
            until_ms=parcel.until_ms,
            file=parcel.file,
        )
        for parcel in memory.pending
    ]
    answers = [
        StoredLeaseAnswer(lease=each.lease, submission=each.submission, deadline_ms=each.deadline_ms)
        for each in memory.answers
    ]
    return encode(
        StoredState(
            pending=tuple(parcels),
            answers=tuple(answers),
            is_staked=memory.is_staked,
            registered=memory.registered,
        )
    )


def decode_state(raw: bytes) -> SavedState:
    """RemoteError where the file is damaged, or of another version."""
    stored = decode(StoredState, raw)
    parcels = []
    for each in stored.pending:
        if each.kind not in ENTRY_KINDS:
            raise RemoteError("kind", f"{each.kind} is no entry that a node writes")
        parcels.append(PendingEntry(decode(ENTRY_KINDS[each.kind], each.body), each.run, each.until_ms, each.file))
    answers = tuple(LeaseAnswer(each.lease, each.submission, each.deadline_ms) for each in stored.answers)
    return SavedState(tuple(parcels), answers, stored.is_staked, stored.registered)


class SavedStateFile:
    """One node's."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def save(self, memory: SavedState) -> None:
        write_atomic(self._path, encode_state(memory))

    def load(self) -> SavedState:
        """Nothing where there is none, or none that can be read: the coordinator's replies bring back the rest."""
        try:
            return decode_state(self._path.read_bytes())
        except FileNotFoundError:
            return SavedState()
        except (OSError, RemoteError) as error:
            log.warning("what was remembered in %s is lost: %s", self._path, error)
            return SavedState()


class UploadSpool:
    """One folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, data: bytes) -> Digest:
        """LocalError: there is no room."""
        digest = Digest(sha256(data).digest())
        path = self._path(digest)
        if not path.exists():
            write_atomic(path, data)
        return digest

    def get(self, digest: Digest) -> bytes | None:
        """None where it is not here, or not what it was."""
        try:
            data = self._path(digest).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LocalError(f"cannot read {self._path(digest)}: {error.strerror}") from None
        if Digest(sha256(data).digest()) != digest:
            log.warning("the file %s on this disk is damaged and is removed", digest)
            self.remove(digest)
            return None
        return data

    def remove(self, digest: Digest) -> None:
        self._path(digest).unlink(missing_ok=True)

    def remove_unnamed(self, named: Collection[Digest]) -> int:
        """After a start: remove what nothing names, drafts too; how many files that were."""
        keep, removed = {self._path(digest).name for digest in named}, 0
        for path in self._folder.glob("*"):
            if path.name not in keep:
                path.unlink(missing_ok=True)
                removed += 1
        return removed

    def _path(self, digest: Digest) -> Path:
        return self._folder / digest.hex()
