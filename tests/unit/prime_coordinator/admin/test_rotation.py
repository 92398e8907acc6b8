"""Rotating the keys in a coordinator's folder: the entry, the files, and every place where it can be interrupted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prime_coordinator.admin import rotation
from prime_coordinator.admin.backup import make_backup
from prime_coordinator.admin.rotation import finish_rotations, rotate_key
from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.home import (
    CoordinatorHome,
    database_url,
    initialise,
    load_key,
    load_log_key,
    lock_home,
    read_key_address,
)
from prime_coordinator.log.key_list import read_key_chain
from prime_coordinator.log.store import LogStore, open_log_store
from prime_coordinator.settlement.config import SettlementKind
from prime_protocol.errors import LocalError
from prime_protocol.keys.chain import KeyChain
from prime_protocol.keys.rotation import KeyKind
from prime_protocol.log.tree_head import ORIGIN_PREFIX, VerifierKey
from prime_runtime.clock import SystemClock
from prime_runtime.redaction import Secret


class Killed(Exception):
    """The process ends here."""


@pytest.fixture
async def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CoordinatorConfig:
    monkeypatch.setattr("prime_runtime.keys.KEYSTORE_SCRYPT_N", 2)
    made = CoordinatorConfig(folder=tmp_path / "home", network="testnet", password=Secret("correct horse"))
    await initialise(made, SystemClock())
    return made


async def open_chain(config: CoordinatorConfig, *, finish: bool = True) -> KeyChain:
    """The keys that the log names; first as a start does, which finishes an interrupted rotation."""
    store = open_log_store(database_url(config))
    try:
        if finish:
            await finish_rotations(config, store)
        return await read_key_chain(store, config.network_id)
    finally:
        store.close()


def keys_of(config: CoordinatorConfig) -> tuple[VerifierKey, str]:
    """Those in the files that a start reads."""
    log_key = VerifierKey.of(ORIGIN_PREFIX + config.network, load_log_key(config))
    assert read_key_address(CoordinatorHome(config.folder).key) == str(load_key(config).node)
    return log_key, str(load_key(config).node)


async def test_both_keys_are_replaced_and_the_old_ones_are_kept(config: CoordinatorConfig) -> None:
    before = keys_of(config)
    home = CoordinatorHome(config.folder)
    made = await rotate_key(config, KeyKind.LOG, SystemClock())
    assert (made.old, made.kept) == (str(before[0]), home.folder / f"log.key.until-{made.index}")
    told = await rotate_key(config, KeyKind.COORDINATOR, SystemClock())
    assert (told.old, told.kept) == (before[1], home.folder / f"key.json.until-{told.index}")
    after, chain = keys_of(config), await open_chain(config)
    assert (str(after[0]), after[1]) == (made.new, told.new) == (str(chain.log_key), str(chain.coordinator))
    assert read_key_address(told.kept) == before[1]
    for path in (made.kept, told.kept, home.key, home.log_key):
        assert path.stat().st_mode & 0o077 == 0
    assert list(home.folder.glob("*.next")) == []


async def test_a_running_coordinator_or_a_second_rotation_within_a_day_is_refused(config: CoordinatorConfig) -> None:
    with lock_home(config.folder), pytest.raises(LocalError, match="stop it first"):
        await rotate_key(config, KeyKind.LOG, SystemClock())
    await rotate_key(config, KeyKind.LOG, SystemClock())
    with pytest.raises(LocalError, match="less than 24 hours before; try again in"):
        await rotate_key(config, KeyKind.LOG, SystemClock())
    assert list(config.folder.glob("*.next")) == []


async def test_on_a_chain_only_the_log_key_can_be_rotated(config: CoordinatorConfig) -> None:
    settlement = replace(config.settlement, kind=SettlementKind.EVM, rpc="http://127.0.0.1:1", court="0x" + 40 * "1")
    with pytest.raises(LocalError, match="contracts name the coordinator's address"):
        await rotate_key(replace(config, settlement=settlement), KeyKind.COORDINATOR, SystemClock())


@pytest.mark.parametrize("kind", list(KeyKind))
@pytest.mark.parametrize("point", ["append", "appended", "link", "linked"])
async def test_an_interrupted_rotation_leaves_one_usable_key(
    config: CoordinatorConfig, monkeypatch: pytest.MonkeyPatch, kind: KeyKind, point: str
) -> None:
    append, link = LogStore.append, rotation.os.link

    async def append_and_end(*words: Any) -> None:
        if point == "appended":
            await append(*words)
        raise Killed

    def link_and_end(source: Any, target: Any) -> None:
        if ".until-" not in str(target):
            link(source, target)  # a file that is written atomically
            return
        if point == "linked":
            link(source, target)
        raise Killed

    before = keys_of(config)
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(
            *((LogStore, "append", append_and_end) if "append" in point else (rotation.os, "link", link_and_end))
        )
        await rotate_key(config, kind, SystemClock())
    chain = await open_chain(config)
    assert keys_of(config) == (chain.log_key, str(chain.coordinator))
    assert (keys_of(config) == before) is (point == "append")
    if point == "append":
        await rotate_key(config, kind, SystemClock())
        assert keys_of(config) != before
    assert list(config.folder.glob("*.next")) == []


async def test_no_backup_is_made_with_a_key_that_the_log_has_left(
    config: CoordinatorConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    append = LogStore.append

    async def append_and_end(*words: Any) -> None:
        await append(*words)
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(LogStore, "append", append_and_end)
        await rotate_key(config, KeyKind.LOG, SystemClock())
    with pytest.raises(LocalError, match="Start the coordinator once"):
        await make_backup(config, tmp_path / "backup", with_objects=False, with_keys=True, now_ms=0)
    await open_chain(config)
    made = await make_backup(config, tmp_path / "backup", with_objects=False, with_keys=True, now_ms=0)
    assert made.entries == 2
