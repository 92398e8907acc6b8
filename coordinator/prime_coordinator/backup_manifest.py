"""The manifest of a backup: what it holds, with the digest of every file. It is written last: no manifest, no backup.

manifest.json   this                        config.toml   the settings
log/            the log as a mirror         objects/      files that nodes sent, if asked for
keys/           key.json and log.key, if asked for
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import Digest, NetworkId

MANIFEST_NAME = "manifest.json"
MANIFEST_BYTES_MAX = 2**30
"""About eight million files."""
LOG, KEYS, OBJECTS = "log", "keys", "objects"
FORMAT = 1
CHUNK_BYTES = 2**20
PATH = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a backup holds."""

    network: str
    coordinator: str
    made_at_ms: int
    entries: int
    root: str
    files: dict[str, str]
    """SHA-256 by path inside the backup."""
    format: int = FORMAT

    @property
    def has_keys(self) -> bool:
        return f"{KEYS}/key.json" in self.files


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_synced(folder / MANIFEST_NAME, (json.dumps(asdict(manifest), indent=1) + "\n").encode())


def read_manifest(folder: Path) -> Manifest:
    """Strictly: a backup may have been damaged, or made by somebody else."""
    try:
        with (folder / MANIFEST_NAME).open("rb") as file:
            raw = file.read(MANIFEST_BYTES_MAX + 1)
    except OSError as error:
        raise LocalError(
            f"cannot read {folder / MANIFEST_NAME}: {error.strerror}; is {folder} a backup that was finished?"
        ) from None
    try:
        found = json.loads(raw)
        manifest = Manifest(**found)
        NetworkId(manifest.network)
        Digest.parse(manifest.root)
        are_numbers = all(type(number) is int for number in (manifest.made_at_ms, manifest.entries, manifest.format))
        if not are_numbers or not all(_is_entry(path, digest) for path, digest in manifest.files.items()):
            raise ValueError
    except (ValueError, TypeError, AttributeError, RecursionError, RemoteError):
        raise RemoteError(MANIFEST_NAME, "is damaged") from None
    if manifest.format != FORMAT:
        raise LocalError(
            f"the backup has format {manifest.format}, this program reads {FORMAT}: install another release"
        )
    return manifest


def _is_entry(path: str, digest: object) -> bool:
    is_inside = PATH.fullmatch(path) and not {".", ".."} & set(path.split("/"))
    return bool(is_inside) and isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest) is not None


def check_files(folder: Path, manifest: Manifest) -> None:
    """RemoteError names the first file that is not what the manifest says."""
    for path, digest in manifest.files.items():
        if (folder / path).is_symlink() or not (folder / path).is_file():
            raise RemoteError(path, "is missing")
        if hash_file(folder / path) != digest:
            raise RemoteError(path, "is not what was backed up")


def hash_file(path: Path) -> str:
    digest = sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error.strerror}") from None
    return digest.hexdigest()


def copy_synced(source: Path, target: Path, *, mode: int = 0o600) -> None:
    """The bytes of a file, on disk when this returns."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with source.open("rb") as reader, open(target, "wb", opener=_opener(mode)) as writer:
            while chunk := reader.read(CHUNK_BYTES):
                writer.write(chunk)
            writer.flush()
            os.fsync(writer.fileno())
    except OSError as error:
        raise LocalError(f"cannot copy {source} to {target}: {error.strerror}") from None


def write_synced(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(path, "wb", opener=_opener(mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}") from None


def _opener(mode: int) -> Callable[[str, int], int]:
    return lambda path, flags: os.open(path, flags, mode)


def list_files(folder: Path) -> dict[str, str]:
    """Path and digest of everything below a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hash_file(path) for path in paths}


def publish_folder(draft: Path, folder: Path) -> None:
    """A finished draft gets its name, in one step and for good."""
    try:
        for each in [draft, *(path for path in draft.rglob("*") if path.is_dir())]:
            _sync_folder(each)
        draft.rename(folder)
        _sync_folder(folder.parent)
    except OSError as error:
        raise LocalError(f"cannot rename {draft} to {folder}: {error.strerror}") from None


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
