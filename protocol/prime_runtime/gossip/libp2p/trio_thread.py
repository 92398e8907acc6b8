"""Between asyncio and trio: calls go into the trio thread, events come out, and a crash there is a value here.

libp2p runs on trio alone. It gets a thread of its own, so that what kills it touches nothing else. Hosts, streams and
peer ids of the library never leave that thread; what crosses are plain values.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import trio

T = TypeVar("T")
Main = Callable[[Callable[[], None], trio.Event], Awaitable[None]]
"""Runs under trio for as long as the half lives; calls its first argument once, when it is ready, and ends in order
when the event is set."""


class TrioThreadClosed(Exception):
    """The trio side has stopped, so nothing can be asked of it."""


class TrioThread:
    """One life of the trio side. A restart is a new one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self.done: asyncio.Future[BaseException | None] = self._loop.create_future()
        """Set when the trio side has ended: with what killed it, or None."""
        self._inflight: set[asyncio.Future[Any]] = set()
        self._token: trio.lowlevel.TrioToken | None = None
        self._nursery: trio.Nursery | None = None
        self._stopping: trio.Event | None = None
        self._thread: threading.Thread | None = None

    async def start(self, main: Main) -> None:
        """Until `main` is ready; what it raises before that is raised here."""
        self._thread = threading.Thread(target=self._run, args=(main,), name="p2p", daemon=True)
        self._thread.start()
        await asyncio.shield(self._ready)

    async def call(self, function: Callable[..., Awaitable[T]], *args: Any, timeout_ms: int) -> T:
        """The function's result, or what it raised. TimeoutError after the deadline: then it was cancelled."""
        future: asyncio.Future[T] = self._loop.create_future()
        scope = trio.CancelScope()

        async def task() -> None:
            with scope:
                result, error = None, None
                try:
                    result = await function(*args)
                except Exception as raised:  # boundary: the caller's thread gets it
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
        """Ask the trio side to end, cancel it after half the time, and wait; False if it did not end at all."""
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
        except BaseException as raised:  # boundary: a thread has nobody above it; the supervisor is told
            error = raised
        self._tell(self._finish, error)

    async def _root(self, main: Main) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with trio.open_nursery() as nursery:
            self._nursery, self._stopping = nursery, trio.Event()
            await main(lambda: self._tell(self._settle, self._ready, None, None), self._stopping)
            nursery.cancel_scope.cancel()

    def _start(self, task: Callable[[], Awaitable[None]]) -> None:
        """In the trio thread. A nursery that is closing takes no tasks; `_finish` answers their callers."""
        assert self._nursery is not None
        try:
            self._nursery.start_soon(task)
        except RuntimeError:
            return

    def _send(self, function: Callable[[], None]) -> None:
        if self._token is None or self.done.done():
            raise TrioThreadClosed("the libp2p half is not running")
        try:
            self._token.run_sync_soon(function)
        except trio.RunFinishedError:
            raise TrioThreadClosed("the libp2p half has stopped") from None

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
        """Run something in the asyncio thread, from the trio thread."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return  # the loop is closed: the program is at its end

    @staticmethod
    def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def _finish(self, error: BaseException | None) -> None:
        closed = TrioThreadClosed("the libp2p half has stopped")
        for future in list(self._inflight):
            self._settle(future, None, closed)
        is_early = not self._ready.done()
        self._settle(self._ready, None, error or closed)
        if is_early:
            self._ready.exception()  # seen: whoever waits for the start still gets it
        self._settle(self.done, error, None)


class CrossThreadQueue(Generic[T]):
    """Values from any thread for one asyncio loop. When it is full the oldest is dropped, and counted."""

    def __init__(self, items_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[T] = deque()
        self._items_max = items_max
        self._lock = threading.Lock()
        self._arrived = asyncio.Event()
        self._is_told = False
        self.dropped = 0

    def offer(self, item: T) -> None:
        """From any thread; never waits."""
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
            return  # the loop is closed: nobody reads any more

    async def take(self) -> T:
        """The oldest, as soon as there is one."""
        while True:
            with self._lock:
                if self._items:
                    return self._items.popleft()
                self._arrived.clear()
                self._is_told = False
            await self._arrived.wait()
