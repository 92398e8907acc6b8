"""Writing files that must never be half there or readable by others."""

import os
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
    """Create a secret file with mode 0600. An existing file may be the only copy of a secret, so it stays."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise LocalError(f"{path} exists and is kept; choose another name") from None
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}") from None
    try:
        with os.fdopen(fd, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        # Half a key would look like a key and be kept forever.
        path.unlink(missing_ok=True)
        raise LocalError(f"cannot write {path}: {error.strerror}; {ADVICE}") from None
