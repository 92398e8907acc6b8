"""A wallet key on disk: made once, written whole, readable by its owner only."""

import os
import uuid
from collections.abc import Callable
from pathlib import Path

from prime_protocol.constants import KEYSTORE_SCRYPT_N
from prime_protocol.errors import LocalError
from prime_protocol.keystore import decrypt_key, encrypt_key
from prime_protocol.signing import WalletKey, checksum_address


def create(path: Path, password: str, draw: Callable[[int], bytes]) -> WalletKey:
    """Draw a key and write its keystore; `draw` gives secret random bytes."""
    key = WalletKey.from_secret(draw(32))
    write(path, key, password, draw)
    return key


def write(path: Path, key: WalletKey, password: str, draw: Callable[[int], bytes]) -> None:
    """A new keystore of a key, never over another file."""
    if not password:
        raise LocalError("the password is empty; choose one, it guards the stake")
    file_id = str(uuid.UUID(bytes=draw(16), version=4))
    text = encrypt_key(key, password, salt=draw(32), iv=draw(16), file_id=file_id, scrypt_n=KEYSTORE_SCRYPT_N)
    write_private(path, text)


def write_private(path: Path, text: str) -> None:
    """A secret file that only its owner can read. One that is already there may be the only copy, so it stays."""
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
        # Half a key would look like one, and be kept for ever.
        path.unlink(missing_ok=True)
        raise LocalError(f"cannot write {path}: {error.strerror}; make room or choose another folder") from None


def load(path: Path, password: str) -> WalletKey:
    """The key of a keystore file."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise LocalError(f"{path} does not exist; make a key with: prime-node keys new --out {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LocalError(f"cannot read {path}: {error}") from None
    return decrypt_key(text, password)


def describe(key: WalletKey) -> str:
    """What others know this key by."""
    return f"address  {checksum_address(key.node)}\npeer id  {key.peer_id()}"
