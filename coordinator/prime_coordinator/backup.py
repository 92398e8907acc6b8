"""A copy of a coordinator, running or not, in one form for every database: the log as a mirror, and what goes with it.

The log only grows, so its first entries are the same whenever they are read: there is nothing to freeze. Everything is
written beside the target and renamed at the end; what was interrupted has no manifest and no name.
"""

import asyncio
import shutil
from pathlib import Path

from prime_coordinator.backup_manifest import (
    KEYS,
    LOG,
    OBJECTS,
    Manifest,
    copy_synced,
    list_files,
    publish_folder,
    write_manifest,
)
from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.home import Home, check_database, database_url, load_log_key, objects_url
from prime_coordinator.mirroring import extend_mirror
from prime_coordinator.store import LogStore, open_log_store
from prime_protocol.catalogue import read_letter
from prime_protocol.errors import LocalError
from prime_protocol.merkle import Tree, leaf_hash
from prime_protocol.treehead import ORIGIN_PREFIX, TreeHead, sign_tree_head
from prime_runtime.objects import open_store

CHUNK = 4_096
"""Entries read at once."""


async def make_backup(
    config: CoordinatorConfig, target: Path, *, with_objects: bool, with_keys: bool, now_ms: int
) -> Manifest:
    """Everything that is on disk at this moment, into a folder that did not exist."""
    draft = target.with_name(target.name + ".draft")
    if target.exists():
        raise LocalError(f"{target} exists; choose another folder")
    if with_objects and "://" in objects_url(config):
        raise LocalError("the files are in a bucket: use its own versions or copies, and leave out --objects")
    check_database(config)
    store = open_log_store(database_url(config), config.database_password)
    try:
        draft.mkdir(parents=True, mode=0o700)
    except OSError as error:
        store.close()
        raise LocalError(
            f"cannot make {draft}: {error.strerror}; if an interrupted backup left it, remove it"
        ) from None
    try:
        head, coordinator = await asyncio.to_thread(_copy_log, config, store, draft / LOG, await store.size())
        await asyncio.to_thread(_copy_files, config, draft, with_keys)
        if with_objects:
            await _copy_objects(config, draft / OBJECTS)
        files = await asyncio.to_thread(list_files, draft)
        manifest = Manifest(
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
    """All entries, and a head over them signed now: entries on disk never change, so it is true for ever."""
    tree = Tree()
    if size == 0:
        raise LocalError("the database holds no log; there is nothing to back up")
    for start in range(0, size, CHUNK):
        tree.append_many(leaf_hash(leaf) for leaf in store.read_now(start, min(size, start + CHUNK)))
    head = TreeHead(ORIGIN_PREFIX + config.network, size, tree.root())
    note = sign_tree_head(head, load_log_key(config))
    extend_mirror(folder, tree, store.read_now, note, old_size=0, new_size=size)
    _, letter = read_letter(store.read_now(0, 1)[0])
    return head, str(letter.sender)


def _copy_files(config: CoordinatorConfig, draft: Path, with_keys: bool) -> None:
    home = Home(config.folder)
    copy_synced(home.config, draft / home.config.name)
    if with_keys:
        for path in (home.key, home.log_key):
            copy_synced(path, draft / KEYS / path.name)


async def _copy_objects(config: CoordinatorConfig, folder: Path) -> None:
    """Files are named by their content and never change; one that comes meanwhile is in the backup or is not."""
    objects = open_store(objects_url(config), config.s3)
    async for listed in objects.list():
        path = objects.local_path(listed.key)
        assert path is not None, "a folder's objects are files"
        await asyncio.to_thread(copy_synced, path, folder / listed.key)
