"""The journal of jobs: one row in journal.db for every lease this node took, for the owner and for the next start.

A row is written when its file is on disk and before anything is sent, so that a crash never makes the node generate a
second file. After that the state of a row only advances, by the table NEXT_STATES.
"""

import json
import logging
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import Digest, RunId

log = logging.getLogger(__name__)

RECORDS_KEPT = 20_000
"""Rows in the file: months of a busy node, a few megabytes."""


ACKNOWLEDGED_MAX = 1_000
"""Rows that are sent again after a restore of the coordinator: hours of a busy node."""


class JobState(StrEnum):
    """How far the answer to a lease has come."""

    PRODUCED = "produced"
    RECEIVED = "received"
    CHECKED = "checked"
    ACCEPTED = "accepted"
    CREDITED = "credited"
    PAID = "paid"
    RETURNED = "returned"
    REFUSED = "refused"
    REJECTED = "rejected"
    SLASHED = "slashed"
    LOST = "lost"
    """The coordinator had acknowledged it, and lost it in a restore of its log."""


S = JobState
ACCEPTED_STATES = (S.ACCEPTED, S.CREDITED, S.PAID)
NEXT_STATES: dict[JobState, frozenset[JobState]] = {
    S.PRODUCED: frozenset({S.RECEIVED, S.CHECKED, *ACCEPTED_STATES, S.RETURNED, S.REFUSED, S.REJECTED, S.SLASHED}),
    S.RECEIVED: frozenset({S.CHECKED, *ACCEPTED_STATES, S.REJECTED, S.SLASHED, S.LOST}),
    S.CHECKED: frozenset({*ACCEPTED_STATES, S.REJECTED, S.SLASHED, S.LOST}),
    S.ACCEPTED: frozenset({S.CREDITED, S.PAID, S.LOST}),
    S.CREDITED: frozenset({S.PAID, S.LOST}),
    S.PAID: frozenset({S.LOST}),
    S.RETURNED: frozenset(),
    S.REFUSED: frozenset(),
    # Other validators may find otherwise after an appeal.
    S.REJECTED: frozenset({S.SLASHED, *ACCEPTED_STATES, S.LOST}),
    S.SLASHED: frozenset({S.LOST}),
    S.LOST: frozenset(),
}
"""The states that may follow. Only the newest update about a submission is sent, so states in between are skipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One lease, and what became of this node's answer."""

    run: RunId
    lease: int
    step: int
    first_slot: int
    slots: int
    deadline_ms: int
    """By the coordinator's clock."""
    started_ms: int
    state: JobState
    reason: str = ""
    """Why it stopped where it did; empty while all is well."""
    is_open: bool = True
    """Its state may still change."""
    history: tuple[tuple[str, int], ...] = ()
    """Every state it was in, and since when."""
    submission: Digest | None = None
    file: Digest | None = None
    """None: no file was generated."""
    checkpoint_root: Digest | None = None
    rollout_root: Digest | None = None
    rows: int = 0
    file_bytes: int = 0
    output_tokens: int = 0
    context_tokens: int = 0


JobRecords = list[JobRecord]
COLUMNS = tuple(field.name for field in fields(JobRecord))
DIGESTS = ("submission", "file", "checkpoint_root", "rollout_root")
NUMBERS = tuple(field.name for field in fields(JobRecord) if field.type is int)
CREATE = f"""
create table if not exists jobs (
  {", ".join(COLUMNS)},
  primary key (run, lease)
) without rowid;
create index if not exists jobs_by_time on jobs (started_ms);
create index if not exists jobs_by_submission on jobs (submission);
"""


