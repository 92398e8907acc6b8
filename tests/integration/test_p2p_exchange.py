"""Peer exchange: records spread, and whoever asks too much, lies or answers nonsense gains nothing."""

import asyncio
from typing import Any

import trio
from libp2p.exceptions import BaseLibp2pError

from prime_protocol.errors import RemoteError
from prime_protocol.gossip.guard import GossipAccepted
from prime_protocol.gossip.messages import (
    PeersReply,
    PeersRequest,
    RecentReply,
    RecentRequest,
    get_frame_kind,
    open_peer_record,
)
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import RunId
from prime_runtime.clock import SystemClock
from prime_runtime.gossip.libp2p.node import P2PNode
from support.gossip_network import ANN, BOB, NETWORK, RUN, announced, peer_record, sealed, serving, topic_of, wallet
from support.processes.p2p_nodes import TRAINER, WAIT_S, Stranger, address_of, eventually, line, make_node, started

PEERS = "/prime/peers/1"


async def ask(stranger: Stranger, address: str, own: bytes) -> PeersReply:
    stream = await stranger.open(address, PEERS)
    body = encode(PeersRequest(record=own))
    await stream.write(len(body).to_bytes(4, "big") + body)
    return decode(PeersReply, await read_answer(stream))


async def read_answer(stream: Any) -> bytes:
    raw = b""
    with trio.fail_after(30):
        while len(raw) < 4 or len(raw) < 4 + int.from_bytes(raw[:4], "big"):
            raw += await stream.read(65_536)
    return raw[4:]


def own_card(stranger: Stranger, *hosts: str) -> bytes:
    return sealed(peer_record(stranger.key, *hosts), stranger.key, run=None, now_ms=SystemClock().now_ms())


def senders(known: PeersReply) -> set[Any]:
    now_ms = SystemClock().now_ms()
    return {open_peer_record(frame, network=NETWORK, now_ms=now_ms).payload.sender for frame in known.records}


async def test_an_answer_holds_the_answerers_card_and_those_it_learned_but_not_the_askers() -> None:
    async with line(TRAINER, 2) as (first, second):
        await eventually(lambda: first.status().known == 1, "the record of the second")
        async with Stranger(wallet(66)) as stranger:
            known = await stranger.do(ask, address_of(first), own_card(stranger))
            assert senders(known) == {wallet(TRAINER).node, wallet(2).node}
            again = await stranger.do(ask, address_of(first), b"")
            assert senders(again) == {wallet(TRAINER).node, wallet(2).node}
            assert second.status().restarts == 0


def score_of(node: P2PNode, key: Any) -> float:
    peer = node.state.table.book.peers.get(key.peer_id())
    return peer.score.points if peer else 0.0


async def test_who_shows_a_card_of_another_is_blamed_and_gets_no_answer() -> None:
    node = make_node(TRAINER)
    async with started(node), Stranger(wallet(66)) as stranger:
        foreign = sealed(peer_record(ANN), ANN, run=None, now_ms=SystemClock().now_ms())
        try:
            await stranger.do(ask, address_of(node), foreign)
        except Exception as error:  # boundary: the stream is reset, in whichever way the library shows it
            print(f"no answer: {error!r}")
        else:
            raise AssertionError("it was answered")
        await eventually(lambda: score_of(node, stranger.key) < 0, "blame")
        assert node.status().restarts == 0


async def test_who_asks_without_end_is_turned_away() -> None:
    node = make_node(TRAINER)
    async with started(node), Stranger(wallet(66)) as stranger:

        async def pester(stranger: Stranger) -> int:
            answers = 0
            for _ in range(40):
                try:
                    await ask(stranger, address_of(node), b"")
                except Exception:
                    continue
                answers += 1
            return answers

        answers = await stranger.do(pester)
        print(f"{answers} of 40 questions at once were answered")
        assert 10 <= answers < 30
        assert node.status().restarts == 0


async def test_a_host_that_answers_nonsense_is_blamed_and_teaches_nothing() -> None:
    """Records that are none, records for other places than their owner's, and a length without end."""
    answers = [
        PeersReply(records=(b"no record",)),
        PeersReply(records=(sealed(peer_record(BOB), ANN, run=None, now_ms=SystemClock().now_ms()),)),
    ]
    bodies = [encode(answer) for answer in answers]
    frames = [len(body).to_bytes(4, "big") + body for body in bodies] + [b"\xff\xff\xff\xff"]
    async with Stranger(wallet(66)) as stranger:
        given: list[int] = []

        async def install(stranger: Stranger) -> str:
            async def answer(stream: Any) -> None:
                await stream.write(frames[len(given) % len(frames)])
                given.append(1)
                await stream.close()

            async def listen(stream: Any) -> None:
                await trio.sleep_forever()

            stranger.host.set_stream_handler(PEERS, answer)
            stranger.host.set_stream_handler("/meshsub/1.1.0", listen)
            return str(stranger.host.get_addrs()[0])

        address = await stranger.do(install)
        node = make_node(TRAINER, address, exchange_ms=100)
        async with started(node):
            await eventually(lambda: node.status().banned == 1, "a ban of the liar")
            assert node.status().known == 1, "the liar itself, which the operator named"
            assert node.status().restarts == 0
            assert len(given) >= len(frames)


