"""Tells a run what this server has: its serving record, and on a trainer's behalf the announcements of its versions.

A part that runs for ever. When something is due is decided in saying.py; how it travels is Voice's work.
"""

import asyncio
import logging
from collections.abc import Callable

from prime_protocol.gossip import Serving
from prime_protocol.ids import RunId
from prime_runtime.clock import Clock
from prime_runtime.gossip_voice import Voice
from prime_runtime.shardcast.saying import Saying, Stand, make_announced
from prime_runtime.shardcast.serve import ShardServer

log = logging.getLogger(__name__)

WATCH_MS = 250
"""Between two looks at what is there. A new version is announced within a second of being published."""

LEAVE_MS = 2_000
"""Most time for the last word."""


class Crier:
    """Speaks for one ShardServer."""

    def __init__(
        self,
        server: ShardServer,
        voice: Voice,
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
        self._saying = Saying()

    async def run(self) -> None:
        while True:
            await self.look()
            await self._clock.sleep_ms(WATCH_MS)

    async def take_leave(self) -> None:
        """Say that nothing is served here any more, so that nobody tries."""
        if self._saying.has_said:
            gone = Serving(urls=(), depth=0, slots_free=0, manifests=())
            await self._voice.say(self._run, gone, known_nodes=self._count_nodes())

    async def look(self) -> None:
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
        for signed in self._saying.announced_due(whole, self._clock.monotonic_ms()):
            if await self._voice.say(self._run, make_announced(signed)) is None:
                return  # too many at once; the rest in a moment
            self._saying.announced_said(signed.digest, self._clock.monotonic_ms())

    async def _tell_serving(self) -> None:
        offer, urls = self.server.offer(), self._list_urls()
        if not urls:
            return
        serving = Serving(
            urls=urls,
            depth=offer.depth,
            slots_free=offer.slots_free,
            manifests=offer.manifests,
            parents=offer.parents,
            sent_bytes=self.server.sent_bytes,
        )
        stand = Stand.of(serving, self.server.store.stocks.values())
        now_ms, nodes = self._clock.monotonic_ms(), self._count_nodes()
        if not self._saying.serving_due(stand, now_ms, known_nodes=nodes):
            return
        if await self._voice.say(self._run, serving, known_nodes=nodes) is not None:
            self._saying.serving_said(stand, now_ms)


async def leave(crier: Crier) -> None:
    """When a program ends: it does not wait long for the last word to go out."""
    try:
        async with asyncio.timeout(LEAVE_MS / 1000):
            await crier.take_leave()
    except TimeoutError:
        log.info("nobody could be told that this server ends")