class Journal:
    """The journal of one node. Another process may read it at the same time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._database = self._open()

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.DatabaseError as error:
            aside = self._path.with_name(self._path.name + ".damaged")
            log.warning("%s is damaged (%s); moving it to %s", self._path, error, aside.name)
        try:
            self._path.replace(aside)
            return self._connect()
        except (OSError, sqlite3.DatabaseError) as error:
            raise LocalError(f"cannot write {self._path}: {error}; make room or choose another folder") from None

    def _connect(self) -> sqlite3.Connection:
        database = sqlite3.connect(self._path, isolation_level=None, timeout=10)
        # A damaged text must not fail a query that lists many rows: _parse finds it and drops its row.
        database.text_factory = lambda raw: raw.decode(errors="replace")
        database.execute("pragma journal_mode = wal")
        database.execute("pragma synchronous = full")
        database.executescript(CREATE)
        (found,) = database.execute("pragma quick_check(1)").fetchone()
        if found != "ok":
            database.close()
            raise sqlite3.DatabaseError(found)
        return database

    def close(self) -> None:
        self._database.close()

    # --- Writing ----------------------------------------------------------------------------------------------------

    def add(self, record: JobRecord, now_ms: int) -> None:
        """Adds a lease that was answered or returned. It is on disk when this returns."""
        self._put(replace(record, history=(*record.history, (record.state, now_ms))))
        self._execute(
            "delete from jobs where not is_open and started_ms < "
            "(select started_ms from jobs order by started_ms desc limit 1 offset ?)",
            (RECORDS_KEPT,),
        )

    def advance(
        self, record: JobRecord, state: JobState, now_ms: int, *, reason: str = "", is_open: bool | None = None
    ) -> JobRecord:
        """The record after the change. A state that cannot follow changes nothing: news may come late or twice."""
        # The caller may have waited since it read the record, and others may have advanced it.
        record = self.get_by_lease(record.run, record.lease) or record
        is_next = state in NEXT_STATES[record.state]
        moved = replace(
            record,
            state=state if is_next else record.state,
            reason=reason if reason or is_next else record.reason,
            history=(*record.history, (state, now_ms)) if is_next else record.history,
            is_open=(bool(NEXT_STATES[state] - {S.LOST}) if is_next else record.is_open)
            if is_open is None
            else is_open,
        )
        if moved != record:
            self._put(moved)
        return moved

    def _put(self, record: JobRecord) -> None:
        self._execute(
            f"insert or replace into jobs ({', '.join(COLUMNS)}) values ({', '.join('?' * len(COLUMNS))})",
            tuple(to_column(name, getattr(record, name)) for name in COLUMNS),
        )

    # --- Reading ----------------------------------------------------------------------------------------------------

    def list_newest(self, limit: int = 50) -> JobRecords:
        """The newest first."""
        return self._read("order by started_ms desc, lease desc limit ?", (limit,))

    def list_open(self, run: RunId) -> JobRecords:
        """Records of a run whose state may still change, oldest first."""
        return self._read("where run = ? and is_open order by started_ms, lease", (run,))

    def list_acknowledged_since(self, run: RunId, since_ms: int) -> JobRecords:
        """Work that the coordinator has acknowledged and that began then or later, the newest first."""
        states = [state for state in JobState if state not in (S.PRODUCED, S.RETURNED, S.REFUSED, S.LOST)]
        clause = f"where run = ? and started_ms >= ? and state in ({', '.join('?' * len(states))})"
        return self._read(
            f"{clause} order by started_ms desc limit ?", (run, since_ms, *map(str, states), ACKNOWLEDGED_MAX)
        )

    def get_by_lease(self, run: RunId, lease: int) -> JobRecord | None:
        return next(iter(self._read("where run = ? and lease = ?", (run, lease))), None)

    def get_by_submission(self, submission: Digest) -> JobRecord | None:
        return next(iter(self._read("where submission = ?", (str(submission),))), None)

    def find(self, prefix: str) -> JobRecord:
        """By lease number, or by the start of its submission or file. LocalError: none, or several."""
        if prefix.isdecimal():
            found = self._read("where lease = ? order by started_ms desc limit 1", (int(prefix),))
        else:
            like = prefix.removeprefix("0x").lower().replace("%", "").replace("_", "")
            found = self._read("where submission like ? or file like ? limit 2", (f"0x{like}%", f"0x{like}%"))
        if not found:
            raise LocalError(f"this node has no rollouts with the id {prefix}")
        if len(found) > 1:
            raise LocalError(f"{prefix} is ambiguous; give more digits")
        return found[0]

    def list_open_files(self) -> set[Digest]:
        """Files of all open records."""
        return {record.file for record in self._read("where is_open and file is not null", ()) if record.file}

    def _read(self, clause: str, values: Iterable[Any]) -> JobRecords:
        rows = self._execute(f"select {', '.join(COLUMNS)} from jobs {clause}", values).fetchall()
        return [record for row in rows if (record := self._parse(dict(zip(COLUMNS, row, strict=True)))) is not None]

    def _parse(self, row: dict[str, Any]) -> JobRecord | None:
        """None for a damaged row. It is deleted: the coordinator's log has the same facts."""
        try:
            return JobRecord(**{name: from_column(name, value) for name, value in row.items()})
        except (RemoteError, ValueError, TypeError) as error:
            log.warning("deleting a damaged row of %s: %s", self._path, error)
            self._execute("delete from jobs where run = ? and lease = ?", (row["run"], row["lease"]))
            return None

    def _execute(self, statement: str, values: Iterable[Any]) -> sqlite3.Cursor:
        try:
            return self._database.execute(statement, tuple(values))
        except sqlite3.Error as error:
            raise LocalError(f"cannot use {self._path}: {error}; make room, or stop what locks it") from None


def to_column(name: str, value: Any) -> Any:
    if name == "history":
        return json.dumps([[state, at_ms] for state, at_ms in value])
    return str(value) if isinstance(value, Digest | StrEnum | RunId) else value


def from_column(name: str, value: Any) -> Any:
    if name in DIGESTS:
        return None if value is None else Digest.parse(value)
    if name == "history":
        return tuple((state, at_ms) for state, at_ms in json.loads(value))
    if name == "is_open":
        return bool(value)
    if name in NUMBERS and not isinstance(value, int):
        raise ValueError(f"{name} is no number")
    return {"state": JobState, "run": RunId}.get(name, lambda same: same)(value)
