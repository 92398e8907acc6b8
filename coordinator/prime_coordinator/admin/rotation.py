"""Rotates the log key or the coordinator's key of a stopped coordinator. It can be killed at any point.

1. The new key is written beside the old one (`log.key.next`, `key.json.next`).
2. The entry goes to the database. From here on the log names the new key.
3. The old key is kept under another name (`log.key.until-N`), and the new one takes its place.

After a kill before step 2 the old key counts and the staged file is not used; the next rotation replaces it. After a
kill behind step 2 the next start does step 3, because the log says which key counts.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.entry_writer import EntryWriter
from prime_coordinator.home import (
    CoordinatorHome,
    check_database,
    create_log_key,
    database_url,
    load_key,
    load_log_key,
    lock_home,
    read_key_address,
    read_log_key,
    read_password,
)
from prime_coordinator.log.key_list import read_key_chain
from prime_coordinator.log.replay import recover_ledger
from prime_coordinator.log.store import LogStore, open_log_store
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.keys.rotation import (
    CoordinatorKeyRotated,
    KeyKind,
    LogKeyRotated,
    make_coordinator_rotation,
    make_log_key_rotation,
)
from prime_protocol.keys.rules import check_rotation_pace
from prime_protocol.ledger.entry_index import compute_entry_keys
from prime_protocol.ledger.replay import Ledger
from prime_protocol.log.tree_head import ORIGIN_PREFIX, VerifierKey
from prime_runtime.clock import Clock
from prime_runtime.files import sync_folder
from prime_runtime.formatting import format_duration
from prime_runtime.keys import create_key_file

STAGED_SUFFIX = ".next"


@dataclass(frozen=True, slots=True)
class RotatedKey:
    """What a rotation did."""

    index: int
    """Of its entry."""
    old: str
    new: str
    kept: Path
    """The old key's file."""


async def rotate_key(config: CoordinatorConfig, kind: KeyKind, clock: Clock) -> RotatedKey:
    """LocalError: the coordinator runs, or the log's rules do not allow it now; then nothing has changed."""
    if kind is KeyKind.COORDINATOR and config.settlement.is_evm:
        raise LocalError(
            "this network settles on a chain, and its contracts name the coordinator's address for good: they would not"
            " accept another one. The log key can be rotated: prime-coordinator keys rotate --log"
        )
    home = CoordinatorHome(config.folder)
    with lock_home(config.folder):
        check_database(config)
        store = open_log_store(database_url(config), config.database_password)
        try:
            await finish_rotations(config, store)
            chain = await read_key_chain(store, config.network_id)
            entry = await _append_rotation(config, kind, store, clock)
            await finish_rotations(config, store)
        finally:
            store.close()
    if isinstance(entry, LogKeyRotated):
        return RotatedKey(entry.index, str(chain.log_key), entry.log_key, _get_kept(home.log_key, entry.index))
    kept = _get_kept(home.key, entry.index)
    return RotatedKey(entry.index, str(chain.coordinator), str(entry.coordinator), kept)


async def _append_rotation(
    config: CoordinatorConfig, kind: KeyKind, store: LogStore, clock: Clock
) -> LogKeyRotated | CoordinatorKeyRotated:
    """Steps 1 and 2. The ledger sees the entry first, so that a refused one leaves no file behind."""
    home, network = CoordinatorHome(config.folder), config.network_id
    key, log_key = load_key(config), load_log_key(config)
    vkey = VerifierKey.of(ORIGIN_PREFIX + network, log_key)
    ledger, _ = await recover_ledger(store, home.mirror, network=network, coordinator=key.node, log_key=vkey)
    _check_pace(ledger, kind, clock.now_ms())
    index = ledger.state.size
    entry: LogKeyRotated | CoordinatorKeyRotated
    if kind is KeyKind.LOG:
        staged = _clear_staged(home.log_key)
        entry = make_log_key_rotation(network, index=index, old=log_key, new=create_log_key(staged))
    else:
        staged = _clear_staged(home.key)
        new = create_key_file(staged, read_password(config), os.urandom)
        entry = make_coordinator_rotation(network, index=index, old=key.node, new=new)
    sync_folder(config.folder)
    writer = EntryWriter(key, ledger)
    writer.append_own(entry, None, clock.now_ms())
    (leaf,) = writer.drain()
    await store.append(index, [leaf], [compute_entry_keys(leaf)])
    return entry


def _check_pace(ledger: Ledger, kind: KeyKind, now_ms: int) -> None:
    try:
        check_rotation_pace(ledger.state, kind, max(now_ms, ledger.state.at_ms))
    except RemoteError as error:
        wait = f"; try again in {format_duration(error.retry_after_ms)}" if error.retry_after_ms else ""
        raise LocalError(f"the log's rules refuse the rotation: {error.problem}{wait}") from None


# --- Files ------------------------------------------------------------------------------------------------------------


async def finish_rotations(config: CoordinatorConfig, store: LogStore) -> None:
    """Put the keys that the log names in their places, if a rotation was interrupted behind its entry."""
    await store.wait_for_pending_writes()
    if await store.size() == 0:
        return  # the start refuses it with advice
    home = CoordinatorHome(config.folder)
    chain = await read_key_chain(store, config.network_id)
    origin = ORIGIN_PREFIX + config.network_id
    _switch(
        home.log_key,
        chain.log_keys[-1].index,
        lambda path: VerifierKey.of(origin, read_log_key(path)) == chain.log_key,
    )
    _switch(home.key, chain.coordinators[-1].index, lambda path: read_key_address(path) == str(chain.coordinator))


def _switch(path: Path, index: int, is_named: Callable[[Path], bool]) -> None:
    """Step 3, where the staged key is the one that the log names."""
    staged = path.with_name(path.name + STAGED_SUFFIX)
    if not staged.exists() or not path.exists() or is_named(path) or not is_named(staged):
        return
    try:
        # A link first: at no moment is there no key under the usual name.
        os.link(path, _get_kept(path, index))
    except FileExistsError:
        pass  # a run before this one was killed here
    staged.replace(path)
    sync_folder(path.parent)


def _clear_staged(path: Path) -> Path:
    """Where the new key goes. One that is there already never came into the log: `finish_rotations` has looked."""
    staged = path.with_name(path.name + STAGED_SUFFIX)
    staged.unlink(missing_ok=True)
    return staged


def _get_kept(path: Path, index: int) -> Path:
    return path.with_name(f"{path.name}.until-{index}")
