"""The asking half of HTTP: what a hostile server can say, and what comes of it."""

import asyncio
import time

import pytest

from prime_node.weights.connection import ConnectionBroken, ResponseHead, choose_address, open_connection, parse_head
from prime_node.weights.fetcher import ShardWriter, make_memory_writer
from prime_protocol.errors import RemoteError
from prime_protocol.weights.manifest import compute_blake3
from prime_protocol.wire.addresses import ServerUrl
from prime_runtime.rate_limits import BandwidthLimit

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


async def ask(
    reply: bytes, *, target: ShardWriter | None = None, close: bool = True, pace: BandwidthLimit | None = None
) -> tuple[int, bytes]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        if close:
            writer.close()
        else:
            await reader.read()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        url = ServerUrl(scheme="http", host="127.0.0.1", port=port)
        link = await open_connection(url, allow_private=True, limit=pace)
        try:
            async with asyncio.timeout(5):
                answer = await link.get("/x", {}, target=target)
            return answer.status, answer.body
        finally:
            link.close()


async def test_a_body_goes_to_its_place() -> None:
    place = bytearray(5)
    landing = make_memory_writer(place)
    assert await ask(OK, target=landing) == (200, b"")
    assert place == b"hello"
    assert landing.digest == compute_blake3(b"hello")


async def test_a_full_disk_ends_the_request_and_is_not_the_servers_fault() -> None:
    def keep(position: int, piece: memoryview) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        await ask(OK, target=ShardWriter(5, keep))


async def test_an_owners_pace_is_kept_and_every_byte_still_comes() -> None:
    body = bytes(range(256)) * 400
    place, pace = bytearray(len(body)), BandwidthLimit(400_000)
    began = time.monotonic()
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    assert await ask(reply, target=make_memory_writer(place), pace=pace) == (200, b"")
    assert place == body
    assert pace.take(0, time.monotonic_ns() // 1_000_000) <= 100, "what is owed is less than one piece"
    assert time.monotonic() - began > 0.05, (
        "102,400 bytes take a quarter of a second, less the burst and the last piece"
    )


async def test_other_answers_are_given_as_they_are() -> None:
    reply = b"HTTP/1.1 503 Full\r\ncontent-length:2\r\nRetry-After: 1\r\n\r\nno"
    assert await ask(reply, target=make_memory_writer(bytearray(5))) == (503, b"no")


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, world",
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 404 No\r\nContent-Length: 99999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"x" * 20_000,
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 4000,
    ],
)
async def test_nonsense_breaks_the_link_and_nothing_else(reply: bytes) -> None:
    with pytest.raises(ConnectionBroken):
        await ask(reply, target=make_memory_writer(bytearray(5)))


async def test_unrequested_bytes_close_the_connection() -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await writer.drain()
        await reader.read()
        done.set_result(None)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = ServerUrl(scheme="http", host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        link = await open_connection(url, allow_private=True)
        async with asyncio.timeout(5):
            await done
        assert not link.is_idle
        with pytest.raises(ConnectionBroken):
            await link.get("/x", {})


async def test_a_cancelled_request_receives_not_a_byte_more() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000)
        await writer.drain()
        await reader.read()
        writer.close()

    got = asyncio.Event()
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = ServerUrl(scheme="http", host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        link = await open_connection(url, allow_private=True)
        place = make_memory_writer(bytearray(1_000_000))
        task = asyncio.create_task(link.get("/x", {}, target=place, on_bytes=lambda count: got.set()))
        async with asyncio.timeout(5):
            await got.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not link.is_idle
        with pytest.raises(ConnectionBroken):
            await link.get("/x", {})


async def test_a_server_that_does_not_exist_is_reported() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    with pytest.raises(ConnectionBroken, match="cannot connect"):
        await open_connection(ServerUrl(scheme="http", host="127.0.0.1", port=port), allow_private=True)


async def test_strangers_cannot_send_us_into_our_own_network() -> None:
    with pytest.raises(ConnectionBroken, match="private network"):
        await open_connection(ServerUrl(scheme="http", host="127.0.0.1", port=80), allow_private=False)
    for address in ("10.0.0.1", "192.168.1.1", "::1", "fe80::1%eth0", "100.64.0.1"):
        with pytest.raises(RemoteError):
            choose_address([address], allow_private=False)
    assert choose_address(["10.0.0.1", "8.8.8.8"], allow_private=False) == "8.8.8.8"
    assert choose_address(["10.0.0.1"], allow_private=True) == "10.0.0.1"


def test_a_head_says_status_length_and_whether_more_may_follow() -> None:
    assert parse_head(b"HTTP/1.1 206\r\nContent-Length: 7\r\nConnection: Close") == ResponseHead(206, 7, True)
