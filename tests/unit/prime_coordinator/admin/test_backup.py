"""Backup and restore: nothing acknowledged is missing, nothing damaged passes, nothing half-made looks whole."""

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prime_coordinator.admin import backup as backup_module
from prime_coordinator.admin import restore as restore_module
from prime_coordinator.admin.backup import MANIFEST_NAME, BackupManifest, make_backup, read_manifest
from prime_coordinator.admin.restore import RestoredMirror, restore_backup, restore_mirror
from prime_coordinator.config import CoordinatorConfig, resolve_coordinator_config
from prime_coordinator.entry_writer import EntryWriter
from prime_coordinator.home import CoordinatorHome, database_url, initialise, load_key, load_log_key
from prime_coordinator.log.replay import recover_ledger
from prime_coordinator.log.store import open_log_store
from prime_coordinator.log.tree import LogTree
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import Deposited
from prime_protocol.ledger.entry_index import compute_entry_keys
from prime_protocol.ledger.replay import Ledger, replay
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead, VerifierKey, sign_tree_head
from prime_protocol.wire.ids import Digest
from prime_runtime.clock import SystemClock
from prime_runtime.objects.store import open_object_store
from prime_runtime.redaction import Secret

ENTRIES = 260
"""More than one full tile."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> CoordinatorConfig:
    """A coordinator that was made, has a log of some length, and one file."""
    folder = tmp_path_factory.mktemp("original") / "home"
    config = CoordinatorConfig(folder=folder, network="testnet", password=Secret("correct horse"))
    asyncio.run(_fill(config))
    return config


@pytest.fixture(scope="module")
def finished(original: CoordinatorConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup of it, with everything; tests that change one copy it."""
    target = tmp_path_factory.mktemp("finished") / "backup"
    asyncio.run(back_up(original, target))
    return target


async def _fill(config: CoordinatorConfig) -> None:
    await initialise(config, SystemClock())
    await _write(config, ENTRIES - 1)
    await open_object_store(str(CoordinatorHome(config.folder).objects)).put(
        "files/ab/cd", b"a rollout file", bytes_max=100
    )


async def _write(config: CoordinatorConfig, count: int) -> None:
    store = open_log_store(database_url(config))
    leaves = await store.read(0, 10**6)
    writer = EntryWriter(load_key(config), replay(config.network_id, leaves))
    for number in range(count):
        reference = Digest((len(leaves) + number).to_bytes(32, "big"))
        account = writer.state.coordinator
        assert account is not None
        writer.append_own(Deposited(account=account, amount_nano=1, reference=reference), None, SystemClock().now_ms())
    fresh = writer.drain()
    await store.append(len(leaves), fresh, [compute_entry_keys(leaf) for leaf in fresh])
    store.close()


async def back_up(config: CoordinatorConfig, target: Path, **changes: Any) -> BackupManifest:
    return await make_backup(config, target, **{"with_objects": True, "with_keys": True, "now_ms": 5, **changes})


async def bring_back(source: Path, folder: Path, **changes: Any) -> BackupManifest:
    how: dict[str, Any] = {"keys": None, "database": None, "password": None, "head": None}
    return restore_backup(source, folder, **{**how, **changes})


async def leaves_of(folder: Path) -> list[bytes]:
    store = open_log_store(database_url(resolve_coordinator_config(folder, {}, {}).config))
    try:
        return await store.read(0, 10**6)
    finally:
        store.close()


async def test_restored_coordinator_has_every_entry_key_setting_and_file(
    original: CoordinatorConfig, tmp_path: Path
) -> None:
    made = await back_up(original, tmp_path / "backup")
    await bring_back(tmp_path / "backup", tmp_path / "home")
    assert made.entries == ENTRIES
    assert await leaves_of(tmp_path / "home") == await leaves_of(original.folder)
    old, new = CoordinatorHome(original.folder), CoordinatorHome(tmp_path / "home")
    for path in ("key", "log_key"):
        assert getattr(new, path).read_bytes() == getattr(old, path).read_bytes()
        assert getattr(new, path).stat().st_mode & 0o077 == 0
    assert resolve_coordinator_config(new.folder, {}, {}).config.network == "testnet"
    assert (new.objects / "files/ab/cd").read_bytes() == b"a rollout file"
    store = open_log_store(f"sqlite:///{new.database}")
    found = await store.list_entries(subject=str(Digest((7).to_bytes(32, "big"))))
    head = await store.last_head()
    store.close()
    assert len(found) == 1, "the index of subjects is made anew"
    assert head is not None
    assert head.size == ENTRIES


