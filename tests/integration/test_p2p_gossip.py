"""Nodes on loopback find each other, hear each other once, and pass nothing on that the guard refuses."""

import asyncio
import struct
import time
from collections.abc import Callable
from typing import Any

import trio

from prime_protocol.errors import LocalError
from prime_protocol.gossip.messages import TOPIC_KINDS, GossipKind, get_topic, seal_gossip
from prime_protocol.wire.ids import RunId
from prime_runtime.clock import SystemClock
from prime_runtime.gossip.libp2p.patches import QUEUE_MAX
from support.gossip_network import (
    ANN,
    NETWORK,
    NOW_MS,
    RUN,
    announced,
    head_seen,
    is_trainer,
    sealed,
    serving,
    topic_of,
    wallet,
)
from support.processes.p2p_nodes import (
    TRAINER,
    SpeakingNode,
    Stranger,
    address_of,
    eventually,
    inside,
    line,
    make_node,
    meshed,
    peer_id,
    receive_step,
    started,
    varint,
)

Figures = Callable[[str], None]


async def test_two_nodes_hear_every_kind_of_message_from_each_other() -> None:
    async with line(TRAINER, 2) as (trainer, other):
        frame = await trainer.publish(RUN, announced())
        gossip = await other.receive()
        assert (gossip.message, gossip.frame, gossip.payload.sender) == (announced(), frame, wallet(TRAINER).node)
        for message in (serving(), head_seen()):
            await other.publish(RUN, message)
            assert (await trainer.receive()).message == message


async def test_only_the_trainer_can_announce() -> None:
    async with line(TRAINER, 2) as (_, other):
        try:
            await other.publish(RUN, announced())
        except LocalError as error:
            assert "not the trainer" in str(error)
        else:
            raise AssertionError("a node announced")


async def test_a_burst_of_a_hundred_announcements_reaches_the_end_of_a_line_whole(figures: Figures) -> None:
    async with line(TRAINER, 2, 3) as (trainer, _, last):
        began_s = time.monotonic()
        frames = [sealed(announced(step), sequence=step, now_ms=now_ms()) for step in range(100)]

        async def burst() -> None:
            for frame in frames:
                await trainer._session.publish(topic_of(GossipKind.ANNOUNCED), frame)

        await inside(trainer, burst)
        got = {(await last.receive()).message.step for _ in range(100)}
        figures(f"p2p, a burst of 100 announcements: all came over two hops in {time.monotonic() - began_s:.2f} s")
        assert got == set(range(100))
        assert last.status().inbox_dropped == 0


async def join_and_starve(stranger: Stranger, address: str, name: str) -> None:
    """Be in the mesh of a topic, read nothing of it, and give room for a byte now and then, so as not to be dropped."""
    from libp2p.pubsub.pb import rpc_pb2

    async def starve(stream: Any) -> None:
        while True:
            number = stream.muxed_stream.stream_id
            await stream.muxed_conn._write_frame(struct.pack("!BBHII", 0, 1, 0, number, 1))
            await trio.sleep(1)

    stranger.host.set_stream_handler("/meshsub/1.1.0", starve)
    rpc = rpc_pb2.RPC(
        subscriptions=[rpc_pb2.RPC.SubOpts(subscribe=True, topicid=name)],
        control=rpc_pb2.ControlMessage(graft=[rpc_pb2.ControlGraft(topicID=name)]),
    ).SerializeToString()
    stream = await stranger.open(address, "/meshsub/1.1.0")
    await stream.write(varint(len(rpc)) + rpc)


