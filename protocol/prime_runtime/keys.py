"""A wallet key on disk: made once, written whole, readable by its owner only.

The password of a key: from the settings, or from a file that they name. Asking on a terminal is for cli.py.

Sequence numbers for the envelopes of one key: rising, and never used twice, also across restarts.
"""

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from secrets import randbelow

from prime_protocol.constants import KEYSTORE_SCRYPT_N
from prime_protocol.errors import LocalError
from prime_protocol.wire.keystore import decrypt_key, encrypt_key
from prime_protocol.wire.signing import WalletKey, checksum_address
from prime_runtime.redaction import Secret


def create_key(path: Path, password: str, draw: Callable[[int], bytes]) -> WalletKey:
    """Draw a key and write its keystore; `draw` gives secret random bytes."""
    key = WalletKey.from_secret(draw(32))
    write_key(path, key, password, draw)
    return key


def write_key(path: Path, key: WalletKey, password: str, draw: Callable[[int], bytes]) -> None:
    """A new keystore of a key, never over another file."""
    if not password:
        raise LocalError("the password is empty; choose one, it guards the stake")
    file_id = str(uuid.UUID(bytes=draw(16), version=4))
    text = encrypt_key(key, password, salt=draw(32), iv=draw(16), file_id=file_id, scrypt_n=KEYSTORE_SCRYPT_N)
    write_private_file(path, text)


def write_private_file(path: Path, text: str) -> None:
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


def load_key(path: Path, password: str) -> WalletKey:
    """The key of a keystore file."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        raise LocalError(f"{path} does not exist; make a key with: prime-node keys new --out {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LocalError(f"cannot read {path}: {error}") from None
    return decrypt_key(text, password)


def describe_key(key: WalletKey) -> str:
    """What others know this key by."""
    return f"address  {checksum_address(key.node)}\npeer id  {key.peer_id()}"


PASSWORD_CHARS_MIN = 8


def read_password(password: Secret | None, file: Path | None) -> str:
    """LocalError where there is none, or one that is too short to guard anything."""
    if password is not None:
        return password.reveal()
    if file is None:
        raise LocalError("the key's password is missing: set PRIME_PASSWORD, or password_file to a file that holds it")
    text = read_password_file(file)
    if len(text) < PASSWORD_CHARS_MIN:
        raise LocalError(f"the password in {file} is shorter than {PASSWORD_CHARS_MIN} characters")
    return text


def read_password_file(file: Path) -> str:
    """A password as it stands in a file, however short."""
    try:
        return file.read_text().partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise LocalError(f"cannot read the password file {file}: {error}") from None


class SequenceCounter:
    """Numbers from the wall clock, so that nothing has to be kept on disk."""

    STEPS_PER_MS = 1024
    OFFSETS = STEPS_PER_MS // 2
    """The lower half of each millisecond, where a number may begin; the rest is for more of them."""

    def __init__(self, draw: Callable[[], int] = lambda: 0) -> None:
        """`draw` says where in its millisecond a number begins, below OFFSETS."""
        self._last = 0
        self._draw = draw

    @classmethod
    def shared(cls) -> "SequenceCounter":
        """For a key that several processes may use at once, as a trainer and its origin do: they rarely draw alike."""
        return cls(lambda: randbelow(cls.OFFSETS))

    def next(self, now_ms: int) -> int:
        """A clock that steps back is no harm while the process lives: the last number still counts up."""
        self._last = max(self._last + 1, now_ms * self.STEPS_PER_MS + self._draw())
        return self._last
