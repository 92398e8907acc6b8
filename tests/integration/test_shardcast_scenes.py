"""Weights reach everybody, bit for bit, whatever single parties do. Real sockets in one process."""

import asyncio
import errno
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from prime_lab.attacks.relay_attacks import SHARD_BYTES, TRAINER, ShardHost, write_checkpoint
from prime_node.weights.connection import ConnectionPool
from prime_node.weights.events import FetchLimits
from prime_node.weights.manifests import ManifestResolver
from prime_protocol.errors import LocalError
from prime_protocol.weights.manifest import ManifestKind, SignedManifest
from prime_runtime.clock import SystemClock
from prime_runtime.shardcast.checkpoint_files import count_folder_bytes
from prime_runtime.shardcast.upload_slots import UploadLimits
from support.shard_hosts import announce, change, introduce, make_tensors, obtain_all, read_checkpoint

Make = Callable[..., ShardHost]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[ShardHost] = []

    def make_host(name: str, **options: object) -> ShardHost:
        host = ShardHost(tmp_path, name, **options)  # type: ignore[arg-type]
        made.append(host)
        return host

    yield make_host
    for host in made:
        if host.url:
            await host.stop()


class Steps:
    """A run of checkpoints at an origin."""

    def __init__(self, origin: ShardHost, folder: Path) -> None:
        self.origin = origin
        self.folder = folder
        self.tensors = make_tensors(1)
        self.made: list[tuple[SignedManifest, ...]] = []

    def publish(self, *, keyframe: bool = False) -> SignedManifest:
        step = len(self.made)
        if step:
            self.tensors = change(self.tensors, step)
        checkpoint = write_checkpoint(self.folder / f"step{step}", self.tensors)
        self.made.append(self.origin.publish(checkpoint, step, keyframe=keyframe))
        return self.made[-1][0]

    def tell(self, host: ShardHost, *steps: int) -> None:
        """Announcements of these steps, and where the origin is."""
        named = [signed for step in steps for signed in self.made[step]]
        for signed in named:
            host.fetcher.handle_gossip(announce(self.origin, signed))
        everything = [signed for made in self.made for signed in made]
        host.fetcher.handle_gossip(self.origin.record(*everything[-8:]))


@pytest.fixture
async def steps(make: Make, tmp_path: Path) -> Steps:
    origin = make("origin", key=TRAINER)
    await origin.start()
    return Steps(origin, tmp_path)


async def start(host: ShardHost) -> ShardHost:
    await host.start()
    return host


def shards_of(signed: SignedManifest) -> int:
    return len(signed.manifest.shards)


async def test_one_corrupted_shard_costs_one_shard(make: Make, steps: Steps) -> None:
    signed = steps.publish()
    # One transfer at a time and none asked for twice, so that every shard sent can be accounted for.
    exact = FetchLimits(endgame_shards=0, parent_transfers_max=1)
    relay, node = await start(make("relay", is_relay=True, fetch=exact)), await start(make("node", fetch=exact))
    steps.tell(relay, 0)
    await obtain_all([relay], signed)
    stock = relay.store.shard_sets[signed.digest]
    stock.folder.joinpath("model.safetensors").write_bytes(
        _flip(stock.folder.joinpath("model.safetensors").read_bytes(), 3 * SHARD_BYTES + 7)
    )
    node.fetcher.handle_gossip(announce(steps.origin, signed))
    node.fetcher.handle_gossip(relay.record())
    task = asyncio.create_task(node.fetcher.ensure_checkpoint(signed.root))
    async with asyncio.timeout(20):
        while not node.fetcher.list_transfers() or node.fetcher.list_transfers()[0].corrupt == 0:
            await asyncio.sleep(0.01)
    node.fetcher.handle_gossip(steps.origin.record(signed))
    async with asyncio.timeout(20):
        await task
    assert node.fetcher.corrupt == 1
    assert read_checkpoint(node, signed) == read_checkpoint(steps.origin, signed)
    sent = relay.server.sent_shards + steps.origin.server.sent_shards
    assert sent == 2 * shards_of(signed) + 1, "what the relay fetched, what the node fetched, and the one in vain"


def _flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