def test_a_question_and_an_answer_are_bounded() -> None:
    for kind, raw in ((PeersRequest, encode(PeersReply(records=()))), (PeersReply, encode(PeersRequest(record=b"")))):
        try:
            decode(kind, raw)
        except RemoteError:
            continue
        raise AssertionError("one was taken for the other")
    assert RUN


async def test_a_newcomer_is_told_what_was_gossiped_before_it_came() -> None:
    first = make_node(TRAINER)
    async with started(first):
        now_ms = SystemClock().now_ms()
        # By whatever way they came: nothing of this is in the library's own cache.
        for number, message in enumerate((announced(5), announced(6), serving())):
            frame = sealed(message, now_ms=now_ms, sequence=number + 1)
            name = topic_of(get_frame_kind(frame, NETWORK))
            assert isinstance(first.state.guard.validate(name, frame, run=RUN, now_ms=now_ms), GossipAccepted)
        newcomer = make_node(2, address_of(first), peers_target=1)
        async with started(newcomer):
            async with asyncio.timeout(WAIT_S):
                heard = [(await newcomer.receive()).message for _ in range(3)]
            assert heard == [announced(6), announced(5), serving()], "the newest weights come first"
            assert newcomer.status().messages_refused == 0


async def ask_recent(stranger: Stranger, address: str, run: str) -> RecentReply:
    stream = await stranger.open(address, "/prime/recent/1")
    body = encode(RecentRequest(run=RunId(run)))
    await stream.write(len(body).to_bytes(4, "big") + body)
    return decode(RecentReply, await read_answer(stream))


async def test_who_asks_about_another_run_is_told_nothing_and_who_asks_endlessly_is_cut_off() -> None:
    node = make_node(TRAINER)
    async with started(node), Stranger(wallet(66)) as stranger:
        await node.publish(RUN, announced())
        assert (await stranger.do(ask_recent, address_of(node), "other")).frames == ()
        assert len((await stranger.do(ask_recent, address_of(node), RUN)).frames) == 1

        async def flood(stranger: Stranger) -> int:
            for number in range(1_000):
                try:
                    await ask_recent(stranger, address_of(node), RUN)
                except (BaseLibp2pError, trio.TooSlowError):
                    return number
            return 1_000

        assert await stranger.do(flood) < 100
        assert score_of(node, stranger.key) < 0


async def tell_lies(stranger: Stranger, victim: str, frames: tuple[bytes, ...]) -> None:
    """Answers every request for recent gossip with these frames."""

    async def serve(stream: Any) -> None:
        await read_answer(stream)
        body = encode(RecentReply(frames=frames))
        await stream.write(len(body).to_bytes(4, "big") + body)
        await stream.close()

    async def serve_peers(stream: Any) -> None:
        await read_answer(stream)
        body = encode(PeersReply(records=()))
        await stream.write(len(body).to_bytes(4, "big") + body)
        await stream.close()

    async def listen(stream: Any) -> None:
        await trio.sleep_forever()

    # A peer is asked once it takes part in gossip.
    stranger.host.set_stream_handler("/meshsub/1.1.0", listen)
    stranger.host.set_stream_handler("/prime/recent/1", serve)
    stranger.host.set_stream_handler(PEERS, serve_peers)
    await stranger.connect(victim)


async def test_forged_news_of_a_peer_is_refused_as_in_gossip() -> None:
    node = make_node(2)
    now_ms = SystemClock().now_ms()
    forged = sealed(announced(), wallet(66), now_ms=now_ms)  # not the trainer's
    old = sealed(announced(3), wallet(TRAINER), now_ms=now_ms - 10**7)
    async with started(node), Stranger(wallet(66)) as stranger:
        await stranger.do(tell_lies, address_of(node), (old, forged, sealed(announced(9), now_ms=now_ms)))
        await eventually(lambda: node.status().messages_refused == 2, "the forged frames")
        assert (await node.receive()).message == announced(9), "a true one beside them counts"
        assert score_of(node, stranger.key) < 0
