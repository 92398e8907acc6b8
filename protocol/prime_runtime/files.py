"""Writing files that must never be half there or readable by others."""

import os
import secrets
from pathlib import Path

from prime_protocol.errors import LocalError

ADVICE = "free some space or choose another folder"


def write_atomic(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace the file with all of the data or not at all, even if the power fails. The umask applies to the mode."""
    draft = path.with_name(path.name + ".draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}; {ADVICE}") from None


def write_private_file(path: Path, text: str) -> None:
    """Create a secret file with mode 0600, whole or not at all. An existing file may be the only copy, so it stays."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.draft")
    try:
        with open(draft, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # A link, unlike a rename, never replaces: of two processes that create a key, one is refused.
        os.link(draft, path)
    except FileExistsError:
        raise LocalError(f"{path} exists and is kept; choose another name") from None
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}; {ADVICE}") from None
    finally:
        draft.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Names that were made or changed in the folder are on disk when this returns."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
