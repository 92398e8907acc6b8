"""A node's folder: made at the first start, guarded, and enough to start from without flags the next time."""

import json
import resource
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from prime_node.cli.context import with_pins
from prime_node.config import NodeConfig, NodeRole, PageConfig, WeightsConfig, resolve_node_config
from prime_node.status.local_server import LocalServer
from prime_node.storage.keys import OpenedKey, open_key
from prime_node.storage.node_folder import (
    NodeFolder,
    RunFolder,
    list_weights_folders,
    lock_folder,
    read_lock,
    read_pins,
    read_trainer,
    save_first_config,
    save_pins,
    save_trainer,
)
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import NodeId, RunId
from prime_runtime.files import write_private_file
from prime_runtime.redaction import Secret
from prime_runtime.settings.schema import ConfigError

LOG_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GIVEN = {"coordinator": "http://c:8440", "coordinator_id": "0x" + "11" * 20, "run": "demo"}


def config_of(folder: Path, **changes: Any) -> NodeConfig:
    return NodeConfig(folder=folder, **GIVEN | {"password": Secret("long enough")} | changes)


def test_one_setting_names_one_run_or_several_in_their_owners_order(tmp_path: Path) -> None:
    config = config_of(tmp_path, run="two, one,two", role=NodeRole.VALIDATOR, also_audits=("a-run", "one"))
    assert config.runs == ("two", "one")
    assert config.run_id == "two"
    assert config.runs_audited == ("a-run", "one", "two"), "sorted, as the log wants them"
    seen = config.for_run(RunId("one"))
    assert (seen.runs, seen.runs_audited) == (("one",), config.runs_audited), "the registration stays the same"
    assert config_of(tmp_path, run="one").runs_audited == ("one",)
    assert config_of(tmp_path, run="").runs == ()


def test_only_a_validator_names_several_runs_and_not_too_many(tmp_path: Path) -> None:
    many = tuple(f"run-{n}" for n in range(17))
    for changes, problem in (
        ({"run": "one,two"}, "the role is worker; start one node per run"),
        ({"run": "one,two", "role": NodeRole.BOTH}, "the role is both; start one node per run"),
        ({"run": "one,,two", "role": NodeRole.VALIDATOR}, "'' is not the name of a run"),
        ({"run": ",".join(many), "role": NodeRole.VALIDATOR}, "name 17 runs, the most is 16"),
        ({"run": "one", "role": NodeRole.WORKER, "also_audits": ("two",)}, "is for validators"),
        ({"run": "one", "role": NodeRole.BOTH, "also_audits": ("No Name",)}, "'No Name' is not the name of a run"),
        ({"run": "one", "role": NodeRole.VALIDATOR, "also_audits": many[:16]}, "name 17 runs, the most is 16"),
    ):
        with pytest.raises(ConfigError, match=problem):
            config_of(tmp_path, **changes)


def test_each_run_has_its_own_files_and_an_older_folder_keeps_its_own(tmp_path: Path) -> None:
    old = {"coordinator": "http://c:8440", "run": "two", "trainer": "0x" + "07" * 20}
    NodeFolder(tmp_path).run.write_text(json.dumps(old))
    config = config_of(tmp_path, run="one,two", role=NodeRole.VALIDATOR)
    assert read_trainer(config.for_run(RunId("two"))) == NodeId(b"\x07" * 20)
    assert read_trainer(config.for_run(RunId("one"))) is None
    save_pins(config)
    two, one = RunFolder(config, RunId("two")), RunFolder(config, RunId("one"))
    assert (two.saved_state, two.weights) == (tmp_path / "state", tmp_path / "weights")
    assert (one.saved_state, one.weights) == (tmp_path / "runs/one/state", tmp_path / "runs/one/weights")
    # The owner's order may change, or a run may go: files stay where they are.
    for names in ("two,one", "one"):
        save_pins(config_of(tmp_path, run=names, role=NodeRole.VALIDATOR))
        assert RunFolder(config.for_run(RunId("one")), RunId("one")).saved_state == one.saved_state
    assert list_weights_folders(config) == (one.weights, two.weights)
    elsewhere = replace(config, weights=WeightsConfig(folder=tmp_path / "disk"))
    assert RunFolder(elsewhere, RunId("one")).weights == tmp_path / "disk/runs/one"
    assert list_weights_folders(elsewhere) == (tmp_path / "disk",), "with all runs below it"


