"""A lock that holders with the same key share. Those with another key wait, first come first served."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

K = TypeVar("K")


class SharedLock(Generic[K]):
    """Like a lock for readers and writers, with any number of kinds of readers."""

    def __init__(self) -> None:
        self._key: K | None = None
        self._holders = 0
        self._queue: deque[tuple[K | None, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, key: K | None) -> AsyncIterator[None]:
        """None shares with no holder."""
        await self._acquire(key)
        try:
            yield
        finally:
            self._holders -= 1
            self._admit()

    async def _acquire(self, key: K | None) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Behind all that wait already, even with the key of the holders: those with another key must have a turn.
        self._queue.append((key, turn))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._holders -= 1
            else:
                self._queue.remove((key, turn))
            self._admit()
            raise

    def _admit(self) -> None:
        while self._queue:
            key, turn = self._queue[0]
            if self._holders and (key is None or key != self._key):
                return
            self._queue.popleft()
            self._key = key
            self._holders += 1
            turn.set_result(None)
