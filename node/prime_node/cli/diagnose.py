"""`prime-node doctor` and `prime-node diagnose`: check this machine, and write a bundle for troubleshooting.

The bundle consists of plain files without secrets, signed by the node. Every text passes the redactor. Keys, passwords
and the control API's token are never read into it.
"""

import asyncio
import io
import json
import platform
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from hashlib import sha256
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from prime_node.cli.context import NodeCliContext, call_node, with_pins
from prime_node.cli.status import find_log
from prime_node.config import NodeConfig
from prime_node.doctor.checklist import build_run_checklist
from prime_node.doctor.probes import probe_runs
from prime_node.status.report import describe_record
from prime_node.storage.journal import Journal
from prime_node.storage.keys import get_password, load_key
from prime_node.storage.log_file import read_last
from prime_node.storage.node_folder import NodeFolder, read_lock
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.signing import WalletKey
from prime_runtime.checklist import CheckGrade, CheckResult, print_checklist
from prime_runtime.clock import SystemClock
from prime_runtime.redaction import PUBLIC_MARK, Redactor, Secret
from prime_runtime.settings.loader import describe_config, list_secrets

FILE_CHARS_MAX = 4_000_000
SIGNATURE_PREFIX = b"prime-swarm diagnosis\n"
CONTENTS = "CONTENTS.json"
SIGNATURE = "SIGNATURE.txt"


def redact(files: Mapping[str, str], secrets: Iterable[Secret]) -> dict[str, bytes]:
    """The files without secrets and without anything that looks like a private key, line by line."""
    redactor = Redactor(secrets)
    clean = {}
    for name, text in files.items():
        lines = text[:FILE_CHARS_MAX].split("\n")
        clean[name] = "\n".join(redactor.clean(line, FILE_CHARS_MAX) for line in lines).encode()
    return clean


def write_bundle(path: Path, files: Mapping[str, bytes], key: WalletKey | None) -> list[str]:
    """Write one tar.gz; an existing file is never overwritten. The signature covers the list of digests."""
    listing = json.dumps({name: sha256(data).hexdigest() for name, data in sorted(files.items())}, indent=2).encode()
    signed = {**files, CONTENTS: listing}
    if key is not None:
        digest = Digest(sha256(SIGNATURE_PREFIX + listing).digest())
        signed[SIGNATURE] = f"{key.node}\n{key.sign(digest)}\n".encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as bundle:
        for name, data in signed.items():
            entry = tarfile.TarInfo(f"prime-node-diagnosis/{name}")
            entry.size = len(data)
            bundle.addfile(entry, io.BytesIO(data))
    try:
        with path.open("xb") as file:
            file.write(packed.getvalue())
    except FileExistsError:
        raise LocalError(f"{path} exists and is not overwritten; choose another name with --out") from None
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}") from None
    return list(signed)


EXIT_MISSING = 3


def run_doctor(context: NodeCliContext) -> int:
    config = with_pins(context.resolve().config)
    with context.screen.spinner("checking this machine and its network"):
        lines = run_checks(config)
    if context.args.json:
        context.screen.print_json([asdict(line) for line in lines])
    else:
        print_checklist(context.screen, lines)
    return EXIT_MISSING if any(line.grade is CheckGrade.MISSING for line in lines) else 0


def run_checks(config: NodeConfig) -> list[CheckResult]:
    with tempfile.TemporaryDirectory(prefix="prime-node-doctor-") as scratch:
        is_running = bool(read_lock(config.folder))
        reports = asyncio.run(probe_runs(config, Path(scratch), SystemClock(), is_running=is_running))
    return build_run_checklist(reports, str(config.role))


LOG_LINES = 2_000
PIECES = 200


def write_diagnosis(context: NodeCliContext) -> int:
    resolved = context.resolve({})
    config = with_pins(resolved.config)
    out = context.args.out or Path(f"prime-node-diagnosis-{SystemClock().now_ms()}.tar.gz")
    with context.screen.spinner("collecting, and checking this machine and its network"):
        files = {
            "settings.txt": "\n".join(describe_config(resolved)),
            "status.json": _to_unredacted_json(_fetch_status(config)),
            "doctor.json": _to_json([asdict(line) for line in run_checks(config)]),
            "log.jsonl": "\n".join(read_last(find_log(context), LOG_LINES)).replace(PUBLIC_MARK, ""),
            "rollouts.json": _to_unredacted_json(_list_pieces(config)),
            "versions.txt": _list_versions(),
            "folder.txt": _list_files(config.folder),
        }
        key, problem = _open_key(config)
        names = write_bundle(out, redact(files, [*list_secrets(config), *_find_passwords(config)]), key)
    screen = context.screen
    screen.print_line(f"wrote {out}. It contains:")
    for name in names:
        screen.print_line(f"  {name}")
    screen.print_line("It has no keys or passwords. Unpack it with tar -xzf and read it before you send it.")
    if key is None:
        screen.print_line(f"It is not signed: {problem}")
    return 0


def _fetch_status(config: NodeConfig) -> Any:
    try:
        return asyncio.run(call_node(config.folder, "GET", "/status"))
    except LocalError as error:
        return {"problem": str(error)}


def _list_pieces(config: NodeConfig) -> Any:
    path = NodeFolder(config.folder).journal
    if not path.exists():
        return []
    journal = Journal(path)
    try:
        return [describe_record(piece) for piece in journal.list_newest(PIECES)]
    finally:
        journal.close()


def _to_json(value: Any) -> str:
    return json.dumps(value, indent=2)


def _to_unredacted_json(value: Any) -> str:
    """Digests in the node's own report are public and needed for troubleshooting, so the redactor must keep them."""
    return _to_json(value).replace('"0x', f'"{PUBLIC_MARK}0x')


def _list_versions() -> str:
    lines = [f"python {sys.version}", f"system {platform.platform()}"]
    lines += sorted(f"{each.metadata['Name']} {each.version}" for each in distributions())
    return "\n".join(lines)


def _list_files(folder: Path) -> str:
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


def _find_passwords(config: NodeConfig) -> list[Secret]:
    """The key's password, so that the redactor removes it wherever it may occur."""
    try:
        return [Secret(get_password(config))]
    except LocalError:
        return []
