"""The life of the libp2p half: ports, dead and frozen peers, its own death and return, and a clean end."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from prime_protocol.errors import LocalError
from prime_protocol.gossip.messages import TOPIC_KINDS
from prime_protocol.wire.ids import RunId
from prime_runtime.gossip.libp2p import patches
from support.gossip_network import RUN, announced, serving, wallet
from support.processes.p2p_nodes import (
    HERE,
    TRAINER,
    WAIT_S,
    SpeakingNode,
    address_of,
    eventually,
    inside,
    line,
    make_node,
    meshed,
    receive_step,
    started,
)

TESTS = Path(__file__).parents[1]


@asynccontextmanager
async def process(number: int, bootstrap: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A connected node in another process, ended at the end whatever became of it."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(TESTS / "support/processes/p2p_main.py"),
        str(number),
        bootstrap,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    try:
        assert child.stdout is not None
        async with asyncio.timeout(WAIT_S):
            assert await child.stdout.readline() == b"connected\n"
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


async def test_a_killed_peer_is_noticed() -> None:
    node = make_node(TRAINER)
    async with started(node), process(2, address_of(node)) as child:
        await eventually(lambda: node.status().connected == 1)
        child.kill()
        took_s = await eventually(lambda: node.status().connected == 0, "the death of a peer")
        print(f"a killed peer was noticed after {took_s:.2f} s")


async def test_a_frozen_peer_is_noticed_and_dropped() -> None:
    node = make_node(TRAINER, ping_ms=300)
    async with started(node), process(2, address_of(node)) as child:
        await eventually(lambda: node.status().connected == 1)
        child.send_signal(signal.SIGSTOP)
        took_s = await eventually(lambda: node.status().connected == 0, "the silence of a peer")
        print(f"a frozen peer was dropped after {took_s:.2f} s")
        assert node.status().restarts == 0


async def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        node = make_node(TRAINER, listen=f"/ip4/127.0.0.1/tcp/{port}")
        with pytest.raises(LocalError, match=rf"port {port} is in use.*p2p\.listen"):
            await node.start()
        assert not node.status().is_running
        await node.stop()


async def test_a_second_daemon_on_the_port_is_told() -> None:
    """The library would share the port with it, and each would get every other connection."""
    first = make_node(TRAINER)
    async with started(first):
        place = address_of(first).rpartition("/p2p/")[0]
        with pytest.raises(LocalError, match="perhaps by another node"):
            await make_node(2, listen=place).start()


async def test_a_place_that_is_not_this_machines_is_told() -> None:
    with pytest.raises(LocalError, match=r"cannot listen on .*p2p\.listen"):
        await make_node(TRAINER, listen="/ip4/192.0.2.1/tcp/0").start()


async def test_a_dead_address_before_a_live_one_does_not_hide_the_peer() -> None:
    first = make_node(TRAINER)
    async with started(first):
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            dead = f"/ip4/127.0.0.1/tcp/{closed.getsockname()[1]}/p2p/{wallet(TRAINER).peer_id()}"
            second = make_node(2, dead, address_of(first))
            async with started(second):
                await meshed(first, second)


async def test_a_peer_can_be_named_by_its_host_name() -> None:
    first = make_node(TRAINER)
    async with started(first):
        named = address_of(first).replace("/ip4/127.0.0.1/", "/dns4/localhost/")
        second = make_node(2, named)
        async with started(second):
            await meshed(first, second)


async def test_a_wrong_key_behind_an_address_is_not_taken_for_the_right_one() -> None:
    first = make_node(TRAINER)
    async with started(first):
        place = address_of(first).rpartition("/p2p/")[0]
        second = make_node(2, f"{place}/p2p/{wallet(9).peer_id()}", call_ms=2_000)
        async with started(second):
            table = second.state.table
            await eventually(lambda: table.book.peers[wallet(9).peer_id()].targets[0].failures > 0, "a failed dial")
            assert second.status().connected == 0


async def die() -> None:
    raise RuntimeError("something that the guard does not hold off")


@asynccontextmanager
async def asked_over_http() -> AsyncIterator[list[tuple[int, float]]]:
    """A route in this very loop that is asked without a pause; of each answer, its status and how many ms it took."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="here")

    answers: list[tuple[int, float]] = []
    app = web.Application()
    app.router.add_get("/", answer)
    async with TestClient(TestServer(app)) as client:

        async def ask() -> None:
            while True:
                began_s = time.monotonic()
                async with client.get("/") as response:
                    await response.read()
                    answers.append((response.status, 1000 * (time.monotonic() - began_s)))
                await asyncio.sleep(0.005)

        asking = asyncio.create_task(ask())
        yield answers
        assert not asking.done(), "one was not answered"
        asking.cancel()
        await asyncio.wait([asking])


