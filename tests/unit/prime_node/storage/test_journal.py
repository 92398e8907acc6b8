"""The journal: what became of each lease, forward only, and whole after any crash."""

import sqlite3
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from prime_node.cli.status import describe_progress
from prime_node.storage.journal import NEXT_STATES, JobRecord, JobState, Journal
from prime_node.storage.saved_state import UploadSpool
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import Digest, RunId

RUN = RunId("run-1")
S = JobState


def digest(text: str) -> Digest:
    return Digest(sha256(text.encode()).digest())


def record(lease: int = 1, state: JobState = S.PRODUCED) -> JobRecord:
    return JobRecord(
        run=RUN,
        lease=lease,
        step=3,
        first_slot=8,
        slots=2,
        deadline_ms=9_000,
        started_ms=1_000 + lease,
        state=state,
        submission=digest(f"submission {lease}"),
        file=digest(f"file {lease}"),
        checkpoint_root=digest("root"),
        rollout_root=digest("rows"),
        rows=4,
        file_bytes=100,
        output_tokens=40,
        context_tokens=400,
    )


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.db")


def test_a_record_survives_a_restart_unchanged(tmp_path: Path, journal: Journal) -> None:
    journal.add(record(), 2_000)
    found = Journal(tmp_path / "journal.db").get_by_lease(RUN, 1)
    assert found == replace(record(), history=(("produced", 2_000),))
    assert journal.get_by_lease(RunId("other"), 1) is None
    assert journal.get_by_submission(digest("submission 1")) == found


def test_a_record_only_advances_and_keeps_its_times(journal: Journal) -> None:
    journal.add(record(), 2_000)
    moved = journal.advance(record(), S.ACCEPTED, 3_000)
    moved = journal.advance(moved, S.RECEIVED, 4_000)
    assert moved.state is S.ACCEPTED
    moved = journal.advance(record(), S.PAID, 5_000)
    assert moved.history == (("produced", 2_000), ("accepted", 3_000), ("paid", 5_000)), "whoever held an old copy"
    assert not moved.is_open
    assert journal.get_by_lease(RUN, 1) == moved
    assert journal.list_open(RUN) == []


def test_a_reason_stays_with_the_state_it_explains(journal: Journal) -> None:
    journal.add(record(), 0)
    moved = journal.advance(record(), S.REJECTED, 1, reason="margin of row 3")
    assert (moved.reason, moved.is_open) == ("margin of row 3", True)
    over = journal.advance(moved, S.REJECTED, 2, is_open=False)
    assert (over.reason, over.is_open, over.state) == ("margin of row 3", False, S.REJECTED)
    assert journal.advance(moved, S.CREDITED, 3).reason == "", "an appeal was heard"


def test_the_progress_of_a_job_shows_skipped_states_and_what_comes_next(journal: Journal) -> None:
    journal.add(record(), 2_000)
    journal.advance(record(), S.RECEIVED, 3_000)
    assert [
        line.split("  ")[-1].partition(":")[0]
        for line in describe_progress(journal.advance(record(), S.CREDITED, 9_000), [5_000])
    ] == [
        "produced",
        "received",
        "checked",
        "credited",
        "paid",
    ]
    told = describe_progress(journal.advance(record(), S.PAID, 10_000), [])
    assert (told[0], len(told)) == ("1970-01-01 00:00:02 UTC  produced", 4), "unchecked, and nothing more to come"


def test_every_state_can_be_reached_and_ends_are_ends() -> None:
    reachable = {state for following in NEXT_STATES.values() for state in following} | {S.PRODUCED}
    assert reachable == set(JobState) == NEXT_STATES.keys()
    ends = {state for state, following in NEXT_STATES.items() if not following - {S.LOST}}
    assert ends == {S.PAID, S.RETURNED, S.REFUSED, S.SLASHED, S.LOST}


def test_records_are_found_by_lease_or_id_prefix(journal: Journal) -> None:
    for lease in range(5):
        journal.add(record(lease), 2_000)
    assert [each.lease for each in journal.list_newest(2)] == [4, 3]
    assert journal.find("3").lease == 3
    assert journal.find(str(digest("submission 2"))[:12]).lease == 2
    assert journal.find(digest("file 2").hex()[:10].upper()).lease == 2
    unknown, ambiguous = "has no rollouts", "ambiguous"
    for text, problem in (("99", unknown), ("0xzz", unknown), ("0x", ambiguous), ("%", ambiguous)):
        with pytest.raises(LocalError, match=problem):
            journal.find(text)


def test_old_records_are_deleted_and_open_ones_kept(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prime_node.storage.journal.RECORDS_KEPT", 3)
    for lease in range(6):
        journal.add(replace(record(lease), is_open=lease == 0), 2_000)
    assert [each.lease for each in journal.list_newest()] == [5, 4, 3, 2, 0]


def test_a_damaged_journal_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5_000)
    journal = Journal(path)
    journal.add(record(), 1)
    assert len(journal.list_newest()) == 1
    assert (tmp_path / "journal.db.damaged").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("submission", "0xnothing"),
        ("history", '[["produced"; 1]]'),
        ("history", "[7]"),
        ("state", "prodused"),
        ("file", b"\x01\x02"),
        ("step", "three"),
        ("run", "a b"),
    ],
)
def test_a_damaged_row_is_deleted_and_the_others_are_read(
    tmp_path: Path, journal: Journal, column: str, value: object
) -> None:
    for lease in (1, 2):
        journal.add(record(lease), 2_000)
    with sqlite3.connect(tmp_path / "journal.db") as database:
        database.execute(f"update jobs set {column} = ? where lease = 1", (value,))
    assert [each.lease for each in journal.list_newest()] == [2]
    assert journal.list_open_files() == {digest("file 2")}
    assert database.execute("select count(*) from jobs").fetchone() == (1,)


def test_a_text_that_is_none_any_more_is_read_as_far_as_it_goes(tmp_path: Path, journal: Journal) -> None:
    journal.add(replace(record(), reason="late"), 2_000)
    with sqlite3.connect(tmp_path / "journal.db") as database:
        database.execute("update jobs set reason = cast(x'6cff' as text)")
    assert [each.reason for each in journal.list_newest()] == ["l\ufffd"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"journal\.db"):
        Journal(tmp_path / "nowhere" / "journal.db")


def test_files_are_kept_whole_and_swept_when_nothing_names_them(tmp_path: Path) -> None:
    spool = UploadSpool(tmp_path / "files")
    kept, gone = spool.put(b"rollouts"), spool.put(b"evidence")
    assert (spool.get(kept), spool.put(b"rollouts")) == (b"rollouts", kept)
    (tmp_path / "files" / "draft.draft").write_bytes(b"half")
    assert spool.remove_unnamed({kept}) == 2
    assert (spool.get(kept), spool.get(gone)) == (b"rollouts", None)
    (tmp_path / "files" / kept.hex()).write_bytes(b"rollouts?")
    assert spool.get(kept) is None, "what is not what it was is not sent"
    assert list((tmp_path / "files").iterdir()) == []
