"""When a server of shards says what. Pure: what it has and the time in, messages that are due out.

A change that others wait for is said at once; the rest is repeated, so that who joins later hears it too.

Tells a run what this server has: its serving record, and on a trainer's behalf the announcements of its versions.

A part that runs for ever. When something is due is decided in saying.py; how it travels is Voice's work.
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
"""Between two serving records, whatever changes: a little above what one sender may say."""


@dataclass(frozen=True, slots=True)
class ServingSummary:
    """What decides whether a serving record is worth saying again."""

    urls: tuple[str, ...]
    manifests: tuple[tuple[Digest, bool], ...]
    """Each with whether it is complete."""
    has_slots: bool

    @classmethod
    def of(cls, serving: ServingRecord, stocks: Iterable[ShardSet]) -> "ServingSummary":
        complete = {stock.digest for stock in stocks if stock.is_complete}
        manifests = tuple((digest, digest in complete) for digest in serving.manifests)
        return cls(serving.urls, manifests, serving.slots_free > 0)


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
    """Remembers what was said when, by a clock that never jumps."""

    def __init__(self) -> None:
        self._stand: ServingSummary | None = None
        self._serving_ms = 0
        self._announced: dict[Digest, int] = {}

    @property
    def has_announced(self) -> bool:
        """Others have been told of this server."""
        return self._stand is not None

    def is_serving_due(self, stand: ServingSummary, now_ms: int, *, known_nodes: int) -> bool:
        if self._stand is None:
            return bool(stand.manifests)
        passed_ms = now_ms - self._serving_ms
        if stand != self._stand:
            return passed_ms >= SERVING_MS_MIN or self._is_new(stand)
        return passed_ms >= compute_repeat_ms(GossipKind.SERVING, known_nodes)

    def mark_serving_sent(self, stand: ServingSummary, now_ms: int) -> None:
        self._stand, self._serving_ms = stand, now_ms

    def _is_new(self, stand: ServingSummary) -> bool:
        """Another manifest, or one that became whole: others wait for that."""
        assert self._stand is not None
        return bool(set(stand.manifests) - set(self._stand.manifests))

    def list_due_announcements(self, signed: Iterable[SignedManifest], now_ms: int) -> list[SignedManifest]:
        """Oldest first: a node that hears them in order always knows the base."""
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
"""Between two looks at what is there. A new version is announced within a second of being published."""

ANNOUNCE_STOP_MS = 2_000
"""Most time for the last word."""


class Announcer:
    """Speaks for one ShardServer."""

    def __init__(
        self,
        server: ShardServer,
        voice: GossipPublisher,
        *,
        run: RunId,
        clock: Clock,
        list_urls: Callable[[], tuple[str, ...]],
        count_nodes: Callable[[], int] = lambda: 0,
        announces: bool = False,
        rescans: bool = False,
    ) -> None:
        """`announces`: the voice is the trainer's. `rescans`: another process publishes into the store."""
        self.server = server
        self._voice = voice
        self._run = run
        self._clock = clock
        self._list_urls = list_urls
        self._count_nodes = count_nodes
        self._announces = announces
        self._rescans = rescans
        self._saying = AnnounceSchedule()

    async def run(self) -> None:
        while True:
            await self.announce_due()
            await self._clock.sleep_ms(ANNOUNCE_POLL_MS)

    async def announce_stop(self) -> None:
        """Say that nothing is served here any more, so that nobody tries."""
        if self._saying.has_announced:
            gone = ServingRecord(urls=(), depth=0, slots_free=0, manifests=())
            await self._voice.publish(self._run, gone, known_nodes=self._count_nodes())

    async def announce_due(self) -> None:
        """Say what is due."""
        if self._rescans:
            for stock in self.server.store.rescan():
                signed = stock.signed
                log.info("step %d is served: %s %s", signed.manifest.step, signed.manifest.kind, signed.digest)
        if self._announces:
            await self._announce()
        await self._tell_serving()

    async def _announce(self) -> None:
        whole = [stock.signed for stock in self.server.store.newest_first() if stock.is_complete]
        for signed in self._saying.list_due_announcements(whole, self._clock.monotonic_ms()):
            if await self._voice.publish(self._run, make_announcement(signed)) is None:
                return  # too many at once; the rest in a moment
            self._saying.mark_announced(signed.digest, self._clock.monotonic_ms())

    async def _tell_serving(self) -> None:
        offer, urls = self.server.offer(), self._list_urls()
        if not urls:
            return
        serving = ServingRecord(
            urls=urls,
            depth=offer.depth,
            slots_free=offer.slots_free,
            manifests=offer.manifests,
            parents=offer.parents,
            sent_bytes=self.server.sent_bytes,
        )
        stand = ServingSummary.of(serving, self.server.store.shard_sets.values())
        now_ms, nodes = self._clock.monotonic_ms(), self._count_nodes()
        if not self._saying.is_serving_due(stand, now_ms, known_nodes=nodes):
            return
        if await self._voice.publish(self._run, serving, known_nodes=nodes) is not None:
            self._saying.mark_serving_sent(stand, now_ms)


async def announce_stop_within_deadline(crier: Announcer) -> None:
    """When a program ends: it does not wait long for the last word to go out."""
    try:
        async with asyncio.timeout(ANNOUNCE_STOP_MS / 1000):
            await crier.announce_stop()
    except TimeoutError:
        log.info("nobody could be told that this server ends")
