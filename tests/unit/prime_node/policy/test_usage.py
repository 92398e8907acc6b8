"""A day's bytes in a file: of today and sound, or none."""

from pathlib import Path

from prime_node.policy.usage import DAY_MS, SAVE_INTERVAL_MS, DailyCounterFile
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
    file = DailyCounterFile(tmp_path / "sent.json", clock)
    assert file.load() == 0
    file.save_if_due(10)
    assert file.load() == 0, "not for every shard"
    clock.at_ms += SAVE_INTERVAL_MS
    file.save_if_due(20)
    file.save_if_due(30)
    assert DailyCounterFile(tmp_path / "sent.json", clock).load() == 20
    clock.at_ms += DAY_MS
    assert file.load() == 0


def test_a_damaged_one_is_taken_as_empty(tmp_path: Path) -> None:
    path, clock = tmp_path / "sent.json", HandClock()
    for text in ("", "{", "[]", "7", '{"day": 100}', '{"day": 100, "bytes": -1}', '{"day": 100, "bytes": "x"}'):
        path.write_text(text)
        assert DailyCounterFile(path, clock).load() == 0, text
    path.write_bytes(b"\xff\xfe")
    assert DailyCounterFile(path, clock).load() == 0


def test_a_failing_disk_does_not_stop_the_node(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    DailyCounterFile(tmp_path / "file" / "sent.json", HandClock()).save(5)
