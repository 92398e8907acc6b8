"""Restore of a coordinator from a backup, or from any mirror of its log and its keys.

Restore trusts nothing: files, tree, every entry and rule are verified first, in bounded memory. It writes a draft
beside the target and renames it at the end, so a target that exists is complete.

A mirror has the log, and so the ledger state and every index. It does not have the keys, the settings, files that nodes
sent, and entries after its head; the caller says so.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_coordinator.admin.backup import (
    KEYS_FOLDER,
    LOG_FOLDER,
    OBJECTS_FOLDER,
    BackupManifest,
    check_files,
    copy_keys,
    copy_synced,
    publish_folder,
    read_manifest,
)
from prime_coordinator.config import CONFIG_NAME, CoordinatorConfig, resolve_coordinator_config
from prime_coordinator.constants import PORT
from prime_coordinator.home import (
    CoordinatorHome,
    database_url,
    load_log_key,
    objects_url,
    read_key_address,
    render_config,
)
from prime_coordinator.log.migrations import heads, migrate
from prime_coordinator.log.snapshots import SNAPSHOTS_KEPT
from prime_coordinator.log.store import append_entries, explain_database_errors, get_log_size, open_engine
from prime_coordinator.log.verify import OnProgress, VerifiedLog, VerifyOptions, verify_log
from prime_coordinator.randomness import OWN, read_secret
from prime_explorer.index.follower import MirrorFetcher
from prime_protocol.constants import NOTE_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entry_index import compute_entry_keys
from prime_protocol.ledger.randomness_chain import make_own_chain
from prime_protocol.log.merkle import compute_root
from prime_protocol.log.tiles import make_node_reader
from prime_protocol.log.tree_head import ORIGIN_PREFIX, VerifierKey
from prime_runtime.files import write_atomic
from prime_runtime.http.config import ListenConfig
from prime_runtime.log_files import (
    list_snapshots,
    read_bounded,
    read_leaves,
    read_tile,
    read_tree_head,
    snapshot_path,
)
from prime_runtime.redaction import Secret

ENTRIES_PER_WRITE = 1_000
"""Entries inserted at once."""
INDEX_NAMES = ("index", "state.snapshot", "uptime.db")
"""What an explorer makes from the log, and how its files begin: databases have others beside them."""


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
    manifest = read_manifest(source)
    _check_is_empty(folder)
    check_files(source, manifest)
    verified = _verify_backup_log(source / LOG_FOLDER, manifest)
    if head is not None:
        _check_covers(source / LOG_FOLDER, verified, read_bounded(head, NOTE_BYTES_MAX))
    with _open_draft(folder) as draft:
        config = _write_settings(source / CONFIG_NAME, folder, draft, database, password)
        _write_backup_keys(source, keys, manifest, draft)
        _check_keys(config, verified, draft)
        _restore_objects(source, manifest, config, draft)
        shutil.copytree(source / LOG_FOLDER, CoordinatorHome(draft).mirror)
        _fill_database(config, draft, verified.head.size, at_ms=manifest.made_at_ms)
    return manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredMirror:
    """What came back from a mirror, and what a mirror does not have."""

    entries: int
    at_ms: int
    """Of the last entry."""
    open_files: int
    """Rollout files of submissions that are not settled: validators will ask for them."""
    has_settings: bool


def restore_mirror(
    source: str,
    folder: Path,
    *,
    keys: Path,
    settings: Path | None,
    database: str | None,
    password: Secret | None,
    head: Path | None,
    on_progress: OnProgress,
) -> RestoredMirror:
    """Make a coordinator's folder from any mirror of its log, at a URL or in a folder, and the keys.

    RemoteError if the mirror is not a valid log, LocalError if something on this machine is in the way.
    """
    _check_is_empty(folder)
    with _open_draft(folder) as draft:
        mirror = CoordinatorHome(draft).mirror
        MirrorFetcher(source if "://" in source else Path(source).absolute().as_uri(), mirror).fetch(lambda: True)
        verified = verify_log(
            mirror,
            VerifyOptions(
                processes=os.cpu_count() or 1,
                on_progress=on_progress,
                on_snapshot=lambda size, data: write_atomic(mirror / snapshot_path(size), data),
            ),
        )
        if head is not None:
            _check_covers(mirror, verified, read_bounded(head, NOTE_BYTES_MAX))
        for size in list_snapshots(mirror)[SNAPSHOTS_KEPT:]:
            (mirror / snapshot_path(size)).unlink()
        state = verified.ledger.state
        if settings is None:
            settings = draft / CONFIG_NAME
            write_atomic(settings, render_config(_derive_settings(verified, folder)).encode(), mode=0o600)
        config = _write_settings(settings, folder, draft, database, password)
        copy_keys(keys, draft)
        _check_keys(config, verified, draft)
        _fill_database(config, draft, verified.head.size, at_ms=state.at_ms)
    return RestoredMirror(
        entries=verified.head.size,
        at_ms=state.at_ms,
        open_files=sum(len(run.unsettled) for run in state.runs.values()),
        has_settings=settings.parent != draft,
    )


def _derive_settings(verified: VerifiedLog, folder: Path) -> CoordinatorConfig:
    """Default settings with what the first entry of the log has fixed."""
    state = verified.ledger.state
    return CoordinatorConfig(
        folder=folder,
        network=str(verified.ledger.network),
        unbonding_ms=state.unbonding_ms,
        ticker=str(state.ticker),
        randomness=OWN if state.randomness.is_own else "",
        draw_margin_ms=state.draw_margin_ms,
        rules_notice_ms=state.rules.notice_ms,
        listen=ListenConfig(port=PORT),
    )


def _check_is_empty(folder: Path) -> None:
    """An explorer's index may be there: one that outlived its coordinator for a moment writes it again."""
    if folder.exists() and (not folder.is_dir() or any(not _is_index(path) for path in folder.iterdir())):
        raise LocalError(f"{folder} is not empty; choose another folder")


