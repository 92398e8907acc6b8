"""The systemd user unit of a node, as text. Pure."""

import re
import shlex
from pathlib import Path

from prime_protocol.errors import LocalError

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")


def unit_name(name: str) -> str:
    if not NAME.fullmatch(name):
        raise LocalError(f"--name is {name!r}; use a-z, 0-9 and dashes")
    return f"{name}.service"


def render_unit(program: Path, folder: Path) -> str:
    """Restarted when it fails, for as long as it takes: a disk that was full for an hour must need no human afterwards.
    Killed only after it had time to give back its work.
    """
    command = " ".join(_quote(word) for word in (str(program), "start", "--folder", str(folder)))
    return f"""[Unit]
Description=prime-node in {_escape(str(folder))}
StartLimitIntervalSec=0

[Service]
ExecStart={command}
Restart=on-failure
RestartSec=10
TimeoutStopSec=60
LimitNOFILE=65536
Nice=5

[Install]
WantedBy=default.target
"""


def _quote(word: str) -> str:
    """As systemd reads words: quoted where needed, and % doubled."""
    escaped = _escape(word)
    return escaped if escaped == shlex.quote(escaped) else '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escape(text: str) -> str:
    if not text.isprintable():
        raise LocalError(f"{text!r} cannot stand in a unit; choose another folder")
    return text.replace("%", "%%").replace("$", "$$")
