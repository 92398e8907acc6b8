"""The coordinator's folder: made once, never over another, locked while used, its secrets kept."""

import asyncio
import stat
from pathlib import Path

import pytest

from prime_coordinator.config import CoordinatorConfig, FaucetConfig, resolve_coordinator_config
from prime_coordinator.home import (
    CoordinatorHome,
    InitResult,
    database_url,
    initialise,
    load_key,
    load_log_key,
    lock_home,
    read_lock,
    render_config,
)
from prime_coordinator.log.store import open_log_store
from prime_protocol.errors import LocalError
from prime_protocol.ledger.replay import replay
from prime_protocol.log.tree_head import VerifierKey
from prime_protocol.wire.keystore import encrypt_key
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import SystemClock
from prime_runtime.http.config import ListenConfig
from prime_runtime.redaction import Secret
from prime_runtime.settings.schema import ConfigError

PASSWORD = Secret('a "quoted" \\ password')


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[CoordinatorConfig, InitResult]:
    config = CoordinatorConfig(
        folder=tmp_path_factory.mktemp("made") / "home", network="testnet", password=PASSWORD, unbonding_ms=5
    )
    return config, asyncio.run(initialise(config, SystemClock()))


async def test_a_new_folder_holds_a_log_that_names_its_keys(made: tuple[CoordinatorConfig, InitResult]) -> None:
    config, created = made
    store = open_log_store(database_url(config))
    try:
        ledger = replay(config.network_id, await store.read(0, 9))
    finally:
        store.close()
    assert ledger.state.size == 1
    assert ledger.state.coordinator == created.coordinator == load_key(config).node
    assert ledger.state.log_key == created.log_key
    assert VerifierKey.parse(created.log_key).public_key == load_log_key(config).public_key().public_bytes_raw()
    assert ledger.state.unbonding_ms == 5


def test_secrets_are_readable_by_their_owner_only_and_listed_for_backup(
    made: tuple[CoordinatorConfig, InitResult],
) -> None:
    config, created = made
    home = CoordinatorHome(config.folder)
    for path in (home.key, home.log_key, home.config):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path in created.backup
    assert "quoted" not in home.config.read_text()


async def test_nothing_is_made_over_a_coordinator_that_is_there(made: tuple[CoordinatorConfig, InitResult]) -> None:
    config, _ = made
    before = {path: path.read_bytes() for path in config.folder.rglob("*") if path.is_file()}
    with pytest.raises(LocalError, match="this folder already holds a coordinator"):
        await initialise(config, SystemClock())
    after = {path: path.read_bytes() for path in config.folder.rglob("*") if path.is_file()}
    assert before == after


async def test_a_database_with_a_log_is_not_taken_for_a_new_one(
    made: tuple[CoordinatorConfig, InitResult], tmp_path: Path
) -> None:
    config = CoordinatorConfig(folder=tmp_path / "new", password=PASSWORD, database=database_url(made[0]))
    with pytest.raises(LocalError, match="already holds a log"):
        await initialise(config, SystemClock())
    assert not CoordinatorHome(config.folder).key.exists()


def test_a_second_process_learns_who_holds_the_folder(tmp_path: Path) -> None:
    with lock_home(tmp_path) as lock:
        lock.write_url("http://127.0.0.1:5")
        assert read_lock(tmp_path)["url"] == "http://127.0.0.1:5"
        with pytest.raises(LocalError, match=f"process {read_lock(tmp_path)['pid']}"), lock_home(tmp_path):
            raise AssertionError("two hold one lock")
    assert read_lock(tmp_path) == {}
    with lock_home(tmp_path):
        assert "url" not in read_lock(tmp_path)


def test_a_lock_file_that_says_nonsense_says_nothing(tmp_path: Path) -> None:
    assert read_lock(tmp_path) == {}
    for text in ("", "{", "[]"):
        CoordinatorHome(tmp_path).lock.write_text(text)
        assert read_lock(tmp_path) == {}


def test_the_password_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    key = WalletKey.from_secret(b"\x31" * 32)
    text = encrypt_key(key, "from the file", salt=bytes(32), iv=bytes(16), file_id="", scrypt_n=2)
    (tmp_path / "key.json").write_text(text)
    (tmp_path / "password").write_text("from the file\nand a comment")
    (tmp_path / "short").write_text("short")
    assert load_key(CoordinatorConfig(folder=tmp_path, password_file=tmp_path / "password")).node == key.node
    assert load_key(CoordinatorConfig(folder=tmp_path, password=Secret("from the file"))).node == key.node
    for config, words in (
        (CoordinatorConfig(folder=tmp_path), "PRIME_PASSWORD"),
        (CoordinatorConfig(folder=tmp_path, password_file=tmp_path / "none"), "cannot read the password file"),
        (CoordinatorConfig(folder=tmp_path, password_file=tmp_path / "short"), "shorter than"),
        (CoordinatorConfig(folder=tmp_path / "nowhere", password=PASSWORD), "prime-coordinator init"),
    ):
        with pytest.raises(LocalError, match=words):
            load_key(config)


@pytest.mark.parametrize("content", ["", "zz", "00" * 31])
def test_a_damaged_log_key_is_refused(tmp_path: Path, content: str) -> None:
    path = CoordinatorHome(tmp_path).log_key
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(LocalError, match="restore it from a backup"):
        load_log_key(CoordinatorConfig(folder=tmp_path))


def test_a_log_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = CoordinatorHome(tmp_path).log_key
    path.write_text("11" * 32)
    path.chmod(0o644)
    with pytest.raises(LocalError, match="chmod 600"):
        load_log_key(CoordinatorConfig(folder=tmp_path))


# --- Settings -------------------------------------------------------------------------------------------------------


def test_the_written_settings_read_back_as_they_were_without_secrets(tmp_path: Path) -> None:
    config = CoordinatorConfig(
        folder=tmp_path,
        network="other",
        password=PASSWORD,
        database="postgresql://prime@db.example.org/log",
        objects='a folder with "quotes"',
        listen=ListenConfig(host="0.0.0.0", port=8400),
        faucet=FaucetConfig(amount_nano=7),
    )
    CoordinatorHome(tmp_path).config.write_text(render_config(config))
    again = resolve_coordinator_config(tmp_path, {}, {"PRIME_PASSWORD": PASSWORD.reveal()}).config
    assert again == config


def test_flags_win_over_the_environment_and_the_environment_over_the_file(tmp_path: Path) -> None:
    CoordinatorHome(tmp_path).config.write_text('network = "file"\n[listen]\nport = 1\n')
    environ = {"PRIME_LISTEN_PORT": "2", "PRIME_NETWORK": "environment"}
    config = resolve_coordinator_config(tmp_path, {"listen.port": "3"}, environ).config
    assert (config.network, config.listen.port) == ("environment", 3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"network": "Not a name"}, "network must be"),
        ({"database": "mysql://host/db"}, "sqlite and postgresql are supported"),
        ({"database": "no url"}, "is not a URL"),
        ({"database": "postgresql://prime:secret@host/db"}, "put it into database_password"),
    ],
)
def test_invalid_settings_are_refused(tmp_path: Path, settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        CoordinatorConfig(folder=tmp_path, **settings)