def _is_index(path: Path) -> bool:
    """Whether this is an explorer's folder with nothing but what is derived from the log."""
    is_explorer = path == CoordinatorHome(path.parent).explorer and path.is_dir() and not path.is_symlink()
    return is_explorer and all(each.is_file() and each.name.startswith(INDEX_NAMES) for each in path.iterdir())


@contextmanager
def _open_draft(folder: Path) -> Iterator[Path]:
    """A folder beside the target, which becomes the target if all goes well, and else is removed."""
    draft = folder.with_name(folder.name + ".draft")
    try:
        draft.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        raise LocalError(f"{draft} exists: another restore runs, or one was interrupted; then remove it") from None
    try:
        yield draft
        if folder.exists():
            _check_is_empty(folder)
            shutil.rmtree(CoordinatorHome(folder).explorer, ignore_errors=True)
            folder.rmdir()
        publish_folder(draft, folder)
    except OSError as error:
        raise LocalError(f"cannot write {draft}: {error.strerror}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


# --- Checking -------------------------------------------------------------------------------------------------------


def _verify_backup_log(log: Path, manifest: BackupManifest) -> VerifiedLog:
    """Verify every signature, author, rule and tile."""
    verified = verify_log(log)
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
    shown = verified.keys.open_head(note)
    if shown.size > verified.head.size:
        raise LocalError(f"the head covers {shown.size} entries, the backup {verified.head.size}: use a newer backup")
    get_node = make_node_reader(verified.head.size, lambda tile: read_tile(log, tile))
    if compute_root(shown.size, get_node) != shown.root:
        raise RemoteError("head", f"the first {shown.size} entries of the backup are not those it covers")


def _check_keys(config: CoordinatorConfig, verified: VerifiedLog, draft: Path) -> None:
    """Check that the keys belong to this log; the wallet key by the address in its file, without a password."""
    log_key: Ed25519PrivateKey = load_log_key(replace(config, folder=draft))
    state = verified.ledger.state
    found = VerifierKey.of(ORIGIN_PREFIX + verified.ledger.network, log_key)
    if found != verified.keys.log_key:
        rotated = f": entry {verified.keys.log_keys[-1].index} rotated it" if verified.keys.has_log_key(found) else ""
        raise LocalError(f"log.key is not the key that signs this log's heads{rotated}")
    address = read_key_address(CoordinatorHome(draft).key)
    if address != str(state.coordinator):
        raise LocalError(f"key.json is the key of {address}, the log belongs to {state.coordinator}")
    chain = state.randomness
    if chain.is_own:
        secret = read_secret(CoordinatorHome(draft).randomness_key)
        made = make_own_chain(secret, verified.ledger.network, genesis_s=chain.genesis_s, period_s=chain.period_s)
        if made != chain:
            raise LocalError("randomness.key is not the key of this network's randomness chain")


# --- Writing --------------------------------------------------------------------------------------------------------


def _write_settings(
    source: Path, folder: Path, draft: Path, database: str | None, password: Secret | None
) -> CoordinatorConfig:
    """The settings of the backup, with the new database."""
    if source != draft / CONFIG_NAME:
        copy_synced(source, draft / CONFIG_NAME)
    found = resolve_coordinator_config(draft, {}, {}).config
    config = replace(found, folder=folder.absolute(), database=database, database_password=password)
    write_atomic(draft / CONFIG_NAME, render_config(config).encode(), mode=0o600)
    return config


def _write_backup_keys(source: Path, keys: Path | None, manifest: BackupManifest, draft: Path) -> None:
    if keys is None and not manifest.has_keys:
        raise LocalError("the backup holds no keys: give --keys FOLDER with key.json, log.key and randomness.key")
    copy_keys(source / KEYS_FOLDER if keys is None else keys, draft)


def _restore_objects(source: Path, manifest: BackupManifest, config: CoordinatorConfig, draft: Path) -> None:
    kept = [path for path in manifest.files if path.startswith(f"{OBJECTS_FOLDER}/")]
    if kept and config.objects is not None:
        raise LocalError(f"the settings keep files in {objects_url(config)}, but the backup has files too: move them")
    for path in kept:
        copy_synced(source / path, CoordinatorHome(draft).objects / path.removeprefix(f"{OBJECTS_FOLDER}/"))


def _fill_database(config: CoordinatorConfig, draft: Path, size: int, *, at_ms: int) -> None:
    """Insert the whole log in one transaction: after an interruption the database is still empty."""
    url = database_url(config if config.database else replace(config, folder=draft))
    engine, mirror = open_engine(url, config.database_password), CoordinatorHome(draft).mirror
    try:
        with explain_database_errors(engine), engine.begin() as connection:
            migrate(connection)
            if get_log_size(connection):
                raise LocalError(f"the database {engine.url} already holds a log; restore into an empty one")
            leaves, start = read_leaves(mirror, size), 0
            while part := list(islice(leaves, ENTRIES_PER_WRITE)):
                append_entries(connection, start, part, [compute_entry_keys(leaf) for leaf in part])
                start += len(part)
            connection.execute(heads.insert().values(size=size, at_ms=at_ms, note=read_tree_head(mirror)))
        write_atomic(CoordinatorHome(draft).restored, str(size).encode())
    finally:
        engine.dispose()
