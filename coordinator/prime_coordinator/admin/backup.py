"""Backup and restore of a coordinator, in one format for every database: the log as a mirror, and the files around it.

manifest.json   digests of all files        config.toml   the settings
log/            the log as a mirror         objects/      files that nodes sent, if asked for
keys/           key.json and log.key, if asked for

A backup may be made while the coordinator runs: the log only grows, so its first entries are the same whenever they are
read. Restore trusts nothing: files, tree, every entry and rule are verified first. Both write a draft beside the target
and rename it at the end, so a target that exists is complete.
"""

import asyncio
import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import file_digest
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_coordinator.config import CONFIG_NAME, CoordinatorConfig, resolve_coordinator_config
from prime_coordinator.home import (
    CoordinatorHome,
    check_database,
    database_url,
    load_log_key,
    objects_url,
    render_config,
)
from prime_coordinator.log.migrations import heads, migrate
from prime_coordinator.log.replay import VerifiedLog, verify_log
from prime_coordinator.log.store import (
    LogStore,
    append_entries,
    explain_database_errors,
    get_log_size,
    open_engine,
    open_log_store,
)
from prime_coordinator.log.writer import build_tree, extend_mirror
from prime_protocol.constants import NOTE_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entry_index import compute_entry_keys, decode_leaf
from prime_protocol.log.merkle import compute_root
from prime_protocol.log.tiles import make_node_reader
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead, VerifierKey, open_tree_head, sign_tree_head
from prime_protocol.wire.ids import Digest, NetworkId
from prime_runtime.files import write_atomic
from prime_runtime.log_files import read_bounded, read_leaves, read_tile, read_tree_head
from prime_runtime.objects.store import open_object_store
from prime_runtime.redaction import Secret

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


