"""A node that nobody can connect to serves shards all the same, on connections that it opens itself. Real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import pytest

from prime_lab.attacks.relay_attacks import NETWORK, TRAINER, ShardHost, write_checkpoint
from prime_node.reverse import punching
from prime_node.reverse.gateway import REVERSE_PATH
from prime_node.reverse.gateway_plan import GREED_FACTOR
from prime_node.reverse.lane_table import LaneLimits
from prime_node.weights.connection import ConnectionBroken
from prime_protocol.gossip.messages import ServingRecord
from prime_protocol.weights.manifest import SignedManifest
from prime_protocol.weights.transfer import REVERSE, ReverseOffer
from prime_protocol.wire.addresses import ServerUrl
from prime_protocol.wire.codec import encode
from prime_protocol.wire.envelope import seal_envelope
from prime_protocol.wire.ids import Digest
from prime_runtime.http.upgrade import UpgradeRefused, request_upgrade
from support.shard_hosts import announce, make_tensors, read_checkpoint

Make = Callable[..., ShardHost]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[ShardHost] = []

    def make_host(name: str, **options: object) -> ShardHost:
        made.append(ShardHost(tmp_path, name, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make_host
    for host in made:
        await host.stop()


async def wait_until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


def publish(origin: ShardHost, folder: Path) -> SignedManifest:
    return origin.publish(write_checkpoint(folder / "step0", make_tensors(1)), 0)[0]


async def fetch(host: ShardHost, signed: SignedManifest) -> None:
    async with asyncio.timeout(20):
        await host.fetcher.ensure_checkpoint(signed.root)


async def test_a_public_node_fetches_everything_from_a_private_one(make: Make, tmp_path: Path) -> None:
    origin, private, public = make("origin", key=TRAINER), make("private", is_private=True), make("public")
    for host in (origin, private, public):
        await host.start()
    signed = publish(origin, tmp_path)
    private.fetcher.handle_gossip(announce(origin, signed))
    private.fetcher.handle_gossip(origin.record(signed))
    await fetch(private, signed)
    await origin.stop()

    private.fetcher.handle_gossip(public.claim(signed))
    public.fetcher.handle_gossip(announce(origin, signed))
    await wait_until(lambda: private.node in public.gateway.nodes())
    await fetch(public, signed)
    assert read_checkpoint(public, signed) == read_checkpoint(private, signed)
    assert private.server.sent_bytes == signed.manifest.transport_bytes == public.gateway.received_bytes
    assert private.dialer is not None
    assert private.dialer.gateways == [public.node]


# --- Hostile sides ----------------------------------------------------------------------------------------------------


def seal_offer(host: ShardHost, gateway: ShardHost) -> bytes:
    now_ms = host.clock.now_ms()
    return seal_envelope(
        host.key,
        kind=REVERSE.kind,
        body=encode(ReverseOffer(gateway=gateway.node)),
        network=NETWORK,
        run=None,
        sequence=host.sequence.next(now_ms),
        issued_at_ms=now_ms,
        life_ms=60_000,
    )


async def open_lane(host: ShardHost, gateway: ShardHost, frame: bytes | None = None) -> asyncio.Transport:
    url = ServerUrl.parse(gateway.url)
    frame = seal_offer(host, gateway) if frame is None else frame
    upgraded = await request_upgrade(url.host, url.port, REVERSE_PATH, frame)
    return upgraded.transport


async def test_an_offer_is_worth_nothing_twice_or_at_another_gateway(make: Make) -> None:
    public, other, liar = make("public"), make("other"), make("liar", is_private=True)
    for host in (public, other, liar):
        await host.start()
    frame = seal_offer(liar, public)
    transport = await open_lane(liar, public, frame)
    for gateway, used in ((public, frame), (other, seal_offer(liar, public)), (public, b"x" * 200), (public, b"")):
        with pytest.raises(UpgradeRefused):
            await open_lane(liar, gateway, used)
    assert list(public.gateway.nodes()) == [liar.node]
    assert not other.gateway.nodes()
    transport.abort()
    await wait_until(lambda: not public.gateway.nodes())


async def test_a_node_that_talks_without_being_asked_loses_its_lane(make: Make) -> None:
    public, liar = make("public"), make("liar", is_private=True)
    for host in (public, liar):
        await host.start()
    transport = await open_lane(liar, public)
    transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello" * 1000)
    await wait_until(lambda: not public.gateway.nodes())
    transport.abort()


async def test_one_key_gets_only_so_many_lanes(make: Make) -> None:
    public, liar = make("public"), make("liar", is_private=True)
    for host in (public, liar):
        await host.start()
    lanes = [await open_lane(liar, public) for _ in range(LaneLimits().lanes_per_node)]
    with pytest.raises(UpgradeRefused) as refused:
        await open_lane(liar, public)
    assert refused.value.status == 503
    assert refused.value.retry_after_ms > 0
    for lane in lanes:
        lane.abort()
    await wait_until(lambda: not public.gateway.nodes())


async def test_wrong_bytes_by_a_lane_cost_one_shard_and_the_sender_is_banned(make: Make, tmp_path: Path) -> None:
    origin, liar, public = make("origin", key=TRAINER), make("liar", is_private=True), make("public")
    for host in (origin, liar, public):
        await host.start()
    signed = publish(origin, tmp_path)
    liar.fetcher.handle_gossip(announce(origin, signed))
    liar.fetcher.handle_gossip(origin.record(signed))
    await fetch(liar, signed)
    path = liar.store.shard_sets[signed.digest].folder / "model.safetensors"
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    liar.store.shard_sets[signed.digest].verified = liar.store.shard_sets[signed.digest].held

    liar.fetcher.handle_gossip(public.claim(signed))
    await wait_until(lambda: liar.node in public.gateway.nodes())
    public.fetcher.handle_gossip(announce(origin, signed))
    building = asyncio.create_task(fetch(public, signed))
    await wait_until(lambda: public.fetcher.list_transfers() != [] and public.fetcher.list_transfers()[0].corrupt > 0)
    public.fetcher.handle_gossip(origin.record(signed))
    await building
    assert public.fetcher.corrupt <= 2, "at most the requests that were under way"
    assert read_checkpoint(public, signed) == read_checkpoint(origin, signed)


async def test_a_gateway_that_asks_for_everything_again_and_again_is_dropped(make: Make, tmp_path: Path) -> None:
    origin, private, greedy = make("origin", key=TRAINER), make("private", is_private=True), make("greedy")
    for host in (origin, private, greedy):
        await host.start()
    signed = publish(origin, tmp_path)
    private.fetcher.handle_gossip(announce(origin, signed))
    private.fetcher.handle_gossip(origin.record(signed))
    await fetch(private, signed)
    await origin.stop()
    private.fetcher.handle_gossip(greedy.claim(signed))
    await wait_until(lambda: private.node in greedy.gateway.nodes())
    shards = signed.manifest.shards

    async def take_everything() -> None:
        while private.node in greedy.gateway.nodes():
            for shard in shards:
                async with greedy.gateway.borrow(private.node) as lane:
                    await lane.get(f"/shards/{shard.digest}", {}, body_bytes_max=shard.length)

    with pytest.raises(ConnectionBroken):
        async with asyncio.timeout(20):
            await take_everything()
            raise ConnectionBroken
    assert not greedy.gateway.nodes()
    assert private.server.sent_bytes > GREED_FACTOR * signed.manifest.transport_bytes


async def test_a_lane_leads_to_the_shards_and_to_nothing_else(make: Make) -> None:
    private, public = make("private", is_private=True), make("public")
    for host in (private, public):
        await host.start()
    private.fetcher.handle_gossip(public.say(ServingRecord(urls=public.urls, depth=0, slots_free=1, manifests=())))
    await wait_until(lambda: private.node in public.gateway.nodes())
    for path in ("/", "/etc/passwd", "/shards/../../etc/passwd", "/reverse", f"/shards/{Digest(bytes(32))}"):
        async with public.gateway.borrow(private.node) as lane:
            assert (await lane.get(path, {})).status in (400, 404)


async def test_only_a_gateway_may_order_a_connection_and_only_so_many(make: Make) -> None:
    private, public = make("private", is_private=True), make("public")
    for host in (private, public):
        await host.start()
    private.fetcher.handle_gossip(public.say(ServingRecord(urls=public.urls, depth=0, slots_free=1, manifests=())))
    await wait_until(lambda: private.node in public.gateway.nodes())
    order = f"/meet/{public.node}/serve-127.0.0.1-40000"
    answers = []
    for _ in range(40):
        async with public.gateway.borrow(private.node) as lane:
            answers.append((await lane.get(order, {})).status)
    assert answers[0] == 200
    assert answers[-1] == 503
    assert private.dialer is not None
    with pytest.raises(ConnectionBroken):
        async with public.gateway.borrow(public.node):
            pass


async def test_a_peer_that_was_met_and_makes_no_offer_loses_its_connection(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(punching, "OFFER_MS", 200)
    private, public = make("private", is_private=True), make("public")
    for host in (private, public):
        await host.start()
    private.fetcher.handle_gossip(public.say(ServingRecord(urls=public.urls, depth=0, slots_free=1, manifests=())))
    await wait_until(lambda: private.node in public.gateway.nodes())
    ended = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await reader.read()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        ended.set()

    peer = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = peer.sockets[0].getsockname()[1]
    async with public.gateway.borrow(private.node) as lane:
        assert (await lane.get(f"/meet/{public.node}/take-127.0.0.1-{port}", {})).status == 200
    async with asyncio.timeout(10):
        await ended.wait()
    assert private.dialer is not None
    assert private.dialer.puncher.connected == 1
    peer.close()


async def test_no_offer_is_made_in_the_name_of_the_node_itself_or_of_its_gateways(make: Make) -> None:
    private, public = make("private", is_private=True), make("public")
    for host in (private, public):
        await host.start()
    private.fetcher.handle_gossip(public.say(ServingRecord(urls=public.urls, depth=0, slots_free=1, manifests=())))
    await wait_until(lambda: private.node in public.gateway.nodes())
    assert private.dialer is not None
    assert private.dialer.may_meet(public.node, TRAINER.node)
    for node in (private.node, public.node):
        ours, theirs = socket.socketpair()
        await private.dialer.serve_met(public.node, node, ours)
        assert theirs.recv(1) == b"", "closed, and nothing was sent"
        theirs.close()
