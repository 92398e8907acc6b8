"""A relay fetches the newest versions that somebody serves; one that nobody serves any more holds up no other."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from prime_node.weights.relay import RETRY_PAUSE_MS, RelayFollower, choose_versions
from prime_protocol.constants import GOSSIP_LIFE_MS
from prime_protocol.errors import LocalError
from prime_protocol.gossip.messages import CheckpointAnnounced
from prime_protocol.wire.ids import Digest
from prime_runtime.shardcast.directory import ServerDirectory
from support.gossip_examples import NOW_MS, announced, digest_of, said, serving


class HandClock:
    """A clock that the test moves; whoever sleeps is woken by it."""

    def __init__(self) -> None:
        self.ms = NOW_MS
        self._tick = asyncio.Event()

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms

    async def sleep_ms(self, duration_ms: int) -> None:
        await self._tick.wait()

    async def pass_ms(self, duration_ms: int) -> None:
        self.ms += duration_ms
        self._tick.set()
        self._tick = asyncio.Event()
        for _ in range(10):
            await asyncio.sleep(0)


class Fetcher:
    """Fetches until the test says that it is done, or why not."""

    def __init__(self) -> None:
        self.directory = ServerDirectory()
        self.store = SimpleNamespace(shard_sets={})
        self.running: dict[Digest, asyncio.Future[None]] = {}
        self.begun: list[int] = []

    async def fetch_announced(self, what: CheckpointAnnounced) -> None:
        self.begun.append(what.step)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.running[what.manifest] = ended
        try:
            await ended
        finally:
            del self.running[what.manifest]

    def finish(self, step: int, error: Exception | None = None) -> None:
        digest = digest_of(f"manifest {step}")
        if error is not None:
            self.running[digest].set_exception(error)
        else:
            self.store.shard_sets[digest] = SimpleNamespace(is_complete=True)
            self.running[digest].set_result(None)

    @property
    def steps(self) -> set[int]:
        return {step for step in range(10) if digest_of(f"manifest {step}") in self.running}


class Scene:
    """A relay that follows, and what it hears."""

    def __init__(self) -> None:
        self.clock, self.fetcher = HandClock(), Fetcher()
        following: Any = RelayFollower(self.fetcher, self.clock)  # type: ignore[arg-type]
        self.task = asyncio.create_task(following.run())

    def hear(self, *steps: int, servers: tuple[int, ...] | None = None) -> None:
        now_ms = self.clock.ms
        for step in steps:
            self.fetcher.directory.learn(said("trainer", announced(step), now_ms=now_ms))
        self.fetcher.directory.learn(said("origin", serving(*(steps if servers is None else servers)), now_ms=now_ms))

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def test_the_newest_versions_start_first_up_to_the_limit() -> None:
    wanted = [announced(step) for step in (5, 4, 3)]
    assert choose_versions(wanted, ()) == wanted[:2]
    assert choose_versions(wanted, [digest_of("manifest 5")]) == [wanted[1]]
    assert choose_versions(wanted, [digest_of("manifest 1"), digest_of("manifest 2")]) == []
    assert choose_versions(wanted, [digest_of(f"manifest {step}") for step in range(3)]) == []


async def test_a_finished_fetch_frees_its_slot_and_an_unserved_version_is_not_started() -> None:
    scene = Scene()
    scene.hear(0, 1, 2, 3, servers=(0, 1, 2))
    await scene.clock.pass_ms(1)
    assert scene.fetcher.steps == {1, 2}
    scene.fetcher.finish(2)
    await scene.clock.pass_ms(1)
    assert scene.fetcher.steps == {0, 1}
    scene.hear(servers=(3,))
    await scene.clock.pass_ms(1)
    assert scene.fetcher.steps == {3}, "those that the origin has removed are let go"
    await scene.end()
    assert scene.fetcher.running == {}


async def test_a_version_whose_server_fell_silent_is_let_go_and_taken_up_again() -> None:
    scene = Scene()
    scene.hear(0)
    await scene.clock.pass_ms(1)
    await scene.clock.pass_ms(GOSSIP_LIFE_MS)
    assert scene.fetcher.steps == set()
    scene.hear(0)
    await scene.clock.pass_ms(1)
    assert scene.fetcher.steps == set(), "not at once"
    await scene.clock.pass_ms(RETRY_PAUSE_MS)
    assert scene.fetcher.steps == {0}
    await scene.end()


async def test_a_version_that_is_not_wanted_after_all_is_not_asked_for_all_the_time() -> None:
    scene = Scene()
    scene.hear(0)
    await scene.clock.pass_ms(1)
    scene.fetcher.running[digest_of("manifest 0")].set_result(None)
    for _ in range(5):
        await scene.clock.pass_ms(1000)
    assert scene.fetcher.begun == [0]
    await scene.clock.pass_ms(RETRY_PAUSE_MS)
    assert scene.fetcher.begun == [0, 0]
    await scene.end()


async def test_a_full_disk_ends_the_follower_with_an_error() -> None:
    scene = Scene()
    scene.hear(0)
    await scene.clock.pass_ms(1)
    scene.fetcher.finish(0, LocalError("do not fit"))
    await scene.clock.pass_ms(1)
    with pytest.raises(LocalError, match="do not fit"):
        await scene.task
