"""Libp2pTransport in a program: messages travel both ways, and if it is off or fails the program says why."""

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from prime_protocol.errors import LocalError
from prime_protocol.gossip.guard import GossipGuard
from prime_protocol.gossip.messages import ReceivedGossip
from prime_runtime.clock import SystemClock
from prime_runtime.gossip.config import P2PConfig, P2PMode
from prime_runtime.gossip.libp2p_transport import NO_PEER, Libp2pTransport
from prime_runtime.gossip.transport import GossipPublisher
from prime_runtime.keys import SequenceCounter
from support.gossip_examples import NETWORK, RUN, key_of, serving

HERE = "/ip4/127.0.0.1/tcp/0"
WAIT_S = 60.0


class Program:
    """A half under way, and what it hears."""

    def __init__(self, name: str, *bootstrap: str, listen: str = HERE) -> None:
        key, clock = key_of(name), SystemClock()
        guard = GossipGuard(NETWORK, is_trainer=lambda run, node: False)
        config = P2PConfig(enabled=P2PMode.ON, listen=listen, bootstrap=bootstrap)
        self.half = Libp2pTransport(key, NETWORK, config, clock=clock, guard=guard)
        self.voice = GossipPublisher(
            key, NETWORK, guard, clock=clock, sequence=SequenceCounter(), transports=(self.half.send,)
        )
        self.heard: list[ReceivedGossip] = []
        self.task = asyncio.create_task(self.half.run(self.heard.append, lambda: [RUN]))

    async def until_on(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while not self.half.addresses:
                assert not self.task.done(), self.task.exception()
                await asyncio.sleep(0.02)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_what_one_program_says_another_hears_and_both_say_when_they_are_off() -> None:
    async with AsyncExitStack() as stack:
        first = Program("a")
        stack.push_async_callback(first.end)
        assert first.half.reason == "not started yet"
        await first.until_on()
        second = Program("b", *first.half.addresses)
        stack.push_async_callback(second.end)
        await second.until_on()
        assert second.half.reason == ""
        async with asyncio.timeout(WAIT_S):
            while not first.heard:
                await second.voice.publish(RUN, serving(0))
                await asyncio.sleep(0.5)
        assert first.heard[0].message == serving(0)
        assert first.heard[0].payload.sender == key_of("b").node
        assert second.heard == [], "our own words do not come back"
    assert first.half.status() is None
    assert first.half.reason == "restarting"


async def test_a_taken_port_is_told_and_harms_nobody() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        program = Program("a", listen=f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}")
        with pytest.raises(LocalError) as caught:
            await program.task
    assert program.half.reason == str(caught.value)
    assert await program.voice.publish(RUN, serving(0)) is not None, "there is nobody to tell, and nothing breaks"
    assert program.voice.failures == {}


async def test_a_half_that_is_not_wanted_says_so_and_is_done() -> None:
    key = key_of("a")
    guard = GossipGuard(NETWORK, is_trainer=lambda run, node: False)
    half = Libp2pTransport(key, NETWORK, P2PConfig(enabled=P2PMode.OFF), clock=SystemClock(), guard=guard)
    await half.run(lambda gossip: None, lambda: [RUN])
    assert (half.reason, half.status(), half.addresses) == ("p2p.enabled is off", None, ())


def test_the_coordinators_own_addresses_are_bootstrap_addresses_and_those_of_others_hearsay() -> None:
    own, seed, other = key_of("a"), key_of("b"), key_of("c")
    guard = GossipGuard(NETWORK, is_trainer=lambda run, node: False)
    peers = [f"/ip4/10.0.0.1/tcp/1/p2p/{key.peer_id()}" for key in (own, seed, other)]
    half = Libp2pTransport(own, NETWORK, P2PConfig(bootstrap=(peers[2],)), clock=SystemClock(), guard=guard)
    half.add_peers(peers, seed=seed.node)
    assert half.bootstrap == (peers[1], peers[2])
    moved = peers[1].replace("tcp/1", "tcp/2")
    half.add_peers([moved], seed=seed.node)
    assert half.bootstrap == (moved, peers[2]), "a coordinator that moved is not dialled where it was"


async def test_without_settings_it_starts_when_a_peer_is_named_and_finds_it_again_without_a_coordinator(
    tmp_path: Path,
) -> None:
    guard = GossipGuard(NETWORK, is_trainer=lambda run, node: False)
    config, file = P2PConfig(listen=HERE), tmp_path / "peers.json"

    def make() -> Libp2pTransport:
        return Libp2pTransport(key_of("b"), NETWORK, config, clock=SystemClock(), guard=guard, peers_file=file)

    async def until_connected(half: Libp2pTransport) -> None:
        async with asyncio.timeout(WAIT_S):
            while (status := half.status()) is None or not status.connected:
                await asyncio.sleep(0.02)

    async with AsyncExitStack() as stack:
        first = Program("a")
        stack.push_async_callback(first.end)
        await first.until_on()
        half = make()
        task = asyncio.create_task(half.run(lambda gossip: None, lambda: [RUN]))
        async with asyncio.timeout(WAIT_S):
            while half.reason != NO_PEER:
                await asyncio.sleep(0.01)
        assert half.wants_peers()
        half.add_peers(first.half.addresses, seed=key_of("a").node)
        await until_connected(half)
        port = half.addresses[0].split("/")[4]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

        again = make()
        task = asyncio.create_task(again.run(lambda gossip: None, lambda: [RUN]))
        await until_connected(again)
        assert again.addresses[0].split("/")[4] == port, "others know it by its port"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
