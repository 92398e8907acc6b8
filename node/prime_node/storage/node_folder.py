"""The node's folder: what lies where, how it is made at the first start, and the lock that keeps a second process out.

config.toml   settings                      memory      what must survive a crash
key.json      wallet key, encrypted         run.json    what the node knows of its coordinator and its run
password      the key's, if it was drawn    journal.db  what became of every file the node made
weights/      manifests and shards          heads/      tree heads it was shown, and evidence if they disagree
files/        rollouts and evidence         datasets/   problem files of task sets
engine/       caches of the engine
paused.json   what its owner has paused     node.log    the log, as JSON lines; older ones beside it
sent.json     bytes of weights sent today   moved.json  bytes sent and received today, for the owner's caps
lock          who is running here, and how the other commands reach it
"""

import json
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prime_node.config import CONFIG_NAME, NodeConfig
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import NodeId
from prime_runtime.files import write_atomic, write_private_file
from prime_runtime.lock import LockInfo, ProcessLock, hold_process_lock, is_held, read_lock_info
from prime_runtime.settings.flags import render_config

PINNED = ("coordinator_id", "network", "run", "log_key", "domain")


@dataclass(frozen=True, slots=True)
class NodeFolder:
    """The paths in one node's folder."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / CONFIG_NAME

    @property
    def key(self) -> Path:
        return self.folder / "key.json"

    @property
    def saved_state(self) -> Path:
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

    @property
    def password(self) -> Path:
        return self.folder / "password"

    @property
    def journal(self) -> Path:
        return self.folder / "journal.db"

    @property
    def spool(self) -> Path:
        return self.folder / "files"

    @property
    def datasets(self) -> Path:
        return self.folder / "datasets"

    @property
    def engine(self) -> Path:
        return self.folder / "engine"

    @property
    def chain(self) -> Path:
        """What was sent to a chain and not seen in a block yet, and what is still to be appealed there."""
        return self.folder / "chain"

    @property
    def paused(self) -> Path:
        return self.folder / "paused.json"

    @property
    def daily_upload(self) -> Path:
        return self.folder / "sent.json"

    @property
    def daily_transfer(self) -> Path:
        return self.folder / "moved.json"

    @property
    def log(self) -> Path:
        return self.folder / "node.log"


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LocalError(f"cannot make the folder {folder}: {error.strerror}") from None


def lock_folder(folder: Path) -> AbstractContextManager[ProcessLock]:
    """Take the folder's lock, or tell who has it."""
    return hold_process_lock(NodeFolder(folder).lock, "node", advice="choose another --folder")


def read_lock(folder: Path) -> LockInfo:
    """What the process in this folder says of itself: `pid`, `url` and `token`; nothing where none runs."""
    path = NodeFolder(folder).lock
    return read_lock_info(path) if is_held(path) else {}


def save_first_config(config: NodeConfig) -> bool:
    """At the first start what was given is written down, so that the next one needs no flags; True if it was."""
    path = NodeFolder(config.folder).config
    if path.exists():
        return False
    write_private_file(path, render_config(config, always=("network", "role"), never=("folder",)))
    return True


# --- What is known of the coordinator and its run ---------------------------------------------------------------------


def read_pins(config: NodeConfig) -> dict[str, str]:
    """What was learnt of this coordinator before, by setting; nothing where it is another one."""
    facts = _read_run(config.folder)
    if facts.get("coordinator") != config.coordinator:
        return {}
    return {name: facts[name] for name in PINNED if isinstance(facts.get(name), str)}


def save_pins(config: NodeConfig) -> None:
    """What this node holds its coordinator to from now on."""
    facts = {"coordinator": config.coordinator, **{name: getattr(config, name) for name in PINNED}}
    known = _read_run(config.folder)
    if any(known.get(name) != value for name, value in facts.items()):
        write_atomic(NodeFolder(config.folder).run, json.dumps(facts).encode())


def read_trainer(config: NodeConfig) -> NodeId | None:
    """Whose weights count in the run, as the coordinator last said."""
    facts = _read_run(config.folder)
    try:
        return NodeId.parse(facts["trainer"]) if facts["run"] == config.run else None
    except (KeyError, TypeError, RemoteError):
        return None


def save_trainer(folder: Path, trainer: NodeId) -> None:
    write_atomic(NodeFolder(folder).run, json.dumps({**_read_run(folder), "trainer": str(trainer)}).encode())


def _read_run(folder: Path) -> dict[str, Any]:
    try:
        facts = json.loads(NodeFolder(folder).run.read_text())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}
