"""The node's wallet key in its folder: drawn at the first start, behind a password that is given or drawn with it.

A drawn password lies beside the key, so it guards a copy of the key file alone, not the folder. That is what a machine
that starts by itself can have; who wants more gives a password, and keeps it elsewhere.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path

from prime_node.config import NodeConfig
from prime_node.home import Home
from prime_protocol.errors import LocalError
from prime_protocol.signing import WalletKey
from prime_runtime import key_file
from prime_runtime.password import read_password

PASSWORD_BYTES = 24


@dataclass(frozen=True, slots=True)
class OpenedKey:
    """A key, and what was just made for it."""

    key: WalletKey
    is_new: bool = False
    is_password_new: bool = False


def open_key(config: NodeConfig) -> OpenedKey:
    """The node's key; drawn where there is none yet."""
    home = Home(config.folder)
    if home.key.exists():
        return OpenedKey(load_key(config))
    is_password_new = not _has_password(config)
    if is_password_new:
        draw_password(home.password)
    key = key_file.create(home.key, find_password(config), secrets.token_bytes)
    return OpenedKey(key, is_new=True, is_password_new=is_password_new)


def load_key(config: NodeConfig) -> WalletKey:
    """The key that is there. LocalError says which file and which password do not fit."""
    home = Home(config.folder)
    if not home.key.exists():
        raise LocalError(f"there is no key in {config.folder} yet; prime-node start or prime-node keys new makes one")
    password = find_password(config)
    try:
        return key_file.load(home.key, password)
    except LocalError as error:
        source = f" The password is {_describe_source(config)}." if "password" in str(error) else ""
        raise LocalError(
            f"{home.key} does not open: {error}.{source} If the file is damaged, bring back your copy:"
            " prime-node keys recover COPY --replace"
        ) from None


def find_password(config: NodeConfig) -> str:
    """From the settings, else the one that was drawn."""
    home = Home(config.folder)
    if config.password is None and config.password_file is None and home.password.exists():
        return read_password(None, home.password)
    return read_password(config.password, config.password_file)


def draw_password(path: Path) -> None:
    """A strong one, in a file that only its owner can read."""
    key_file.write_private(path, secrets.token_urlsafe(PASSWORD_BYTES) + "\n")


def _has_password(config: NodeConfig) -> bool:
    return config.password is not None or config.password_file is not None or Home(config.folder).password.exists()


def _describe_source(config: NodeConfig) -> str:
    if config.password is not None:
        return "that of PRIME_PASSWORD or the setting password"
    return f"the one in {config.password_file or Home(config.folder).password}"
