"""What was found to stop or starve the library does nothing to a guarded node: it gossips on, unrestarted."""

import asyncio
import os
import struct
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
import trio

from prime_protocol.gossip.messages import GossipKind
from prime_protocol.wire.signing import WalletKey
from prime_runtime.gossip.libp2p.patches import BUFFERED_BYTES_MAX, STREAMS_MAX
from support.gossip_network import NETWORK, RUN, announced, sealed, topic_of, wallet
from support.processes.p2p_nodes import (
    TRAINER,
    SpeakingNode,
    Stranger,
    address_of,
    assert_unharmed,
    eventually,
    inside,
    make_node,
    meshed,
    peer_id,
    read_to_end,
    started,
    varint,
    witnessed,
)

NodePair = tuple[SpeakingNode, SpeakingNode]
MESHSUB = "/meshsub/1.1.0"
YAMUX = "!BBHII"
DATA, WINDOW, SYN = 0, 1, 1
STREAMS = 5_000
Figures = Callable[[str], None]


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[tuple[SpeakingNode, SpeakingNode]]:
    async with witnessed() as nodes:
        yield nodes


async def say(stranger: Stranger, address: str, protocol: str, data: bytes) -> None:
    stream = await stranger.open(address, protocol)
    await stream.write(data)
    await read_to_end(stream)


async def say_and_leave(stranger: Stranger, address: str, protocol: str, data: bytes) -> None:
    stream = await stranger.open(address, protocol)
    await stream.write(data)
    await trio.sleep(0)


