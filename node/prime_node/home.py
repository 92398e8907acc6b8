"""The node's folder: what lies where, how it is made at the first start, and the lock that keeps a second process out.

config.toml   settings                      memory      what must survive a crash
key.json      wallet key, encrypted         run.json    what the node knows of its run
weights/      manifests and shards          heads/      tree heads it was shown, and evidence if they disagree
lock          who is running here, and how the other commands reach it
"""

import json
import os
import secrets
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from prime_node.config import CONFIG_NAME, NodeConfig
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ids import NodeId
from prime_protocol.signing import WalletKey
from prime_runtime import key_file
from prime_runtime.lock import Facts, Lock, is_held, lock_file, read_facts
from prime_runtime.password import read_password
from prime_runtime.settings_render import render_config


@dataclass(frozen=True, slots=True)
class Home:
    """The paths in one node's folder."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / CONFIG_NAME

    @property
    def key(self) -> Path:
        return self.folder / "key.json"

    @property
    def memory(self) -> Path:
        return self.folder / "memory"

    @property
    def run(self) -> Path:
        return self.folder / "run.json"

    @property
    def weights(self) -> Path:
        return self.folder / "weights"

    @property
    def heads(self) -> Path:
        return self.folder / "heads"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LocalError(f"cannot make the folder {folder}: {error.strerror}") from None


def locked(folder: Path) -> AbstractContextManager[Lock]:
    """Take the folder's lock, or tell who has it."""
    return lock_file(Home(folder).lock, "node", advice="choose another --folder")


def read_lock(folder: Path) -> Facts:
    """What the process in this folder says of itself: `pid`, `url` and `token`; nothing where none runs."""
    path = Home(folder).lock
    return read_facts(path) if is_held(path) else {}


def open_key(config: NodeConfig) -> tuple[WalletKey, bool]:
    """The node's key, and whether it was drawn just now."""
    path = Home(config.folder).key
    if path.exists():
        return key_file.load(path, read_password(config.password, config.password_file)), False
    try:
        password = read_password(config.password, config.password_file)
    except LocalError as error:
        raise LocalError(f"this node has no key yet, and making one needs a password that guards it: {error}") from None
    return key_file.create(path, password, secrets.token_bytes), True


def keep_config(config: NodeConfig) -> bool:
    """At the first start what was given is written down, so that the next one needs no flags; True if it was."""
    path = Home(config.folder).config
    if path.exists():
        return False
    key_file.write_private(path, render_config(config, always=("network", "role"), never=("folder",)))
    return True


# --- What is known of the run -----------------------------------------------------------------------------------------


def read_trainer(folder: Path) -> NodeId | None:
    """Whose weights count in the run, as the coordinator last said."""
    try:
        facts = json.loads(Home(folder).run.read_text())
        return NodeId.parse(facts["trainer"])
    except (OSError, ValueError, KeyError, TypeError, RemoteError):
        return None


def keep_trainer(folder: Path, trainer: NodeId) -> None:
    write_whole(Home(folder).run, json.dumps({"trainer": str(trainer)}).encode())


def write_whole(path: Path, data: bytes) -> None:
    """All of the file or nothing, even if the power goes."""
    draft = path.with_name(path.name + ".draft")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}; make room or choose another folder") from None
