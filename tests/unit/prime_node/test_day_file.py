"""A day's bytes in a file: of today and sound, or none."""

from pathlib import Path

from prime_node.day_file import DAY_MS, KEEP_MS, DayFile
from prime_runtime.clock import SystemClock


class HandClock(SystemClock):
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.at_ms = 100 * DAY_MS

    def now_ms(self) -> int:
        return self.at_ms

    def monotonic_ms(self) -> int:
        return self.at_ms


def test_it_is_written_now_and_then_and_of_another_day_it_says_nothing(tmp_path: Path) -> None:
    clock = HandClock()
    file = DayFile(tmp_path / "sent.json", clock)
    assert file.load() == 0
    file.keep(10)
    assert file.load() == 0, "not for every shard"
    clock.at_ms += KEEP_MS
    file.keep(20)
    file.keep(30)
    assert DayFile(tmp_path / "sent.json", clock).load() == 20
    clock.at_ms += DAY_MS
    assert file.load() == 0


def test_a_damaged_one_is_taken_as_empty(tmp_path: Path) -> None:
    path, clock = tmp_path / "sent.json", HandClock()
    for text in ("", "{", "[]", "7", '{"day": 100}', '{"day": 100, "bytes": -1}', '{"day": 100, "bytes": "x"}'):
        path.write_text(text)
        assert DayFile(path, clock).load() == 0, text
    path.write_bytes(b"\xff\xfe")
    assert DayFile(path, clock).load() == 0


def test_a_disk_that_takes_nothing_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    DayFile(tmp_path / "file" / "sent.json", HandClock()).write(5)
