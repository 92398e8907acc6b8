"""`prime-node diagnose`: collects what helps to find a fault, writes it to one file, and says what is inside."""

import asyncio
import json
import platform
import sys
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from prime_node.commands.context import Context, with_pins
from prime_node.commands.doctor import examine_lines
from prime_node.commands.door import call
from prime_node.commands.logs import find_log
from prime_node.config import NodeConfig
from prime_node.diagnosis import redact, write_bundle
from prime_node.home import Home
from prime_node.journal import Journal
from prime_node.log_lines import read_last
from prime_node.node_key import find_password, load_key
from prime_node.work_status import describe_piece
from prime_protocol.errors import LocalError
from prime_protocol.signing import WalletKey
from prime_runtime.clock import SystemClock
from prime_runtime.redaction import MARK
from prime_runtime.secret import Secret
from prime_runtime.settings import describe, list_secrets

LOG_LINES = 2_000
PIECES = 200


def write(context: Context) -> int:
    resolved = context.resolve({})
    config = with_pins(resolved.config)
    out = context.args.out or Path(f"prime-node-diagnosis-{SystemClock().now_ms()}.tar.gz")
    with context.screen.working("collecting, and looking at this machine and its line"):
        files = {
            "settings.txt": "\n".join(describe(resolved)),
            "status.json": _mark(_status(config)),
            "doctor.json": _json([asdict(line) for line in examine_lines(config)]),
            "log.jsonl": "\n".join(read_last(find_log(context), LOG_LINES)).replace(MARK, ""),
            "rollouts.json": _mark(_pieces(config)),
            "versions.txt": _versions(),
            "folder.txt": _folder(config.folder),
        }
        key, problem = _open_key(config)
        names = write_bundle(out, redact(files, [*list_secrets(config), *_password(config)]), key)
    screen = context.screen
    screen.say(f"wrote {out}. Inside, for whoever you send it to:")
    for name in names:
        screen.say(f"  {name}")
    screen.say("No keys, no passwords. Look into it before you send it: tar -xzf it and read.")
    if key is None:
        screen.say(f"It is not signed: {problem}")
    return 0


def _status(config: NodeConfig) -> Any:
    try:
        return asyncio.run(call(config.folder, "GET", "/status"))
    except LocalError as error:
        return {"problem": str(error)}


def _pieces(config: NodeConfig) -> Any:
    path = Home(config.folder).journal
    if not path.exists():
        return []
    journal = Journal(path)
    try:
        return [describe_piece(piece) for piece in journal.list(PIECES)]
    finally:
        journal.close()


def _json(value: Any) -> str:
    return json.dumps(value, indent=2)


def _mark(value: Any) -> str:
    """Digests of the node's own report are public, and whoever looks for a fault needs them whole."""
    return _json(value).replace('"0x', f'"{MARK}0x')


def _versions() -> str:
    lines = [f"python {sys.version}", f"system {platform.platform()}"]
    lines += sorted(f"{each.metadata['Name']} {each.version}" for each in distributions())
    return "\n".join(lines)


def _folder(folder: Path) -> str:
    """Names and sizes only."""
    if not folder.exists():
        return f"{folder} does not exist"
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    return "\n".join(f"{path.stat().st_size:>14,}  {path.relative_to(folder)}" for path in found)


def _open_key(config: NodeConfig) -> tuple[WalletKey | None, str]:
    try:
        return load_key(config), ""
    except LocalError as error:
        return None, str(error)


def _password(config: NodeConfig) -> list[Secret]:
    """So that it is blotted out wherever it may have got to."""
    try:
        return [Secret(find_password(config))]
    except LocalError:
        return []
