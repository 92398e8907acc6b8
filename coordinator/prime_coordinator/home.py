"""The coordinator's folder: what lies where, how it is made once, and the lock that keeps a second process out.

config.toml   settings                      log.key     Ed25519 key of the tree heads
key.json      wallet key, encrypted         log.db      the log (unless the database is elsewhere)
objects/      files that nodes sent         mirror/     the log as static files for everybody
plants/       keys of planted workers       lock        who is running here
state.snapshot  the state at the last stop; the log is all it takes to make it again
explorer/     the index behind the web pages; the log is all it takes to make it again
chain/        settlement on a chain: see settlement/chain_files.py
"""

import secrets
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_coordinator.config import CONFIG_NAME, CoordinatorConfig
from prime_protocol.constants import ED25519_KEY_BYTES
from prime_protocol.errors import LocalError
from prime_protocol.signing import WalletKey
from prime_runtime import key_file, password
from prime_runtime.lock import Facts, Lock, lock_file, read_facts


@dataclass(frozen=True, slots=True)
class Home:
    """The paths in one coordinator's folder."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / CONFIG_NAME

    @property
    def key(self) -> Path:
        return self.folder / "key.json"

    @property
    def log_key(self) -> Path:
        return self.folder / "log.key"

    @property
    def database(self) -> Path:
        return self.folder / "log.db"

    @property
    def objects(self) -> Path:
        return self.folder / "objects"

    @property
    def mirror(self) -> Path:
        return self.folder / "mirror"

    @property
    def snapshot(self) -> Path:
        return self.folder / "state.snapshot"

    @property
    def explorer(self) -> Path:
        return self.folder / "explorer"

    @property
    def plants(self) -> Path:
        return self.folder / "plants"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"


def database_url(config: CoordinatorConfig) -> str:
    return config.database or f"sqlite:///{Home(config.folder).database.absolute()}"


def check_database(config: CoordinatorConfig) -> None:
    """Refuse to open a database that is gone: opening would make an empty one, and hide what happened."""
    path = Home(config.folder).database
    if config.database is None and not path.exists():
        raise LocalError(
            f"{path} is missing, so the log is lost here. Bring the file back, or make a new folder from a backup:"
            " prime-coordinator restore BACKUP --folder NEW-FOLDER"
        )


def objects_url(config: CoordinatorConfig) -> str:
    return config.objects or str(Home(config.folder).objects)


# --- Keys -----------------------------------------------------------------------------------------------------------


def read_password(config: CoordinatorConfig) -> str:
    """From the settings or from the file they name."""
    return password.read_password(config.password, config.password_file)


def load_key(config: CoordinatorConfig) -> WalletKey:
    """The coordinator's wallet key."""
    path = Home(config.folder).key
    if not path.exists():
        raise LocalError(f"{path} does not exist; make the folder with: prime-coordinator init")
    return key_file.load(path, read_password(config))


def load_planted(config: CoordinatorConfig) -> list[WalletKey]:
    """The keys of our own workers that test the validators: keystores in `plants`, under the same password."""
    paths = sorted(Home(config.folder).plants.glob("*.json"))
    return [key_file.load(path, read_password(config)) for path in paths]


def load_log_key(config: CoordinatorConfig) -> Ed25519PrivateKey:
    """The key that signs tree heads."""
    path = Home(config.folder).log_key
    if path.exists() and path.stat().st_mode & 0o077:
        raise LocalError(f"others may read {path}: chmod 600 it")
    text = _read_text(path).strip()
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != ED25519_KEY_BYTES:
        raise LocalError(f"{path} is damaged; restore it from your backup")
    return Ed25519PrivateKey.from_private_bytes(raw)


def create_keys(config: CoordinatorConfig) -> tuple[WalletKey, Ed25519PrivateKey]:
    """Draw both keys and write them; never over keys that are there. A deployment has drawn the first one before."""
    home = Home(config.folder)
    key = load_key(config) if home.key.exists() else create_key(config)
    log_key = Ed25519PrivateKey.generate()
    key_file.write_private(home.log_key, log_key.private_bytes_raw().hex() + "\n")
    return key, log_key


def create_key(config: CoordinatorConfig) -> WalletKey:
    """Draw the coordinator's wallet key."""
    return key_file.create(Home(config.folder).key, read_password(config), secrets.token_bytes)


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        raise LocalError(f"{path} does not exist; make the folder with: prime-coordinator init") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LocalError(f"cannot read {path}: {error}") from None


# --- The lock -------------------------------------------------------------------------------------------------------


def locked(folder: Path) -> AbstractContextManager[Lock]:
    """Take the folder's lock, or tell who has it."""
    return lock_file(Home(folder).lock, "coordinator", advice="make the folder with: prime-coordinator init")


def read_lock(folder: Path) -> Facts:
    """What the process in this folder says of itself: `pid`, and `url` once it listens. Stale after a crash."""
    return read_facts(Home(folder).lock)