def test_a_key_is_drawn_once_and_found_again(tmp_path: Path) -> None:
    opened = open_key(config_of(tmp_path))
    assert (opened.is_new, opened.is_password_new) == (True, False)
    assert NodeFolder(tmp_path).key.stat().st_mode & 0o077 == 0
    assert open_key(config_of(tmp_path)) == OpenedKey(opened.key)
    with pytest.raises(
        LocalError, match=r"key\.json cannot be decrypted: wrong password.*PRIME_PASSWORD.*keys recover"
    ):
        open_key(config_of(tmp_path, password=Secret("another one")))
    with pytest.raises(LocalError, match="password of the key is missing: set PRIME_PASSWORD"):
        open_key(config_of(tmp_path, password=None))


def test_without_a_password_a_strong_one_is_generated_in_its_own_file(tmp_path: Path) -> None:
    opened = open_key(config_of(tmp_path, password=None))
    assert (opened.is_new, opened.is_password_new) == (True, True)
    password = NodeFolder(tmp_path).password
    assert password.stat().st_mode & 0o077 == 0
    assert len(password.read_text().strip()) >= 32
    assert open_key(config_of(tmp_path, password=None)) == OpenedKey(opened.key)
    password.write_text("not the right one\n")
    with pytest.raises(LocalError, match=r"the one in .*password\. If the file is damaged"):
        open_key(config_of(tmp_path, password=None))


def test_a_disk_that_fills_while_a_key_is_written_leaves_no_half_key(tmp_path: Path) -> None:
    path, limits = tmp_path / "key.json", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, limits[1]))
    try:
        with pytest.raises(LocalError, match=r"cannot write .*free some space"):
            write_private_file(path, "more than five bytes")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not path.exists()


def test_a_key_file_is_whole_from_the_moment_it_exists(tmp_path: Path) -> None:
    path, text = tmp_path / "key.json", "secret " * 2**20
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write_private_file, path, text)
        while not path.exists():
            assert not writing.done() or path.exists()
        assert path.read_text() == text
        writing.result()
    assert [found.name for found in tmp_path.iterdir()] == ["key.json"]
    with pytest.raises(LocalError, match="exists and is kept"):
        write_private_file(path, "another")


def test_what_was_given_at_the_first_start_is_enough_for_the_second(tmp_path: Path) -> None:
    config = config_of(tmp_path, role=NodeRole.RELAY, announce=("http://relay.example:0",), network="testnet")
    assert save_first_config(config)
    assert not save_first_config(config), "the owner's file is never replaced"
    assert "long enough" not in NodeFolder(tmp_path).config.read_text()
    found = resolve_node_config(tmp_path, {}, {"PRIME_PASSWORD": "long enough"}).config
    assert found == config


def test_the_runs_trainer_is_remembered_and_damage_is_as_good_as_nothing(tmp_path: Path) -> None:
    config, trainer = config_of(tmp_path), NodeId(b"\x01" * 20)
    assert read_trainer(config) is None
    save_pins(config)
    save_trainer(tmp_path, RunId("demo"), trainer)
    assert read_trainer(config) == trainer
    assert read_trainer(replace(config, run="another")) is None, "another run may have another trainer"
    for damage in ("", "[]", "{}", '{"run": "demo", "trainer": 5}', '{"run": "demo", "trainer": "0x"}'):
        NodeFolder(tmp_path).run.write_text(damage)
        assert read_trainer(config) is None
        assert read_pins(config) == {}