async def test_backup_without_keys_needs_them_from_elsewhere(original: CoordinatorConfig, tmp_path: Path) -> None:
    await back_up(original, tmp_path / "backup", with_keys=False)
    assert not (tmp_path / "backup/keys").exists()
    with pytest.raises(LocalError, match="holds no keys"):
        await bring_back(tmp_path / "backup", tmp_path / "home")
    await bring_back(tmp_path / "backup", tmp_path / "home", keys=original.folder)
    assert CoordinatorHome(tmp_path / "home").key.read_bytes() == CoordinatorHome(original.folder).key.read_bytes()


async def test_keys_of_another_coordinator_are_refused(original: CoordinatorConfig, tmp_path: Path) -> None:
    other = replace(original, folder=tmp_path / "other")
    await initialise(other, SystemClock())
    await back_up(original, tmp_path / "backup", with_keys=False)
    for mixed in ("log.key", "key.json"):
        keys = tmp_path / f"keys-{mixed}"
        shutil.copytree(original.folder, keys)
        shutil.copy(other.folder / mixed, keys / mixed)
        with pytest.raises(LocalError, match=mixed.replace(".", r"\.")):
            await bring_back(tmp_path / "backup", tmp_path / "home", keys=keys)
        assert not (tmp_path / "home").exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
@pytest.mark.parametrize(
    "name",
    ["config.toml", "log/checkpoint", "log/tile/entries/000", "log/tile/0/000", "keys/log.key", "objects/files/ab/cd"],
)
async def test_any_damaged_file_is_found(
    finished: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    shutil.copytree(finished, tmp_path / "backup")
    damage(tmp_path / "backup" / name)
    with pytest.raises(RemoteError, match=name):
        await bring_back(tmp_path / "backup", tmp_path / "home")
    assert [path.name for path in tmp_path.iterdir()] == ["backup"]


async def test_entry_that_was_changed_with_its_digest_is_found_by_replay(finished: Path, tmp_path: Path) -> None:
    """Whoever can change a file can change the manifest too; the signatures and the tree remain."""
    shutil.copytree(finished, tmp_path / "backup")
    bundle = tmp_path / "backup/log/tile/entries/000"
    flip(bundle)
    manifest = tmp_path / "backup" / MANIFEST_NAME
    found = json.loads(manifest.read_text())
    found["files"]["log/tile/entries/000"] = backup_module.hash_file(bundle)
    manifest.write_text(json.dumps(found))
    with pytest.raises(RemoteError):
        await bring_back(tmp_path / "backup", tmp_path / "home")
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../evil": "00" * 32}},
        {"files": {"/etc/passwd": "00" * 32}},
        {"files": {"a": 5}},
        {"files": []},
        {"entries": "many"},
        {"network": "NOT A NAME"},
        {"root": "0x"},
        {"unknown": 1},
    ],
)
def test_damaged_manifest_is_refused(finished: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    shutil.copytree(finished, tmp_path / "backup")
    manifest = tmp_path / "backup" / MANIFEST_NAME
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), **change}))
    with pytest.raises(RemoteError, match="is damaged"):
        read_manifest(tmp_path / "backup")


def test_manifest_of_a_later_format_asks_for_another_program(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "backup")
    manifest = tmp_path / "backup" / MANIFEST_NAME
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 2}))
    with pytest.raises(LocalError, match="another release"):
        read_manifest(tmp_path / "backup")


class Killed(BaseException):
    """As when the process is gone: no handler runs but those that always do."""


