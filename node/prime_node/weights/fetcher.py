"""Carries out the effects of a Download: polls parents, fetches shards, verifies digests, reports events.

A shard is received directly into its place in the file and counts only once its digest is right. A second transfer of
the same shard is received into memory, so that a liar cannot overwrite what is already there.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, assert_never

from blake3 import blake3

from prime_node.weights import events
from prime_node.weights.connection import ConnectionBroken, ConnectionPool, LaneBusy, ShardConnection
from prime_node.weights.download import Download
from prime_node.weights.parents import ParentScores
from prime_protocol.errors import RemoteError
from prime_protocol.weights.transfer import ShardAvailability, ShardServerFull, ShardServerHint
from prime_protocol.wire.codec import decode
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.clock import Clock
from prime_runtime.shardcast.checkpoint_files import open_no_follow
from prime_runtime.shardcast.directory import ServerDirectory
from prime_runtime.shardcast.server import NODE_HEADER, WAIT_HEADER, WAIT_MS_MAX
from prime_runtime.shardcast.shard_set import ShardSet

log = logging.getLogger(__name__)


class ShardWriter:
    """Hashes and stores one shard, piece by piece in order. `keep` gets each piece and its offset in the shard.

    A piece is hashed while it is in the CPU cache, so verification reads nothing twice. Bytes in the file count only
    once the shard is complete and its digest is right.
    """

    def __init__(self, length: int, keep: Callable[[int, memoryview], None]) -> None:
        self.length = length
        self._keep = keep
        self._state = blake3()
        self._position = 0

    def take(self, piece: memoryview) -> None:
        """Raises OSError if the disk is full."""
        self._state.update(piece)
        self._keep(self._position, piece)
        self._position += len(piece)

    @property
    def digest(self) -> Digest:
        """Of the bytes so far."""
        return Digest(self._state.digest())


@contextmanager
def open_file_writer(path: Path, offset: int, length: int) -> Iterator[ShardWriter]:
    """Writes directly into a part of a file."""
    with open_no_follow(path, "r+b") as file:
        yield ShardWriter(length, lambda position, piece: write_at(file.fileno(), offset + position, piece))


def make_memory_writer(place: bytearray) -> ShardWriter:
    """Writes into memory of the shard's length."""

    def keep(position: int, piece: memoryview) -> None:
        place[position : position + len(piece)] = piece

    return ShardWriter(len(place), keep)


def write_at(file: int, offset: int, piece: memoryview) -> None:
    done = 0
    while done < len(piece):
        done += os.pwrite(file, piece[done:], offset + done)


POLL_SPACING_MS = (50, 500)
"""Bounds of the time between two polls of one parent, which is about the time four shards take to arrive."""
POLL_WAIT_MS = 10_000
ANSWER_MS = 5_000
"""How much longer than the requested wait a server may take to answer."""
PROGRESS_MS = 500
PARENTS_UPDATE_MS = 1_000
"""How often the directory is checked for new serving records."""
LANE_RETRY_MS = 500
"""Pause after all connections of a node behind a router were in use."""
LINKED_DEPTH = 1
"""Depth of a node that connected to us, until it is polled."""


