"""The rows about files of nodes: functions over a connection, each a part of one transaction.

`files` has one row for each file in the object store, `file_holds` the steps that hold it. Every query finds its rows
by an index. The sums in `file_totals` are changed with the rows, so reading them costs the same for any number of
files.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, bindparam, delete, insert, literal_column, select, update

from prime_coordinator.log.migrations import expired_files, file_holds, file_totals, files
from prime_coordinator.retention.object_names import FileKind, get_day, make_key
from prime_coordinator.retention.schedule import (
    REASON_OF_KIND,
    FileChange,
    FileClaimed,
    FileReason,
    StepReleased,
)
from prime_protocol.wire.ids import Digest, RunId, Step

UNDECIDED_DAY = -1
"""In the sums: of files without a due time."""
DIGESTS_PER_QUERY = 500
"""SQLite takes up to 32,766 parameters; a longer list makes the statement slow to prepare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of a node in the object store."""

    digest: Digest
    kind: FileKind
    day: int
    size_bytes: int
    reason: FileReason
    until_ms: int = 0
    """It is kept at least until then, by what released steps say."""
    due_ms: int | None = None

    @property
    def key(self) -> str:
        return make_key(self.kind, self.day, self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredFile:
    """A file that was deleted because it was due."""

    digest: Digest
    kind: FileKind
    day: int
    reason: FileReason
    at_ms: int
    is_pending: bool

    @property
    def key(self) -> str:
        return make_key(self.kind, self.day, self.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTotal:
    """Files that are kept for one reason and become due on one day."""

    reason: FileReason
    due_day: int | None
    """Days since 1970; None: nothing is decided."""
    files: int
    size_bytes: int


# --- Reading --------------------------------------------------------------------------------------------------------


def find_file(connection: Connection, digest: Digest) -> StoredFile | ExpiredFile | None:
    """Where a file is, or when it expired; None if the table knows neither."""
    row = connection.execute(select(files).where(files.c.digest == str(digest))).mappings().first()
    if row is not None:
        return _make_stored(row)
    gone = connection.execute(select(expired_files).where(expired_files.c.digest == str(digest))).mappings().first()
    return None if gone is None else _make_expired(gone)


def find_expired(connection: Connection, digests: Sequence[Digest]) -> dict[Digest, int]:
    """When each of these files expired; the others are missing."""
    found: dict[Digest, int] = {}
    for part in _split(digests):
        query = select(expired_files.c.digest, expired_files.c.at_ms).where(expired_files.c.digest.in_(part))
        found |= {Digest.parse(digest): at_ms for digest, at_ms in connection.execute(query)}
    return found


def list_totals(connection: Connection) -> list[FileTotal]:
    """At most a row for each reason and day."""
    return [
        FileTotal(
            reason=FileReason(row["reason"]),
            due_day=None if row["due_day"] == UNDECIDED_DAY else row["due_day"],
            files=row["files"],
            size_bytes=row["size_bytes"],
        )
        for row in connection.execute(select(file_totals)).mappings()
        if row["files"]
    ]


def list_holding_steps(connection: Connection) -> list[tuple[RunId, Step]]:
    """Every step that holds a file, one index search each."""
    found: list[tuple[RunId, Step]] = []
    run, step = "", -1
    while True:
        query = (
            select(file_holds.c.run, file_holds.c.step)
            .where((file_holds.c.run == run) & (file_holds.c.step > step))
            .order_by(file_holds.c.run, file_holds.c.step)
            .limit(1)
        )
        row = connection.execute(query).first()
        if row is None:
            after = select(file_holds.c.run).where(file_holds.c.run > run).order_by(file_holds.c.run).limit(1)
            following = connection.execute(after).first()
            if following is None:
                return found
            run, step = str(following[0]), -1
            continue
        step = int(row[1])
        found.append((RunId(run), Step(step)))


def _split(digests: Iterable[object]) -> Iterator[list[str]]:
    """Lists that fit a query."""
    wanted = [str(each) for each in digests]
    for start in range(0, len(wanted), DIGESTS_PER_QUERY):
        yield wanted[start : start + DIGESTS_PER_QUERY]


def _make_stored(row: Any) -> StoredFile:
    return StoredFile(
        digest=Digest.parse(row["digest"]),
        kind=FileKind(row["kind"]),
        day=row["day"],
        size_bytes=row["size_bytes"],
        reason=FileReason(row["reason"]),
        until_ms=row["until_ms"],
        due_ms=row["due_ms"],
    )


def _make_expired(row: Any) -> ExpiredFile:
    return ExpiredFile(
        digest=Digest.parse(row["digest"]),
        kind=FileKind(row["kind"]),
        day=row["day"],
        reason=FileReason(row["reason"]),
        at_ms=row["at_ms"],
        is_pending=bool(row["is_pending"]),
    )


# --- Uploads --------------------------------------------------------------------------------------------------------


def add_file(connection: Connection, file: StoredFile) -> StoredFile:
    """Add a file that is about to be uploaded, or was found; returns the row that it has then.

    A file that is there keeps its day, and so its name. Another announcement of it only moves a due time on.
    """
    row = connection.execute(select(files).where(files.c.digest == str(file.digest))).mappings().first()
    if row is not None:
        known = _make_stored(row)
        if known.due_ms is not None and file.due_ms is not None and file.due_ms > known.due_ms:
            _move(connection, [(known, known.reason, known.until_ms, file.due_ms)])
        return known
    connection.execute(
        insert(files).values(
            digest=str(file.digest),
            kind=file.kind,
            day=file.day,
            size_bytes=file.size_bytes,
            reason=file.reason,
            until_ms=file.until_ms,
            due_ms=file.due_ms,
        )
    )
    _add_totals(connection, Counter({_place(file.reason, file.due_ms): 1}), _weigh(file, 1))
    return file


def remove_file(connection: Connection, digest: Digest) -> None:
    """Forget a file that was refused, or that is not what was announced."""
    row = connection.execute(select(files).where(files.c.digest == str(digest))).mappings().first()
    if row is not None:
        _remove(connection, [_make_stored(row)])


# --- Changes by entries ---------------------------------------------------------------------------------------------


def apply_changes(connection: Connection, changes: Sequence[FileChange]) -> None:
    """What entries change, in the transaction that appends them and in their order.

    Claims that follow each other share a few statements: most changes are claims.
    """
    for _, part in groupby(changes, type):
        same = list(part)
        _claim(connection, [each for each in same if isinstance(each, FileClaimed)])
        for change in same:
            if isinstance(change, StepReleased):
                _release(connection, change)


def _claim(connection: Connection, claims: Sequence[FileClaimed]) -> None:
    """A verdict without a bundle names a file that was never uploaded: it has no row, and is not held."""
    if not claims:
        return
    found = _find_stored(connection, {str(each.digest) for each in claims})
    wanted = {(str(each.run), int(each.step), str(each.digest), each.submission) for each in claims}
    wanted = {each for each in wanted if each[2] in found}
    new = sorted(wanted - _list_holds(connection, found))
    if new:
        names = ("run", "step", "digest", "submission")
        connection.execute(insert(file_holds), [dict(zip(names, each, strict=True)) for each in new])
    moved = []
    for file in found.values():
        reason = REASON_OF_KIND[file.kind] if file.reason is FileReason.UNCLAIMED else file.reason
        moved.append((file, reason, file.until_ms, None))
    _move(connection, moved)


def _find_stored(connection: Connection, digests: Iterable[str]) -> dict[str, StoredFile]:
    found: dict[str, StoredFile] = {}
    for part in _split(digests):
        rows = connection.execute(select(files).where(files.c.digest.in_(part))).mappings()
        found |= {row["digest"]: _make_stored(row) for row in rows}
    return found


def _list_holds(connection: Connection, digests: Iterable[str]) -> set[tuple[str, int, str, str]]:
    found: set[tuple[str, int, str, str]] = set()
    for part in _split(digests):
        holds = select(file_holds.c.run, file_holds.c.step, file_holds.c.digest, file_holds.c.submission)
        found.update(
            (run, step, digest, submission)
            for run, step, digest, submission in connection.execute(holds.where(file_holds.c.digest.in_(part)))
        )
    return found


def _release(connection: Connection, change: StepReleased) -> None:
    """Give a due time to the files that no other step holds."""
    held = (file_holds.c.run == str(change.run)) & (file_holds.c.step == int(change.step))
    query = select(files, file_holds.c.submission).join(file_holds, file_holds.c.digest == files.c.digest).where(held)
    slashed = set(change.slashed)
    found: dict[str, tuple[StoredFile, FileReason, int]] = {}
    for row in connection.execute(query).mappings():
        file, reason, until_ms = found.get(row["digest"]) or (
            _make_stored(row),
            FileReason(row["reason"]),
            row["until_ms"],
        )
        if row["submission"] in slashed:
            reason = FileReason.SLASHES
        asked = reason if reason is FileReason.SLASHES else REASON_OF_KIND[file.kind]
        found[row["digest"]] = file, reason, max(until_ms, change.until_ms[asked])
    connection.execute(delete(file_holds).where(held))
    still_held = _list_held(connection, found)
    _move(
        connection,
        [
            (file, reason, until_ms, None if digest in still_held else until_ms)
            for digest, (file, reason, until_ms) in found.items()
        ],
    )


def _list_held(connection: Connection, digests: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for part in _split(digests):
        query = select(file_holds.c.digest).where(file_holds.c.digest.in_(part)).distinct()
        found.update(digest for (digest,) in connection.execute(query))
    return found


# --- The sweep ------------------------------------------------------------------------------------------------------


def list_pending(connection: Connection, limit: int) -> list[ExpiredFile]:
    """Files whose objects an earlier process may not have deleted."""
    is_pending = expired_files.c.is_pending == literal_column("1")  # a parameter would hide the partial index
    query = select(expired_files).where(is_pending).order_by(expired_files.c.digest).limit(limit)
    return [_make_expired(row) for row in connection.execute(query).mappings()]


def has_due(connection: Connection, now_ms: int) -> bool:
    return connection.execute(select(files.c.due_ms).where(files.c.due_ms <= now_ms).limit(1)).first() is not None


def expire_due(connection: Connection, now_ms: int, limit: int) -> list[ExpiredFile]:
    """Take the files that are due out of the table, the oldest first. Their objects are deleted afterwards."""
    query = select(files).where(files.c.due_ms <= now_ms).order_by(files.c.due_ms).limit(limit)
    due = [_make_stored(row) for row in connection.execute(query).mappings()]
    gone = [
        ExpiredFile(digest=each.digest, kind=each.kind, day=each.day, reason=each.reason, at_ms=now_ms, is_pending=True)
        for each in due
    ]
    if due:
        _remove(connection, due)
        _forget_expired(connection, [each.digest for each in gone])
        connection.execute(
            insert(expired_files),
            [
                {
                    "digest": str(each.digest),
                    "kind": each.kind,
                    "day": each.day,
                    "reason": each.reason,
                    "at_ms": each.at_ms,
                    "is_pending": 1,
                }
                for each in gone
            ],
        )
    return gone


def finish_expired(connection: Connection, gone: Sequence[ExpiredFile]) -> None:
    """Their objects are deleted. No entry named an unclaimed file, so it leaves no trace."""
    _forget_expired(connection, [each.digest for each in gone if each.reason is FileReason.UNCLAIMED])
    named = [{"gone": str(each.digest)} for each in gone if each.reason is not FileReason.UNCLAIMED]
    if named:
        done = update(expired_files).where(expired_files.c.digest == bindparam("gone")).values(is_pending=0)
        connection.execute(done, named)


def list_unknown(connection: Connection, digests: Sequence[Digest]) -> list[Digest]:
    """Those of a listing that have no row in `files`."""
    known: set[str] = set()
    for part in _split(digests):
        query = select(files.c.digest).where(files.c.digest.in_(part))
        known.update(digest for (digest,) in connection.execute(query))
    return [each for each in digests if str(each) not in known]


# --- Rows and sums --------------------------------------------------------------------------------------------------


def _move(connection: Connection, moved: Sequence[tuple[StoredFile, FileReason, int, int | None]]) -> None:
    """Write the reason, the least time and the due time of files, and move them in the sums."""
    if not moved:
        return
    changed = update(files).where(files.c.digest == bindparam("of_digest"))
    connection.execute(
        changed.values(reason=bindparam("to_reason"), until_ms=bindparam("to_until"), due_ms=bindparam("to_due")),
        [
            {"of_digest": str(file.digest), "to_reason": str(reason), "to_until": until_ms, "to_due": due_ms}
            for file, reason, until_ms, due_ms in moved
        ],
    )
    counts: Counter[tuple[str, int]] = Counter()
    sizes: Counter[tuple[str, int]] = Counter()
    for file, reason, _, due_ms in moved:
        for place, sign in ((_place(file.reason, file.due_ms), -1), (_place(reason, due_ms), 1)):
            counts[place] += sign
            sizes[place] += sign * file.size_bytes
    _add_totals(connection, counts, sizes)


def _remove(connection: Connection, gone: Sequence[StoredFile]) -> None:
    removed = delete(files).where(files.c.digest == bindparam("of_digest"))
    connection.execute(removed, [{"of_digest": str(each.digest)} for each in gone])
    counts: Counter[tuple[str, int]] = Counter()
    sizes: Counter[tuple[str, int]] = Counter()
    for each in gone:
        counts[_place(each.reason, each.due_ms)] -= 1
        sizes[_place(each.reason, each.due_ms)] -= each.size_bytes
    _add_totals(connection, counts, sizes)


def _forget_expired(connection: Connection, digests: Sequence[Digest]) -> None:
    if digests:
        forgotten = delete(expired_files).where(expired_files.c.digest == bindparam("of_digest"))
        connection.execute(forgotten, [{"of_digest": str(each)} for each in digests])


def _place(reason: FileReason, due_ms: int | None) -> tuple[str, int]:
    return str(reason), UNDECIDED_DAY if due_ms is None else get_day(due_ms)


def _weigh(file: StoredFile, sign: int) -> Counter[tuple[str, int]]:
    return Counter({_place(file.reason, file.due_ms): sign * file.size_bytes})


def _add_totals(connection: Connection, counts: Counter[tuple[str, int]], sizes: Counter[tuple[str, int]]) -> None:
    """One writer at a time: a row that is missing is inserted."""
    for place in sorted(counts):
        reason, day = place
        if not counts[place] and not sizes[place]:
            continue
        same = (file_totals.c.reason == reason) & (file_totals.c.due_day == day)
        added = update(file_totals).where(same)
        found = connection.execute(
            added.values(files=file_totals.c.files + counts[place], size_bytes=file_totals.c.size_bytes + sizes[place])
        )
        if not found.rowcount:
            row = {"reason": reason, "due_day": day, "files": counts[place], "size_bytes": sizes[place]}
            connection.execute(insert(file_totals).values(**row))
        elif counts[place] < 0:
            connection.execute(delete(file_totals).where(same & (file_totals.c.files == 0)))
