"""Backup of a coordinator, in one format for every database: the log as a mirror, and the files around it.

manifest.json   digests of all files        config.toml   the settings
log/            the log as a mirror         objects/      files that nodes sent, if asked for
keys/           key.json, log.key and randomness.key, if asked for

A backup may be made while the coordinator runs: the log only grows, so its first entries are the same whenever they are
read. An incremental backup links the files that an older one has, and copies the others: each is complete by itself. A
draft beside the target is renamed at the end, so a target that exists is complete. restore.py is the way back.
"""

import asyncio
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import file_digest
from pathlib import Path

from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.home import (
    CoordinatorHome,
    check_database,
    database_url,
    load_log_key,
    objects_url,
)
from prime_coordinator.log.key_list import make_key_chain, read_key_file, write_key_file
from prime_coordinator.log.mirror import copy_snapshots, fill_mirror
from prime_coordinator.log.store import (
    LogStore,
    open_log_store,
)
from prime_coordinator.log.tree import LogTree
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.keys.chain import KeyChain
from prime_protocol.log.tiles import CHECKPOINT_PATH
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead, VerifierKey, sign_tree_head
from prime_protocol.wire.ids import Digest, NetworkId
from prime_runtime.files import sync_folder, write_atomic
from prime_runtime.objects.store import open_object_store

MANIFEST_NAME = "manifest.json"
MANIFEST_BYTES_MAX = 2**30
"""Enough for about eight million files."""
LOG_FOLDER, KEYS_FOLDER, OBJECTS_FOLDER = "log", "keys", "objects"
MANIFEST_FORMAT = 1
CHUNK_BYTES = 2**20
PATH_PATTERN = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupManifest:
    """The content of a backup. It is written last: without it, a folder is no backup."""

    network: str
    coordinator: str
    made_at_ms: int
    entries: int
    root: str
    files: dict[str, str]
    """SHA-256 by path inside the backup."""
    format: int = MANIFEST_FORMAT

    @property
    def has_keys(self) -> bool:
        return f"{KEYS_FOLDER}/key.json" in self.files


def write_manifest(folder: Path, manifest: BackupManifest) -> None:
    write_atomic(folder / MANIFEST_NAME, (json.dumps(asdict(manifest), indent=1) + "\n").encode(), mode=0o600)


def read_manifest(folder: Path) -> BackupManifest:
    """Parsed strictly: a backup may be damaged, or made by someone else."""
    try:
        with (folder / MANIFEST_NAME).open("rb") as file:
            raw = file.read(MANIFEST_BYTES_MAX + 1)
    except OSError as error:
        raise LocalError(
            f"cannot read {folder / MANIFEST_NAME}: {error.strerror}; is {folder} a backup that was finished?"
        ) from None
    try:
        found = json.loads(raw)
        manifest = BackupManifest(**found)
        NetworkId(manifest.network)
        Digest.parse(manifest.root)
        are_numbers = all(type(number) is int for number in (manifest.made_at_ms, manifest.entries, manifest.format))
        if not are_numbers or not all(_is_entry(path, digest) for path, digest in manifest.files.items()):
            raise ValueError
    except (ValueError, TypeError, AttributeError, RecursionError, RemoteError):
        raise RemoteError(MANIFEST_NAME, "is damaged") from None
    if manifest.format != MANIFEST_FORMAT:
        raise LocalError(
            f"the backup has format {manifest.format}, this program reads {MANIFEST_FORMAT}: install another release"
        )
    return manifest


def _is_entry(path: str, digest: object) -> bool:
    is_inside = PATH_PATTERN.fullmatch(path) and not {".", ".."} & set(path.split("/"))
    return bool(is_inside) and isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest) is not None


def check_files(folder: Path, manifest: BackupManifest) -> None:
    """RemoteError names the first file that differs from the manifest."""
    for path, digest in manifest.files.items():
        if (folder / path).is_symlink() or not (folder / path).is_file():
            raise RemoteError(path, "is missing")
        if hash_file(folder / path) != digest:
            raise RemoteError(path, "differs from what was backed up")


def hash_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise LocalError(f"cannot read {path}: {error.strerror}") from None