class ShardFetcher:
    """Fetches the missing shards of one shard set."""

    def __init__(
        self,
        shard_set: ShardSet,
        directory: ServerDirectory,
        connections: ConnectionPool,
        parents: ParentScores,
        *,
        node: NodeId,
        clock: Clock,
        rng: Random,
        limits: events.FetchLimits,
        learn_record: Callable[[bytes], None],
    ) -> None:
        self._shard_set = shard_set
        self._directory = directory
        self._connections = connections
        self._node = node
        self._clock = clock
        self._learn_record = learn_record
        lengths = [shard.length for shard in shard_set.manifest.shards]
        self._download = Download(lengths, shard_set.list_held(), parents, rng, limits)
        self._events: asyncio.Queue[events.DownloadEvent | asyncio.Task[events.DownloadEvent]] = asyncio.Queue()
        self._tasks: dict[tuple[NodeId, int | None], asyncio.Task[events.DownloadEvent]] = {}
        self._in_place: dict[int, NodeId] = {}
        """The parent whose transfer of a shard writes directly into the file."""
        self._seen: dict[NodeId, int] = {}
        self._polled_ms: dict[NodeId, int] = {}
        self._parents: set[NodeId] = set()
        self._parents_updated_ms = -PARENTS_UPDATE_MS
        self._receiving: dict[tuple[NodeId, int], ShardConnection] = {}
        self.corrupt = 0
        """Shards discarded because of a wrong digest."""
        self.received_bytes = 0
        """Bytes of all shards received, right or wrong."""

    def progress(self) -> events.DownloadProgress:
        return self._download.progress(self._clock.monotonic_ms())

    async def run(self) -> None:
        """Run until every shard is on disk."""
        try:
            is_finished = self._handle(events.DownloadTick())
            while not is_finished:
                is_finished = self._handle(await self._next_event())
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._shard_set.set_coming(0)

    async def _next_event(self) -> events.DownloadEvent:
        """The next event, or a DownloadTick at the next wake-up."""
        now_ms = self._clock.monotonic_ms()
        wait_ms = max(0, min(self._download.wake_ms - now_ms, PARENTS_UPDATE_MS))
        if now_ms - self._parents_updated_ms >= PARENTS_UPDATE_MS:
            self._parents_updated_ms = now_ms
            self._update_parents()
        try:
            async with asyncio.timeout(wait_ms / 1000):
                found = await self._events.get()
        except TimeoutError:
            return events.DownloadTick()
        # An exception that the task does not turn into an event is a bug: result() raises it here.
        return found.result() if isinstance(found, asyncio.Task) else found

    def _update_parents(self) -> None:
        servers = {server.node: server for server in self._directory.servers(self._shard_set.digest)}
        linked = {*self._connections.linked_nodes()}
        found = ({*servers} | linked) - {self._node}
        for node in sorted(found - self._parents):
            # A node behind a router says what it holds when it is polled.
            record = servers[node].serving if node in servers else None
            depth, slots_free = (record.depth, record.slots_free) if record else (LINKED_DEPTH, 1)
            self._events.put_nowait(events.ParentFound(node, depth, slots_free, node in linked))
        for node in sorted(self._parents - found):
            self._events.put_nowait(events.ParentLost(node))
        self._parents = found

    def _handle(self, event: events.DownloadEvent) -> bool:
        """True once every shard is on disk."""
        is_finished = False
        for effect in self._download.handle(event, self._clock.monotonic_ms()):
            is_finished = self._apply_effect(effect) or is_finished
        self._shard_set.depth = self._download.depth()
        if is_finished or not self._shard_set.parents:
            self._shard_set.parents = self._download.parents()
        self._shard_set.set_coming(int.from_bytes(self._download.coming, "little"))
        return is_finished

    def _apply_effect(self, effect: events.DownloadEffect) -> bool:
        match effect:
            case events.PollParent(parent):
                self._start((parent, None), self._poll(parent))
            case events.FetchShard(parent, shard):
                self._start((parent, shard), self._fetch(parent, shard))
            case events.CancelTransfer(parent, shard):
                self._cancel(parent, shard)
            case events.DropParent(parent):
                log.warning("%s sent a shard with a wrong digest", parent)
                self._directory.drop(parent)
            case events.DownloadFinished():
                return True
            case _:
                assert_never(effect)
        return False

    def _start(self, key: tuple[NodeId, int | None], work: Coroutine[Any, Any, events.DownloadEvent]) -> None:
        task = self._tasks[key] = asyncio.create_task(work)
        task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: tuple[NodeId, int | None], task: asyncio.Task[events.DownloadEvent]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled():
            self._events.put_nowait(task)

    def _cancel(self, parent: NodeId, shard: int) -> None:
        task = self._tasks.pop((parent, shard), None)
        if task is not None and task.cancel():
            # Close now, not when the task is cancelled: another transfer may write to the same place next.
            if connection := self._receiving.pop((parent, shard), None):
                connection.close()
            self._release(parent, shard)
            self._events.put_nowait(events.ShardFailed(parent, shard, events.FailReason.STALLED))

    # --- Bitmaps ----------------------------------------------------------------------------------------------------

    async def _poll(self, parent: NodeId) -> events.DownloadEvent:
        wait_ms = self._polled_ms.get(parent, 0) + self._get_poll_spacing_ms() - self._clock.monotonic_ms()
        if wait_ms > 0:
            await self._clock.sleep_ms(wait_ms)
        self._polled_ms[parent] = self._clock.monotonic_ms()
        path = f"/have/{self._shard_set.digest}?seen={self._seen.get(parent, 0)}"
        try:
            async with (
                asyncio.timeout((POLL_WAIT_MS + ANSWER_MS) / 1000),
                self._connections.borrow(self._urls(parent), parent) as connection,
            ):
                answer = await connection.get(path, {WAIT_HEADER: str(POLL_WAIT_MS)})
            if answer.status != 200:
                return events.PollFailed(parent)
            have = decode(ShardAvailability, answer.body)
        except (ConnectionBroken, TimeoutError, RemoteError) as error:
            log.debug("poll of %s failed: %s", parent, error)
            return events.PollFailed(parent)
        size = (self._shard_set.shards + 7) // 8
        if len(have.held) != size or len(have.coming) != size:
            return events.PollFailed(parent)
        self._seen[parent] = have.version
        return events.PollAnswered(parent, have.held, have.coming, have.slots_free, have.depth)

    def _get_poll_spacing_ms(self) -> int:
        """A bitmap older than a few shards is stale; polling more often costs the swarm more than it gains."""
        least_ms, longest_ms = POLL_SPACING_MS
        progress = self.progress()
        if progress.rate_bytes_per_s <= 0:
            return least_ms
        shard_ms = 1000 * self._shard_set.manifest.shard_bytes / progress.rate_bytes_per_s
        return round(min(longest_ms, max(least_ms, 4 * shard_ms)))

    # --- Shards -----------------------------------------------------------------------------------------------------

    async def _fetch(self, parent: NodeId, shard: int) -> events.DownloadEvent:
        try:
            return await (self._fetch_aside if shard in self._in_place else self._fetch_in_place)(parent, shard)
        except LaneBusy:
            return events.ParentFull(parent, shard, LANE_RETRY_MS, ())
        except (ConnectionBroken, TimeoutError, RemoteError) as error:
            log.debug("shard %d from %s failed: %s", shard, parent, error)
            return events.ShardFailed(parent, shard, events.FailReason.BROKEN)

    async def _fetch_in_place(self, parent: NodeId, shard: int) -> events.DownloadEvent:
        self._in_place[shard] = parent
        try:
            with open_file_writer(*self._shard_set.locate(shard)) as writer:
                event = await self._receive(parent, shard, writer)
            if isinstance(event, events.ShardArrived) and not self._shard_set.held >> shard & 1:
                self._shard_set.mark_held(shard)
            return event
        finally:
            self._release(parent, shard)

    async def _fetch_aside(self, parent: NodeId, shard: int) -> events.DownloadEvent:
        memory = bytearray(self._shard_set.manifest.shards[shard].length)
        event = await self._receive(parent, shard, make_memory_writer(memory))
        if isinstance(event, events.ShardArrived) and not self._shard_set.held >> shard & 1:
            self._take_over(shard, memory)
            self._shard_set.mark_held(shard)
        return event

    async def _receive(self, parent: NodeId, shard: int, writer: ShardWriter) -> events.DownloadEvent:
        """ShardArrived only if all bytes came and the digest is right."""
        entry = self._shard_set.manifest.shards[shard]
        began_ms = told_ms = 0

        def note(received_bytes: int) -> None:
            nonlocal began_ms, told_ms
            now_ms = self._clock.monotonic_ms()
            began_ms = began_ms or now_ms
            if not told_ms or now_ms - told_ms >= PROGRESS_MS:
                told_ms = now_ms
                self._events.put_nowait(events.TransferProgressed(parent, shard, received_bytes))

        headers = {NODE_HEADER: str(self._node), WAIT_HEADER: str(WAIT_MS_MAX)}
        async with self._connections.borrow(self._urls(parent), parent) as connection:
            self._receiving[parent, shard] = connection
            try:
                answer = await connection.get(f"/shards/{entry.digest}", headers, target=writer, on_bytes=note)
            finally:
                self._receiving.pop((parent, shard), None)
        self.received_bytes += answer.filled_bytes
        if answer.status != 200:
            return self._explain(parent, shard, answer.status, answer.body)
        if writer.digest != entry.digest:
            self.corrupt += 1
            return events.ShardCorrupt(parent, shard)
        return events.ShardArrived(parent, shard, entry.length, max(1, self._clock.monotonic_ms() - began_ms))

    def _explain(self, parent: NodeId, shard: int, status: int, body: bytes) -> events.DownloadEvent:
        if status == 503:
            full = decode(ShardServerFull, body)
            children = tuple((child.node, child.depth) for child in full.children if self._knows(child))
            return events.ParentFull(parent, shard, full.retry_ms, children)
        reason = {404: events.FailReason.ABSENT, 504: events.FailReason.TIMED_OUT}.get(status, events.FailReason.BROKEN)
        return events.ShardFailed(parent, shard, reason)

    def _knows(self, child: ShardServerHint) -> bool:
        """Whether its address is known. A record that came with the refusal is signed, like one from gossip."""
        if child.node == self._node:
            return False
        if child.record and self._directory.get(child.node) is None:
            self._learn_record(child.record)
        return bool(self._urls(child.node)) or child.node in self._connections.linked_nodes()

    def _take_over(self, shard: int, memory: bytearray) -> None:
        """The duplicate transfer finished first. The direct writer is stopped before the right bytes are written."""
        owner = self._in_place.get(shard)
        if owner is not None:
            self._cancel(owner, shard)
        with open_file_writer(*self._shard_set.locate(shard)) as writer:
            writer.take(memoryview(memory))

    def _release(self, parent: NodeId, shard: int) -> None:
        if self._in_place.get(shard) == parent:
            del self._in_place[shard]

    def _urls(self, parent: NodeId) -> tuple[str, ...]:
        server = self._directory.get(parent)
        return server.serving.urls if server else ()
