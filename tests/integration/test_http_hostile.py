"""Strangers who do not keep to the protocol: each is refused by name, and the server goes on answering others."""

import asyncio
import gzip
from hashlib import sha256
from typing import Any

import aiohttp
import pytest

from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.envelope import open_envelope
from prime_protocol.wire.ids import Digest, NetworkId
from prime_protocol.wire.rpc import Refusal, RefusalCode, open_reply
from prime_runtime.http.config import ServerAddress
from prime_runtime.http.messages import ENVELOPE_TYPE, REFUSAL_TYPE
from support.processes.signed_http import (
    DOUBLE,
    LANES,
    NETWORK,
    NODE_KEY,
    SERVER_KEY,
    SPEND,
    START_MS,
    Ask,
    TestClock,
    Told,
    client_of,
    running_server,
    sealed,
    send_raw,
)


async def post(server: ServerAddress, body: Any, path: str = DOUBLE.path, **headers: str) -> tuple[int, Refusal | None]:
    """Status and refusal; a signed refusal is checked against the request's bytes."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.url + path, data=body, headers=headers) as response,
    ):
        raw = await response.read()
        if response.content_type == REFUSAL_TYPE:
            return response.status, decode(Refusal, raw)
        if response.content_type != ENVELOPE_TYPE or response.status == 200:
            return response.status, None
        kind, request = path.removeprefix("/api/") + ".refusal", Digest(sha256(body).digest())
        return response.status, decode(
            Refusal, open_reply(raw, kind=kind, request=request, server=SERVER_KEY.node, network=NETWORK)
        )


@pytest.fixture(params=[False, True], ids=["usual", "express"], autouse=True)
def lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LANES, "express", request.param)


async def assert_alive(server: ServerAddress) -> None:
    async with client_of() as client:
        assert (await client.call(server, DOUBLE, Ask(4))).message == Told(8)


HONEST = sealed()
FORGED = HONEST[:5] + bytes([HONEST[5] ^ 1]) + HONEST[6:]


@pytest.mark.parametrize(
    ("frame", "status", "code", "field"),
    [
        (b"", 400, "malformed", "envelope"),
        (b"\xff" * 500, 400, "malformed", "Payload"),
        (b"GET / HTTP/1.1\r\n\r\n" * 10, 400, "malformed", "Payload"),
        (HONEST + b"\x00", 400, "malformed", "Payload"),
        (HONEST[:-1], 400, "malformed", "Payload"),
        (FORGED, 401, "unauthentic", ""),
        (b"\x00" * 65 + HONEST[65:], 401, "unauthentic", "signature"),
        (sealed(network=NetworkId("mainnet")), 401, "unauthentic", "Payload.network"),
        (sealed(issued_at_ms=START_MS - 100_000), 401, "clock", "Payload.expires_at_ms"),
        (sealed(issued_at_ms=START_MS + 100_000), 401, "clock", "Payload.issued_at_ms"),
        (sealed(issued_at_ms=START_MS - 10), 503, "restarted", "Payload.issued_at_ms"),
        (sealed(kind="spend"), 400, "malformed", "Payload.kind"),
        (sealed(kind="double.reply"), 400, "malformed", "Payload.kind"),
        (sealed(body=b""), 400, "malformed", "Ask"),
        (sealed(body=encode(Told(1))), 400, "malformed", "Ask.double"),
    ],
)
async def test_a_bad_envelope_is_refused_by_name(frame: bytes, status: int, code: str, field: str) -> None:
    async with running_server() as (_, server):
        got, refusal = await post(server, frame)
        assert refusal is not None
        assert (got, refusal.code) == (status, code)
        assert refusal.field.startswith(field)
        assert refusal.now_ms == START_MS
        await assert_alive(server)


async def test_a_captured_request_works_once_and_on_one_route_only() -> None:
    async with running_server() as (_, server):
        assert (await post(server, HONEST, SPEND.path))[0] == 400
        assert (await post(server, HONEST))[0] == 200
        status, refusal = await post(server, HONEST)
        assert refusal is not None
        assert (status, refusal.code, refusal.field) == (409, RefusalCode.REPLAYED, "Payload.sequence")
        # Fifty copies at once are no different from one after the other.
        copies = [sealed(sequence=9)] * 50
        statuses = [got for got, _ in await asyncio.gather(*(post(server, copy) for copy in copies))]
        assert statuses.count(200) == 1
        assert set(statuses) <= {200, 409, 503}


async def test_a_restart_opens_no_gap_for_replays() -> None:
    clock = TestClock(START_MS + 1000)
    async with running_server(clock=clock) as (_, server):
        status, refusal = await post(server, HONEST)
        assert refusal is not None
        assert (status, refusal.code) == (503, RefusalCode.RESTARTED)


async def test_a_sender_with_too_many_live_envelopes_is_slowed_down() -> None:
    from prime_protocol.constants import REPLAY_SENDER_ENTRIES_MAX

    async with running_server(sender_burst=10_000, address_burst=10_000) as (made, server):
        for sequence in range(REPLAY_SENDER_ENTRIES_MAX):
            made._guard.admit(open_envelope(sealed(sequence=sequence), network=NETWORK).payload, START_MS)
        status, refusal = await post(server, sealed(sequence=10**9))
        assert refusal is not None
        assert (status, refusal.code, refusal.retry_after_ms) == (429, RefusalCode.RATE_LIMITED, 10_000)


async def test_a_body_past_the_limit_is_refused_before_it_is_kept() -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b"x" * 1000

    async with running_server(body_bytes_max=2048) as (_, server):
        for body in (b"x" * 2049, endless()):
            status, refusal = await post(server, body)
            assert refusal is not None
            assert (status, refusal.code) == (413, RefusalCode.TOO_LARGE)
        await assert_alive(server)


async def test_a_length_that_lies_is_no_matter() -> None:
    async with running_server(read_ms=50) as (_, server):
        head = f"POST {DOUBLE.path} HTTP/1.1\r\nHost: x\r\nContent-Length: "
        assert b" 413 " in await send_raw(server, f"{head}{10**12}\r\n\r\n".encode())
        assert b" 408 " in await send_raw(server, f"{head}5000\r\n\r\nabc".encode())
        assert b" 400 " in await send_raw(server, f"{head}-5\r\n\r\n".encode())
        await assert_alive(server)


async def test_a_body_that_trickles_is_cut_off_and_frees_its_place() -> None:
    async with running_server(read_ms=50, requests_max=1) as (_, server):
        head = f"POST {DOUBLE.path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
        answer = await send_raw(server, head.encode() + b"slow")
        assert b" 408 " in answer
        assert b"did not arrive within 50 ms" in answer
        await assert_alive(server)


async def test_a_head_that_never_ends_is_cut_off() -> None:
    async with running_server(idle_ms=50) as (_, server):
        assert await send_raw(server, b"POST /api/double HTTP/1.1\r\nHost: x\r\nX-Slow: ") == b""
        assert await send_raw(server, b"") == b""
        await assert_alive(server)


async def test_connections_past_the_limit_are_dropped() -> None:
    async with running_server(connections_max=2) as (_, server):
        port = int(server.url.rpartition(":")[2])
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        # The server has taken both when it has answered on both.
        for reader, writer in held:
            writer.write(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 404")
        assert await send_raw(server, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") == b""
        for _, writer in held:
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
        b"\x00" * 10_000,
        b"POST /api/double HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
        b"POST /api/double HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        b"POST /api/double HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST /api/double HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"POST /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /api/double HTTP/9.9\r\n\r\n",
    ],
)
async def test_bytes_that_are_not_http_do_no_harm(data: bytes) -> None:
    async with running_server(idle_ms=100, read_ms=50) as (_, server):
        answer = await send_raw(server, data)
        assert b"Traceback" not in answer
        assert answer == b"" or b" 400 " in answer.splitlines()[0]
        await assert_alive(server)


async def test_a_body_that_breaks_off_frees_its_place_and_makes_no_noise(caplog: pytest.LogCaptureFixture) -> None:
    head = f"POST {DOUBLE.path} HTTP/1.1\r\nHost: x\r\n"
    # A broken chunk is not reported by the HTTP parser; the read deadline ends it.
    async with running_server(requests_max=1, read_ms=50) as (made, server):
        chunked = f"{head}Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".encode()
        port = int(server.url.rpartition(":")[2])
        for start, rest in [
            (chunked, b"ZZ\r\n"),
            (chunked, None),
            (f"{head}Content-Length: 9\r\n\r\nab".encode(), None),
        ]:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(start)
            while not len(made._gate):
                await asyncio.sleep(0)
            if rest:
                writer.write(rest)
            else:
                writer.transport.abort()
            while len(made._gate):
                await asyncio.sleep(0)
            writer.close()
        await assert_alive(server)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_compressed_body_is_not_unpacked() -> None:
    bomb = gzip.compress(b"\x00" * 10_000_000)
    async with running_server() as (_, server):
        status, refusal = await post(server, bomb, **{"Content-Encoding": "gzip"})
        assert refusal is not None
        assert status == 400
        await assert_alive(server)


async def test_other_methods_and_paths_are_not_served() -> None:
    async with running_server() as (_, server), aiohttp.ClientSession() as session:
        for method, path, status in [("GET", DOUBLE.path, 405), ("PUT", DOUBLE.path, 405), ("POST", "/api/none", 404)]:
            async with session.request(method, server.url + path, data=HONEST) as response:
                assert response.status == status


async def test_a_caller_who_hangs_up_does_not_stop_the_handler_or_the_server() -> None:
    inside, done = asyncio.Event(), asyncio.Event()

    async def slow(caller: Any, message: Ask) -> Told:
        if message.number == 4:
            return Told(8)
        inside.set()
        await asyncio.sleep(0)
        done.set()
        return Told(0)

    async with running_server(handlers={DOUBLE: slow}) as (_, server):
        frame = sealed(5)
        head = f"POST {DOUBLE.path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(frame)}\r\n\r\n".encode()
        _, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        writer.write(head + frame)
        await inside.wait()
        writer.transport.abort()
        await done.wait()
        await assert_alive(server)


def test_the_frame_under_test_is_honest() -> None:
    assert open_envelope(HONEST, network=NETWORK).payload.sender == NODE_KEY.node