def copy_synced(source: Path, target: Path) -> None:
    """Copy a file, readable by its owner only; it is on disk when this returns."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with source.open("rb") as reader, open(target, "wb", opener=partial(os.open, mode=0o600)) as writer:
            shutil.copyfileobj(reader, writer, CHUNK_BYTES)
            writer.flush()
            os.fsync(writer.fileno())
    except OSError as error:
        raise LocalError(f"cannot copy {source} to {target}: {error.strerror}") from None


def hash_files(folder: Path, known: Mapping[str, str]) -> dict[str, str]:
    """Digest by path of every file below a folder; the known ones are not read again."""
    paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return {path: known.get(path) or hash_file(folder / path) for path in paths}


def publish_folder(draft: Path, folder: Path) -> None:
    """Rename a finished draft, atomically and durably."""
    try:
        for each in [draft, *(path for path in draft.rglob("*") if path.is_dir())]:
            sync_folder(each)
        draft.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        raise LocalError(f"cannot rename {draft} to {folder}: {error.strerror}") from None


async def make_backup(
    config: CoordinatorConfig,
    target: Path,
    *,
    with_objects: bool,
    with_keys: bool,
    now_ms: int,
    base: Path | None = None,
) -> BackupManifest:
    """Copy everything that is on disk now into a new folder; files that `base`, an older backup, has are linked."""
    draft = target.with_name(target.name + ".draft")
    if target.exists():
        raise LocalError(f"{target} exists; choose another folder")
    if with_objects and "://" in objects_url(config):
        raise LocalError("the files are in a bucket: back up the bucket itself, and leave out --objects")
    check_database(config)
    store = open_log_store(database_url(config), config.database_password)
    try:
        draft.mkdir(parents=True, mode=0o700)
    except OSError as error:
        store.close()
        raise LocalError(
            f"cannot make {draft}: {error.strerror}; if an interrupted backup left it behind, remove it"
        ) from None
    try:
        linked = await asyncio.to_thread(_link_base, base, draft, config) if base else LinkedFiles({})
        head, coordinator = await _copy_log(config, store, draft / LOG_FOLDER, linked.head)
        await asyncio.to_thread(_copy_files, config, draft, with_keys)
        if with_objects:
            await _copy_objects(config, draft / OBJECTS_FOLDER)
        files = await asyncio.to_thread(hash_files, draft, linked.digests)
        manifest = BackupManifest(
            network=config.network,
            coordinator=coordinator,
            made_at_ms=now_ms,
            entries=head.size,
            root=str(head.root),
            files=files,
        )
        write_manifest(draft, manifest)
        publish_folder(draft, target)
    except OSError as error:
        raise LocalError(f"cannot write {draft}: {error.strerror}") from None
    finally:
        store.close()
        shutil.rmtree(draft, ignore_errors=True)
    return manifest


@dataclass(frozen=True, slots=True)
class LinkedFiles:
    """What a new backup shares with an older one."""

    digests: dict[str, str]
    """By path."""
    head: TreeHead | None = None


def _link_base(base: Path, draft: Path, config: CoordinatorConfig) -> LinkedFiles:
    """Link the files of an older backup that never change: full tiles and bundles, and what nodes sent."""
    manifest = read_manifest(base)
    if manifest.network != config.network:
        raise LocalError(f"{base} is a backup of {manifest.network}, not of {config.network}")
    digests = {path: digest for path, digest in manifest.files.items() if _is_permanent(path)}
    for path in digests:
        (draft / path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            os.link(base / path, draft / path)
        except FileNotFoundError:
            raise LocalError(f"{base / path} is missing: the older backup is damaged, leave out --since") from None
        except OSError:
            copy_synced(base / path, draft / path)  # on another disk
    head = TreeHead(ORIGIN_PREFIX + manifest.network, manifest.entries, Digest.parse(manifest.root))
    for path in manifest.files:
        if path.startswith(f"{LOG_FOLDER}/tile/") and path not in digests:
            copy_synced(base / path, draft / path)  # partial tiles, where the log goes on
    return LinkedFiles(digests, head)


def _is_permanent(path: str) -> bool:
    is_full_tile = path.startswith(f"{LOG_FOLDER}/tile/") and ".p/" not in path
    return is_full_tile or path.startswith(f"{OBJECTS_FOLDER}/")


async def _copy_log(
    config: CoordinatorConfig, store: LogStore, folder: Path, base: TreeHead | None
) -> tuple[TreeHead, str]:
    """The entries that are there now, with a head and the list of keys; and the coordinator's address."""
    size = await store.size()
    if size == 0:
        raise LocalError("the database holds no log: there is nothing to back up")
    keys = await read_key_file(store)
    chain = make_key_chain(keys, config.network_id)
    head = await asyncio.to_thread(_copy_entries, config, store, folder, size, base, chain)
    write_key_file(folder, keys)
    return head, str(chain.get_coordinator(size))


def _copy_entries(
    config: CoordinatorConfig, store: LogStore, folder: Path, size: int, base: TreeHead | None, keys: KeyChain
) -> TreeHead:
    """All entries, and a head over them signed now: entries on disk never change. Those of `base` are there."""
    log_key = load_log_key(config)
    if VerifierKey.of(ORIGIN_PREFIX + config.network, log_key) != keys.get_log_key(size):
        raise LocalError("log.key is not the key of this log: was a rotation interrupted? Start the coordinator once")
    tree = LogTree(folder, store.read_blocking)
    if base is not None and (base.size > size or not tree.load(base)):
        raise LocalError("the older backup is damaged, or of another log: leave out --since")
    for old in folder.rglob("*.p"):
        shutil.rmtree(old)
    fill_mirror(folder, tree, store.read_blocking, size)
    head = TreeHead(ORIGIN_PREFIX + config.network, size, tree.root())
    write_atomic(folder / CHECKPOINT_PATH, sign_tree_head(head, log_key))
    copy_snapshots(CoordinatorHome(config.folder).mirror, folder, size)
    return head


def _copy_files(config: CoordinatorConfig, draft: Path, with_keys: bool) -> None:
    home = CoordinatorHome(config.folder)
    copy_synced(home.config, draft / home.config.name)
    if with_keys:
        copy_keys(home.folder, draft / KEYS_FOLDER)


def copy_keys(source: Path, target: Path) -> None:
    """Only a network with a chain of its own has the third. `_check_keys` asks for it there."""
    home = CoordinatorHome(source)
    for path in (home.key, home.log_key, home.randomness_key):
        if path is not home.randomness_key or path.exists():
            copy_synced(path, target / path.name)


async def _copy_objects(config: CoordinatorConfig, folder: Path) -> None:
    """Files are named by their content and never change; one that arrives meanwhile may or may not be included."""
    objects = open_object_store(objects_url(config), config.s3)
    async for listed in objects.list():
        path = objects.local_path(listed.key)
        assert path is not None, "a folder's objects are files"
        if (folder / listed.key).exists():
            continue  # linked
        await asyncio.to_thread(copy_synced, path, folder / listed.key)
