"""Kademlia, where it is switched on: it finds peers, and neither time nor strangers end it."""

import os
from collections.abc import Callable

import trio
from libp2p.kad_dht.pb.kademlia_pb2 import Message
from multiaddr import Multiaddr

from prime_runtime.gossip.libp2p.node import P2PNode
from prime_runtime.gossip.libp2p.protocols import Kademlia
from support.gossip_network import wallet
from support.processes.p2p_nodes import (
    TRAINER,
    Stranger,
    address_of,
    assert_unharmed,
    eventually,
    make_node,
    meshed,
    peer_id,
    read_to_end,
    started,
    varint,
)

KADEMLIA = "/ipfs/kad/1.0.0"
OLD_S = 10_000
"""Longer than the library holds any address to be good."""


async def serve_kademlia(stranger: Stranger, friend: str) -> None:
    """Be in the table of a node, and stay."""
    stranger.start_soon(Kademlia(stranger.host).run, lambda texts: None)
    await stranger.connect(friend)


async def test_a_node_learns_of_a_peer_through_kademlia_alone() -> None:
    """The third speaks Kademlia and nothing of ours, so that no peer exchange can tell of it."""
    middle = make_node(TRAINER, kademlia=True)
    async with started(middle), Stranger(wallet(66)) as third:
        await third.do(serve_kademlia, address_of(middle))
        await eventually(lambda: third.key.peer_id() in in_table(middle), "the third in the table of the middle")
        newcomer = make_node(2, address_of(middle), kademlia=True, peers_target=1)
        async with started(newcomer):
            book = newcomer.state.table.book
            await eventually(lambda: third.key.peer_id() in book.peers, "the third among the newcomer's peers")
            assert book.peers[third.key.peer_id()].record == b"", "nobody handed over a record of it"
            assert middle.status().restarts == newcomer.status().restarts == 0


def in_table(node: P2PNode) -> list[str]:
    return [str(peer) for peer in node._session._kademlia._dht.routing_table.get_peer_ids()]


async def find_through(stranger: Stranger, friend: Stranger, spoil: Callable[[Stranger], None]) -> list[list[str]]:
    """What a Kademlia on the stranger's host finds before and after something befell its notes about a friend."""
    rounds: list[list[str]] = []
    kademlia = Kademlia(stranger.host, round_s=0.05)
    stranger.start_soon(kademlia.run, rounds.append)
    await stranger.connect(f"{friend.host.get_addrs()[0]}")
    with trio.fail_after(30):
        while not any(rounds):
            await trio.sleep(0.01)
        spoil(friend)
        told = len(rounds)
        while len(rounds) < told + 3:
            await trio.sleep(0.01)
    return rounds


async def test_addresses_that_grew_too_old_do_not_end_kademlia() -> None:
    async with Stranger(wallet(66)) as stranger, Stranger(wallet(67)) as friend:

        def age(friend: Stranger) -> None:
            notes = stranger.host.get_peerstore().peer_data_map[friend.host.get_id()]
            notes.ttl, notes.last_identified = 1, notes.last_identified - OLD_S

        await friend.do(offer_kademlia)
        rounds = await stranger.do(find_through, friend, age)
        assert rounds[-1] == [], "what is too old is told to nobody"


async def test_an_address_that_is_none_does_not_end_kademlia_and_hides_no_other() -> None:
    async with Stranger(wallet(66)) as stranger, Stranger(wallet(67)) as friend:

        def poison(friend: Stranger) -> None:
            stranger.host.get_peerstore().add_addrs(friend.host.get_id(), [Multiaddr(b"\xff" * 5)], 3600)

        await friend.do(offer_kademlia)
        rounds = await stranger.do(find_through, friend, poison)
        assert rounds[-1], "the address that is one"
        assert all(text.startswith("/ip4/127.0.0.1/tcp/") for text in rounds[-1])


async def offer_kademlia(stranger: Stranger) -> None:
    stranger.start_soon(Kademlia(stranger.host).run, lambda texts: None)


def frame(body: bytes) -> bytes:
    return varint(len(body)) + body


FRAMES = {
    "garbage that is no protobuf": lambda: frame(b"\xff" * 50),
    "dice": lambda: frame(os.urandom(2_000)),
    "an oversized length": lambda: varint(2**31) + b"x" * 1_000,
    "a varint without an end": lambda: b"\xff" * 12,
    "a question for no key": lambda: frame(Message(type=Message.FIND_NODE).SerializeToString()),
    "a question for an endless key": lambda: frame(Message(type=4, key=b"k" * 60_000).SerializeToString()),
    "a record that nobody signed": lambda: frame(
        Message(type=4, key=b"k", senderRecord=b"\xff" * 99).SerializeToString()
    ),
    "a value without a record": lambda: frame(Message(type=0, key=b"k").SerializeToString()),
    "half a message": lambda: varint(500) + b"x" * 20,
}


async def say_all(stranger: Stranger, address: str) -> int:
    """Every frame on a stream of its own, each followed by the end."""
    for make in FRAMES.values():
        stream = await stranger.open(address, KADEMLIA)
        await stream.write(make())
        await stream.close_write()
        await read_to_end(stream)
    return len(FRAMES)


async def ask(stranger: Stranger, address: str) -> Message:
    """An honest question for the peers next to a key."""
    stream = await stranger.open(address, KADEMLIA)
    await stream.write(frame(Message(type=Message.FIND_NODE, key=b"k" * 32).SerializeToString()))
    await stream.close_write()
    answer = await read_to_end(stream)
    start = next(place for place, byte in enumerate(answer) if byte < 128) + 1
    return Message.FromString(answer[start:])


async def test_garbage_in_kademlia_leaves_the_node_serving(figures: Callable[[str], None]) -> None:
    victim = make_node(TRAINER, kademlia=True)
    async with started(victim):
        witness = make_node(2, address_of(victim), peers_target=1, kademlia=True)
        async with started(witness):
            await meshed(victim, witness)
            await eventually(lambda: wallet(2).peer_id() in in_table(victim), "the witness in the table")
            async with Stranger(wallet(66)) as stranger:
                sent = await stranger.do(say_all, address_of(victim))
                answer = await stranger.do(ask, address_of(victim))
            assert peer_id(wallet(2).peer_id()).to_bytes() in [peer.id for peer in answer.closerPeers]
            unharmed = await assert_unharmed(victim, witness)
            figures(f"p2p, garbage in Kademlia: {sent} bad frames, a question after them answered; {unharmed}")
