"""Reads the node's log file: its last lines, and those that are appended, across rotations."""

import json
import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prime_runtime.redaction import escape, truncate

LINE_CHARS_MAX = 20_000


def read_last(path: Path, count: int) -> list[str]:
    """The newest lines, oldest first, from rotated files too where the current one has too few."""
    found: deque[str] = deque()
    for file in [path, *_list_rotated(path)]:
        if len(found) >= count:
            break
        found.extendleft(reversed(_tail(file, count - len(found))))
    return list(found)


def _list_rotated(path: Path) -> list[Path]:
    """node.log.1 is the newest of them."""
    numbered = [(each.suffix[1:], each) for each in path.parent.glob(f"{path.name}.*")]
    return [each for number, each in sorted(((int(n), each) for n, each in numbered if n.isdecimal()))]


def _tail(path: Path, count: int) -> list[str]:
    try:
        with path.open(errors="replace") as file:
            return [line.rstrip("\n") for line in deque(file, maxlen=count)]
    except FileNotFoundError:
        return []


class LogFileFollower:
    """Yields the lines that are appended after it was created."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open(errors="replace")
        self._file.seek(0, os.SEEK_END)
        self._rest = ""

    def read(self) -> Iterator[str]:
        """Whole lines that are new, first of the old file if it was rotated."""
        yield from self._read_lines()
        if self._is_rotated():
            self._file.close()
            self._file = self._path.open(errors="replace")
            self._rest = ""
            yield from self._read_lines()

    def _read_lines(self) -> Iterator[str]:
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        yield from lines

    def _is_rotated(self) -> bool:
        try:
            return self._path.stat().st_ino != os.fstat(self._file.fileno()).st_ino
        except FileNotFoundError:
            return False  # the next one is about to be made

    def close(self) -> None:
        self._file.close()


def format_line(line: str) -> str:
    """A JSON line of the log as people read it; what is none is shown as it is."""
    try:
        record: Any = json.loads(line)
        head = f"{record['time']} {record['level'].upper():<7} {record['message']}"
        fields = "".join(f"  {name}={value}" for name, value in record.get("fields", {}).items())
        causes = "".join(f"  [{part['type']}: {part['text']}]" for part in record.get("exception", ()))
    except (ValueError, KeyError, TypeError, AttributeError):
        return truncate(escape(line), LINE_CHARS_MAX)
    return truncate(escape(head + fields + causes), LINE_CHARS_MAX)
