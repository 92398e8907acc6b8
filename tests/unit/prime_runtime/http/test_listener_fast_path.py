"""What the express lane takes for a plain request: one form of each line, whole, and nothing behind it."""

import asyncio

import pytest

from prime_protocol.wire.codec import decode
from prime_protocol.wire.envelope import open_envelope
from prime_protocol.wire.rpc import open_reply
from prime_runtime.http.client import Unreachable
from prime_runtime.http.config import ServerAddress
from prime_runtime.http.listener import HEAD_BYTES_MAX, IS_AIOHTTP_SUPPORTED, parse_plain_request
from prime_runtime.http.server import Caller
from support.processes.signed_http import (
    DOUBLE,
    LANES,
    NETWORK,
    SERVER_KEY,
    Ask,
    Told,
    client_of,
    running_server,
    sealed,
)

HEAD = b"POST /api/double HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
STRANGE = [
    b"",
    b"POST",
    HEAD[:-2],
    HEAD,
    HEAD + b"bod",
    HEAD + b"body!",
    HEAD + b"body" + HEAD + b"body",
    b"\r\n" + HEAD + b"body",
    HEAD.replace(b"POST", b"GET") + b"body",
    HEAD.replace(b"POST", b"post") + b"body",
    HEAD.replace(b"/api/double", b"/api/../double") + b"body",
    HEAD.replace(b"/api/double", b"/api/double?x=1") + b"body",
    HEAD.replace(b"/api/double", b"/log/checkpoint") + b"body",
    HEAD.replace(b"1.1", b"1.0") + b"body",
    HEAD.replace(b"HTTP", b" HTTP") + b"body",
    HEAD.replace(b"\r\n", b"\n") + b"body",
    HEAD.replace(b"Host: x\r\n", b"") + b"body",
    HEAD.replace(b"Host: x", b"Host: x\r\nHost: y") + b"body",
    HEAD.replace(b"Host: x", b"Host : x") + b"body",
    HEAD.replace(b"Host: x", b"Host: x\r\n folded") + b"body",
    HEAD.replace(b"Host: x", b"Host: \xff") + b"body",
    HEAD.replace(b"Length: 4", b"Length: 4\r\nContent-Length: 4") + b"body",
    HEAD.replace(b"Length: 4", b"Length: 04") + b"body",
    HEAD.replace(b"Length: 4", b"Length: +4") + b"body",
    HEAD.replace(b"Length: 4", b"Length: 4, 4") + b"body",
    HEAD.replace(b"Length: 4", b"Length: 4 ") + b"body",
    HEAD.replace(b"Length: 4", b"Length: ") + b"body",
    *(
        HEAD.replace(b"Host: x", b"Host: x\r\n" + line) + b"body"
        for line in (
            b"Transfer-Encoding: chunked",
            b"Connection: close",
            b"Expect: 100-continue",
            b"Upgrade: websocket",
            b"Content-Encoding: gzip",
            b"X-Forwarded-For: 1.2.3.4",
            b"Anything: else",
            b"no colon",
        )
    ),
    HEAD.replace(b"Host: x", b"Host: " + b"x" * HEAD_BYTES_MAX) + b"body",
]


def test_a_plain_request_is_read() -> None:
    assert parse_plain_request(HEAD + b"body") == ("/api/double", b"body")
    assert parse_plain_request(HEAD.replace(b"4", b"0")) == ("/api/double", b"")
    sent = HEAD.replace(b"Host: x", b"Host: x\r\nAccept: */*\r\nuser-agent: Python/3\r\nContent-Type: a/b")
    assert parse_plain_request(sent + b"body") == ("/api/double", b"body")


async def test_what_our_own_client_sends_is_plain() -> None:
    seen: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(65_536))
        writer.close()

    async with await asyncio.start_server(note, "127.0.0.1", 0) as listening, client_of(attempts_max=1) as client:
        port = listening.sockets[0].getsockname()[1]
        with pytest.raises(Unreachable):
            await client.call(ServerAddress(f"http://127.0.0.1:{port}", SERVER_KEY.node), DOUBLE, Ask(1))
    found = parse_plain_request(seen[0])
    assert found is not None
    assert found[0] == DOUBLE.path


@pytest.mark.parametrize("data", STRANGE)
def test_whatever_is_not_plain_is_left_to_the_usual_way(data: bytes) -> None:
    assert parse_plain_request(data) is None


def post(frame: bytes) -> bytes:
    return b"POST /api/double HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(frame), frame)


async def read_told(reader: asyncio.StreamReader, frame: bytes) -> int:
    """The number in the next response, which must answer this frame."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    request = open_envelope(frame, network=NETWORK).digest
    kind = DOUBLE.kind + ".reply"
    raw = await reader.readexactly(length)
    return decode(Told, open_reply(raw, kind=kind, request=request, server=SERVER_KEY.node, network=NETWORK)).double


async def test_answers_at_once_and_later_leave_in_order_however_the_requests_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole, in pieces, two in one piece; every third is answered later. All of it on one connection."""
    monkeypatch.setitem(LANES, "express", True)
    done: list[int] = []

    def handle(caller: Caller, message: Ask) -> Told | asyncio.Future[Told]:
        done.append(message.number)
        return later(message) if message.number % 3 == 0 else Told(2 * message.number)  # type: ignore[return-value]

    async def later(message: Ask) -> Told:
        await asyncio.sleep(0)
        return Told(2 * message.number)

    frames = [sealed(number, sequence=number + 1) for number in range(24)]
    async with running_server(handlers={DOUBLE: handle}) as (_, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        for number in range(12):  # the lane
            writer.write(post(frames[number]))
            assert await read_told(reader, frames[number]) == 2 * number
        for number in range(12, 18, 2):  # two at once, and the usual way from here on
            writer.write(post(frames[number]) + post(frames[number + 1]))
            assert await read_told(reader, frames[number]) == 2 * number
            assert await read_told(reader, frames[number + 1]) == 2 * number + 2
        for number in range(18, 24):
            whole = post(frames[number])
            for piece in (whole[:30], whole[30:80], whole[80:]):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.001)
            assert await read_told(reader, frames[number]) == 2 * number
        writer.close()
    assert done == list(range(24))


async def test_a_connection_on_the_lane_is_closed_when_nothing_comes_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LANES, "express", True)
    async with running_server(idle_ms=200) as (_, server):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        frame = sealed(1)
        writer.write(post(frame))
        assert await read_told(reader, frame) == 2
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()


def test_the_library_is_the_one_the_lane_was_written_for() -> None:
    assert IS_AIOHTTP_SUPPORTED