async def test_a_late_joiner_is_served_by_peers_after_the_origin_has_gone(make: Make, steps: Steps) -> None:
    signed = steps.publish()
    early, late = await start(make("early")), await start(make("late"))
    steps.tell(early, 0)
    await obtain_all([early], signed)
    await steps.origin.http.stop()
    late.fetcher.handle_gossip(announce(steps.origin, signed))
    late.fetcher.handle_gossip(early.record())
    await obtain_all([late], signed)
    assert read_checkpoint(late, signed) == read_checkpoint(early, signed)
    assert late.store.shard_sets[signed.digest].depth == 2


async def test_a_restarted_node_fetches_only_what_it_lacks(make: Make, steps: Steps) -> None:
    signed = steps.publish()
    slow = UploadLimits(slots=8, address_slots=8, bytes_per_s=8 * SHARD_BYTES)
    steps.origin.server.slots._limits = slow
    node = await start(make("node"))
    steps.tell(node, 0)
    task = asyncio.create_task(node.fetcher.ensure_checkpoint(signed.root))
    async with asyncio.timeout(20):
        while not node.store.shard_sets or len(node.store.shard_sets[signed.digest].list_held()) < 4:
            await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    held = len(node.store.shard_sets[signed.digest].list_held())
    assert held < shards_of(signed)
    steps.origin.server.slots._limits = UploadLimits(slots=8, address_slots=8)
    before = steps.origin.server.sent_shards
    again = await start(make("node"))
    assert await again.fetcher.verify_store_once() == 0
    steps.tell(again, 0)
    await obtain_all([again], signed)
    assert steps.origin.server.sent_shards - before <= shards_of(signed) - held + 1
    assert read_checkpoint(again, signed) == read_checkpoint(steps.origin, signed)


async def test_servers_that_all_fail_are_told_once_asked_slowly_and_given_up_when_nobody_waits(
    make: Make, steps: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "prime_node.weights.manifests")
    signed = steps.publish()
    node, is_wanted, looks = await start(make("node")), True, 0
    node.fetcher._connections = ConnectionPool(allow_private=False)
    node.fetcher._manifests = ManifestResolver(node.store, node.directory, node.fetcher._connections, random.Random(1))

    class Watch(SystemClock):
        async def sleep_ms(self, duration_ms: int) -> None:
            nonlocal looks
            looks += 1
            await super().sleep_ms(1)

    node.fetcher._clock = Watch()
    steps.tell(node, 0)
    task = asyncio.create_task(node.fetcher.ensure_checkpoint(signed.root, None, lambda: is_wanted))
    async with asyncio.timeout(20):
        while looks < 5:
            node.fetcher.handle_gossip(steps.origin.record(signed))
            await asyncio.sleep(0.001)
    told = [record.message for record in caplog.records if "no manifest from" in record.message]
    assert len(told) == 1, "once, and not once for every piece of news"
    assert "none of the 1 nodes that serve the weights sent the manifest" in node.fetcher.problem
    assert "--weights-allow-private lets them" in node.fetcher.problem
    is_wanted = False
    async with asyncio.timeout(20):
        assert await task is False
    node.fetcher._connections.allow_private = True
    await obtain_all([node], signed)
    assert node.fetcher.problem == ""


async def test_deltas_may_be_heard_of_in_any_order(make: Make, steps: Steps) -> None:
    steps.publish()
    node = await start(make("node"))
    steps.tell(node, 0)
    await obtain_all([node], steps.made[0][0])
    steps.publish()
    last = steps.publish()
    assert last.manifest.kind is ManifestKind.DELTA
    node.fetcher.handle_gossip(announce(steps.origin, last))
    node.fetcher.handle_gossip(steps.origin.record(last))
    task = asyncio.create_task(node.fetcher.ensure_checkpoint(last.root))
    done, _ = await asyncio.wait([task], timeout=0.3)
    assert not done, "there is no way there yet"
    steps.tell(node, 1)
    async with asyncio.timeout(20):
        await task
    assert read_checkpoint(node, last) == read_checkpoint(steps.origin, last)
    assert not any(
        stock.manifest.kind is ManifestKind.KEYFRAME and stock.manifest.step for stock in node.store.shard_sets.values()
    )


