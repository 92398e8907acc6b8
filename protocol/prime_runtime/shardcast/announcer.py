"""Announces what a shard server has: its serving record and, with the trainer's key, the published versions.

AnnounceSchedule decides when a message is due: at once after a change that other nodes wait for, otherwise repeatedly,
so that nodes that join later receive it. GossipPublisher sends the messages.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prime_protocol.gossip.messages import CheckpointAnnounced, GossipKind, ServingRecord, compute_repeat_ms
from prime_protocol.weights.manifest import SignedManifest
from prime_protocol.wire.ids import Digest, RunId
from prime_runtime.clock import Clock
from prime_runtime.gossip.transport import GossipPublisher
from prime_runtime.shardcast.server import ShardServer
from prime_runtime.shardcast.shard_set import ShardSet

log = logging.getLogger(__name__)


SERVING_MS_MIN = 2_500
"""Minimum interval between two serving records: slightly above the rate limit of a sender."""


@dataclass(frozen=True, slots=True)
class ServingSummary:
    """The parts of a serving record whose change is worth a new record. Free slots are not: children poll for them."""

    urls: tuple[str, ...]
    manifests: tuple[tuple[Digest, bool], ...]
    """Each with a flag: all its shards are here."""

    @classmethod
    def of(cls, serving: ServingRecord, shard_sets: Iterable[ShardSet]) -> "ServingSummary":
        complete = {shard_set.digest for shard_set in shard_sets if shard_set.is_complete}
        manifests = tuple((digest, digest in complete) for digest in serving.manifests)
        return cls(serving.urls, manifests)


def make_announcement(signed: SignedManifest) -> CheckpointAnnounced:
    manifest = signed.manifest
    return CheckpointAnnounced(
        step=manifest.step,
        root=signed.root,
        manifest=signed.digest,
        manifest_bytes=len(signed.frame),
        kind=manifest.kind,
        base=manifest.base,
        transport_bytes=manifest.transport_bytes,
    )


class AnnounceSchedule:
    """Decides when a record or announcement is due. Pure; times are monotonic."""

    def __init__(self) -> None:
        self._summary: ServingSummary | None = None
        self._serving_ms = 0
        self._announced: dict[Digest, int] = {}

    @property
    def has_announced(self) -> bool:
        """A serving record of this server has been published."""
        return self._summary is not None

    def is_serving_due(self, summary: ServingSummary, now_ms: int, *, known_nodes: int) -> bool:
        if self._summary is None:
            return bool(summary.manifests)
        passed_ms = now_ms - self._serving_ms
        if summary != self._summary:
            return passed_ms >= SERVING_MS_MIN or self._is_new(summary)
        return passed_ms >= compute_repeat_ms(GossipKind.SERVING, known_nodes)

    def mark_serving_sent(self, summary: ServingSummary, now_ms: int) -> None:
        self._summary, self._serving_ms = summary, now_ms

    def _is_new(self, summary: ServingSummary) -> bool:
        """A new manifest, or one that became complete: other nodes wait for that."""
        assert self._summary is not None
        return bool(set(summary.manifests) - set(self._summary.manifests))

    def list_due_announcements(self, signed: Iterable[SignedManifest], now_ms: int) -> list[SignedManifest]:
        """Oldest first: a node that receives them in order always knows the base."""
        known = list(signed)
        self._announced = {
            each.digest: self._announced[each.digest] for each in known if each.digest in self._announced
        }
        span_ms = compute_repeat_ms(GossipKind.ANNOUNCED, 0)
        due = [
            each
            for each in known
            if each.digest not in self._announced or now_ms - self._announced[each.digest] >= span_ms
        ]
        return sorted(due, key=lambda each: (each.manifest.step, each.manifest.base is not None, each.digest))

    def mark_announced(self, digest: Digest, now_ms: int) -> None:
        self._announced[digest] = now_ms


ANNOUNCE_POLL_MS = 250
"""Interval between checks of the store. A new version is announced within a second."""

ANNOUNCE_STOP_MS = 2_000
"""Time limit for the last record."""


class Announcer:
    """Publishes the records of one ShardServer."""

    def __init__(
        self,
        server: ShardServer,
        publisher: GossipPublisher,
        *,
        run: RunId,
        clock: Clock,
        list_urls: Callable[[], tuple[str, ...]],
        count_nodes: Callable[[], int] = lambda: 0,
        announces: bool = False,
        rescans: bool = False,
    ) -> None:
        """`announces`: the publisher has the trainer's key. `rescans`: another process publishes into the store."""
        self.server = server
        self._publisher = publisher
        self._run = run
        self._clock = clock
        self._list_urls = list_urls
        self._count_nodes = count_nodes
        self._announces = announces
        self._rescans = rescans
        self._schedule = AnnounceSchedule()

    async def run(self) -> None:
        while True:
            await self.announce_due()
            await self._clock.sleep_ms(ANNOUNCE_POLL_MS)

    async def announce_stop(self) -> None:
        """Publish that this server serves nothing any more, so that no node tries."""
        if self._schedule.has_announced:
            stopped = ServingRecord(urls=(), depth=0, slots_free=0, manifests=())
            await self._publisher.publish(self._run, stopped)

    async def announce_due(self) -> None:
        """Publish what is due."""
        if self._rescans:
            for shard_set in self.server.store.rescan():
                signed = shard_set.signed
                log.info("serving step %d: %s %s", signed.manifest.step, signed.manifest.kind, signed.digest)
        if self._announces:
            await self._announce()
        await self._publish_serving()

    async def _announce(self) -> None:
        complete = [shard_set.signed for shard_set in self.server.store.newest_first() if shard_set.is_complete]
        for signed in self._schedule.list_due_announcements(complete, self._clock.monotonic_ms()):
            if await self._publisher.publish(self._run, make_announcement(signed)) is None:
                return  # over the rate limit; the rest follows
            self._schedule.mark_announced(signed.digest, self._clock.monotonic_ms())

    async def _publish_serving(self) -> None:
        offer, urls = self.server.offer(), self._list_urls()
        if not urls:
            if self._schedule.has_announced:
                # Others cannot connect any more: no node should try until the last record expires.
                await self.announce_stop()
                self._schedule = AnnounceSchedule()
            return
        serving = ServingRecord(
            urls=urls,
            depth=offer.depth,
            slots_free=offer.slots_free,
            manifests=offer.manifests,
            parents=offer.parents,
            sent_bytes=self.server.sent_bytes,
        )
        summary = ServingSummary.of(serving, self.server.store.shard_sets.values())
        now_ms, nodes = self._clock.monotonic_ms(), self._count_nodes()
        if not self._schedule.is_serving_due(summary, now_ms, known_nodes=nodes):
            return
        if await self._publisher.publish(self._run, serving) is not None:
            self._schedule.mark_serving_sent(summary, now_ms)


async def announce_stop_within_deadline(announcer: Announcer) -> None:
    """Publish the last record when a program ends, within a time limit."""
    try:
        async with asyncio.timeout(ANNOUNCE_STOP_MS / 1000):
            await announcer.announce_stop()
    except TimeoutError:
        log.info("the last serving record could not be published in time")