GARBAGE = {
    "garbage protobuf in gossip": (MESHSUB, varint(50) + b"\xff" * 50),
    "an oversized length in gossip": (MESHSUB, varint(2**31) + b"x" * 1000),
    "a varint without an end": (MESHSUB, b"\xff" * 12),
    "garbage in identify push": ("/ipfs/id/push/1.0.0", varint(60) + os.urandom(60)),
    "an oversized question for peers": ("/prime/peers/1", b"\xff\xff\xff\xff"),
    "a question for peers that is none": ("/prime/peers/1", (5).to_bytes(4, "big") + b"\xc1" * 5),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_on_a_stream_ends_the_stream_alone(name: str, pair: NodePair, figures: Figures) -> None:
    victim, witness = pair
    protocol, data = GARBAGE[name]
    async with Stranger(wallet(66)) as stranger:
        await stranger.do(say, address_of(victim), protocol, data)
    figures(f"p2p, {name}: {len(data):,} bytes, stream ended; {await assert_unharmed(victim, witness)}")


async def test_a_handler_that_raises_ends_the_stream_alone(pair: NodePair) -> None:
    victim, witness = pair

    async def install() -> None:
        async def broken(stream: Any) -> None:
            await stream.read(1)
            raise RuntimeError("a bug of ours")

        victim._session.host.set_stream_handler("/test/broken", broken)

    await inside(victim, install)
    async with Stranger(wallet(66)) as stranger:
        await stranger.do(say, address_of(victim), "/test/broken", b"hello")
    await assert_unharmed(victim, witness)


async def test_a_gossip_message_whose_key_cannot_be_read_is_dropped(pair: NodePair) -> None:
    victim, witness = pair
    from libp2p.pubsub.pb import rpc_pb2

    message = rpc_pb2.Message(
        data=b"x", topicIDs=[topic_of(GossipKind.ANNOUNCED)], from_id=b"\x12\x20" + b"q" * 32, seqno=b"1" * 8
    )
    message.key, message.signature = b"\xff" * 40, b"s" * 64
    rpc = rpc_pb2.RPC(publish=[message]).SerializeToString()
    async with Stranger(wallet(66)) as stranger:
        await stranger.do(say_and_leave, address_of(victim), MESHSUB, varint(len(rpc)) + rpc)
        await eventually(lambda: points_of(victim, stranger.key) < 0, "blame for the message")
    await assert_unharmed(victim, witness)


def points_of(node: SpeakingNode, key: WalletKey) -> float:
    """What the node holds against a peer, below 0, or for it."""
    peer = node.state.table.book.peers.get(key.peer_id())
    return peer.score.points if peer else 0.0


async def test_garbage_in_gossip_three_times_is_a_ban(pair: NodePair, figures: Figures) -> None:
    victim, witness = pair
    began_s = time.monotonic()
    async with Stranger(wallet(66)) as stranger:
        for number in range(1, 4):
            await stranger.do(say, address_of(victim), *GARBAGE["garbage protobuf in gossip"])
            blamed = (lambda: victim.status().banned == 1) if number == 3 else None
            await eventually(blamed or (lambda n=number: points_of(victim, stranger.key) < -30 * n), "blame")
    took_s = time.monotonic() - began_s
    figures(f"p2p, garbage frames: 3, a ban in {took_s:.2f} s; {await assert_unharmed(victim, witness)}")


async def test_a_validator_that_raises_costs_one_message() -> None:
    calls: list[int] = []

    def raising(run: Any, node: Any) -> bool:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a bug of ours")
        return True

    speaker = make_node(TRAINER)
    await speaker.start()
    victim = make_node(2, address_of(speaker), is_trainer=raising, peers_target=1)
    async with started(victim):
        await speaker.join(RUN)
        await meshed(speaker, victim)
        for step in range(2):
            await speaker.publish(RUN, announced(step))
        gossip = await victim.receive()
        assert gossip.message == announced(1)
        assert victim.status().restarts == 0
        assert points_of(victim, speaker.state.key) >= 0, "nobody is blamed for a bug of ours"
    await speaker.stop()


async def test_a_place_is_given_back_when_a_connection_ends() -> None:
    """The library counts accepted connections and never gives a place back: the 251st since its start is refused."""
    victim = make_node(TRAINER, connections_max=6, peers_target=1)
    async with started(victim):
        for number in range(100, 114):
            async with Stranger(wallet(number)) as stranger:

                async def come_and_go(stranger: Stranger) -> None:
                    muxed = await stranger.connect(address_of(victim))
                    await muxed.close()

                await stranger.do(come_and_go)
        assert victim.status().restarts == 0
        await eventually(lambda: victim.status().connected == 0, "all of them gone")


async def test_a_peer_that_ignores_flow_control_is_cut_off(pair: NodePair, figures: Figures) -> None:
    victim, witness = pair

    async def install() -> None:
        async def never_reads(stream: Any) -> None:
            await trio.sleep_forever()

        victim._session.host.set_stream_handler("/test/unread", never_reads)

    await inside(victim, install)

    async def overrun(stranger: Stranger, address: str) -> int:
        stream = await stranger.open(address, "/test/unread")
        muxed = stream.muxed_conn
        number, sent = stream.muxed_stream.stream_id, 0
        while sent < 16 * BUFFERED_BYTES_MAX and not muxed.is_closed:
            try:
                with trio.fail_after(20):
                    await muxed._write_frame(struct.pack(YAMUX, 0, DATA, 0, number, 2**16) + bytes(2**16))
            except Exception:
                break
            sent += 2**16
        return sent

    async with Stranger(wallet(66)) as stranger:
        sent = await stranger.do(overrun, address_of(victim))
        assert sent < 8 * BUFFERED_BYTES_MAX, "sockets hold some, but not that much"
    unharmed = await assert_unharmed(victim, witness)
    figures(f"p2p, flow control ignored: cut off after {sent / 2**20:.1f} MiB; {unharmed}")


FRAMES: dict[str, list[bytes]] = {
    "a wrong version": [struct.pack(YAMUX, 9, DATA, 0, 1, 0)],
    "a wrong type": [struct.pack(YAMUX, 0, 9, 0, 1, 0)],
    "an unknown stream": [struct.pack(YAMUX, 0, DATA, 0, 77_777, 5) + b"hello"],
    "a huge length": [struct.pack(YAMUX, 0, DATA, SYN, 9, 2**32 - 1)],
    "a window of an unknown stream": [struct.pack(YAMUX, 0, WINDOW, 0, 99, 2**32 - 1)],
    "half a header": [b"\x00\x00"],
}


@pytest.mark.parametrize("name", FRAMES)
async def test_bad_yamux_frames_harm_their_own_connection_at_most(name: str, pair: NodePair) -> None:
    victim, witness = pair

    async def send(stranger: Stranger, address: str) -> None:
        muxed = await stranger.connect(address)
        for frame in FRAMES[name]:
            await muxed._write_frame(frame)

    async with Stranger(wallet(66)) as stranger:
        await stranger.do(send, address_of(victim))
    await assert_unharmed(victim, witness)


async def test_five_thousand_streams_at_once_are_mostly_turned_away(pair: NodePair, figures: Figures) -> None:
    victim, witness = pair
    began_s = time.monotonic()

    async def flood(stranger: Stranger, address: str) -> None:
        muxed = await stranger.connect(address)
        for start in range(0, STREAMS, 500):
            numbers = range(1_001 + 2 * start, 1_001 + 2 * (start + 500), 2)
            await muxed._write_frame(b"".join(struct.pack(YAMUX, 0, WINDOW, SYN, number, 0) for number in numbers))

    async with Stranger(wallet(66)) as stranger:
        try:
            await stranger.do(flood, address_of(victim))
        except Exception:  # boundary: it may be cut off in the middle, in any of the library's ways
            pass
        await eventually(lambda: victim.status().banned == 1, "a ban of the flooder")
    took_s = time.monotonic() - began_s
    assert STREAMS_MAX < STREAMS
    unharmed = await assert_unharmed(victim, witness)
    figures(f"p2p, {STREAMS:,} streams at once: {STREAMS_MAX} taken, a ban in {took_s:.2f} s; {unharmed}")


async def test_a_corrupted_noise_frame_ends_its_connection_alone(pair: NodePair) -> None:
    victim, witness = pair

    async def corrupt(stranger: Stranger, address: str) -> None:
        from multiaddr import Multiaddr

        network = stranger.host.get_network()
        place, _, peer = address.rpartition("/p2p/")
        raw = await network.transport_manager.transport_for_dialing(Multiaddr(place)).dial(Multiaddr(address))
        await network.upgrade_outbound_raw_conn(raw, peer_id(peer))
        await raw.write((200).to_bytes(2, "big") + os.urandom(200))

    async with Stranger(wallet(66)) as stranger:
        await stranger.do(corrupt, address_of(victim))
    await assert_unharmed(victim, witness)


async def test_a_flood_of_gossip_is_not_looked_at_and_gets_its_sender_banned(pair: NodePair, figures: Figures) -> None:
    victim, witness = pair
    from libp2p.pubsub.pb import rpc_pb2

    frame = sealed(announced(), wallet(66))
    messages = [
        rpc_pb2.Message(
            data=frame, topicIDs=[topic_of(GossipKind.ANNOUNCED)], from_id=b"x" * 39, seqno=number.to_bytes(8)
        )
        for number in range(1_000)
    ]
    rpc = rpc_pb2.RPC(publish=messages).SerializeToString()
    async with Stranger(wallet(66)) as stranger:
        await stranger.do(say_and_leave, address_of(victim), MESHSUB, varint(len(rpc)) + rpc)
        took_s = await eventually(lambda: victim.status().banned == 1, "a ban of the flooder")
    assert victim.status().messages_in == 0
    unharmed = await assert_unharmed(victim, witness)
    figures(f"p2p, gossip flood: {len(messages):,} messages, a ban in {took_s:.2f} s; {unharmed}")


async def test_subscriptions_to_foreign_or_endless_topics_are_not_kept(pair: NodePair) -> None:
    victim, witness = pair
    from libp2p.pubsub.pb import rpc_pb2

    names = ["/other/topic", f"/prime/{NETWORK}/" + "x" * 100_000, f"/prime/{NETWORK}/other-run/{GossipKind.SERVING}"]
    rpc = rpc_pb2.RPC(
        subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid=name) for name in names]
    ).SerializeToString()
    async with Stranger(wallet(66)) as stranger:
        await stranger.do(say_and_leave, address_of(victim), MESHSUB, varint(len(rpc)) + rpc)
        topics = victim._session.gossiping.pubsub.peer_topics
        await eventually(lambda: names[2] in topics, "the subscription that is one")
        assert not {names[0], names[1]} & set(topics)
    await assert_unharmed(victim, witness)


async def test_an_address_that_a_stranger_claims_is_not_dialled(pair: NodePair) -> None:
    """The library's own dialler takes every address that identify brings, also one of a machine to be attacked."""
    victim, witness = pair
    called: list[str] = []
    target = await asyncio.start_server(lambda reader, writer: called.append("dialled"), "127.0.0.1", 0)
    port = target.sockets[0].getsockname()[1]

    async def claim() -> None:
        host = victim._session.host
        from multiaddr import Multiaddr

        host.get_peerstore().add_addrs(peer_id(wallet(66).peer_id()), [Multiaddr(f"/ip4/127.0.0.1/tcp/{port}")], 3600)
        await host.get_network().auto_connector.maybe_connect()

    await inside(victim, claim)
    await assert_unharmed(victim, witness)
    assert called == []
    target.close()
    await target.wait_closed()


def test_the_library_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    from prime_runtime.gossip.libp2p.patches import silence_library_logs

    logging.getLogger("libp2p.network.auto_connector").setLevel(logging.INFO)
    silence_library_logs()
    for name in ("libp2p.network.swarm", "libp2p.network.auto_connector"):
        logging.getLogger(name).error("a stranger made me write this")
    assert caplog.records == []