async def test_without_the_base_a_keyframe_is_fetched(make: Make, steps: Steps) -> None:
    steps.publish()
    steps.publish()
    last = steps.publish(keyframe=True)
    node = await start(make("node"))
    steps.tell(node, 2)
    await obtain_all([node], last)
    assert [stock.manifest.kind for stock in node.store.shard_sets.values()] == [ManifestKind.KEYFRAME]
    assert read_checkpoint(node, last) == read_checkpoint(steps.origin, last)


async def test_a_late_joiner_takes_the_keyframe_and_the_deltas_after_it(make: Make, steps: Steps) -> None:
    for _ in range(3):
        last = steps.publish()
    node = await start(make("node"))
    steps.tell(node, 0, 1, 2)
    await obtain_all([node], last)
    assert read_checkpoint(node, last) == read_checkpoint(steps.origin, last)
    assert len(node.store.shard_sets) == 3


async def test_without_announcements_the_way_is_found_from_what_servers_have(make: Make, steps: Steps) -> None:
    for _ in range(3):
        last = steps.publish()
    late, relay = await start(make("late")), await start(make("relay", is_relay=True))
    for host in (late, relay):
        host.fetcher.handle_gossip(steps.origin.record())
        async with asyncio.timeout(30):
            await host.fetcher.ensure_checkpoint(last.root, last.digest)
    assert read_checkpoint(late, last) == read_checkpoint(steps.origin, last)
    assert len(relay.store.shard_sets) == 3, "it can serve all of the way"


async def test_a_damaged_base_is_found_by_the_tensor_digests_and_a_keyframe_mends_it(make: Make, steps: Steps) -> None:
    first = steps.publish()
    node = await start(make("node"))
    steps.tell(node, 0)
    await obtain_all([node], first)
    path = node.store.checkpoint_path(first.root) / "model.safetensors"
    damaged = _flip(path.read_bytes(), 500_000)
    path.unlink()
    path.write_bytes(damaged)
    last = steps.publish(keyframe=True)
    steps.tell(node, 1)
    await obtain_all([node], last)
    assert read_checkpoint(node, last) == read_checkpoint(steps.origin, last)


async def test_a_damaged_checkpoint_is_found_at_the_next_start(make: Make, steps: Steps) -> None:
    signed = steps.publish()
    node = await start(make("node"))
    steps.tell(node, 0)
    await obtain_all([node], signed)
    path = node.store.checkpoint_path(signed.root) / "model.safetensors"
    path.write_bytes(_flip(path.read_bytes(), 500_000))  # linked: the shard is damaged with it
    again = await start(make("node"))
    assert await again.fetcher.verify_store_once() == 2
    steps.tell(again, 0)
    await obtain_all([again], signed)
    assert read_checkpoint(again, signed) == read_checkpoint(steps.origin, signed)


