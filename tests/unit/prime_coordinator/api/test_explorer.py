"""What a coordinator tells its explorer that no entry of the log does: who is there, who serves, what was refused."""

from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from prime_coordinator.api.explorer import CoordinatorLive, StoredFiles, make_explorer, open_models
from prime_coordinator.gossip.relay import GossipRelay
from prime_coordinator.log.store import QuarantinedFile
from prime_coordinator.retention.object_names import FileKind, make_key
from prime_explorer.pages.live import NodeCounts
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.messages import NodeActivity
from prime_runtime.clock import SystemClock
from prime_runtime.objects.store import open_object_store
from support.app_context import FakeAppContext
from support.gossip_examples import NOW_MS as GOSSIP_MS
from support.gossip_examples import said, serving
from support.ledger_network import RUN, World


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[FakeAppContext]:
    opened = await FakeAppContext.open(World.started(), tmp_path)
    yield opened
    opened.log.close()


async def test_presence_comes_from_the_last_heartbeat(context: FakeAppContext) -> None:
    ann, bob = context.world.id("ann"), context.world.id("bob")
    context.core.liveness.beat(ann, NodeActivity.WORKING, 3, context.now_ms())
    live = CoordinatorLive(context, GossipRelay(Random(1), now_ms=0))
    assert live.count() == NodeCounts(registered=11, online=1, late=0, lost=10)
    found = live.get_presence([ann, bob])
    assert (found[str(ann)].phase, found[str(ann)].activity, found[str(ann)].checkpoint_step) == (
        "online",
        "working",
        3,
    )
    assert (found[str(bob)].phase, found[str(bob)].last_beat_ms) == ("lost", None)


async def test_serving_nodes_come_from_the_relay(context: FakeAppContext) -> None:
    board = GossipRelay(Random(1), now_ms=0)
    context.world.now_ms = GOSSIP_MS
    ann = context.world.id("ann")
    gossip = said("relay", serving(0, 1, depth=2, parents=(ann,), sent_bytes=77))
    board.put(RUN, gossip, GOSSIP_MS)
    live, relay = CoordinatorLive(context, board), gossip.payload.sender
    (node,) = live.list_serving(RUN)
    assert (node.node, node.depth, node.urls, len(node.manifests)) == (str(relay), 2, 1, 2)
    assert (node.parents, node.sent_bytes) == ((str(ann),), 77)
    assert (live.get_sent_bytes(relay), live.get_sent_bytes(ann)) == (77, None)


async def test_refused_files_are_listed_by_node(context: FakeAppContext) -> None:
    ann, bob = context.world.id("ann"), context.world.id("bob")
    for place, node in enumerate((ann, bob, ann)):
        refused = QuarantinedFile(f"0x{place}", context.now_ms() + place, str(node), RUN, place, "rows", "are wrong")
        await context.log.add_refused(refused)
    live = CoordinatorLive(context, GossipRelay(Random(1), now_ms=0))
    assert [each.lease for each in await live.list_refused(ann)] == [2, 0]


async def test_only_files_that_the_log_names_are_read_and_not_past_their_limit(
    context: FakeAppContext, tmp_path: Path
) -> None:
    objects = open_object_store(str(tmp_path / "objects"))
    named, other = context.world.run.checkpoints[0].manifest, Digest(sha256(b"other").digest())  # type: ignore[index]
    for digest in (named, other):
        await objects.put(make_key(FileKind.MANIFESTS, 0, digest), b"12345", bytes_max=10)
    files = StoredFiles(context, objects)
    assert await files.read(named, 5) == b"12345"
    assert await files.read(named, 4) is None
    assert await files.read(other, 5) is None
    await objects.delete(make_key(FileKind.MANIFESTS, 0, named))
    assert await files.read(named, 5) is None


async def test_a_model_without_its_files_is_named_at_the_start(context: FakeAppContext, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"explorer\.models: .*config\.json"):
        open_models((tmp_path,))
    explorer = make_explorer(
        context, GossipRelay(Random(1), now_ms=0), open_object_store(str(tmp_path / "objects")), SystemClock()
    )
    explorer.close()


async def test_anchors_are_those_that_settlement_has_followed(
    context: FakeAppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = CoordinatorLive(context, GossipRelay(Random(1), now_ms=0))
    assert live.list_anchors() == []
    row = {"run": "0x01", "size": 7, "root": "0x02", "block": 9, "transaction": "0x03"}
    monkeypatch.setattr(context.settlement, "describe", lambda: {"kind": "evm", "anchors": [row]})
    (anchor,) = live.list_anchors()
    assert (anchor.size, anchor.block) == (7, 9)
