"""Where files of nodes are in the object store: the rows of file_rows.py, through the log's database.

A row that is missing is rebuilt from the log, for example after a restore from a mirror beside a bucket that still has
its objects: the log says on which day the lease was granted that a file is about, and so the object's name.
"""

import logging

from sqlalchemy import Connection

from prime_coordinator.constants import UNCLAIMED_MS
from prime_coordinator.core import Core
from prime_coordinator.log.store import LogRow, LogStore
from prime_coordinator.retention.file_rows import (
    ExpiredFile,
    FileTotal,
    StoredFile,
    add_file,
    apply_changes,
    find_expired,
    find_file,
    list_holding_steps,
    list_totals,
    remove_file,
)
from prime_coordinator.retention.object_names import FileKind, get_day, make_key
from prime_coordinator.retention.schedule import (
    REASON_OF_KIND,
    FileChange,
    FileClaimed,
    FileReason,
    find_claimed,
)
from prime_protocol.ledger.entries import (
    CheckpointPublished,
    FindingFiled,
    LeaseGranted,
    RulingGiven,
    Submitted,
    VerdictGiven,
)
from prime_protocol.ledger.entry_index import decode_leaf, lease_subject
from prime_protocol.ledger.replay import decode_entry
from prime_protocol.ledger.state import LedgerState
from prime_protocol.wire.ids import Digest, RunId
from prime_runtime.objects.store import ObjectMissing, ObjectStore

log = logging.getLogger(__name__)

NAMING = (Submitted, VerdictGiven, RulingGiven, FindingFiled, CheckpointPublished)
"""Entries that name a file."""
ENTRIES_READ = 100
"""Entries that name one file which are tried to find its object. One does, unless validators name files of others."""


class FileTable:
    """The files of one coordinator."""

    def __init__(self, store: LogStore, objects: ObjectStore, core: Core) -> None:
        self._store = store
        self._objects = objects
        self._core = core

    async def announce(
        self, digest: Digest, kind: FileKind, *, size_bytes: int, about_ms: int, now_ms: int
    ) -> StoredFile:
        """A node is about to upload a file: its name is chosen here, before any byte or entry exists."""
        due_ms = now_ms + UNCLAIMED_MS + self._get_verdict_ms()
        file = StoredFile(
            digest=digest,
            kind=kind,
            day=get_day(about_ms),
            size_bytes=size_bytes,
            reason=FileReason.UNCLAIMED,
            due_ms=due_ms,
        )
        return await self._store.write(lambda connection: add_file(connection, file))

    def _get_verdict_ms(self) -> int:
        """Evidence is uploaded before a commitment, and named when the others have committed: two windows at most."""
        return 2 * max((run.terms.verdict_ms for run in self._core.state.runs.values()), default=0)

    async def find(self, digest: Digest) -> StoredFile | ExpiredFile | None:
        """Where a file is, or when it expired. None: it was never here."""
        return await self._store.query(lambda connection: find_file(connection, digest))

    async def find_or_rebuild(self, digest: Digest) -> StoredFile | ExpiredFile | None:
        """As `find`, for a file that the log names: a missing row is made again if the object is there."""
        found = await self.find(digest)
        return found or await self._rebuild(digest)

    async def find_expired(self, digests: list[Digest]) -> dict[Digest, int]:
        return await self._store.query(lambda connection: find_expired(connection, digests))

    async def remove(self, digest: Digest) -> None:
        await self._store.write(lambda connection: remove_file(connection, digest))

    async def list_totals(self) -> list[FileTotal]:
        return await self._store.query(list_totals)

    async def release_forgotten(self) -> int:
        """At start: let go of the files of steps that the ledger does not have, as after a restore."""
        schedule, now_ms = self._core.retention, self._core.state.at_ms
        holding = await self._store.query(list_holding_steps)
        gone = [(run, step) for run, step in holding if not schedule.is_held(run, step)]
        changes = [schedule.release_forgotten(run, step, now_ms) for run, step in gone]
        if changes:
            await self._store.write(lambda connection: apply_changes(connection, changes))
        return len(changes)

    # --- Rebuilding -------------------------------------------------------------------------------------------------

    async def _rebuild(self, digest: Digest) -> StoredFile | None:
        """None: no entry names the file, or the object store does not have it."""
        kinds = [each.__name__ for each in NAMING]
        for row in await self._store.list_entries(kinds=kinds, subject=digest, limit=ENTRIES_READ):
            # More than one entry may name a file, and not all of them need be honest: the object decides.
            file = await self._find_object(digest, row)
            if file is not None:
                return file
        return None

    async def _find_object(self, digest: Digest, row: LogRow) -> StoredFile | None:
        """The row of the object that an entry names, made again; None if there is none under that name."""
        _, payload = decode_leaf(row.leaf)
        entry = decode_entry(payload)
        claimed = find_claimed(entry)
        if claimed is None or claimed[1] != digest or payload.run is None:
            return None
        about_ms = row.at_ms if claimed[0] is None else await self._find_granted_ms(payload.run, claimed[0])
        if about_ms is None:
            return None
        kind = get_kind(entry)
        state = self._core.state
        until_ms = state.at_ms + compute_longest_ms(state, payload.run)
        key = make_key(kind, get_day(about_ms), digest)
        try:
            size_bytes = await self._objects.size(key)
        except ObjectMissing:
            return None
        log.info("found the object %s, which had no row", key)
        file = StoredFile(
            digest=digest,
            kind=kind,
            day=get_day(about_ms),
            size_bytes=size_bytes,
            reason=REASON_OF_KIND[kind],
            until_ms=until_ms,
            due_ms=until_ms,
        )
        change = self._find_hold(digest, payload.run, claimed[0])

        def write(connection: Connection) -> StoredFile:
            made = add_file(connection, file)
            apply_changes(connection, change)
            return made

        return await self._store.write(write)

    def _find_hold(self, digest: Digest, run: RunId, submission: Digest | None) -> list[FileChange]:
        """What holds the file, if the ledger still has its submission."""
        state = self._core.state
        known = None if submission is None else state.runs[run].submissions.get(submission)
        if known is None:
            return []
        return [FileClaimed(size=state.size, run=run, step=known.step, digest=digest, submission=str(submission))]

    async def _find_granted_ms(self, run: RunId, submission: Digest) -> int | None:
        """When the lease was granted that a submission answers."""
        for row in await self._store.list_entries(kinds=[Submitted.__name__], subject=submission, limit=1):
            entry = decode_entry(decode_leaf(row.leaf)[1])
            assert isinstance(entry, Submitted)
            subject = lease_subject(run, entry.receipt.lease)
            granted = await self._store.list_entries(kinds=[LeaseGranted.__name__], subject=subject, limit=1)
            return granted[0].at_ms if granted else None
        return None


def get_kind(entry: object) -> FileKind:
    """What kind of file an entry names."""
    match entry:
        case Submitted():
            return FileKind.ROLLOUTS
        case CheckpointPublished():
            return FileKind.MANIFESTS
        case _:
            return FileKind.EVIDENCE


def compute_longest_ms(state: LedgerState, run: RunId) -> int:
    """The longest that any file of a run is kept: for one about which only the log is known."""
    terms = state.runs[run].terms
    return max(terms.slash_evidence_kept_ms, terms.checkpoints_kept_ms)
