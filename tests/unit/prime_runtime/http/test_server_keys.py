"""A client follows its server's key only along rotations that the keys before have signed."""

import pytest

from prime_protocol.errors import LocalError
from prime_runtime.clock import SystemClock
from prime_runtime.http import server_keys
from prime_runtime.http.server_keys import SERVERS_MAX, ServerKeys
from support.ledger_network import NETWORK, World
from support.rotated_log import RotatedLog

PINNED, NEXT, STRANGER = (World().id(name) for name in ("coordinator", "next", "stranger"))


def rotated_log() -> RotatedLog:
    log = RotatedLog.begun(2)
    log.rotate_coordinator("next")
    return log


class Server:
    """Serves a list of keys, and counts how often it is asked."""

    def __init__(self, raw: bytes | None) -> None:
        self.raw = raw
        self.asked = 0

    async def fetch(self) -> bytes | None:
        self.asked += 1
        return self.raw


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> ServerKeys:
    monkeypatch.setattr(server_keys, "FOLLOW_PAUSE_MS", 0)
    return ServerKeys(NETWORK, SystemClock())


async def test_a_rotated_key_is_followed_and_its_predecessor_is_refused_from_then_on(keys: ServerKeys) -> None:
    told: list[int] = []
    keys.on_rotation = lambda: told.append(1)
    server = Server(rotated_log().key_file.encode())
    assert keys.get_key(PINNED) == PINNED
    assert await keys.follow(PINNED, NEXT, server.fetch)
    assert (keys.get_key(PINNED), told) == (NEXT, [1])
    assert await keys.follow(PINNED, NEXT, server.fetch), "another request has asked meanwhile"
    assert not await keys.follow(PINNED, PINNED, Server(RotatedLog.begun().key_file.encode()).fetch)
    assert (keys.get_key(PINNED), server.asked) == (NEXT, 1)


@pytest.mark.parametrize(
    "raw", [None, b"no list", RotatedLog.begun().key_file.encode(), rotated_log().key_file.encode()]
)
async def test_a_stranger_is_not_followed(keys: ServerKeys, raw: bytes | None) -> None:
    assert not await keys.follow(PINNED, STRANGER, Server(raw).fetch)
    assert keys.get_key(PINNED) == PINNED


async def test_the_chain_of_another_log_is_not_followed(keys: ServerKeys) -> None:
    log = RotatedLog()
    log.coordinator_name = "stranger"
    log.create_network()
    assert not await keys.follow(PINNED, STRANGER, Server(log.key_file.encode()).fetch)


async def test_a_server_that_does_not_answer_is_asked_again_later(keys: ServerKeys) -> None:
    async def fail() -> bytes:
        raise LocalError("no answer")

    assert not await keys.follow(PINNED, NEXT, fail)
    assert await keys.follow(PINNED, NEXT, Server(rotated_log().key_file.encode()).fetch)


async def test_replies_of_strangers_cause_few_requests() -> None:
    keys, server = ServerKeys(NETWORK, SystemClock()), Server(None)
    for _ in range(5):
        assert not await keys.follow(PINNED, STRANGER, server.fetch)
    assert server.asked == 1


def test_a_bounded_number_of_servers_is_remembered() -> None:
    keys = ServerKeys(NETWORK, SystemClock())
    chain = rotated_log().chain
    for number in range(SERVERS_MAX + 1):
        keys.set_chain(World().id(f"server {number}"), chain)
    assert keys.get_key(World().id("server 0")) == World().id("server 0")
    assert keys.get_key(World().id(f"server {SERVERS_MAX}")) == NEXT
