"""Connections to parents, kept between requests and opened when needed. Bounded and self-cleaning."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from prime_node.shardcast.link import GATHER_BYTES_MAX, Link, LinkBroken, open_link
from prime_protocol.addresses import ServerUrl
from prime_runtime.rates import Pace

IDLE_MAX = 32
"""Idle connections kept; the one used longest ago goes first."""


class Links:
    """Lends connections."""

    def __init__(self, *, allow_private: bool, bytes_per_s: int | None = None) -> None:
        self._allow_private = allow_private
        self._pace = Pace(bytes_per_s) if bytes_per_s else None
        self._room = memoryview(bytearray(GATHER_BYTES_MAX))
        """Both are shared by all connections."""
        self._idle: OrderedDict[tuple[str, int], Link] = OrderedDict()
        self._numbers = 0

    @asynccontextmanager
    async def borrow(self, urls: Sequence[str]) -> AsyncIterator[Link]:
        """A connection to the first of these places that answers; LinkBroken where none does."""
        url, link = await self._take(urls)
        try:
            yield link
        finally:
            if link.is_idle:
                self._numbers += 1
                self._idle[url, self._numbers] = link
                while len(self._idle) > IDLE_MAX:
                    self._idle.popitem(last=False)[1].close()
            else:
                link.close()

    async def _take(self, urls: Sequence[str]) -> tuple[str, Link]:
        for url in urls:
            for place in [place for place in self._idle if place[0] == url]:
                link = self._idle.pop(place)
                if link.is_idle:
                    return url, link
        problem = LinkBroken("the node gives no address")
        for url in urls:
            try:
                server = ServerUrl.parse(url)
                return url, await open_link(server, allow_private=self._allow_private, pace=self._pace, room=self._room)
            except LinkBroken as error:
                problem = error
        raise problem

    async def close(self) -> None:
        while self._idle:
            self._idle.popitem()[1].close()
        await asyncio.sleep(0)
