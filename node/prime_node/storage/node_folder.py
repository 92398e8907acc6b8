"""The node's folder: its paths, its creation at the first start, and the lock that keeps a second process out.

config.toml   settings                         state       the agent's state, which must survive a crash
key.json      wallet key, encrypted            run.json    the coordinator, its run and its trainer, as pinned
password      the key's, if it was generated   journal.db  every lease and what became of it
weights/      manifests and shards             heads/      the newest tree head, and evidence of forks
spool/        files that wait to be uploaded   datasets/   problem files of task sets
engine/       caches of the engine             chain/      pending transactions and appeals on a chain
replay/       the replayed ledger's state      accusations/  signed evidence that the coordinator broke a rule
peers.json    libp2p peers to start with
paused.json   what the owner has paused        node.log    the log, as JSON lines; rotated ones beside it
self_checks.json   how many files each kind of engine has passed in full
lock          the running process, and how other commands reach it
daily_upload.json, daily_transfer.json         bytes of the current day, for the owner's limits
runs/<run>/   state and weights of each run but the first that this folder has served, whose own are above
"""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from prime_node.config import CONFIG_NAME, NodeConfig
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import NodeId, RunId
from prime_runtime.files import write_atomic, write_private_file
from prime_runtime.lock import LockInfo, ProcessLock, hold_process_lock, is_held, read_lock_info
from prime_runtime.settings.flags import render_config

PINNED = ("coordinator_id", "network", "run", "log_key", "domain")


class NodeFolder:
    """The paths in one node's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / CONFIG_NAME
        self.key = folder / "key.json"
        self.password = folder / "password"
        self.saved_state = folder / "state"
        self.run = folder / "run.json"
        self.journal = folder / "journal.db"
        self.weights = folder / "weights"
        self.heads = folder / "heads"
        self.peers = folder / "peers.json"
        self.replay = folder / "replay" / "state.snapshot"
        self.accusations = folder / "accusations"
        self.spool = folder / "spool"
        self.datasets = folder / "datasets"
        self.engine = folder / "engine"
        self.chain = folder / "chain"
        self.paused = folder / "paused.json"
        self.self_checks = folder / "self_checks.json"
        self.daily_upload = folder / "daily_upload.json"
        self.daily_transfer = folder / "daily_transfer.json"
        self.log = folder / "node.log"
        self.lock = folder / "lock"


class RunFolder:
    """The paths of one run in a node's folder.

    The first run that a folder ever served keeps its files where a node with one run has them. The owner may change
    the list of runs and their order at any time: no run ever uses the files of another.
    """

    def __init__(self, config: NodeConfig, run: RunId) -> None:
        home = _read_run(config.folder).get("home") or _get_first(_read_run(config.folder).get("run"))
        is_home = run == (home or config.run_id)
        folder = config.folder if is_home else config.folder / "runs" / run
        self.saved_state = folder / "state"
        weights = config.weights.folder
        if weights is not None:
            self.weights = weights if is_home else weights / "runs" / run
        else:
            self.weights = folder / "weights"


def list_weights_folders(config: NodeConfig) -> tuple[Path, ...]:
    """Folders that together hold the weights of all runs, none inside another."""
    if config.weights.folder is not None:
        return (config.weights.folder,)
    return tuple(RunFolder(config, run).weights for run in config.runs)


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LocalError(f"cannot create the folder {folder}: {error.strerror}") from None


def lock_folder(folder: Path) -> AbstractContextManager[ProcessLock]:
    """LocalError: another process has the folder."""
    return hold_process_lock(NodeFolder(folder).lock, "node", advice="choose another --folder")


def read_lock(folder: Path) -> LockInfo:
    """`pid`, `url` and `token` of the process in this folder; empty: none runs."""
    path = NodeFolder(folder).lock
    return read_lock_info(path) if is_held(path) else {}


def save_first_config(config: NodeConfig) -> bool:
    """Writes config.toml at the first start, so that the next one needs no flags. True: it did."""
    path = NodeFolder(config.folder).config
    if path.exists():
        return False
    write_private_file(path, render_config(config, always=("network", "role"), never=("folder",)))
    return True


# --- The pinned coordinator and its run -------------------------------------------------------------------------------


def read_pins(config: NodeConfig) -> dict[str, str]:
    """What an earlier start pinned for this coordinator, by setting; empty for another coordinator."""
    facts = _read_run(config.folder)
    if facts.get("coordinator") != config.coordinator:
        return {}
    return {name: facts[name] for name in PINNED if isinstance(facts.get(name), str)}


def save_pins(config: NodeConfig) -> None:
    """From now on this node accepts no other values from its coordinator."""
    known = _read_run(config.folder)
    home = known.get("home") or _get_first(known.get("run")) or config.run_id
    facts = {"coordinator": config.coordinator, "home": home, **{name: getattr(config, name) for name in PINNED}}
    if any(known.get(name) != value for name, value in facts.items()):
        write_atomic(NodeFolder(config.folder).run, json.dumps(facts).encode())


def read_trainer(config: NodeConfig) -> NodeId | None:
    """The trainer of the first run of `config`, as the coordinator last said."""
    facts = _read_run(config.folder)
    try:
        if config.run and config.run_id in facts.get("trainers", {}):
            return NodeId.parse(facts["trainers"][config.run_id])
        # Version 0.1.0 has one run and its trainer.
        return NodeId.parse(facts["trainer"]) if facts["run"] == config.run else None
    except (KeyError, TypeError, RemoteError):
        return None


def save_trainer(folder: Path, run: RunId, trainer: NodeId) -> None:
    facts = _read_run(folder)
    known = facts.get("trainers")
    trainers = {**(known if isinstance(known, dict) else {}), run: str(trainer)}
    write_atomic(NodeFolder(folder).run, json.dumps({**facts, "trainers": trainers}).encode())


def _get_first(runs: Any) -> str:
    return runs.split(",")[0].strip() if isinstance(runs, str) else ""


def _read_run(folder: Path) -> dict[str, Any]:
    try:
        facts = json.loads(NodeFolder(folder).run.read_text())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}
