"""What memory a process has of its own: file pages, which the system takes back when it needs them, are not in it."""

from pathlib import Path


def read_anon_kb(pid: int | str = "self") -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
