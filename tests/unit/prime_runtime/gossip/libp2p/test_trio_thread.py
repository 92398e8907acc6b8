"""Between asyncio and trio: results, errors, deadlines and a crash all arrive, and nothing is left behind."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from prime_runtime.gossip.libp2p.trio_thread import CrossThreadQueue, TrioThread, TrioThreadClosed

CALL_MS = 10_000


async def until_stopped(ready: Callable[[], None], stopping: trio.Event) -> None:
    ready()
    await stopping.wait()


@asynccontextmanager
async def running() -> AsyncIterator[TrioThread]:
    thread = TrioThread()
    await thread.start(until_stopped)
    try:
        yield thread
    finally:
        assert await thread.stop(CALL_MS)


async def echo(value: int) -> int:
    await trio.sleep(0)
    return value


async def fail(text: str) -> None:
    raise ValueError(text)


async def test_a_call_gives_back_the_result_or_raises_what_was_raised() -> None:
    async with running() as thread:
        assert await thread.call(echo, 7, timeout_ms=CALL_MS) == 7
        with pytest.raises(ValueError, match="over there"):
            await thread.call(fail, "over there", timeout_ms=CALL_MS)
        assert thread._inflight == set()


async def test_a_call_past_its_deadline_is_cancelled_on_the_other_side_too() -> None:
    cancelled = threading.Event()

    async def hang() -> None:
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    async with running() as thread:
        with pytest.raises(TimeoutError):
            await thread.call(hang, timeout_ms=20)
        assert await asyncio.to_thread(cancelled.wait, 10)


async def test_what_is_raised_before_it_is_ready_comes_out_of_the_start() -> None:
    async def broken(ready: Callable[[], None], stopping: trio.Event) -> None:
        raise OSError("no such port")

    thread = TrioThread()
    with pytest.raises(BaseExceptionGroup) as caught:
        await thread.start(broken)
    assert caught.group_contains(OSError, match="no such port")
    assert await thread.done is not None


async def test_ending_before_it_is_ready_is_told() -> None:
    async def leave(ready: Callable[[], None], stopping: trio.Event) -> None:
        return

    thread = TrioThread()
    with pytest.raises(TrioThreadClosed):
        await thread.start(leave)


async def test_a_crash_is_a_value_here_and_fails_every_call_under_way() -> None:
    crash = trio.Event()

    async def fragile(ready: Callable[[], None], stopping: trio.Event) -> None:
        ready()
        await crash.wait()
        raise RuntimeError("it broke")

    async def trigger() -> None:
        crash.set()
        await trio.sleep_forever()

    thread = TrioThread()
    await thread.start(fragile)
    with pytest.raises(TrioThreadClosed):
        await thread.call(trigger, timeout_ms=CALL_MS)
    error = await thread.done
    assert isinstance(error, BaseExceptionGroup)
    assert error.subgroup(RuntimeError)
    with pytest.raises(TrioThreadClosed):
        await thread.call(echo, 1, timeout_ms=CALL_MS)
    assert await thread.stop(CALL_MS), "stopping what has ended is no harm"


async def test_stopping_fails_calls_under_way_at_once() -> None:
    async with running() as thread:
        calls = [asyncio.create_task(thread.call(trio.sleep_forever, timeout_ms=CALL_MS)) for _ in range(50)]
        await thread.call(echo, 1, timeout_ms=CALL_MS)
        assert await thread.stop(CALL_MS)
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(error, TrioThreadClosed) for error in done)


async def test_a_side_that_does_not_listen_is_cancelled() -> None:
    async def deaf(ready: Callable[[], None], stopping: trio.Event) -> None:
        ready()
        await trio.sleep_forever()

    thread = TrioThread()
    await thread.start(deaf)
    assert await thread.stop(2_000)


async def test_a_side_that_does_not_end_is_told() -> None:
    release = threading.Event()

    async def stubborn(ready: Callable[[], None], stopping: trio.Event) -> None:
        ready()
        await trio.to_thread.run_sync(release.wait)

    thread = TrioThread()
    await thread.start(stubborn)
    assert not await thread.stop(20)
    release.set()
    assert await thread.stop(CALL_MS)


async def test_two_thousand_calls_some_cut_off_some_failing_leave_nothing_behind() -> None:
    dice = random.Random(7)

    async def work(number: int, pause_s: float, is_bad: bool) -> int:
        await trio.sleep(pause_s)
        if is_bad:
            raise ValueError(str(number))
        return number

    async with running() as thread:

        async def one(number: int) -> str:
            timeout_ms = dice.choice([1, 5, CALL_MS])
            try:
                got = await thread.call(work, number, dice.random() / 200, dice.random() < 0.2, timeout_ms=timeout_ms)
            except ValueError as error:
                assert str(error) == str(number)
                return "failed"
            except TimeoutError:
                return "late"
            assert got == number
            return "fine"

        outcomes = await asyncio.gather(*(one(number) for number in range(2_000)))
        assert {"fine", "failed", "late"} == set(outcomes)
        assert thread._inflight == set()
        # Cancelled tasks end by themselves on the trio side.
        for _ in range(1_000):
            if not await thread.call(children, thread, timeout_ms=CALL_MS):
                break
        assert await thread.call(children, thread, timeout_ms=CALL_MS) == 0


async def children(thread: TrioThread) -> int:
    """Tasks in the bridge's nursery, this one not counted."""
    assert thread._nursery is not None
    return len(thread._nursery.child_tasks) - 1


async def test_a_full_inbox_drops_the_oldest_and_counts() -> None:
    inbox: CrossThreadQueue[int] = CrossThreadQueue(3)
    for number in range(5):
        inbox.offer(number)
    assert [await inbox.take() for _ in range(3)] == [2, 3, 4]
    assert inbox.dropped == 2


async def test_an_inbox_hands_over_everything_that_another_thread_offers() -> None:
    inbox: CrossThreadQueue[int] = CrossThreadQueue(10_000)
    thread = threading.Thread(target=lambda: [inbox.offer(number) for number in range(5_000)])
    thread.start()
    assert [await inbox.take() for _ in range(5_000)] == list(range(5_000))
    thread.join()


def test_what_is_offered_after_the_loop_has_closed_is_no_error() -> None:
    async def make() -> CrossThreadQueue[int]:
        return CrossThreadQueue(3)

    inbox = asyncio.run(make())
    inbox.offer(1)
