"""The node's log file is read back and followed, across rotations."""

import json
from pathlib import Path

from prime_node.storage.log_file import LogFileFollower, format_line, read_last


def test_the_last_lines_reach_back_into_rotated_files(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_text("e\nf\n")
    (tmp_path / "node.log.1").write_text("c\nd\n")
    (tmp_path / "node.log.2").write_text("a\nb\n")
    (tmp_path / "node.log.bak").write_text("x\n")
    assert read_last(path, 1) == ["f"]
    assert read_last(path, 3) == ["d", "e", "f"]
    assert read_last(path, 100) == ["a", "b", "c", "d", "e", "f"]
    assert read_last(path, 0) == []
    assert read_last(tmp_path / "absent", 5) == []


def test_following_gives_whole_lines_also_across_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    path.write_text("old\n")
    follower = LogFileFollower(path)
    assert list(follower.read()) == []
    with path.open("a") as file:
        file.write("one\nhal")
        file.flush()
        assert list(follower.read()) == ["one"]
        file.write("f\n")
        file.flush()
        assert list(follower.read()) == ["half"]
        file.write("last of the old\n")
    path.rename(tmp_path / "node.log.1")
    assert list(follower.read()) == ["last of the old"], "the next file is not there yet"
    path.write_text("first of the new\n")
    assert list(follower.read()) == ["first of the new"]
    follower.close()


def test_a_line_of_the_log_is_shown_for_people() -> None:
    record = {
        "time": "T",
        "level": "error",
        "message": "it failed",
        "fields": {"step": 3},
        "exception": [{"type": "OSError", "text": "no room", "frames": []}],
    }
    assert format_line(json.dumps(record)) == "T ERROR   it failed  step=3  [OSError: no room]"
    for strange in ("plain text", "{", "[]", '{"time": 1}', '"x"'):
        assert format_line(strange) == strange
    assert format_line("a\x1b[2Jb") == "a\\x1b[2Jb"