async def test_a_crash_of_the_library_is_mended_on_the_same_port_while_http_is_answered(
    figures: Callable[[str], None],
) -> None:
    async with asked_over_http() as answers, line(TRAINER, 2) as (trainer, other):
        before = trainer.status()
        asked = len(answers)
        for crash in range(1, 4):
            await kill_inside(trainer)
            took_s = await eventually(lambda n=crash: trainer.status().restarts == n, "a restart")
            assert trainer.status().is_running
            await meshed(trainer, other)
            await trainer.publish(RUN, announced(crash))
            await receive_step(other, crash)
        after = trainer.status()
        assert (after.addresses, after.peer_id) == (before.addresses, before.peer_id)
        assert "RuntimeError: something that the guard" in after.last_error
        assert other.status().restarts == 0
        assert len(answers) - asked > 20
    assert {status for status, _ in answers} == {200}
    worst_ms = max(took_ms for _, took_ms in answers[asked:])
    counted = f"all {len(answers) - asked} HTTP answers meanwhile were 200, the slowest took {worst_ms:.0f} ms"
    figures(f"p2p, 3 crashes of the library: the last mended in {took_s:.2f} s; {counted}")


async def kill_inside(node: SpeakingNode) -> None:
    async def start() -> None:
        node._session._nursery.start_soon(die)

    await inside(node, start)


async def test_publishing_while_the_library_is_down_is_told_and_what_is_joined_meanwhile_counts_later() -> None:
    node = make_node(TRAINER, restart_ms=1_000)
    async with started(node):
        await kill_inside(node)
        await eventually(lambda: not node.status().is_running, "the crash")
        with pytest.raises(LocalError, match="restarts by itself"):
            await node.publish(RUN, serving())
        assert node.status().connected == 0
        await node.join(RunId("another-run"))
        await eventually(lambda: node.status().restarts == 1, "a restart")
        assert len(node._session.gossiping.pubsub.topic_ids) == 2 * len(TOPIC_KINDS)
        await node.publish(RUN, serving(slots_free=2))


async def test_stopping_closes_connections_and_leaves_no_thread_and_no_port() -> None:
    async with line(TRAINER, 2) as (trainer, other):
        place = address_of(other).rpartition("/p2p/")[0]
        await other.stop()
        took_s = await eventually(lambda: trainer.status().connected == 0, "the end of the connection")
        print(f"a stopped peer was noticed after {took_s:.2f} s")
        assert not other.status().is_running
        await other.stop()
        again = make_node(3, listen=place)
        await again.start()
        await again.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "p2p"]


async def test_an_outbound_only_node_takes_part_without_listening() -> None:
    first = make_node(TRAINER)
    async with started(first):
        silent = make_node(2, address_of(first), listen="")
        async with started(silent):
            await meshed(first, silent)
            assert silent.status().addresses == ()
            await first.publish(RUN, announced())
            assert (await silent.receive()).message == announced()


async def test_announced_addresses_are_told_instead_of_the_real_ones() -> None:
    node = make_node(TRAINER, announce=("/dns4/node.example/tcp/4001",))
    async with started(node):
        assert node.status().addresses == (f"/dns4/node.example/tcp/4001/p2p/{wallet(TRAINER).peer_id()}",)


async def test_listening_everywhere_tells_addresses_that_can_be_dialled() -> None:
    node = make_node(TRAINER, listen="/ip4/0.0.0.0/tcp/0")
    async with started(node):
        addresses = node.status().addresses
        assert addresses
        assert not any("/0.0.0.0/" in address for address in addresses)
        other = make_node(2, *addresses)
        async with started(other):
            await meshed(node, other)


async def test_without_the_window_patch_gossip_still_flows() -> None:
    async with line(TRAINER, 2, window_patch=False) as (trainer, other):
        for step in range(20):
            await trainer.publish(RUN, announced(step))
        await receive_step(other, 19)


def test_a_library_of_another_version_or_without_a_patched_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    patches.check_library()
    monkeypatch.setattr(patches, "version", lambda name: "0.9.0")
    with pytest.raises(LocalError, match=r"libp2p 0\.9\.0 is installed, the guard fits 0\.8\.1: pip install"):
        patches.check_library()
    monkeypatch.undo()
    monkeypatch.setattr(patches, "PATCHED", ((patches.Pubsub, "no_such_name"),))
    with pytest.raises(LocalError, match=r"lacks what the guard patches: Pubsub\.no_such_name"):
        patches.check_library()


def test_importing_without_the_library_says_what_to_install() -> None:
    script = """
import importlib.util as u, sys
found = u.find_spec
u.find_spec = lambda name, *more: None if name == "libp2p" else found(name, *more)
import prime_runtime.gossip.config
try:
    import prime_runtime.gossip.libp2p
except Exception as error:
    print(type(error).__name__, error)
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert re.match(r"LocalError .*pip install 'prime-swarm\[p2p\]'.*libgmp-dev", told)


def test_importing_the_package_loads_neither_trio_nor_libp2p() -> None:
    script = "import sys, prime_runtime.gossip.libp2p; print('trio' in sys.modules, 'libp2p' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["False", "False"]
    assert HERE.endswith("/0")