@pytest.mark.parametrize("point", ["_copy_log", "_copy_files", "hash_files", "write_manifest", "publish_folder"])
async def test_interrupted_backup_leaves_no_folder(
    original: CoordinatorConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    stop_at(monkeypatch, backup_module, point)
    with pytest.raises(Killed):
        await back_up(original, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()
    monkeypatch.undo()
    await back_up(original, tmp_path / "backup")


@pytest.mark.parametrize(
    "point", ["_write_settings", "_check_keys", "_restore_objects", "_fill_database", "publish_folder"]
)
async def test_interrupted_restore_leaves_no_folder(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    stop_at(monkeypatch, restore_module, point)
    with pytest.raises(Killed):
        await bring_back(finished, tmp_path / "home")
    assert not (tmp_path / "home").exists()
    monkeypatch.undo()
    await bring_back(finished, tmp_path / "home")


def stop_at(monkeypatch: pytest.MonkeyPatch, module: Any, point: str) -> None:
    def die(*_: Any, **__: Any) -> None:
        raise Killed

    monkeypatch.setattr(module, point, die)


async def test_draft_that_a_killed_backup_left_is_named_and_is_no_backup(
    original: CoordinatorConfig, tmp_path: Path
) -> None:
    (tmp_path / "backup.draft").mkdir()
    with pytest.raises(LocalError, match=r"backup\.draft"):
        await back_up(original, tmp_path / "backup")
    with pytest.raises(LocalError, match="a backup that was finished"):
        await bring_back(tmp_path / "backup.draft", tmp_path / "home")
    assert (tmp_path / "backup.draft").exists(), "it may be another process that still writes"


async def test_nothing_is_written_over(original: CoordinatorConfig, tmp_path: Path) -> None:
    await back_up(original, tmp_path / "backup")
    with pytest.raises(LocalError, match="exists"):
        await back_up(original, tmp_path / "backup")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/precious").write_text("x")
    with pytest.raises(LocalError, match="not empty"):
        await bring_back(tmp_path / "backup", tmp_path / "home")
    taken = f"sqlite:///{CoordinatorHome(original.folder).database}"
    with pytest.raises(LocalError, match="already holds a log"):
        await bring_back(tmp_path / "backup", tmp_path / "new", database=taken)
    assert not (tmp_path / "new").exists()


async def test_backup_older_than_a_published_head_is_refused(tmp_path: Path) -> None:
    config = CoordinatorConfig(folder=tmp_path / "home", network="testnet", password=Secret("correct horse"))
    await initialise(config, SystemClock())
    await _write(config, 4)
    await back_up(config, tmp_path / "old")
    await _write(config, 4)
    await back_up(config, tmp_path / "new")
    await bring_back(tmp_path / "new", tmp_path / "good", head=tmp_path / "old/log/checkpoint")
    with pytest.raises(LocalError, match="use a newer backup"):
        await bring_back(tmp_path / "old", tmp_path / "bad", head=tmp_path / "new/log/checkpoint")
    assert not (tmp_path / "bad").exists()


async def test_files_in_a_bucket_are_not_copied(original: CoordinatorConfig, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="in a bucket"):
        await back_up(replace(original, objects="s3://somewhere/else"), tmp_path / "backup")


# --- Incremental ----------------------------------------------------------------------------------------------------


async def test_a_backup_links_what_an_older_one_has_and_is_complete_by_itself(tmp_path: Path) -> None:
    config = CoordinatorConfig(folder=tmp_path / "home", network="testnet", password=Secret("correct horse"))
    await _fill(config)
    old, new = tmp_path / "old", tmp_path / "new"
    await back_up(config, old)
    await _write(config, 300)
    made = await back_up(config, new, base=old)
    assert made.entries == ENTRIES + 300
    for name in ("log/tile/entries/000", "log/tile/0/000", "objects/files/ab/cd"):
        assert (new / name).stat().st_ino == (old / name).stat().st_ino, f"{name} was copied"
    shutil.rmtree(old)
    await bring_back(new, tmp_path / "again")
    assert await leaves_of(tmp_path / "again") == await leaves_of(config.folder)
    whole = tmp_path / "whole"
    await back_up(config, whole)
    assert read_manifest(whole).files == read_manifest(new).files


async def test_a_backup_of_another_log_is_no_base(original: CoordinatorConfig, tmp_path: Path, finished: Path) -> None:
    other = CoordinatorConfig(folder=tmp_path / "other", network="testnet", password=Secret("correct horse"))
    await _fill(other)
    await _write(other, 10)
    base = tmp_path / "base"
    shutil.copytree(finished, base)
    next((base / "log/tile/1/000.p").iterdir()).write_bytes(bytes(32))
    with pytest.raises(LocalError, match="leave out --since"):
        await back_up(original, tmp_path / "backup", base=base)
    elsewhere = replace(original, network="othernet")
    with pytest.raises(LocalError, match="is a backup of testnet"):
        await back_up(elsewhere, tmp_path / "backup", base=finished)
    assert not (tmp_path / "backup").exists()


# --- From a mirror --------------------------------------------------------------------------------------------------


def restore_from(mirror: Path, folder: Path, **changes: Any) -> RestoredMirror:
    how: dict[str, Any] = {"settings": None, "database": None, "password": None, "head": None}
    return restore_mirror(str(mirror), folder, **{**how, "on_progress": lambda done, total: None, **changes})


async def test_a_mirror_and_the_keys_make_a_coordinator_again(
    original: CoordinatorConfig, finished: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    restored = restore_from(finished / "log", home, keys=original.folder)
    assert (restored.entries, restored.open_files, restored.has_settings) == (ENTRIES, 0, False)
    assert await leaves_of(home) == await leaves_of(original.folder)
    config = resolve_coordinator_config(home, {}, {}).config
    assert (config.network, config.unbonding_ms) == ("testnet", original.unbonding_ms)
    recovered, _ = await recover(replace(config, password=Secret("correct horse")))
    assert recovered.state.size == ENTRIES


def test_an_index_that_an_explorer_left_does_not_stop_a_restore_and_anything_else_does(
    original: CoordinatorConfig, finished: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    (home / "explorer").mkdir(parents=True)
    for name in ("index.db", "index.db-wal", "index-1-abc.db", "state.snapshot", "uptime.db"):
        (home / "explorer" / name).write_bytes(b"left")
    restore_from(finished / "log", home, keys=original.folder)
    assert not (home / "explorer").exists()
    assert CoordinatorHome(home).restored.read_text() == str(ENTRIES)
    other = tmp_path / "other"
    (other / "explorer").mkdir(parents=True)
    (other / "explorer" / "notes.txt").write_text("of a person")
    with pytest.raises(LocalError, match="is not empty"):
        restore_from(finished / "log", other, keys=original.folder)
    assert (other / "explorer" / "notes.txt").exists()


async def recover(config: CoordinatorConfig) -> tuple[Ledger, LogTree]:
    store = open_log_store(database_url(config))
    key = VerifierKey.of(ORIGIN_PREFIX + config.network, load_log_key(config))
    mirror = CoordinatorHome(config.folder).mirror
    try:
        coordinator = load_key(config).node
        return await recover_ledger(store, mirror, network=config.network_id, coordinator=coordinator, log_key=key)
    finally:
        store.close()


def test_settings_that_are_given_are_taken(original: CoordinatorConfig, finished: Path, tmp_path: Path) -> None:
    settings = CoordinatorHome(original.folder).config
    restored = restore_from(finished / "log", tmp_path / "home", keys=original.folder, settings=settings)
    assert restored.has_settings


@pytest.mark.parametrize("damage", ["tile/entries/000", "tile/0/000", "checkpoint"])
def test_a_damaged_mirror_leaves_no_folder(
    original: CoordinatorConfig, finished: Path, tmp_path: Path, damage: str
) -> None:
    mirror = tmp_path / "mirror"
    shutil.copytree(finished / "log", mirror)
    flip(mirror / damage)
    with pytest.raises(RemoteError):
        restore_from(mirror, tmp_path / "home", keys=original.folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mirror"]
    with pytest.raises(LocalError, match="cannot copy"):
        restore_from(finished / "log", tmp_path / "home", keys=tmp_path / "nowhere")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mirror"]


async def test_a_mirror_older_than_a_published_head_is_refused(
    original: CoordinatorConfig, finished: Path, tmp_path: Path
) -> None:
    head = TreeHead(ORIGIN_PREFIX + original.network, ENTRIES + 1, Digest(bytes(32)))
    (tmp_path / "head").write_bytes(sign_tree_head(head, load_log_key(original)))
    with pytest.raises(LocalError, match="use a newer"):
        restore_from(finished / "log", tmp_path / "home", keys=original.folder, head=tmp_path / "head")
