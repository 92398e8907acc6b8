"""The bridge between asyncio and trio: calls go into the trio thread, events come out, a crash there is a value here.

libp2p runs on trio only. In a thread of its own, a crash of the library cannot harm the rest of the program. Objects of
the library never leave that thread; only plain values cross.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import trio

T = TypeVar("T")
Main = Callable[[Callable[[], None], trio.Event], Awaitable[None]]
"""Runs under trio. It calls its first argument once, when it is ready, and ends when the event is set."""


class TrioThreadClosed(Exception):
    """The trio thread has stopped and accepts no calls."""


class TrioThread:
    """A thread that runs trio. A restart uses a new object."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self.done: asyncio.Future[BaseException | None] = self._loop.create_future()
        """The error that ended the trio thread, or None."""
        self._inflight: set[asyncio.Future[Any]] = set()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._stopping: trio.Event | None = None
        self._thread: threading.Thread | None = None

    async def start(self, main: Main) -> None:
        """Wait until `main` is ready, or raise its error."""
        self._thread = threading.Thread(target=self._run, args=(main,), name="p2p", daemon=True)
        self._thread.start()
        await asyncio.shield(self._ready)

    async def call(self, function: Callable[..., Awaitable[T]], *args: Any, timeout_ms: int) -> T:
        """The result of the function, or its error. TimeoutError: it was cancelled at the deadline."""
        future: asyncio.Future[T] = self._loop.create_future()
        scope = trio.CancelScope()

        async def task() -> None:
            with scope:
                result, error = None, None
                try:
                    result = await function(*args)
                except Exception as raised:  # boundary: raised in the caller's thread
                    error = raised
                self._tell(self._settle, future, result, error)

        self._inflight.add(future)
        try:
            self._send(lambda: self._start(task))
            async with asyncio.timeout(timeout_ms / 1000):
                return await future
        finally:
            self._inflight.discard(future)
            if not future.done() or future.cancelled():
                self._try_send(scope.cancel)

    async def stop(self, timeout_ms: int) -> bool:
        """Ask the trio thread to end, cancel it after half the time, and wait. False: it did not end."""
        for give_up in (self._ask_to_stop, self._cancel_all):
            give_up()
            done, _ = await asyncio.wait([self.done], timeout=timeout_ms / 2000)
            if done:
                assert self._thread is not None
                self._thread.join()
                return True
        return False

    def _run(self, main: Main) -> None:
        error: BaseException | None = None
        try:
            trio.run(self._root, main)
        except BaseException as raised:  # boundary: a thread has no caller; P2PNode reads `done`
            error = raised
        self._tell(self._finish, error)

    async def _root(self, main: Main) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            self._nursery, self._stopping = nursery, trio.Event()
            await main(lambda: self._tell(self._settle, self._ready, None, None), self._stopping)
            nursery.cancel_scope.cancel()

    def _start(self, task: Callable[[], Awaitable[None]]) -> None:
        """In the trio thread. A closing nursery accepts no tasks; `_finish` answers their callers."""
        assert self._nursery is not None
        try:
            self._nursery.start_soon(task)
        except RuntimeError:
            return

    def _send(self, function: Callable[[], None]) -> None:
        if self._token is None or self.done.done():
            raise TrioThreadClosed("the libp2p thread is not running")
        try:
            self._token.run_sync_soon(function)
        except trio.RunFinishedError:
            raise TrioThreadClosed("the libp2p thread has stopped") from None

    def _ask_to_stop(self) -> None:
        if self._stopping is not None:
            self._try_send(self._stopping.set)

    def _cancel_all(self) -> None:
        if self._nursery is not None:
            self._try_send(self._nursery.cancel_scope.cancel)

    def _try_send(self, function: Callable[[], None]) -> None:
        try:
            self._send(function)
        except TrioThreadClosed:
            return

    def _tell(self, function: Callable[..., None], *args: Any) -> None:
        """From the trio thread: run a function in the asyncio thread."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return  # the loop is closed: the program is ending

    @staticmethod
    def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def _finish(self, error: BaseException | None) -> None:
        closed = TrioThreadClosed("the libp2p thread has stopped")
        for future in list(self._inflight):
            self._settle(future, None, closed)
        is_early = not self._ready.done()
        self._settle(self._ready, None, error or closed)
        if is_early:
            self._ready.exception()  # mark as retrieved; a waiting `start` still raises it
        self._settle(self.done, error, None)


class CrossThreadQueue(Generic[T]):
    """A queue from any thread to one asyncio loop. When it is full, the oldest value is dropped and counted."""

    def __init__(self, items_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[T] = deque()
        self._items_max = items_max
        self._lock = threading.Lock()
        self._arrived = asyncio.Event()
        self._is_told = False
        self.dropped = 0

    def offer(self, item: T) -> None:
        """Add a value from any thread, without waiting."""
        with self._lock:
            if len(self._items) >= self._items_max:
                self._items.popleft()
                self.dropped += 1
            self._items.append(item)
            if self._is_told:
                return
            self._is_told = True
        try:
            self._loop.call_soon_threadsafe(self._arrived.set)
        except RuntimeError:
            return  # the loop is closed: nothing reads the queue

    async def take(self) -> T:
        """Wait for the oldest value."""
        while True:
            with self._lock:
                if self._items:
                    return self._items.popleft()
                self._arrived.clear()
                self._is_told = False
            await self._arrived.wait()
