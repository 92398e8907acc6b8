"""What the small files of a checkpoint were when it got its name: configuration, tokenizer and the like.

A manifest signs a keyframe's files as shards and every checkpoint's tensors, but what lies beside the tensors of a
patched checkpoint was carried over from its base. A bit that flips there changes what the model computes just as well.
"""

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.manifest import Manifest
from prime_runtime.shardcast.checkpoint import TENSOR_SUFFIX, list_files, map_checkpoint, verify_checkpoint

NOTES_NAME = ".files"


def write_notes(folder: Path) -> None:
    (folder / NOTES_NAME).write_text(json.dumps(_digest(_small_files(folder))))


def verify_folder(folder: Path, manifest: Manifest, *, threads: int) -> None:
    """A checkpoint on disk is what was signed, tensors and small files; RemoteError or LocalError says what is not."""
    verify_checkpoint(map_checkpoint(folder), manifest, threads=threads)
    verify_notes(folder)


def verify_notes(folder: Path) -> None:
    """RemoteError where a file is not what it was, or nothing says what it was."""
    try:
        noted = json.loads((folder / NOTES_NAME).read_bytes())
    except (OSError, ValueError):
        raise RemoteError(NOTES_NAME, "is not there or cannot be read") from None
    found = _digest(_small_files(folder))
    if noted != found:
        names = [name for name in found if not isinstance(noted, dict) or noted.get(name) != found[name]]
        raise RemoteError(names[0] if names else NOTES_NAME, "is not what it was when the checkpoint was made")


def _small_files(folder: Path) -> list[Path]:
    return [path for path in list_files(folder) if path.suffix != TENSOR_SUFFIX]


def _digest(paths: Iterable[Path]) -> dict[str, str]:
    try:
        return {path.name: sha256(path.read_bytes()).hexdigest() for path in paths}
    except OSError as error:
        raise LocalError(f"cannot read {error.filename}: {error.strerror}") from None
