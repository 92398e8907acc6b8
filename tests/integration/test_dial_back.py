"""Nodes test for each other whether their ports are open; lying answers change nothing. Real sockets."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from hashlib import sha256

import pytest

from prime_lab.attacks.relay_attacks import NETWORK, UNLIMITED, make_key
from prime_node.reverse.dial_back import DialBackClient
from prime_node.reverse.reachability import ASK_FIRST_MS, Reachability
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.dial_back import DIAL_BACK, DialBack, DialBackReply
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.clock import SystemClock
from prime_runtime.http.client import CallRefused, HttpClient, open_client
from prime_runtime.http.config import ClientLimits, ListenConfig, ServerAddress
from prime_runtime.http.dial_back import DialBackServer
from prime_runtime.http.server import Caller, HttpServer

CLOCK = SystemClock()
Answer = Callable[[Caller, DialBack], DialBackReply]


class Hurry(SystemClock):
    """Asks without the pauses between questions."""

    def __init__(self) -> None:
        self._ahead_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self._ahead_ms

    async def sleep_ms(self, ms: int) -> None:
        self._ahead_ms += ASK_FIRST_MS
        await asyncio.sleep(0)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as found:
        yield found


async def start_server(stack: AsyncExitStack, name: str, answer: Answer | None = None) -> ServerAddress:
    key = make_key(name)
    http = HttpServer(key, NETWORK, clock=CLOCK, limits=UNLIMITED)
    if answer is None:
        DialBackServer(CLOCK).add_to(http)
    else:
        http.add(DIAL_BACK, answer)
    port = await http.start(ListenConfig())
    stack.push_async_callback(http.stop)
    return ServerAddress(f"http://127.0.0.1:{port}", key.node)


async def start_client(stack: AsyncExitStack, name: str = "node") -> HttpClient:
    limits = ClientLimits(attempts_max=1)
    return await stack.enter_async_context(open_client(key=make_key(name), network=NETWORK, clock=CLOCK, limits=limits))


async def judge(stack: AsyncExitStack, servers: list[ServerAddress], url: str = "") -> DialBackClient:
    """What a node comes to believe about its port, which is open unless another URL is given."""
    first, *others = servers
    asked: dict[NodeId, tuple[str, ...]] = {each.node: (each.url,) for each in others}
    node_http = HttpServer(make_key("node"), NETWORK, clock=CLOCK, limits=UNLIMITED)
    own = url or "http://127.0.0.1:{port}"
    found = ""

    dial_back = DialBackClient(
        await start_client(stack),
        node_http,
        first,
        clock=Hurry(),
        rng=random.Random(1),
        allow_private=True,
        trusted_proxies=(),
        list_servers=lambda: asked,
        get_url=lambda: found,
    )
    port = await node_http.start(ListenConfig())
    stack.push_async_callback(node_http.stop)
    found = own.format(port=port)
    task = asyncio.create_task(dial_back.run())
    async with asyncio.timeout(20):
        while dial_back.state is Reachability.UNKNOWN and dial_back.false_claims < len(servers):
            await asyncio.sleep(0.01)
    task.cancel()
    return dial_back


def say_reached(caller: Caller, message: DialBack) -> DialBackReply:
    return DialBackReply(address=caller.address, is_reached=True, problem="")


def say_closed(caller: Caller, message: DialBack) -> DialBackReply:
    return DialBackReply(address=caller.address, is_reached=False, problem="a lie")


async def test_an_open_port_is_found_open_and_a_closed_one_closed(stack: AsyncExitStack) -> None:
    servers = [await start_server(stack, f"server {number}") for number in range(2)]
    assert (await judge(stack, servers)).state is Reachability.OPEN
    closed = await judge(stack, servers, url="http://127.0.0.1:1")
    assert closed.state is Reachability.CLOSED
    assert "no connection" in closed.problem


async def test_servers_that_claim_a_connection_are_found_out(stack: AsyncExitStack) -> None:
    liars = [await start_server(stack, f"liar {number}", say_reached) for number in range(3)]
    dial_back = await judge(stack, liars, url="http://127.0.0.1:1")
    assert (dial_back.state, dial_back.false_claims) == (Reachability.UNKNOWN, 3)


async def test_one_honest_server_is_enough_against_those_that_deny_a_connection(stack: AsyncExitStack) -> None:
    servers = [await start_server(stack, "honest")]
    servers += [await start_server(stack, f"liar {number}", say_closed) for number in range(1)]
    assert (await judge(stack, servers)).state is Reachability.OPEN


async def test_a_server_connects_to_nobody_but_its_caller(stack: AsyncExitStack) -> None:
    server, client = await start_server(stack, "server"), await start_client(stack)
    proof = Digest(sha256(b"x" * 32).digest())
    for url in ("http://127.0.0.2:80", "http://192.0.2.1:80", "http://example.invalid:80"):
        reply = (await client.call(server, DIAL_BACK, DialBack(url=url, proof=proof))).message
        assert not reply.is_reached
    with pytest.raises(RemoteError):
        DialBack(url="ftp://127.0.0.1:80", proof=proof)


async def test_another_program_at_the_address_is_not_this_node_and_asking_is_limited(stack: AsyncExitStack) -> None:
    server, client = await start_server(stack, "server"), await start_client(stack)
    question = DialBack(url=server.url, proof=Digest(sha256(b"x" * 32).digest()))
    reply = (await client.call(server, DIAL_BACK, question)).message
    assert (reply.is_reached, reply.problem) == (False, "another program answers there")
    with pytest.raises(CallRefused, match="too often"):
        for _ in range(5):
            await client.call(server, DIAL_BACK, question)
