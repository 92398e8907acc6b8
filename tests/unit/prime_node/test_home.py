"""A node's folder: made at the first start, guarded, and enough to start from without flags the next time."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from prime_node.config import NodeConfig, NodeRole, resolve_node_config
from prime_node.home import Home, keep_config, keep_trainer, locked, open_key, read_lock, read_trainer
from prime_node.life import check_role
from prime_node.local_server import LocalServer
from prime_protocol.errors import LocalError
from prime_protocol.ids import NodeId
from prime_runtime.secret import Secret
from prime_runtime.settings import ConfigError

GIVEN = {"coordinator": "http://c:8440", "coordinator_id": "0x" + "11" * 20, "run": "demo"}


def config_of(folder: Path, **changes: Any) -> NodeConfig:
    return NodeConfig(folder=folder, **GIVEN | {"password": Secret("long enough")} | changes)


def test_a_key_is_drawn_once_and_found_again(tmp_path: Path) -> None:
    key, is_new = open_key(config_of(tmp_path))
    assert is_new
    assert Home(tmp_path).key.stat().st_mode & 0o077 == 0
    again, is_new = open_key(config_of(tmp_path))
    assert (again.node, is_new) == (key.node, False)
    with pytest.raises(LocalError):
        open_key(config_of(tmp_path, password=Secret("another one")))


def test_no_key_is_drawn_without_a_password_that_guards_it(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"has no key yet.*PRIME_PASSWORD"):
        open_key(config_of(tmp_path, password=None))
    assert not Home(tmp_path).key.exists()


def test_what_was_given_at_the_first_start_is_enough_for_the_second(tmp_path: Path) -> None:
    config = config_of(tmp_path, role=NodeRole.RELAY, announce=("http://relay.example:0",), network="testnet")
    assert keep_config(config)
    assert not keep_config(config), "the owner's file is never replaced"
    assert "long enough" not in Home(tmp_path).config.read_text()
    found = resolve_node_config(tmp_path, {}, {"PRIME_PASSWORD": "long enough"}).config
    assert found == config


def test_the_runs_trainer_is_remembered_and_damage_is_as_good_as_nothing(tmp_path: Path) -> None:
    trainer = NodeId(b"\x01" * 20)
    assert read_trainer(tmp_path) is None
    keep_trainer(tmp_path, trainer)
    assert read_trainer(tmp_path) == trainer
    for damage in ("", "[]", "{}", '{"trainer": 5}', '{"trainer": "0x"}'):
        Home(tmp_path).run.write_text(damage)
        assert read_trainer(tmp_path) is None


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"run": "No Run"}, "run must be"),
        ({"network": ""}, "network must be"),
        ({"coordinator_id": "0x1"}, "coordinator_id must be"),
        ({"log_key": "x"}, "log_key must be"),
        ({"announce": ("http://a",)}, "announce"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem):
        config_of(tmp_path, **changes)


def test_a_role_that_needs_an_engine_says_so(tmp_path: Path) -> None:
    check_role(config_of(tmp_path, role=NodeRole.RELAY))
    for role in (NodeRole.WORKER, NodeRole.VALIDATOR):
        with pytest.raises(LocalError, match="engines are not built yet"):
            check_role(config_of(tmp_path, role=role))


async def test_the_door_opens_only_with_the_token(tmp_path: Path) -> None:
    stopped: list[bool] = []
    door = LocalServer(lambda: {"state": "joining"}, lambda: stopped.append(True))
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
            async with session.post(f"{url}/stop", headers=right) as response:
                assert response.status == 200
            assert stopped == [True]
    finally:
        await door.close()


def test_the_lock_tells_of_a_running_node_only(tmp_path: Path) -> None:
    with locked(tmp_path) as lock:
        lock.note_url("http://127.0.0.1:1", token="t")
        assert read_lock(tmp_path)["token"] == "t"
    assert read_lock(tmp_path) == {}
    Home(tmp_path).lock.write_text('{"pid": 1, "url": "http://127.0.0.1:1"}')
    assert read_lock(tmp_path) == {}, "left behind by a process that is gone"
