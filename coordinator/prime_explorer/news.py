"""Tells open pages that the log has grown: server-sent events, one look at the index for all of them."""

import asyncio
import json
import logging
from typing import Any

from aiohttp import web

from prime_explorer.constants import KEEP_ALIVE_MS, LISTENING_MS, NEWS_MS
from prime_explorer.reading import Db, NotYet, Reader
from prime_runtime.clock import Clock

log = logging.getLogger(__name__)


class News:
    """Who listens, and what is new."""

    def __init__(self, reader: Reader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._event = asyncio.Event()
        self._listeners = 0
        self._now: dict[str, Any] = {}
        self._is_closed = False

    async def run(self) -> None:
        """For ever: a look now and then, while somebody listens."""
        while True:
            await self._clock.sleep_ms(NEWS_MS)
            if self._listeners:
                await self._look()

    def close(self) -> None:
        self._is_closed = True
        self._ring()

    async def _look(self) -> None:
        try:
            now = await self._reader.ask(read_news)
        except NotYet:
            return
        if now != self._now:
            self._now = now
            self._ring()

    def _ring(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def _wait(self) -> bool:
        """Whether anything happened before it was time to see who has left."""
        try:
            async with asyncio.timeout(LISTENING_MS / 1000):
                await self._event.wait()
        except TimeoutError:
            return False
        return True

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """An event for each change, until the reader leaves."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        await response.prepare(request)
        self._listeners += 1
        try:
            await response.write(b"retry: 5000\n\n")
            told, quiet = self._now, 0
            while not self._is_closed and not _is_gone(request):
                if told is not self._now:
                    told, quiet = self._now, 0
                    await response.write(f"event: news\ndata: {json.dumps(told)}\n\n".encode())
                elif not await self._wait():
                    quiet += 1
                    if quiet * LISTENING_MS >= KEEP_ALIVE_MS:
                        quiet = 0
                        await response.write(b": still here\n\n")
        except ConnectionError:
            pass  # the reader has left
        finally:
            self._listeners -= 1
        return response


def _is_gone(request: web.Request) -> bool:
    """Nobody tells a handler that waits; a reader who goes from page to page must not use up the places."""
    return request.transport is None or request.transport.is_closing()


def read_news(db: Db) -> dict[str, Any]:
    """What a page needs to know to see whether it is out of date."""
    facts = db.facts()
    steps = {row["run"]: row["latest_step"] for row in db.rows("SELECT run, latest_step FROM runs LIMIT 100")}
    return {"size": facts.get("size", 0), "head_size": facts.get("head_size", 0), "steps": steps}
