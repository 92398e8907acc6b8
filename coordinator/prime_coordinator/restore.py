"""A coordinator's folder from a backup. Nothing is believed: files, tree, every entry and rule are checked before.

The folder is made beside its place and renamed at the end, so one that is there is whole.
"""

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_coordinator.backup_manifest import (
    KEYS,
    LOG,
    OBJECTS,
    Manifest,
    check_files,
    copy_synced,
    publish_folder,
    read_manifest,
    write_synced,
)
from prime_coordinator.books_check import CheckedLog, check_log
from prime_coordinator.config import CONFIG_NAME, CoordinatorConfig, resolve_coordinator_config
from prime_coordinator.home import Home, database_url, load_log_key, objects_url
from prime_coordinator.migrations import heads, migrate
from prime_coordinator.setup import render_config
from prime_coordinator.store import append_entries, explained, get_size, open_engine
from prime_protocol.catalogue import make_card
from prime_protocol.constants import NOTE_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.merkle import root_of
from prime_protocol.note import VerifierKey
from prime_protocol.tiles import nodes_from_tiles
from prime_protocol.treehead import ORIGIN_PREFIX, open_tree_head
from prime_runtime.mirror import read_bounded, read_head, read_leaves, read_tile
from prime_runtime.secret import Secret

CHUNK = 1_000
"""Entries written at once."""


async def restore_backup(
    source: Path,
    folder: Path,
    *,
    keys: Path | None,
    database: str | None,
    password: Secret | None,
    head: Path | None,
) -> Manifest:
    """RemoteError where the backup does not hold, LocalError where something here is in the way.

    `database` and its `password` say where the log goes, if not into a file in the folder; `head` is a tree head that
    somebody was shown, which the backup must not be older than.
    """
    return await asyncio.to_thread(_restore, source, folder, keys, database, password, head)


def _restore(
    source: Path, folder: Path, keys: Path | None, database: str | None, password: Secret | None, head: Path | None
) -> Manifest:
    manifest, draft = read_manifest(source), folder.with_name(folder.name + ".draft")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LocalError(f"{folder} is not empty; choose another folder")
    check_files(source, manifest)
    checked = _check_log(source / LOG, manifest)
    if head is not None:
        _check_covers(source / LOG, checked, read_bounded(head, NOTE_BYTES_MAX))
    try:
        draft.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        raise LocalError(f"{draft} is left from a restore that was interrupted, or is being made; remove it") from None
    try:
        config = _write_settings(source, folder, draft, database, password)
        _write_keys(source if keys is None else keys, manifest, draft, is_backup=keys is None)
        _check_keys(config, checked, draft)
        _copy_objects(source, manifest, config, draft)
        shutil.copytree(source / LOG, Home(draft).mirror)
        _fill_database(config, draft, source / LOG, manifest)
        if folder.exists():
            folder.rmdir()
        publish_folder(draft, folder)
    except OSError as error:
        raise LocalError(f"cannot write {draft}: {error.strerror}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return manifest


# --- Checking -------------------------------------------------------------------------------------------------------


def _check_log(log: Path, manifest: Manifest) -> CheckedLog:
    """Every signature, author, rule and tile."""
    checked = check_log(read_head(log), lambda size: read_leaves(log, size), lambda tile: read_tile(log, tile), None)
    found = (checked.ledger.network, checked.head.size, str(checked.head.root), str(checked.ledger.state.coordinator))
    if found != (manifest.network, manifest.entries, manifest.root, manifest.coordinator):
        raise RemoteError("manifest.json", "does not describe the log beside it")
    return checked


def _check_covers(log: Path, checked: CheckedLog, note: bytes) -> None:
    """Refuse a backup that is older than what somebody was shown: to go on from it would tell two histories."""
    shown = open_tree_head(note, [checked.key])
    if shown.size > checked.head.size:
        raise LocalError(f"the head covers {shown.size} entries, the backup {checked.head.size}: use a newer backup")
    get_node = nodes_from_tiles(checked.head.size, lambda tile: read_tile(log, tile))
    if root_of(shown.size, get_node) != shown.root:
        raise RemoteError("head", f"the first {shown.size} entries of the backup are not those it covers")


def _check_keys(config: CoordinatorConfig, checked: CheckedLog, draft: Path) -> None:
    """Whether the keys are those of this log; the wallet key by the address that its file names, without a password."""
    log_key: Ed25519PrivateKey = load_log_key(replace(config, folder=draft))
    state = checked.ledger.state
    if str(VerifierKey.of(ORIGIN_PREFIX + checked.ledger.network, log_key)) != state.log_key:
        raise LocalError("log.key is not the key that signs this log's heads")
    try:
        address = "0x" + str(json.loads(Home(draft).key.read_text())["address"]).removeprefix("0x").lower()
    except (ValueError, KeyError, TypeError):
        raise LocalError("key.json is not a keystore file that names its address") from None
    if address != str(state.coordinator):
        raise LocalError(f"key.json is the key of {address}, the log is of {state.coordinator}")


# --- Writing --------------------------------------------------------------------------------------------------------


def _write_settings(
    source: Path, folder: Path, draft: Path, database: str | None, password: Secret | None
) -> CoordinatorConfig:
    """The settings of the backup, with the database where it is restored to."""
    copy_synced(source / CONFIG_NAME, draft / CONFIG_NAME)
    found = resolve_coordinator_config(draft, {}, {}).config
    config = replace(found, folder=folder.absolute(), database=database, database_password=password)
    write_synced(draft / CONFIG_NAME, render_config(config).encode())
    return config


def _write_keys(place: Path, manifest: Manifest, draft: Path, *, is_backup: bool) -> None:
    if is_backup and not manifest.has_keys:
        raise LocalError("the backup holds no keys: give --keys with the folder that has key.json and log.key")
    for name in (Home(draft).key.name, Home(draft).log_key.name):
        copy_synced((place / KEYS if is_backup else place) / name, draft / name)


def _copy_objects(source: Path, manifest: Manifest, config: CoordinatorConfig, draft: Path) -> None:
    kept = [path for path in manifest.files if path.startswith(f"{OBJECTS}/")]
    if kept and config.objects is not None:
        raise LocalError(f"the settings keep files in {objects_url(config)}, but the backup brings its own: move them")
    for path in kept:
        copy_synced(source / path, Home(draft).objects / path.removeprefix(f"{OBJECTS}/"))


def _fill_database(config: CoordinatorConfig, draft: Path, log: Path, manifest: Manifest) -> None:
    """The whole log in one transaction: a database that was interrupted is as empty as before."""
    url = database_url(config if config.database else replace(config, folder=draft))
    engine = open_engine(url, config.database_password)
    try:
        with explained(engine), engine.begin() as connection:
            migrate(connection)
            if get_size(connection):
                raise LocalError(f"the database {engine.url} holds a log already; restore into an empty one")
            leaves = list(read_leaves(log, manifest.entries))
            for start in range(0, len(leaves), CHUNK):
                part = leaves[start : start + CHUNK]
                append_entries(connection, start, part, [make_card(leaf) for leaf in part])
            note = {"size": manifest.entries, "at_ms": manifest.made_at_ms, "note": read_head(log)}
            connection.execute(heads.insert().values(**note))
    finally:
        engine.dispose()