async def test_a_peer_that_hardly_reads_does_not_hold_up_the_others(figures: Figures) -> None:
    elsewhere = RunId("elsewhere")
    name = get_topic(NETWORK, elsewhere, GossipKind.ANNOUNCED)
    async with line(TRAINER, 2) as (trainer, other), Stranger(wallet(66)) as miser:
        await trainer.join(elsewhere)
        half = trainer._session.gossiping
        await miser.do(join_and_starve, address_of(trainer), name)
        await eventually(
            lambda: half.router.mesh[name] and miser.key.peer_id() in half.list_gossiping_peers(), "a mesh with it"
        )

        async def fill() -> None:
            for _ in range(QUEUE_MAX):
                await half.pubsub.publish(name, bytes(30_000))

        await inside(trainer, fill)
        waits_s = []
        for step in range(20):
            began_s = time.monotonic()
            await trainer.publish(RUN, announced(step))
            await receive_step(other, step)
            waits_s.append(time.monotonic() - began_s)
        behind = len(half.pubsub.peer_queues[peer_id(miser.key.peer_id())])
        assert behind > QUEUE_MAX // 2, "the miser has been behind all the time"
    waited = f"20 to an honest peer took {sum(waits_s):.2f} s, the slowest {max(waits_s):.2f} s"
    figures(f"p2p, a peer that hardly reads: {behind} messages wait for it; {waited}")
    assert sum(waits_s) < 10, "waiting for the miser costs a second each time"


async def test_eight_nodes_find_each_other_beyond_the_one_they_were_told_of() -> None:
    nodes = [make_node(TRAINER, peers_target=4)]
    await nodes[0].start()
    for number in range(2, 9):
        # Each knows only the one before it.
        nodes.append(make_node(number, address_of(nodes[-1]), peers_target=4))
        await nodes[-1].start()
    try:
        for node in nodes:
            await node.join(RUN)
        took_s = await eventually(lambda: all(node.status().connected >= 4 for node in nodes), "four peers for each")
        print(f"eight nodes had four peers each after {took_s:.1f} s")
        # The ones that were told to others are gone; those who met through the exchange still reach each other.
        await nodes[3].stop()
        for other in nodes[1:3] + nodes[4:]:
            await eventually(lambda other=other: has_mesh(other), "a mesh")
        await repeat_until_heard(nodes[0], [node for node in nodes[1:] if node is not nodes[3]])
    finally:
        await asyncio.gather(*(node.stop() for node in nodes))


def has_mesh(node: SpeakingNode) -> bool:
    return any(node._session.gossiping.router.mesh.values())


async def repeat_until_heard(speaker: SpeakingNode, others: list[SpeakingNode]) -> None:
    """Announce as a trainer does: again and again, since a mesh that is still forming may lose one."""
    hearing = [asyncio.create_task(receive_step(other, 5)) for other in others]
    for _ in range(60):
        await speaker.publish(RUN, announced(5))
        _, waiting = await asyncio.wait(hearing, timeout=1)
        if not waiting:
            break
    await asyncio.gather(*hearing)


def now_ms() -> int:
    return SystemClock().now_ms()


async def test_what_the_guard_refuses_is_not_passed_on_and_its_sender_is_banned(figures: Figures) -> None:
    """Mallory - middle - last, and the trainer beside the middle: the last one hears the trainer alone."""
    async with line(TRAINER, 2, 3) as (trainer, middle, last):
        mallory = make_node(66, address_of(middle), peers_target=1)
        async with started(mallory):
            await meshed(middle, mallory)
            name = topic_of(GossipKind.ANNOUNCED)
            good = bytearray(sealed(announced(1), now_ms=now_ms()))
            good[100] ^= 1
            forged = [
                (name, sealed(announced(2), wallet(66), now_ms=now_ms()), "signed by another"),
                (name, bytes(good), "changed on the way"),
                (name, sealed(announced(3), now_ms=now_ms(), run=RunId("other-run")), "of another run"),
                (name, sealed(serving(), ANN, now_ms=now_ms()), "of another kind"),
                (name, b"x" * 40_000, "too large"),
            ]
            for number, (topic, frame, why) in enumerate(forged, 1):
                await inside(mallory, mallory._session.publish, topic, frame)
                await eventually(lambda n=number: middle.status().messages_refused == n, f"refusal of one {why}")
            await eventually(lambda: middle.status().banned == 1, "a ban of the forger")
            await eventually(lambda: mallory.status().connected == 0, "the end of its connection")
        began_s = time.monotonic()
        await trainer.publish(RUN, announced(9))
        assert (await last.receive()).message == announced(9), "the first that it hears"
        heard_ms = 1000 * (time.monotonic() - began_s)
        assert last.status().messages_refused == 0, "nothing of it came through"
        became = f"{middle.status().messages_refused} refused, none passed on, the forger banned"
        figures(
            f"p2p, {len(forged)} forged announcements: {became}; a true one came over two hops in {heard_ms:.0f} ms"
        )
        assert middle.status().restarts == last.status().restarts == 0


