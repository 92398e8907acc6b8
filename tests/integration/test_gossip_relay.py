"""Nodes without libp2p are equal members: they hand in and hear the same signed records through the coordinator."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from prime_coordinator.config import LogWriterConfig
from prime_protocol.gossip.messages import (
    RELAY_POLL,
    RELAY_PUBLISH,
    GossipKind,
    RelayPoll,
    RelayPollReply,
    RelayPublish,
    RelayPublishReply,
    decode_gossip,
    get_topic,
)
from prime_protocol.ledger.entries import NodeRegistered, Role
from prime_protocol.wire.envelope import open_envelope
from prime_protocol.wire.ids import RunId
from prime_protocol.wire.rpc import RefusalCode
from prime_runtime.clock import SystemClock
from prime_runtime.http.client import CallRefused
from support.gossip_examples import announced, head_seen, key_of, sealed, serving
from support.processes.coordinator import NETWORK, RUN, CoordinatorProcess, Party, make_folder, party, running

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def process(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CoordinatorProcess]:
    config = await make_folder(tmp_path_factory.mktemp("records") / "coordinator", books=LogWriterConfig(head_ms=100))
    async with running(config) as started:
        yield started


def frame_of(name: str, message: Any, **how: Any) -> bytes:
    return sealed(name, message, now_ms=SystemClock().now_ms(), network=NETWORK, **{"run": RUN} | how)


async def register(node: Party) -> None:
    await node.write(NodeRegistered(roles=(Role.RELAY,), hardware=""))


async def share(node: Party, frame: bytes) -> RelayPublishReply:
    return await node.call(RELAY_PUBLISH, RelayPublish(frame=frame))


async def ask(node: Party, seen: int = 0, wait_ms: int = 0) -> RelayPollReply:
    return await node.call(RELAY_POLL, RelayPoll(seen=seen, wait_ms=wait_ms, wants_peers=True, record=b""))


def words(records: RelayPollReply) -> list[Any]:
    found = []
    for frame in records.frames:
        kind = GossipKind(open_envelope(frame, network=NETWORK).payload.kind)
        found.append(decode_gossip(get_topic(NETWORK, RUN, kind), frame, network=NETWORK, run=RUN).message)
    return found


async def test_what_one_node_hands_in_another_hears_at_once_and_in_the_right_order(process: CoordinatorProcess) -> None:
    async with AsyncExitStack() as stack:
        trainer, origin, node = [
            await stack.enter_async_context(party(process, name)) for name in ("trainer", "origin", "node")
        ]
        await register(origin)
        await register(node)
        first = await ask(node)
        assert (first.trainer, first.peers) == (trainer.node, ())

        began = time.monotonic()
        waiting = asyncio.create_task(ask(node, first.cursor, 20_000))
        assert (await share(trainer, frame_of("trainer", announced(0)))).is_new
        heard = await waiting
        assert words(heard) == [announced(0)]
        assert time.monotonic() - began < 5, "it did not wait for its time to run out"

        waiting = asyncio.create_task(ask(node, heard.cursor, 20_000))
        frame = frame_of("origin", serving(0, depth=0))
        assert (await share(origin, frame)).is_new
        heard = await waiting
        assert words(heard) == [serving(0, depth=0)], "the first who serves it is told at once"
        assert heard.nodes == 1
        assert await share(node, frame) == RelayPublishReply(is_new=False, reason="known"), (
            "handed in by another, again"
        )
        assert set(map(type, words(await ask(node)))) >= {type(announced(0)), type(serving(0))}, "from the start: all"


async def test_small_news_are_told_together_and_silence_lasts_as_long_as_asked(process: CoordinatorProcess) -> None:
    async with party(process, "node") as node, party(process, "other") as other:
        await register(node)
        await register(other)
        cursor = (await ask(node)).cursor
        await share(other, frame_of("other", serving(5)))
        cursor = (await ask(node, cursor, 5000)).cursor
        began = time.monotonic()
        waiting = asyncio.create_task(ask(node, cursor, 20_000))
        await share(other, frame_of("other", serving(5, slots_free=1)))
        await share(other, frame_of("other", serving(5, slots_free=0)))
        heard = await waiting
        assert 0.9 <= time.monotonic() - began < 5
        assert words(heard)[0] == serving(5, slots_free=0), "the newest only"


async def test_strangers_liars_and_nonsense_are_refused_with_a_reason(process: CoordinatorProcess) -> None:
    async with AsyncExitStack() as stack:
        node, stranger = [await stack.enter_async_context(party(process, name)) for name in ("node", "stranger")]
        await register(node)
        with pytest.raises(CallRefused) as refused:
            await share(stranger, frame_of("stranger", serving(0)))
        assert (refused.value.refusal.code, refused.value.refusal.field) == (RefusalCode.FORBIDDEN, "node")
        cases = {
            "is not the trainer": frame_of("node", announced(0)),
            "is not known": frame_of("stranger", serving(0)),
            "this is about": frame_of("node", serving(0), run=RunId("other")),
            "Payload": b"x" * 100,
        }
        for problem, frame in cases.items():
            with pytest.raises(CallRefused) as refused:
                await share(node, frame)
            assert refused.value.refusal.code is RefusalCode.MALFORMED
            assert problem in str(refused.value), problem
        with pytest.raises(CallRefused, match="was not created here"):
            await node.call(RELAY_PUBLISH, RelayPublish(frame=frame_of("node", serving(0))), run=RunId("other"))
        with pytest.raises(CallRefused, match="wait_ms"):
            await ask(node, wait_ms=20_001)
        began = time.monotonic()
        assert (await ask(stranger, 2**60, 20_000)).trainer == key_of("trainer").node
        assert time.monotonic() - began < 5, "who is not registered may look, not wait"


async def scrape(process: CoordinatorProcess) -> dict[str, float]:
    """The metrics of the gossip relay."""
    async with aiohttp.ClientSession(process.server.url) as session, session.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    prefix = "prime_coordinator_relay"
    return {line.split()[0].removeprefix(prefix): float(line.split()[1]) for line in lines if line.startswith(prefix)}


async def test_metrics_count_relayed_messages_polls_and_posts(process: CoordinatorProcess) -> None:
    async with party(process, "counted") as node:
        await register(node)
        before = await scrape(process)
        frame = frame_of("counted", serving(7))
        assert [(await share(node, frame)).is_new for _ in range(3)] == [True, False, False]
        with pytest.raises(CallRefused):
            await share(node, frame_of("counted", announced(0)))
        heard = await ask(node)
        waiting = asyncio.create_task(ask(node, heard.cursor, 20_000))
        while (after := await scrape(process))["_waiting"] == before["_waiting"]:
            await asyncio.sleep(0.02)
        waiting.cancel()
    # Heads are left out: the coordinator tells its own, whenever it likes.
    grown = {name: after[name] - before[name] for name in after if "head-seen" not in name}
    assert grown == {
        '{kind="gossip.announced"}': 0,
        '{kind="gossip.serving"}': 1,
        '{kind="gossip.accusation"}': 0,
        '_posted_total{outcome="new"}': 1,
        '_posted_total{outcome="known"}': 2,
        '_posted_total{outcome="refused"}': 1,
        "_replies_total": 1,
        "_sent_total": len(heard.frames),
        "_waiting": 1,
    }


async def test_the_coordinator_tells_its_own_heads_and_stops_at_once_while_nodes_wait(tmp_path: Path) -> None:
    config = await make_folder(tmp_path / "coordinator", books=LogWriterConfig(head_ms=100))
    async with running(config) as process, party(process, "node") as node:
        await register(node)
        assert (await share(node, frame_of("node", head_seen(3)))).is_new
        while process.node not in [open_envelope(f, network=NETWORK).payload.sender for f in (await ask(node)).frames]:
            await asyncio.sleep(0.1)
        cursor = (await ask(node)).cursor
        waiting = asyncio.create_task(ask(node, cursor, 20_000))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        assert await process.stop() == 0
        assert time.monotonic() - began < 5
        assert (await waiting).cursor == cursor