async def test_an_origin_sends_nothing_that_rotted_and_stays_a_good_name(make: Make, steps: Steps) -> None:
    first = steps.publish()
    path = steps.origin.store.shard_sets[first.digest].folder / "model.safetensors"
    await steps.origin.stop()
    path.write_bytes(_flip(path.read_bytes(), 500_000))
    steps.origin = await start(make("origin", key=TRAINER))
    node = await start(make("node"))
    steps.tell(node, 0)
    task = asyncio.create_task(node.fetcher.ensure_checkpoint(first.root))
    stock = steps.origin.store.shard_sets[first.digest]
    async with asyncio.timeout(20):
        while stock.is_complete:
            await asyncio.sleep(0.01)
    last = steps.publish(keyframe=True)
    steps.tell(node, 1)
    await obtain_all([node], last)
    assert node.fetcher.corrupt == 0, "nobody is shunned for what a disk has done"
    assert read_checkpoint(node, last) == read_checkpoint(steps.origin, last)
    task.cancel()


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", ".files", ".manifest"])
async def test_nothing_damaged_is_handed_out_after_a_start(make: Make, steps: Steps, name: str) -> None:
    steps.publish()
    last = steps.publish()
    node = await start(make("node"))
    for step in (0, 1):
        steps.tell(node, step)
    await obtain_all([node], last)
    path = node.store.checkpoint_path(last.root) / name
    damaged = _flip(path.read_bytes(), path.stat().st_size // 2)
    path.unlink()
    path.write_bytes(damaged)
    again = await start(make("node"))
    for step in (0, 1):
        steps.tell(again, step)
    async with asyncio.timeout(20), again.fetcher.hold_checkpoint(last.root) as folder:
        whole = steps.origin.store.checkpoint_path(last.root)
        for each in ("model.safetensors", "config.json"):
            assert (folder / each).read_bytes() == (whole / each).read_bytes()


async def test_two_that_want_one_checkpoint_do_not_write_over_each_other(
    make: Make, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps.publish()
    last = steps.publish()
    node = await start(make("node"))
    for step in (0, 1):
        steps.tell(node, step)
    building, build = [], node.fetcher.assembler.build

    def build_slowly(path: Sequence[SignedManifest]) -> None:
        building.append(path)
        assert len(building) == 1, "one at a time"
        time.sleep(0.05)
        build(path)
        building.pop()

    monkeypatch.setattr(node.fetcher.assembler, "build", build_slowly)
    async with asyncio.timeout(20):
        await asyncio.gather(*(node.fetcher.ensure_checkpoint(last.root) for _ in range(3)))
    assert read_checkpoint(node, last) == read_checkpoint(steps.origin, last)


async def test_a_slow_parent_is_left_for_a_faster_one(make: Make, steps: Steps) -> None:
    signed = steps.publish()
    limits = FetchLimits(stall_ms=500, first_byte_ms=1_000)
    slow = await start(make("slow", uploads=UploadLimits(slots=8, address_slots=8, bytes_per_s=2_000)))
    steps.tell(slow, 0)
    await obtain_all([slow], signed)
    node = await start(make("node", fetch=limits))
    node.fetcher.handle_gossip(announce(steps.origin, signed))
    node.fetcher.handle_gossip(slow.record())
    node.fetcher.handle_gossip(steps.origin.record(signed))
    await obtain_all([node], signed, timeout_s=20)
    assert read_checkpoint(node, signed) == read_checkpoint(steps.origin, signed)


async def test_a_full_parent_names_its_children_and_the_tree_grows(make: Make, steps: Steps) -> None:
    """Each node knows the origin only, which serves one at a time: the rest must find each other through refusals."""
    steps.origin.server.slots._limits = UploadLimits(slots=1, address_slots=1, bytes_per_s=40 * SHARD_BYTES)
    signed = steps.publish()
    nodes = [await start(make(f"node{number}")) for number in range(6)]
    for node in nodes:
        steps.tell(node, 0)
        # The origin hears of its children, as by gossip; they do not hear of each other.
        steps.origin.fetcher.handle_gossip(node.record(signed))
    await obtain_all(nodes, signed, timeout_s=40)
    for node in nodes:
        assert read_checkpoint(node, signed) == read_checkpoint(steps.origin, signed)
    assert steps.origin.server.refused > 0
    assert sum(node.server.sent_shards for node in nodes) > 0


async def test_everybody_gets_every_step_and_old_versions_go(make: Make, steps: Steps) -> None:
    nodes = [await start(make("relay", is_relay=True)), *[await start(make(f"node{number}")) for number in range(3)]]
    for step in range(9):
        signed = steps.publish(keyframe=step in (4, 8))
        for node in nodes:
            steps.tell(node, step)
        introduce([steps.origin, *nodes], *steps.made[step])
        await obtain_all(nodes, signed)
        for node in nodes[1:]:
            assert read_checkpoint(node, signed) == read_checkpoint(steps.origin, signed)
    for node in nodes[1:]:
        assert len(node.store.checkpoints()) == 2
        assert steps_of(node) == {4, 5, 6, 7, 8}
    assert steps_of(nodes[0]) >= {4, 5, 6, 7, 8}


def steps_of(host: ShardHost) -> set[int]:
    return {stock.manifest.step for stock in host.store.shard_sets.values()}


async def test_a_node_that_follows_thirty_steps_holds_five_and_serves_no_others(make: Make, steps: Steps) -> None:
    node = await start(make("node"))
    for step in range(30):
        signed = steps.publish(keyframe=step % 10 == 0)
        steps.tell(node, step)
        await obtain_all([node], signed)
        assert len(node.store.shard_sets) <= 5, "a delta each, and no keyframe but the first"
        assert len(node.store.checkpoints()) <= 2
    assert steps_of(node) == {25, 26, 27, 28, 29}
    assert set(node.server.offer().manifests) == set(node.store.shard_sets)
    assert len(list((node.store.folder / "transport").iterdir())) == 5
    assert read_checkpoint(node, signed) == read_checkpoint(steps.origin, signed)


async def test_a_node_that_dropped_the_way_finds_it_again_when_its_checkpoints_are_damaged(
    make: Make, steps: Steps
) -> None:
    node, relay = await start(make("node")), await start(make("relay", is_relay=True))
    for step in range(8):
        signed = steps.publish()
        for host in (node, relay):
            steps.tell(host, step)
        await obtain_all([node, relay], signed)
    assert (min(steps_of(node)), min(steps_of(relay))) == (3, 0)
    for root in node.store.checkpoints():
        node.store.remove_checkpoint(root)
    await steps.origin.http.stop()
    node.fetcher.handle_gossip(relay.record())
    await obtain_all([node], signed)
    assert read_checkpoint(node, signed) == read_checkpoint(steps.origin, signed)
    assert min(steps_of(node)) == 3, "what it took to get there went again"
    assert len(node.store.checkpoints()) == 2, "and so did what was built on the way"


async def test_what_is_being_built_of_is_not_retired_by_whoever_finishes_first(
    make: Make, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await start(make("node"))
    for step in range(8):
        last = steps.publish()
        steps.tell(node, step)
        await obtain_all([node], last)
    old, build = steps.made[2][0], node.fetcher.assembler.build

    def build_while_others_retire(path: Sequence[SignedManifest]) -> None:
        node.fetcher._remove_old()
        build(path)

    monkeypatch.setattr(node.fetcher.assembler, "build", build_while_others_retire)
    async with asyncio.timeout(20), node.fetcher.hold_checkpoint(old.root) as folder:
        whole = steps.folder / "step2"
        assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


async def test_a_disk_budget_is_kept_and_said(make: Make, steps: Steps) -> None:
    signed = steps.publish()
    node = await start(make("node"))
    node.fetcher._disk_bytes_max = 1000
    steps.tell(node, 0)
    with pytest.raises(LocalError, match=r"weights.disk_bytes_max = 1000 .* set it to \d+ or more$") as raised:
        await obtain_all([node], signed)
    assert node.store.shard_sets == {}
    node.fetcher._disk_bytes_max = int(str(raised.value).split()[-3])
    await obtain_all([node], signed)
    assert count_folder_bytes(node.store.folder) < 1.05 * node.fetcher._disk_bytes_max, (
        "manifests and notes are not foretold"
    )


async def test_a_disk_budget_counts_checkpoints_and_holds_through_any_number_of_steps(make: Make, steps: Steps) -> None:
    node = await start(make("node"))
    whole = 4 * 300_000
    # Two checkpoints that are kept, one that is made, the first keyframe's shards, and five deltas.
    node.fetcher._disk_bytes_max = 5 * whole
    for step in range(12):
        signed = steps.publish()
        steps.tell(node, step)
        await obtain_all([node], signed)
        assert count_folder_bytes(node.store.folder) <= node.fetcher._disk_bytes_max
    await node.fetcher.close()
    node.fetcher._disk_bytes_max = 2 * whole
    last = steps.publish()
    steps.tell(node, 12)
    with pytest.raises(LocalError, match=r"set it to \d+ or more, or lower weights.keep"):
        await obtain_all([node], last)


async def test_a_base_that_is_no_checkpoint_any_more_is_left_for_a_keyframe(make: Make, steps: Steps) -> None:
    first = steps.publish()
    node = await start(make("node"))
    steps.tell(node, 0)
    await obtain_all([node], first)
    path = node.store.checkpoint_path(first.root) / "model.safetensors"
    path.unlink()
    path.write_bytes(b"not a checkpoint")
    last = steps.publish(keyframe=True)
    steps.tell(node, 1)
    await obtain_all([node], last)
    assert read_checkpoint(node, last) == read_checkpoint(steps.origin, last)


async def test_a_full_disk_is_said_and_nothing_is_lost(
    make: Make, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = steps.publish()
    node = await start(make("node"))
    steps.tell(node, 0)
    await obtain_all([node], first)
    last = steps.publish()
    steps.tell(node, 1)

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", refuse)
        with pytest.raises(LocalError, match="No space left"):
            await obtain_all([node], last)
    assert read_checkpoint(node, first)
    await obtain_all([node], last)
    assert read_checkpoint(node, last) == read_checkpoint(steps.origin, last)