async def test_what_is_old_is_not_passed_on_and_nobody_is_blamed(figures: Figures) -> None:
    async with line(TRAINER, 2, 3) as (trainer, middle, last):
        replayer = make_node(66, address_of(middle), peers_target=1)
        async with started(replayer):
            await meshed(middle, replayer)
            name = topic_of(GossipKind.ANNOUNCED)
            frame = await trainer.publish(RUN, announced(5))
            assert (await last.receive()).message == announced(5)
            expired = sealed(announced(4), now_ms=NOW_MS - 10**9)
            superseded = seal_gossip(
                wallet(TRAINER), announced(5), network=NETWORK, run=RUN, sequence=1, now_ms=now_ms()
            )
            await inside(replayer, replayer._session.publish, name, frame)
            await eventually(lambda: middle.status().messages_ignored == 1, "a known frame to be ignored")
            await inside(replayer, replayer._session.publish, name, superseded)
            await eventually(lambda: middle.status().messages_ignored == 2, "an older frame to be ignored")
            await inside(replayer, replayer._session.publish, name, expired)
            await eventually(lambda: middle.status().messages_refused == 1, "an expired frame to be refused")
            began_s = time.monotonic()
            await trainer.publish(RUN, announced(6))
            assert (await last.receive()).message == announced(6), "the next that it hears"
            heard_ms = 1000 * (time.monotonic() - began_s)
            figures(f"p2p, 3 replayed announcements: none passed on; a new one came over two hops in {heard_ms:.0f} ms")
            assert middle.status().banned == 0
            assert replayer.status().connected == 1


async def test_a_second_message_under_a_number_that_was_judged_is_judged_again() -> None:
    """The library remembers its verdict on a number longer than that it has seen the number."""
    async with line(TRAINER, 2, 3) as (_, middle, last):
        mallory = make_node(66, address_of(middle), peers_target=1)
        async with started(mallory):
            await meshed(middle, mallory)
            await mallory.publish(RUN, serving())
            assert (await last.receive()).message == serving()

            async def forget() -> None:
                middle._session.gossiping.pubsub.seen_messages.cache.clear()

            async def same_number() -> None:
                half = mallory._session.gossiping
                half.pubsub.counter -= 1
                half.pubsub.seen_messages.cache.clear()
                half.router.equivocation_detection.clear()
                await mallory._session.publish(topic_of(GossipKind.SERVING), b"anything")

            await inside(middle, forget)
            await inside(mallory, same_number)
            await eventually(lambda: middle.status().messages_refused == 1, "a second verdict")
            await mallory.publish(RUN, serving(slots_free=1))
            assert (await last.receive()).message == serving(slots_free=1)
            assert last.status().messages_refused == 0


async def test_a_frame_that_came_over_http_is_passed_on_as_it_is() -> None:
    async with line(2, 3) as (bridge, other):
        frame = sealed(announced(8), now_ms=now_ms())
        assert is_trainer(RUN, wallet(TRAINER).node)
        await bridge.publish_frame(RUN, GossipKind.ANNOUNCED, frame)
        assert (await other.receive()).frame == frame


async def test_one_run_does_not_hear_another() -> None:
    async with line(TRAINER, 2) as (trainer, other):
        elsewhere = RunId("elsewhere")
        await other.join(elsewhere)
        await trainer.join(elsewhere)
        record = serving(slots_free=1)
        await eventually(lambda: all_meshes(trainer) == 2 * len(TOPIC_KINDS), "a mesh for both runs")
        await trainer.publish(elsewhere, record)
        gossip = await other.receive()
        assert (gossip.payload.run, gossip.message) == (elsewhere, record)


def all_meshes(node: SpeakingNode) -> int:
    return sum(1 for mesh in node._session.gossiping.router.mesh.values() if mesh)
