"""A wallet key in use: its encrypted file, its password, and the sequence numbers of its envelopes.

Prompting for a password on a terminal belongs in the programs' cli modules.
"""

import uuid
from collections.abc import Callable
from pathlib import Path
from secrets import randbelow

from prime_protocol.constants import KEYSTORE_SCRYPT_N
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import NodeId, checksum_address
from prime_protocol.wire.keystore import decrypt_key, encrypt_key, read_keystore_address
from prime_protocol.wire.signing import WalletKey
from prime_runtime.files import write_private_file
from prime_runtime.redaction import Secret


def create_key_file(path: Path, password: str, draw: Callable[[int], bytes]) -> WalletKey:
    """Create a key and write its keystore; `draw` returns secret random bytes."""
    key = WalletKey.from_secret(draw(32))
    write_key_file(path, key, password, draw)
    return key


def write_key_file(path: Path, key: WalletKey, password: str, draw: Callable[[int], bytes]) -> None:
    """Write a new keystore. It never replaces a file."""
    if not password:
        raise LocalError("the password is empty; choose one, it protects the stake")
    file_id = str(uuid.UUID(bytes=draw(16), version=4))
    text = encrypt_key(key, password, salt=draw(32), iv=draw(16), file_id=file_id, scrypt_n=KEYSTORE_SCRYPT_N)
    write_private_file(path, text)


def load_key_file(path: Path, password: str) -> WalletKey:
    """Decrypt a keystore file."""
    return decrypt_key(_read_keystore(path), password)


def read_key_address(path: Path) -> NodeId:
    """The address of a keystore file, without its password."""
    return read_keystore_address(_read_keystore(path))


def _read_keystore(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        raise LocalError(f"{path} does not exist; make a key with: prime-node keys new --out {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LocalError(f"cannot read {path}: {error}") from None


def describe_key(key: WalletKey) -> str:
    """The public names of a key."""
    return f"address  {checksum_address(key.node)}\npeer id  {key.peer_id()}"


PASSWORD_CHARS_MIN = 8


def resolve_password(password: Secret | None, file: Path | None) -> str:
    """The password from the settings or from the file they name. LocalError: there is none, or it is too short."""
    if password is not None:
        return password.reveal()
    if file is None:
        raise LocalError("the password of the key is missing: set PRIME_PASSWORD, or password_file")
    text = read_password_file(file)
    if len(text) < PASSWORD_CHARS_MIN:
        raise LocalError(f"the password in {file} is shorter than {PASSWORD_CHARS_MIN} characters")
    return text


def read_password_file(file: Path) -> str:
    """The first line of a password file, of any length."""
    try:
        return file.read_text().partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise LocalError(f"cannot read the password file {file}: {error}") from None


class SequenceCounter:
    """Rising sequence numbers that are never reused. They start from the wall clock, so nothing is stored on disk."""

    STEPS_PER_MS = 1024
    OFFSETS = STEPS_PER_MS // 2
    """A millisecond's first number lies in its lower half; the upper half leaves room for more numbers."""

    def __init__(self, draw: Callable[[], int] = lambda: 0) -> None:
        """`draw` returns the first number's offset in its millisecond, below OFFSETS."""
        self._last = 0
        self._draw = draw

    @classmethod
    def shared(cls) -> "SequenceCounter":
        """For a key that several processes use at once, such as a trainer and its origin: offsets are random."""
        return cls(lambda: randbelow(cls.OFFSETS))

    def next(self, now_ms: int) -> int:
        """Numbers rise even if the clock steps back while the process runs."""
        self._last = max(self._last + 1, now_ms * self.STEPS_PER_MS + self._draw())
        return self._last
