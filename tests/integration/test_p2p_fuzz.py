"""Hostile bytes by the dice on every way into a live node: sockets, multistream, yamux, identify, gossip."""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio

from prime_protocol.gossip.messages import GossipKind
from prime_runtime.gossip.libp2p.node import P2PNode
from prime_runtime.gossip.libp2p.protocols import STREAM_FAILURES
from support.gossip_network import announced, sealed, topic_of, wallet
from support.processes.p2p_nodes import Stranger, address_of, assert_unharmed, port_of, varint, witnessed

SESSIONS_MAX = 60
FRAMES_PER_SESSION = 8
FUZZ_S = 4.0
SESSION_S = 2.0
LANES = 3
MULTISTREAM = b"\x13/multistream/1.0.0\n"
PROTOCOLS = (
    "/meshsub/1.1.0",
    "/ipfs/id/1.0.0",
    "/ipfs/id/push/1.0.0",
    "/ipfs/ping/1.0.0",
    "/prime/peers/1",
    "/ipfs/kad/1.0.0",  # nothing answers it
)
Session = Callable[[Random, Stranger, str], Awaitable[None]]


def gossip_example() -> bytes:
    from libp2p.pubsub.pb import rpc_pb2

    name = topic_of(GossipKind.ANNOUNCED)
    message = rpc_pb2.Message(data=sealed(announced()), topicIDs=[name], from_id=b"x" * 39, seqno=b"1" * 8)
    control = rpc_pb2.ControlMessage(
        graft=[rpc_pb2.ControlGraft(topicID=name)],
        prune=[rpc_pb2.ControlPrune(topicID=name, backoff=9)],
        ihave=[rpc_pb2.ControlIHave(topicID=name, messageIDs=[b"a", b"b"])],
        iwant=[rpc_pb2.ControlIWant(messageIDs=[b"a"])],
    )
    subscription = rpc_pb2.RPC.SubOpts(subscribe=True, topicid=name)
    return bytes(rpc_pb2.RPC(publish=[message], subscriptions=[subscription], control=control).SerializeToString())


def identify_example() -> bytes:
    from libp2p.identity.identify.pb.identify_pb2 import Identify

    return bytes(
        Identify(
            protocol_version="ipfs/0.1.0", public_key=b"k" * 37, listen_addrs=[b"\x04\x7f\x00\x00\x01\x06\x10\x01"]
        ).SerializeToString()
    )


def mutated(dice: Random, example: bytes) -> bytes:
    """Some bytes changed, cut out or put in, or the whole of it dice."""
    data = bytearray(example)
    for _ in range(dice.randint(1, 8)):
        place = dice.randrange(len(data) + 1)
        match dice.randrange(3):
            case 0:
                data[place : place + 1] = dice.randbytes(1)
            case 1:
                del data[place : place + dice.randint(1, 9)]
            case 2:
                data[place:place] = dice.randbytes(dice.randint(1, 9))
    return dice.choice((bytes(data), dice.randbytes(dice.randint(0, 300))))


def framed(dice: Random, body: bytes) -> bytes:
    """Mostly under its true length."""
    length = len(body) if dice.random() < 0.7 else dice.choice((0, 1, len(body) + 7, 2**20, 2**31, 2**62))
    return varint(length) + body


async def fuzz_streams(dice: Random, stranger: Stranger, address: str) -> None:
    examples = (gossip_example(), identify_example())
    for _ in range(FRAMES_PER_SESSION):
        stream = await stranger.open(address, dice.choice(PROTOCOLS))
        await stream.write(framed(dice, mutated(dice, dice.choice(examples))))
        if dice.random() < 0.5:
            await stream.close()


async def fuzz_gossip(dice: Random, stranger: Stranger, address: str) -> None:
    stream = await stranger.open(address, PROTOCOLS[0])
    for _ in range(FRAMES_PER_SESSION):
        await stream.write(framed(dice, mutated(dice, gossip_example())))


async def fuzz_multistream(dice: Random, stranger: Stranger, address: str) -> None:
    muxed = await stranger.connect(address)
    for _ in range(FRAMES_PER_SESSION):
        stream = await muxed.open_stream()
        await stream.write(dice.choice((b"", MULTISTREAM)) + framed(dice, mutated(dice, b"/meshsub/1.1.0\n")))


async def fuzz_yamux(dice: Random, stranger: Stranger, address: str) -> None:
    muxed = await stranger.connect(address)
    for _ in range(FRAMES_PER_SESSION):
        body = dice.randbytes(dice.randint(0, 60))
        kind, flags, number = dice.randint(0, 4), dice.choice((0, 1, 2, 4, 8, 0xFFFF)), dice.choice((0, 1, 2, 3, 2**31))
        length = dice.choice((len(body), 0, 2**32 - 1))
        await muxed._write_frame(struct.pack("!BBHII", dice.randint(0, 1), kind, flags, number, length) + body)


async def fuzz_socket(dice: Random, port: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(dice.choice((b"", MULTISTREAM, MULTISTREAM + b"\x07/noise\n")))
        writer.write(mutated(dice, framed(dice, b"/noise\n")))
        await writer.drain()
    except OSError:
        pass  # closed while we were still talking
    finally:
        writer.close()


SESSIONS: tuple[Session, ...] = (fuzz_streams, fuzz_gossip, fuzz_multistream, fuzz_yamux)


async def fuzz_once(dice: Random, number: int, victim: P2PNode) -> None:
    """One session of a stranger that nobody has seen before; what becomes of it is not the point."""
    if dice.random() < 0.2:
        return await fuzz_socket(dice, port_of(victim))

    async def attack(stranger: Stranger) -> None:
        with trio.move_on_after(SESSION_S):
            await dice.choice(SESSIONS)(dice, stranger, address_of(victim))

    async with Stranger(wallet(10_000 + number)) as stranger:
        try:
            await stranger.do(attack)
        except STREAM_FAILURES:
            pass  # cut off in the middle


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_node_under_hostile_bytes_of_every_kind_gossips_on(seed: int, figures: Callable[[str], None]) -> None:
    async with witnessed() as (victim, witness):
        numbers = iter(range(SESSIONS_MAX))
        done: list[int] = []
        until_s = time.monotonic() + FUZZ_S

        async def lane() -> None:
            for number in numbers:
                if time.monotonic() > until_s:
                    return
                await fuzz_once(Random(f"{seed}/{number}"), number, victim)
                done.append(number)
                assert victim.status().restarts == 0, f"seed {seed}, session {number}: {victim.status().last_error}"

        await asyncio.gather(*(lane() for _ in range(LANES)))
        assert len(done) > LANES, f"seed {seed}: only {len(done)} sessions"
        unharmed = await assert_unharmed(victim, witness)
        figures(f"p2p, fuzz with seed {seed}: {len(done)} hostile sessions; {unharmed}")