def hash_files(folder: Path) -> dict[str, str]:
    """Digest by path of every file below a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hash_file(path) for path in paths}


def publish_folder(draft: Path, folder: Path) -> None:
    """Rename a finished draft, atomically and durably."""
    try:
        for each in [draft, *(path for path in draft.rglob("*") if path.is_dir())]:
            _sync_folder(each)
        draft.rename(folder)
        _sync_folder(folder.parent)
    except OSError as error:
        raise LocalError(f"cannot rename {draft} to {folder}: {error.strerror}") from None


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


async def make_backup(
    config: CoordinatorConfig, target: Path, *, with_objects: bool, with_keys: bool, now_ms: int
) -> BackupManifest:
    """Copy everything that is on disk now into a new folder."""
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
        head, coordinator = await asyncio.to_thread(_copy_log, config, store, draft / LOG_FOLDER, await store.size())
        await asyncio.to_thread(_copy_files, config, draft, with_keys)
        if with_objects:
            await _copy_objects(config, draft / OBJECTS_FOLDER)
        files = await asyncio.to_thread(hash_files, draft)
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


def _copy_log(config: CoordinatorConfig, store: LogStore, folder: Path, size: int) -> tuple[TreeHead, str]:
    """All entries, and a head over them signed now: entries on disk never change."""
    if size == 0:
        raise LocalError("the database holds no log: there is nothing to back up")
    tree = build_tree(store.read_blocking, size)
    head = TreeHead(ORIGIN_PREFIX + config.network, size, tree.root())
    note = sign_tree_head(head, load_log_key(config))
    extend_mirror(folder, tree, store.read_blocking, note, old_size=0, new_size=size)
    _, payload = decode_leaf(store.read_blocking(0, 1)[0])
    return head, str(payload.sender)


def _copy_files(config: CoordinatorConfig, draft: Path, with_keys: bool) -> None:
    home = CoordinatorHome(config.folder)
    copy_synced(home.config, draft / home.config.name)
    if with_keys:
        for path in (home.key, home.log_key):
            copy_synced(path, draft / KEYS_FOLDER / path.name)


async def _copy_objects(config: CoordinatorConfig, folder: Path) -> None:
    """Files are named by their content and never change; one that arrives meanwhile may or may not be included."""
    objects = open_object_store(objects_url(config), config.s3)
    async for listed in objects.list():
        path = objects.local_path(listed.key)
        assert path is not None, "a folder's objects are files"
        await asyncio.to_thread(copy_synced, path, folder / listed.key)


ENTRIES_PER_WRITE = 1_000
"""Entries inserted at once."""


def restore_backup(
    source: Path,
    folder: Path,
    *,
    keys: Path | None,
    database: str | None,
    password: Secret | None,
    head: Path | None,
) -> BackupManifest:
    """RemoteError if the backup is damaged, LocalError if something on this machine is in the way.

    `database` and its `password` say where the log goes, if not into a file in the folder. The backup must not be older
    than `head`, a tree head that was published.
    """
    manifest, draft = read_manifest(source), folder.with_name(folder.name + ".draft")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LocalError(f"{folder} is not empty; choose another folder")
    check_files(source, manifest)
    verified = _verify_backup_log(source / LOG_FOLDER, manifest)
    if head is not None:
        _check_covers(source / LOG_FOLDER, verified, read_bounded(head, NOTE_BYTES_MAX))
    try:
        draft.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        raise LocalError(f"{draft} exists: another restore runs, or one was interrupted; then remove it") from None
    try:
        config = _write_settings(source, folder, draft, database, password)
        _write_keys(source if keys is None else keys, manifest, draft, is_backup=keys is None)
        _check_keys(config, verified, draft)
        _restore_objects(source, manifest, config, draft)
        shutil.copytree(source / LOG_FOLDER, CoordinatorHome(draft).mirror)
        _fill_database(config, draft, source / LOG_FOLDER, manifest)
        if folder.exists():
            folder.rmdir()
        publish_folder(draft, folder)
    except OSError as error:
        raise LocalError(f"cannot write {draft}: {error.strerror}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return manifest


# --- Checking -------------------------------------------------------------------------------------------------------


def _verify_backup_log(log: Path, manifest: BackupManifest) -> VerifiedLog:
    """Verify every signature, author, rule and tile."""
    verified = verify_log(
        read_tree_head(log), lambda size: read_leaves(log, size), lambda tile: read_tile(log, tile), None
    )
    found = (
        verified.ledger.network,
        verified.head.size,
        str(verified.head.root),
        str(verified.ledger.state.coordinator),
    )
    if found != (manifest.network, manifest.entries, manifest.root, manifest.coordinator):
        raise RemoteError("manifest.json", "does not describe the log beside it")
    return verified


def _check_covers(log: Path, verified: VerifiedLog, note: bytes) -> None:
    """Refuse a backup that is older than a published head: continuing from it would fork the log."""
    shown = open_tree_head(note, [verified.key])
    if shown.size > verified.head.size:
        raise LocalError(f"the head covers {shown.size} entries, the backup {verified.head.size}: use a newer backup")
    get_node = make_node_reader(verified.head.size, lambda tile: read_tile(log, tile))
    if compute_root(shown.size, get_node) != shown.root:
        raise RemoteError("head", f"the first {shown.size} entries of the backup are not those it covers")


def _check_keys(config: CoordinatorConfig, verified: VerifiedLog, draft: Path) -> None:
    """Check that the keys belong to this log; the wallet key by the address in its file, without a password."""
    log_key: Ed25519PrivateKey = load_log_key(replace(config, folder=draft))
    state = verified.ledger.state
    if str(VerifierKey.of(ORIGIN_PREFIX + verified.ledger.network, log_key)) != state.log_key:
        raise LocalError("log.key is not the key that signs this log's heads")
    try:
        address = "0x" + str(json.loads(CoordinatorHome(draft).key.read_text())["address"]).removeprefix("0x").lower()
    except (ValueError, KeyError, TypeError):
        raise LocalError("key.json is not a keystore file with an address") from None
    if address != str(state.coordinator):
        raise LocalError(f"key.json is the key of {address}, the log belongs to {state.coordinator}")


# --- Writing --------------------------------------------------------------------------------------------------------


def _write_settings(
    source: Path, folder: Path, draft: Path, database: str | None, password: Secret | None
) -> CoordinatorConfig:
    """The settings of the backup, with the new database."""
    copy_synced(source / CONFIG_NAME, draft / CONFIG_NAME)
    found = resolve_coordinator_config(draft, {}, {}).config
    config = replace(found, folder=folder.absolute(), database=database, database_password=password)
    write_atomic(draft / CONFIG_NAME, render_config(config).encode(), mode=0o600)
    return config


def _write_keys(folder: Path, manifest: BackupManifest, draft: Path, *, is_backup: bool) -> None:
    if is_backup and not manifest.has_keys:
        raise LocalError("the backup holds no keys: give --keys FOLDER with key.json and log.key")
    for name in (CoordinatorHome(draft).key.name, CoordinatorHome(draft).log_key.name):
        copy_synced((folder / KEYS_FOLDER if is_backup else folder) / name, draft / name)


def _restore_objects(source: Path, manifest: BackupManifest, config: CoordinatorConfig, draft: Path) -> None:
    kept = [path for path in manifest.files if path.startswith(f"{OBJECTS_FOLDER}/")]
    if kept and config.objects is not None:
        raise LocalError(f"the settings keep files in {objects_url(config)}, but the backup has files too: move them")
    for path in kept:
        copy_synced(source / path, CoordinatorHome(draft).objects / path.removeprefix(f"{OBJECTS_FOLDER}/"))


def _fill_database(config: CoordinatorConfig, draft: Path, log: Path, manifest: BackupManifest) -> None:
    """Insert the whole log in one transaction: after an interruption the database is still empty."""
    url = database_url(config if config.database else replace(config, folder=draft))
    engine = open_engine(url, config.database_password)
    try:
        with explain_database_errors(engine), engine.begin() as connection:
            migrate(connection)
            if get_log_size(connection):
                raise LocalError(f"the database {engine.url} already holds a log; restore into an empty one")
            leaves = list(read_leaves(log, manifest.entries))
            for start in range(0, len(leaves), ENTRIES_PER_WRITE):
                part = leaves[start : start + ENTRIES_PER_WRITE]
                append_entries(connection, start, part, [compute_entry_keys(leaf) for leaf in part])
            note = {"size": manifest.entries, "at_ms": manifest.made_at_ms, "note": read_tree_head(log)}
            connection.execute(heads.insert().values(**note))
    finally:
        engine.dispose()
