"""Who gets in: strangers that send junk, nothing, or plaintext keep nobody out who shakes hands."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from prime_runtime.gossip.libp2p.node import P2PNode
from support.gossip_network import wallet
from support.processes.p2p_nodes import (
    TRAINER,
    WAIT_S,
    Stranger,
    address_of,
    assert_unharmed,
    eventually,
    make_node,
    meshed,
    port_of,
    started,
    witnessed,
)

FLOODED_S = 10.0
"""Longest that a newcomer may wait while junk comes in; on an idle machine it waits a tenth of a second."""
FULL_S = 30.0
"""The same where every place was taken: the time for a handshake, and the pause of one who was refused twice."""
Figures = Callable[[str], None]


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[tuple[P2PNode, P2PNode]]:
    async with witnessed() as nodes:
        yield nodes


RAW = {
    "noise": lambda: os.urandom(4096),
    "HTTP": lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "multistream with a huge length": lambda: b"\xff\xff\xff\xff\x7f" + b"/multistream/1.0.0\n",
    "nothing, then the end": lambda: b"",
}


@pytest.mark.parametrize("name", RAW)
async def test_whatever_comes_instead_of_a_handshake_is_closed(
    name: str, pair: tuple[P2PNode, P2PNode], figures: Figures
) -> None:
    victim, witness = pair
    for _ in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(victim))
        try:
            writer.write(RAW[name]())
            writer.write_eof()
            async with asyncio.timeout(WAIT_S):
                while await reader.read(4096):
                    pass
        except TimeoutError:
            raise AssertionError("it was left open") from None
        except OSError:
            pass  # closed while we were still talking
        writer.close()
    figures(f"p2p, {name} for a handshake: 5 times, closed; {await assert_unharmed(victim, witness)}")


async def test_a_hundred_half_open_sockets_keep_nobody_out(pair: tuple[P2PNode, P2PNode], figures: Figures) -> None:
    victim, witness = pair
    sockets = [await asyncio.open_connection("127.0.0.1", port_of(victim)) for _ in range(100)]
    for _, writer in sockets:
        writer.write(b"\x13/multistream/1.0.0\n")
    figures(f"p2p, half-open sockets: {len(sockets)}; {await assert_unharmed(victim, witness)}")
    for _, writer in sockets:
        writer.close()


async def test_idle_sockets_of_one_address_take_only_the_places_of_that_address() -> None:
    victim = make_node(TRAINER, connections_per_address_max=4)
    witness = make_node(2, peers_target=1)
    async with started(victim, witness):
        idle = [await open_from("127.0.0.2", port_of(victim)) for _ in range(40)]
        refused = [reader for reader, _ in idle if await ends_soon(reader)]
        assert len(refused) >= 36, "four of an address are let in, and wait"
        newcomer = make_node(3, address_of(victim), peers_target=1)
        async with started(newcomer):
            await meshed(victim, newcomer)
        for _, writer in idle:
            writer.close()


async def test_idle_sockets_in_every_place_keep_a_newcomer_out_only_until_their_handshake_is_overdue(
    figures: Figures,
) -> None:
    """Sockets of this machine are not counted by address, as those of a thousand addresses would not be."""
    victim = make_node(TRAINER, connections_max=9, peers_target=1)
    async with started(victim):
        idle = [await asyncio.open_connection("127.0.0.1", port_of(victim)) for _ in range(8)]
        ninth, writer = await asyncio.open_connection("127.0.0.1", port_of(victim))
        assert await ends_soon(ninth), "every place is taken"
        newcomer = make_node(3, address_of(victim), peers_target=1)
        began_s = time.monotonic()
        async with started(newcomer):
            await meshed(victim, newcomer)
            took_s = time.monotonic() - began_s
        for _, each in [*idle, (ninth, writer)]:
            each.close()
    figures(f"p2p, {len(idle)} idle sockets in all {len(idle)} places: a newcomer was in after {took_s:.2f} s")
    assert took_s < FULL_S


async def test_a_peer_that_offers_only_plaintext_does_not_get_in(pair: tuple[P2PNode, P2PNode]) -> None:
    from libp2p.crypto.secp256k1 import create_new_key_pair
    from libp2p.network.exceptions import SwarmException
    from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport

    victim, witness = pair
    plain = InsecureTransport(create_new_key_pair(wallet(66).secret()))
    async with Stranger(wallet(66), {PLAINTEXT_PROTOCOL_ID: plain}) as stranger:
        with pytest.raises(SwarmException, match="failed to negotiate the secure protocol"):
            await stranger.do(Stranger.connect, address_of(victim))
        assert victim.status().connected == 1, "the witness"
    await assert_unharmed(victim, witness)


async def open_from(address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))


async def ends_soon(reader: asyncio.StreamReader) -> bool:
    """The other side has closed, without waiting for a handshake; the timeout is that of an open socket."""
    try:
        async with asyncio.timeout(0.5):
            return await reader.read(100) == b"" or reader.at_eof()
    except TimeoutError:
        return False
    except ConnectionError:
        return True


async def test_a_flood_of_junk_connections_delays_a_newcomer_by_little(
    pair: tuple[P2PNode, P2PNode], figures: Figures
) -> None:
    victim, witness = pair
    connects, stop = 0, False

    async def junk() -> None:
        nonlocal connects
        while not stop:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port_of(victim))
                writer.write(b"\x00junk")
                writer.close()
                connects += 1
            except OSError:
                pass
            await asyncio.sleep(0.005)

    flood = [asyncio.create_task(junk()) for _ in range(2)]
    try:
        await eventually(lambda: connects > 50, "a flood")
        newcomer = make_node(3, address_of(victim), peers_target=1)
        began_s = time.monotonic()
        async with started(newcomer):
            await eventually(lambda: newcomer.status().connected > 0, "a connection during the flood")
            took_s = time.monotonic() - began_s
        figures(f"p2p, connection flood: {connects} junk connections, an honest one took {took_s:.2f} s")
        assert took_s < FLOODED_S
    finally:
        stop = True
        await asyncio.gather(*flood)
    await assert_unharmed(victim, witness)
