"""Chooses the announced versions that a relay fetches now: the newest few that some node serves.

A version whose servers are all gone is cancelled, so that it blocks no other. Its shards stay on disk, and the fetch
resumes when a node serves the version again.
"""

import asyncio
from collections.abc import Collection, Iterable

from prime_node.weights.checkpoints import CheckpointFetcher
from prime_protocol.gossip.messages import CheckpointAnnounced
from prime_protocol.wire.ids import Digest
from prime_runtime.clock import Clock

VERSIONS_AT_ONCE = 2
"""Versions fetched at once: the newest, and one more in case it is stuck."""
UPDATE_MS = 500
RETRY_PAUSE_MS = 30_000
"""Before a version that failed, or is too old to be kept, is tried again."""


def choose_versions(
    wanted: Iterable[CheckpointAnnounced], running: Collection[Digest], at_once: int = VERSIONS_AT_ONCE
) -> list[CheckpointAnnounced]:
    """The versions to start now, of the wanted ones (newest first)."""
    fresh = [announced for announced in wanted if announced.manifest not in running]
    return fresh[: max(0, at_once - len(running))]


class RelayFollower:
    """A background task of a relay: run it under a supervisor."""

    def __init__(self, fetcher: CheckpointFetcher, clock: Clock) -> None:
        self._fetcher = fetcher
        self._clock = clock
        self._tasks: dict[Digest, asyncio.Task[None]] = {}
        self._paused: dict[Digest, int] = {}
        """Until when each version is not retried."""

    async def run(self) -> None:
        """Run forever. LocalError: the disk is full."""
        try:
            while True:
                await self._update()
                await self._clock.sleep_ms(UPDATE_MS)
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks.clear()

    async def _update(self) -> None:
        self._fetcher.directory.expire(self._clock.now_ms())
        self._reap_tasks()
        wanted = [announced for announced in self._fetcher.directory.announced() if self._is_wanted(announced)]
        await self._end_others({announced.manifest for announced in wanted})
        for announced in choose_versions(wanted, self._tasks):
            self._tasks[announced.manifest] = asyncio.create_task(self._fetcher.fetch_announced(announced))

    def _is_wanted(self, announced: CheckpointAnnounced) -> bool:
        shard_set = self._fetcher.store.shard_sets.get(announced.manifest)
        if shard_set is not None and shard_set.is_complete:
            return False
        if self._paused.get(announced.manifest, 0) > self._clock.monotonic_ms():
            return False
        return any(True for _ in self._fetcher.directory.servers(announced.manifest))

    async def _end_others(self, wanted: Collection[Digest]) -> None:
        """Cancel the fetches of versions that no node serves any more."""
        lost = [task for digest, task in self._tasks.items() if digest not in wanted]
        for task in lost:
            task.cancel()
        await asyncio.gather(*lost, return_exceptions=True)
        self._reap_tasks()

    def _reap_tasks(self) -> None:
        """Remove ended tasks and expired pauses. An exception of a task is raised here."""
        now_ms = self._clock.monotonic_ms()
        self._paused = {digest: until_ms for digest, until_ms in self._paused.items() if until_ms > now_ms}
        for digest, task in list(self._tasks.items()):
            if not task.done():
                continue
            del self._tasks[digest]
            self._paused[digest] = now_ms + RETRY_PAUSE_MS
            error = None if task.cancelled() else task.exception()
            if error is not None:
                raise error
