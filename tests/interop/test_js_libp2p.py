"""A second implementation joins: js-libp2p connects, identifies, pings, and exchanges sealed gossip with ours."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from prime_protocol.gossip.messages import TOPIC_KINDS, GossipKind
from prime_runtime.clock import SystemClock
from support.gossip_network import RUN, announced, is_trainer, sealed, serving, topic_of, wallet
from support.processes.p2p_nodes import TRAINER, WAIT_S, address_of, eventually, make_node, started

HERE = Path(__file__).parent
JS = 77
"""Number of the key that the other implementation runs with."""

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not (HERE / "node_modules/libp2p").is_dir(),
    reason="needs Node.js and `sh tests/install_packages.sh test`",
)


class Js:
    """A js-libp2p node in a process of its own."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self._child = child
        self.events: list[dict[str, Any]] = []

    async def read(self) -> None:
        assert self._child.stdout is not None
        async for line in self._child.stdout:
            self.events.append(json.loads(line))

    def tell(self, command: str, **more: Any) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"do": command, **more}).encode() + b"\n")

    async def wait_for(self, event: str, **fields: Any) -> dict[str, Any]:
        def find() -> list[dict[str, Any]]:
            return [told for told in self.events if told | {"event": event, **fields} == told]

        await eventually(lambda: bool(find()) or bool(self.failures()), f"{event} {fields}")
        assert not self.failures(), self.failures()
        return find()[0]

    def failures(self) -> list[dict[str, Any]]:
        return [told for told in self.events if told["event"] == "failed"]


@asynccontextmanager
async def js_node() -> AsyncIterator[Js]:
    child = await asyncio.create_subprocess_exec(
        "node",
        "--import",
        "./polyfill.mjs",
        "peer.mjs",
        wallet(JS).secret().hex(),
        cwd=HERE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    js = Js(child)
    reading = asyncio.create_task(js.read())
    try:
        ready = await js.wait_for("ready")
        assert ready["peer"] == wallet(JS).peer_id(), "one key, one peer id, in both implementations"
        for kind in TOPIC_KINDS:
            js.tell("subscribe", topic=topic_of(kind))
        yield js
    finally:
        if child.returncode is None:
            js.tell("stop")
            try:
                async with asyncio.timeout(WAIT_S):
                    await child.wait()
            except TimeoutError:
                child.kill()
                await child.wait()
        await reading
        child._transport.close()  # type: ignore[attr-defined]


def now_ms() -> int:
    return SystemClock().now_ms()


async def exchange_gossip(js: Js, node: Any) -> None:
    """One sealed message each way. Python seals both: the other side carries the envelope as it is."""
    name = topic_of(GossipKind.ANNOUNCED)
    frame = sealed(announced(41), now_ms=now_ms())
    await js.wait_for("graft", topic=name)
    js.tell("publish", topic=name, data=frame.hex())
    async with asyncio.timeout(WAIT_S):
        gossip = await node.receive()
    assert (gossip.frame, gossip.message, is_trainer(RUN, gossip.payload.sender)) == (frame, announced(41), True)
    await js.wait_for("graft", topic=topic_of(GossipKind.SERVING))
    ours = await node.publish(RUN, serving())
    await js.wait_for("message", topic=topic_of(GossipKind.SERVING), data=ours.hex())


async def test_js_dials_us_identifies_pings_and_gossips_both_ways() -> None:
    node = make_node(TRAINER)
    async with started(node), js_node() as js:
        js.tell("dial", address=address_of(node))
        await js.wait_for("dialled")
        told = await js.wait_for("identified", peer=node.status().peer_id)
        print(f"js-libp2p met {told['agent']}")
        assert {"/meshsub/1.1.0", "/prime/peers/1", "/ipfs/ping/1.0.0"} <= set(told["protocols"])
        js.tell("ping", address=address_of(node))
        await js.wait_for("pinged")
        await exchange_gossip(js, node)
        assert node.status().connected == 1


async def test_we_dial_js_and_gossip_both_ways() -> None:
    async with js_node() as js:
        ready = await js.wait_for("ready")
        node = make_node(TRAINER, ready["addresses"][0], ping_ms=200)
        async with started(node):
            await eventually(lambda: node.status().connected == 1, "a connection to js-libp2p")
            await exchange_gossip(js, node)
            peer = node.state.table.book.peers[wallet(JS).peer_id()]
            began = peer.link.ping_at_ms
            await eventually(lambda: peer.link.ping_at_ms > began + 300, "answers to our pings")
            assert peer.link.pings_missed == 0


async def test_a_forged_message_from_js_is_refused() -> None:
    node = make_node(TRAINER)
    async with started(node), js_node() as js:
        js.tell("dial", address=address_of(node))
        name = topic_of(GossipKind.ANNOUNCED)
        await js.wait_for("graft", topic=name)
        js.tell("publish", topic=name, data=sealed(announced(), wallet(JS), now_ms=now_ms()).hex())
        await eventually(lambda: node.status().messages_refused == 1, "a refusal")
        assert node.status().messages_in == 0
