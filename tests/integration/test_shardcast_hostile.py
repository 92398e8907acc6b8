"""A shard server among strangers: whatever they send, honest children are served, and nothing but shards leaves it."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prime_lab.attacks.relay_attacks import TRAINER, UNLIMITED, ShardHost, write_checkpoint
from prime_node.weights.fetcher import open_file_writer
from prime_protocol.weights.manifest import SignedManifest
from prime_protocol.weights.transfer import ShardAvailability, ShardServerFull
from prime_protocol.wire.codec import decode
from prime_runtime.http.config import ServerLimits
from prime_runtime.shardcast import server as sending
from prime_runtime.shardcast.upload_slots import SLOTS, UploadLimits
from support.shard_hosts import announce, make_tensors, obtain_all, read_checkpoint


@pytest.fixture
async def origin(tmp_path: Path) -> AsyncIterator[ShardHost]:
    host = ShardHost(tmp_path, "origin", key=TRAINER)
    await host.start()
    yield host
    await host.stop()


@pytest.fixture
def signed(origin: ShardHost, tmp_path: Path) -> SignedManifest:
    (tmp_path / "secret.txt").write_text("the operator's secret")
    return origin.publish(write_checkpoint(tmp_path / "step0", make_tensors(1)), 0)[0]


async def connect(host: ShardHost, source: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(host.url.rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))


async def send_raw(host: ShardHost, raw: bytes) -> bytes:
    reader, writer = await connect(host)
    writer.write(raw)
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def get(host: ShardHost, path: str, *headers: str) -> tuple[int, bytes, bytes]:
    lines = [f"GET {path} HTTP/1.1", "Host: x", "Connection: close", *headers, "", ""]
    raw = await send_raw(host, "\r\n".join(lines).encode())
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), head, body


async def fetch_once(origin: ShardHost, signed: SignedManifest, folder: Path, name: str) -> float:
    """An honest node takes everything from the origin; how long that took."""
    node = ShardHost(folder, name)
    node.fetcher.handle_gossip(announce(origin, signed))
    node.fetcher.handle_gossip(origin.record(signed))
    began = time.monotonic()
    await obtain_all([node], signed)
    took_s = time.monotonic() - began
    assert read_checkpoint(node, signed) == read_checkpoint(origin, signed)
    await node.fetcher.close()
    return took_s


async def test_only_shards_of_known_manifests_can_be_reached(origin: ShardHost, signed: SignedManifest) -> None:
    shard, root = signed.manifest.shards[0].digest, str(signed.root)
    hex_name = signed.digest.hex()
    paths = [
        "/shards/../../secret.txt",
        "/shards/..%2f..%2fsecret.txt",
        "/shards/%2e%2e/%2e%2e/secret.txt",
        "/shards//etc/passwd",
        f"/shards/{shard}/../../../secret.txt",
        f"/shards/{shard.hex()}",
        f"/shards/{str(shard).upper()}",
        f"/shards/0x{'0' * 64}",
        f"/shards/{root}",
        f"/shards/{shard}%00",
        "/shards/",
        f"/manifests/{hex_name}",
        f"/manifests/../transport/{hex_name}/model.safetensors",
        f"/manifests/{shard}",
        f"/have/{shard}",
        "/have/.held",
        f"/transport/{hex_name}/model.safetensors",
        f"/checkpoints/{signed.root.hex()}/model.safetensors",
        "/",
    ]
    for path in paths:
        status, _, body = await get(origin, path)
        assert status == 404, path
        assert b"secret" not in body
    status, _, body = await get(origin, f"/shards/{shard}")
    assert (status, len(body)) == (200, signed.manifest.shards[0].length)
    for method in ("POST", "PUT", "DELETE"):
        raw = await send_raw(
            origin, f"{method} /shards/{shard} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        )
        assert b" 405 " in raw.split(b"\r\n")[0]


async def test_ranges_are_served_and_nonsense_ranges_refused(origin: ShardHost, signed: SignedManifest) -> None:
    entry = signed.manifest.shards[1]
    path = f"/shards/{entry.digest}"
    _, _, whole = await get(origin, path)
    for asked, first, last in [
        ("0-0", 0, 0),
        ("100-199", 100, 199),
        (f"10-{10**9}", 10, entry.length - 1),
        ("7-", 7, entry.length - 1),
    ]:
        status, head, body = await get(origin, path, f"Range: bytes={asked}")
        assert (status, body) == (206, whole[first : last + 1])
        assert f"bytes {first}-{last}/{entry.length}".encode() in head
    for asked in [
        "bytes=-5",
        "bytes=5-3",
        "bytes=0-1,3-4",
        f"bytes={entry.length}-",
        "bytes=99999999999999999999-",
        "x",
        "",
    ]:
        status, _, _ = await get(origin, path, f"Range: {asked}")
        assert status == 416, asked


async def test_bitmaps_and_manifests_are_told(origin: ShardHost, signed: SignedManifest) -> None:
    status, _, body = await get(origin, f"/have/{signed.digest}")
    have = decode(ShardAvailability, body)
    assert status == 200
    assert int.from_bytes(have.held, "little").bit_count() == len(signed.manifest.shards)
    assert (await get(origin, f"/manifests/{signed.digest}"))[2] == signed.frame


async def test_a_shard_that_never_comes_is_waited_for_only_so_long(
    tmp_path: Path, origin: ShardHost, signed: SignedManifest
) -> None:
    node = ShardHost(tmp_path, "node")
    await node.start()
    stock = node.store.add(signed)
    path = f"/shards/{signed.manifest.shards[0].digest}"
    assert (await get(node, path))[0] == 404
    stock.set_coming(1)
    began = time.monotonic()
    assert (await get(node, path, "Prime-Wait-Ms: 300"))[0] == 504
    assert 0.25 < time.monotonic() - began < 5
    waiting = asyncio.create_task(get(node, path, "Prime-Wait-Ms: 20000"))
    await asyncio.sleep(0)
    with open_file_writer(*stock.locate(0)) as landing:
        landing.take(origin.store.shard_sets[signed.digest].view(0))
    stock.mark_held(0)
    assert (await waiting)[2] == bytes(origin.store.shard_sets[signed.digest].view(0))
    await node.stop()


async def test_one_address_never_holds_every_slot_and_a_refusal_says_when_to_come_back(
    tmp_path: Path, origin: ShardHost, signed: SignedManifest
) -> None:
    origin.server.slots.__init__(UploadLimits(slots=4, address_slots=2, bytes_per_s=1000))  # type: ignore[misc]
    path = f"/shards/{signed.manifest.shards[1].digest}"
    held = []
    for _ in range(2):
        reader, writer = await connect(origin)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        held.append(writer)
    status, head, body = await get(origin, path)
    assert status == 503
    assert b"Retry-After" in head
    assert decode(ShardServerFull, body).retry_ms > 0
    assert origin.server.offer().slots_free == 2
    for writer in held:
        writer.transport.abort()


async def test_a_reader_that_does_not_read_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: ShardHost, signed: SignedManifest
) -> None:
    monkeypatch.setattr(sending, "PIECE_MS_MAX", 500)
    big = write_checkpoint(tmp_path / "step1", make_tensors(2, tensors=1, size=64 * 2**20))
    other = ShardHost(tmp_path, "big", key=TRAINER)
    await other.start()
    (large,) = other.publish(big, 0, shard_bytes=32 * 2**20)
    writers = []
    for _ in range(4):
        reader, writer = await connect(other)
        writer.write(f"GET /shards/{large.manifest.shards[1].digest} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        writers.append(writer)
    assert other.server.offer().slots_free == 4
    async with asyncio.timeout(20):
        while other.server.offer().slots_free < 8:
            await asyncio.sleep(0.05)
    for writer in writers:
        writer.transport.abort()
    await other.stop()


TRICKLE_BYTES, TRICKLE_S = 4_096, 0.1
"""About 40 kB/s for each reader: above what is cut off on an idle server."""


async def test_readers_that_trickle_from_three_addresses_do_not_shut_a_server_with_default_slots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = ShardHost(tmp_path, "big", key=TRAINER, uploads=UploadLimits())
    await host.start()
    big = write_checkpoint(tmp_path / "step0", make_tensors(2, tensors=1, size=64 * 2**20))
    (signed,) = host.publish(big, 0, shard_bytes=16 * 2**20)
    path, sources = f"/shards/{signed.manifest.shards[1].digest}", ("127.0.0.2", "127.0.0.3", "127.0.0.4")
    taken = {"uploads": 0, "bytes": 0}
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_take_slots(host, path, source, taken)) for source in sources]
        async with asyncio.timeout(20):
            while host.server.offer().slots_free:
                await asyncio.sleep(0.01)
        began, waited = time.monotonic(), []
        while taken["uploads"] < SLOTS + 4:
            waited.append(await _take_politely(host, f"/shards/{signed.manifest.shards[2].digest}"))
        took_s = time.monotonic() - began
        for task in tasks:
            task.cancel()
    with capsys.disabled():
        print(
            f"\nthree addresses held all slots, at {taken['bytes'] / took_s / SLOTS / 1000:.0f} kB/s each: "
            f"{len(waited)} shards of 16 MiB came in {took_s:.1f} s, the first after {waited[0]:.1f} s, the slowest "
            f"after {max(waited):.1f} s; they were cut off {taken['uploads'] - SLOTS} times"
        )
    assert max(waited) < 15
    await host.stop()


async def _take_politely(host: ShardHost, path: str) -> float:
    """Come back when told, until the shard is here; how long that took."""
    began = time.monotonic()
    async with asyncio.timeout(30):
        while (answer := await get(host, path))[0] != 200:
            await asyncio.sleep(decode(ShardServerFull, answer[2]).retry_ms / 1000)
    assert len(answer[2]) == 16 * 2**20
    return time.monotonic() - began


async def _take_slots(host: ShardHost, path: str, source: str, taken: dict[str, int]) -> None:
    """Ask without a pause, and take slowly whatever is given."""
    async with asyncio.TaskGroup() as group:
        while True:
            reader, writer = await connect(host, source)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            if b" 200 " in await reader.readline():
                taken["uploads"] += 1
                group.create_task(_trickle(reader, writer, taken))
            else:
                writer.transport.abort()
            await asyncio.sleep(0.02)


async def _trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, taken: dict[str, int]) -> None:
    try:
        while data := await reader.read(TRICKLE_BYTES):
            taken["bytes"] += len(data)
            await asyncio.sleep(TRICKLE_S)
    except ConnectionError:
        pass
    finally:
        writer.transport.abort()


async def test_honest_children_are_served_through_garbage_floods_and_slow_loris(
    tmp_path: Path, origin: ShardHost, signed: SignedManifest, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet_s = await fetch_once(origin, signed, tmp_path, "quiet")
    stop = asyncio.Event()
    sent = {"garbage": 0, "flood": 0, "loris": 0, "requests": 0}
    tasks = [
        asyncio.create_task(work)
        for work in (_throw_garbage(origin, stop, sent), _flood(origin, stop, sent), _hold_open(origin, stop, sent))
    ]
    shard = signed.manifest.shards[0].digest
    tasks += [asyncio.create_task(_ask_nonsense(origin, stop, sent, str(shard)))]
    loud = [await fetch_once(origin, signed, tmp_path, f"loud{number}") for number in range(5)]
    stop.set()
    await asyncio.gather(*tasks)
    with capsys.disabled():
        print(
            f"\nhonest fetch alone {quiet_s:.2f} s, under attack {min(loud):.2f} to {max(loud):.2f} s; attacks: {sent}"
        )
    assert all(count > 0 for count in sent.values())
    assert await fetch_once(origin, signed, tmp_path, "after") < 10


async def _throw_garbage(host: ShardHost, stop: asyncio.Event, sent: dict[str, int]) -> None:
    shapes = [
        os.urandom(2000),
        b"GET " + b"/" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
    ]
    shapes += [
        b"GET / HTTP/1.1\r\n" + b"A: " + b"b" * 50_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ]
    while not stop.is_set():
        reader, writer = await connect(host)
        writer.write(shapes[sent["garbage"] % len(shapes)])
        try:
            async with asyncio.timeout(2):
                await reader.read(1000)
        except (TimeoutError, ConnectionError):
            pass
        writer.transport.abort()
        sent["garbage"] += 1


async def _flood(host: ShardHost, stop: asyncio.Event, sent: dict[str, int]) -> None:
    while not stop.is_set():
        found = await asyncio.gather(*(connect(host) for _ in range(20)), return_exceptions=True)
        for each in found:
            if not isinstance(each, BaseException):
                each[1].transport.abort()
                sent["flood"] += 1
        await asyncio.sleep(0)


async def _hold_open(host: ShardHost, stop: asyncio.Event, sent: dict[str, int]) -> None:
    """Sockets that send a request a byte at a time and never end it."""
    held = []
    for _ in range(100):
        _, writer = await connect(host)
        writer.write(b"G")
        held.append(writer)
        sent["loris"] += 1
    for byte in b"ET /shards/0x" * 100:
        if stop.is_set():
            break
        for writer in held:
            if not writer.is_closing():
                writer.write(bytes([byte]))
        await asyncio.sleep(0.02)
    for writer in held:
        writer.transport.abort()


async def _ask_nonsense(host: ShardHost, stop: asyncio.Event, sent: dict[str, int], shard: str) -> None:
    paths = ["/shards/x", f"/shards/{shard}?a=b", "/have/../..", f"/have/{shard}?seen=999", f"/shards/{shard}"]
    while not stop.is_set():
        await get(host, paths[sent["requests"] % len(paths)], "Range: bytes=0-0", "Prime-Node: nobody")
        sent["requests"] += 1


async def test_a_server_at_its_connection_limit_lets_others_in_when_the_idle_are_dropped(tmp_path: Path) -> None:
    limits = ServerLimits(
        connections_max=20,
        idle_ms=16_000,
        requests_per_address_max=UNLIMITED.requests_per_address_max,
        transfers_per_address_max=UNLIMITED.transfers_per_address_max,
        address_rate=UNLIMITED.address_rate,
        address_burst=UNLIMITED.address_burst,
    )
    host = ShardHost(tmp_path, "origin", key=TRAINER, limits=limits)
    await host.start()
    (signed,) = host.publish(write_checkpoint(tmp_path / "step0", make_tensors(1)), 0)
    idle = [await connect(host) for _ in range(20)]
    assert await send_raw(host, b"GET / HTTP/1.1\r\n\r\n") == b""
    for _, held in idle:
        held.transport.abort()
    async with asyncio.timeout(5):
        while (await get_or_nothing(host, f"/manifests/{signed.digest}")) != 200:
            await asyncio.sleep(0.05)
    await host.stop()


async def get_or_nothing(host: ShardHost, path: str) -> int:
    try:
        return (await get(host, path))[0]
    except (IndexError, ConnectionError):
        return 0