def test_what_was_learnt_of_a_coordinator_holds_for_that_one_only(tmp_path: Path) -> None:
    config = config_of(tmp_path, network="testnet", log_key=LOG_KEY)
    save_pins(config)
    asked = NodeConfig(folder=tmp_path, coordinator=config.coordinator)
    assert with_pins(asked) == replace(config, password=None)
    assert with_pins(replace(asked, run="another")).run == "another", "what is set counts more"
    elsewhere = replace(asked, coordinator="http://d:8440")
    assert with_pins(elsewhere) == elsewhere
    save_trainer(tmp_path, RunId("demo"), NodeId(b"\x01" * 20))
    save_pins(config)
    assert read_trainer(config) is not None, "learning the same again forgets nothing"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"run": "No Run"}, "run: 'No Run' is not the name of a run: it must be"),
        ({"network": "Net"}, "network must be"),
        ({"coordinator": "127.0.0.1:8440"}, "coordinator: .* write http"),
        ({"coordinator_id": "0x1"}, "coordinator_id must be"),
        ({"log_key": "x"}, "log_key must be"),
        ({"announce": ("http://a",)}, "announce"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem):
        config_of(tmp_path, **changes)


@pytest.mark.parametrize(("rate", "at_once"), [(0, 6), (50_000, 1), (120_000, 2), (10**9, 6)])
def test_a_narrow_line_fetches_fewer_shards_at_once(rate: int, at_once: int) -> None:
    assert WeightsConfig(bytes_per_s=rate).transfers_at_once == at_once
    with pytest.raises(ConfigError, match="the least is 50000"):
        WeightsConfig(bytes_per_s=49_999)


@pytest.mark.parametrize(
    ("coordinator", "is_set", "fetches"),
    [
        ("http://127.0.0.1:8440", False, True),
        ("http://localhost:8440", False, True),
        ("https://[fd00::1]:8440", False, True),
        ("http://192.168.1.2:8440/here", False, True),
        ("http://8.8.8.8:8440", False, False),
        ("https://swarm.example:443", False, False),
        ("https://swarm.example:443", True, True),
        ("", False, False),
    ],
)
def test_private_addresses_are_dialled_only_where_the_coordinators_is_one(
    coordinator: str, is_set: bool, fetches: bool
) -> None:
    config = NodeConfig(folder=Path("/tmp"), coordinator=coordinator, weights=WeightsConfig(allow_private=is_set))
    assert config.allows_private_addresses is fetches


async def test_the_door_opens_only_with_the_token(tmp_path: Path) -> None:
    stopped: list[dict[str, str]] = []

    def stop(given: dict[str, str]) -> str:
        stopped.append(given)
        return "stopping"

    door = LocalServer(lambda: {"state": "joining"}, {"stop": stop}, PageConfig())
    url = await door.start()
    try:
        async with aiohttp.ClientSession() as session:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": ""}):
                async with session.get(f"{url}/status", headers=headers) as response:
                    assert response.status == 403
                async with session.post(f"{url}/stop", headers=headers) as response:
                    assert response.status == 403
            assert stopped == []
            right = {"Authorization": f"Bearer {door.token}"}
            async with session.get(f"{url}/status", headers=right) as response:
                assert await response.json() == {"state": "joining"}
            for body in (b"[1]", b"{", b'{"gpu": 1}'):
                async with session.post(f"{url}/stop", headers=right, data=body) as response:
                    assert response.status == 400
            async with session.post(f"{url}/stop", headers=right, json={"gpu": "0"}) as response:
                assert await response.json() == {"text": "stopping"}
            assert stopped == [{"gpu": "0"}]
    finally:
        await door.close()


def test_the_lock_tells_of_a_running_node_only(tmp_path: Path) -> None:
    with lock_folder(tmp_path) as lock:
        lock.write_url("http://127.0.0.1:1", token="t")
        assert read_lock(tmp_path)["token"] == "t"
    assert read_lock(tmp_path) == {}
    NodeFolder(tmp_path).lock.write_text('{"pid": 1, "url": "http://127.0.0.1:1"}')
    assert read_lock(tmp_path) == {}, "left behind by a process that is gone"
