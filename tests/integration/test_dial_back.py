"""Nodes test for each other whether their ports are open; lying answers change nothing. Real sockets."""

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
        self.ahead_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.ahead_ms


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as found:
        yield found


async def start_server(
    stack: AsyncExitStack, name: str, answer: Answer | None = None, *, allow_private: bool = True
) -> ServerAddress:
    key = make_key(name)
    http = HttpServer(key, NETWORK, clock=CLOCK, limits=UNLIMITED)
    if answer is None:
        DialBackServer(CLOCK, allow_private=allow_private).add_to(http)
    else:
        http.add(DIAL_BACK, answer)
    port = await http.start(ListenConfig())
    stack.push_async_callback(http.stop)
    return ServerAddress(f"http://127.0.0.1:{port}", key.node)


async def start_client(stack: AsyncExitStack, name: str = "node") -> HttpClient:
    limits = ClientLimits(attempts_max=1)
    return await stack.enter_async_context(open_client(key=make_key(name), network=NETWORK, clock=CLOCK, limits=limits))


async def judge(
    stack: AsyncExitStack, servers: list[ServerAddress], url: str = "", *, turns: int = 20, allow_private: bool = True
) -> DialBackClient:
    """What a node comes to believe about its port, which is open unless another URL is given. `turns`: how often it
    asks at most."""
    first, *others = servers
    asked: dict[NodeId, tuple[str, ...]] = {each.node: (each.url,) for each in others}
    node_http = HttpServer(make_key("node"), NETWORK, clock=CLOCK, limits=UNLIMITED)
    own = url or "http://127.0.0.1:{port}"
    found = ""
    hurry = Hurry()

    dial_back = DialBackClient(
        await start_client(stack),
        node_http,
        first,
        clock=hurry,
        rng=random.Random(1),
        allow_private=allow_private,
        trusted_proxies=(),
        list_servers=lambda: asked,
        get_url=lambda: found,
    )
    port = await node_http.start(ListenConfig())
    stack.push_async_callback(node_http.stop)
    found = own.format(port=port)
    for _ in range(turns):
        if dial_back.state is not Reachability.UNKNOWN or dial_back.false_claims == len(servers):
            break
        await dial_back.update()
        hurry.ahead_ms += ASK_FIRST_MS
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
    for url in ("http://127.0.0.2:80", "http://192.0.2.1:80"):
        with pytest.raises(CallRefused, match="not at the address from which you ask"):
            await client.call(server, DIAL_BACK, DialBack(url=url, proof=proof))
    lost = DialBack(url="http://example.invalid:80", proof=proof)
    assert not (await client.call(server, DIAL_BACK, lost)).message.is_reached
    with pytest.raises(RemoteError):
        DialBack(url="ftp://127.0.0.1:80", proof=proof)


async def test_a_connection_from_the_own_network_proves_nothing_and_accuses_nobody(stack: AsyncExitStack) -> None:
    dial_back = await judge(stack, [await start_server(stack, "honest")], turns=3, allow_private=False)
    assert (dial_back.state, dial_back.false_claims) == (Reachability.UNKNOWN, 0)


async def test_a_server_on_the_internet_connects_to_no_private_address_for_a_caller(stack: AsyncExitStack) -> None:
    server, client = await start_server(stack, "server", allow_private=False), await start_client(stack)
    question = DialBack(url=server.url, proof=Digest(sha256(b"x" * 32).digest()))
    with pytest.raises(CallRefused, match="private"):
        await client.call(server, DIAL_BACK, question)


async def test_a_server_that_cannot_test_the_address_has_no_vote(stack: AsyncExitStack) -> None:
    servers = [await start_server(stack, f"server {number}") for number in range(2)]
    dial_back = await judge(stack, servers, url="http://127.0.0.2:80", turns=6)
    assert (dial_back.state, dial_back.false_claims) == (Reachability.UNKNOWN, 0)


async def test_another_program_at_the_address_is_not_this_node_and_asking_is_limited(stack: AsyncExitStack) -> None:
    server, client = await start_server(stack, "server"), await start_client(stack)
    question = DialBack(url=server.url, proof=Digest(sha256(b"x" * 32).digest()))
    reply = (await client.call(server, DIAL_BACK, question)).message
    assert (reply.is_reached, reply.problem) == (False, "another program answers there")
    with pytest.raises(CallRefused, match="too often"):
        for _ in range(5):
            await client.call(server, DIAL_BACK, question)
