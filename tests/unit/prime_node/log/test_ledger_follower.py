"""The follower with its real process: it catches up, resumes, finds broken rules, and a lying mirror accuses no log."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prime_node.config import ReplayConfig
from prime_node.log.accusations import AccusationKeeper
from prime_node.log.ledger_follower import LedgerFollower
from prime_node.log.log_sources import LogSource
from prime_node.log.replay import HeadSighting
from prime_node.log.signed_heads import SignedHead
from prime_protocol.constants import LIVE_CLOCK_MS_MAX, LOG_ENTRIES_MAX, PROTOCOL_VERSION, RULES_NOTICE_MS
from prime_protocol.errors import LocalError
from prime_protocol.gossip.accusation import Accusation, BrokenRule
from prime_protocol.ledger.state import LedgerState
from prime_runtime.clock import SystemClock
from prime_runtime.http.config import ServerAddress
from support.gossip_examples import key_of
from support.ledger_network import NETWORK, RUN, World
from support.served_log import ServedLog, make_keys

FAST = ReplayConfig(cpu_percent=100, bytes_per_s=10**9, niceness=0)


def make_world(entries: int) -> World:
    world = World.started()
    while len(world.leaves) < entries:
        world.deposit("ann", 1)
    return world


WORLD = make_world(600)
FORGED = WORLD.seal("stranger", WORLD.registration("ann"), "run-1")
"""It names a run where none belongs."""


class QuickClock(SystemClock):
    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(min(duration_ms, 20) / 1000)


class LyingLog(ServedLog):
    """Serves other bytes than it has for the paths that are named."""

    def __init__(self, leaves: list[bytes], *lies: str) -> None:
        super().__init__(leaves)
        self._lies = lies

    def files(self) -> dict[str, bytes]:
        true = super().files()
        return true | {name: true[name][:-1] + b"\xff" for name in true if any(lie in name for lie in self._lies)}


class Following:
    """A follower, its accusations, and the newest head that its node has verified."""

    def __init__(self, folder: Path, *logs: ServedLog, head: SignedHead | None = None) -> None:
        async def publish(accusation: Accusation) -> None: ...

        self.head = head or logs[-1].seen()
        coordinator = WORLD.id("coordinator")
        self.keeper = AccusationKeeper(
            folder / "accusations",
            key_of("me"),
            network=NETWORK,
            run=RUN,
            request_keys=lambda: None,
            publish=publish,
            clock=SystemClock(),
        )
        keys = make_keys(coordinator)
        self.keeper.set_keys(keys, LOG_ENTRIES_MAX)
        sources = [
            LogSource(log, ServerAddress(f"http://source-{number}", coordinator), "/log")  # type: ignore[arg-type]
            for number, log in enumerate(logs)
        ]
        self.follower = LedgerFollower(
            sources,
            FAST,
            network=NETWORK,
            get_keys=lambda: keys,
            snapshot=folder / "replay" / "state",
            get_head=lambda: self.head,
            accusations=self.keeper,
            clock=QuickClock(),
        )

    async def until(self, holds: Callable[[], bool], then: Callable[[], Any] = lambda: None) -> None:
        """Runs until it holds, then does something while it still runs."""
        task = asyncio.create_task(self.follower.run())
        try:
            async with asyncio.timeout(60):
                while not holds():
                    assert not task.done(), task.exception()
                    await asyncio.sleep(0.01)
                if (made := then()) is not None:
                    await made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_follower_catches_up_resumes_from_its_snapshot_and_answers_questions(tmp_path: Path) -> None:
    log, answers = ServedLog(WORLD.leaves), list[int]()
    following = Following(tmp_path, log)

    async def ask() -> None:
        answers.append(await following.follower.query(LedgerState.get_stake, WORLD.id("ann")))

    await following.until(lambda: following.follower.size == 600, ask)
    assert answers == [WORLD.stake_of("ann")]
    assert (following.follower.problem, following.follower.finding, following.keeper.is_stopped) == ("", None, False)
    with pytest.raises(LocalError, match="not being replayed"):
        await following.follower.query(LedgerState.get_stake, WORLD.id("ann"))

    world = WORLD.fork()
    world.deposit("bob", 7)
    log.append(world.leaves[-1])
    log.asked.clear()
    again = Following(tmp_path, log)
    await again.until(lambda: again.follower.size == 601)
    entries = [path for path in log.asked if "/entries/" in path]
    assert set(entries) == {"/log/tile/entries/002.p/89"}, "it began where it had stopped"


async def test_a_snapshot_of_another_log_or_a_damaged_one_is_ignored(tmp_path: Path) -> None:
    other = make_world(300)
    other.wait(5)
    other.deposit("bob", 9)
    first = Following(tmp_path, ServedLog(other.leaves))
    await first.until(lambda: first.follower.size == 301)
    second = Following(tmp_path, ServedLog(WORLD.leaves))
    await second.until(lambda: second.follower.size == 600)
    shorter = Following(tmp_path, ServedLog(WORLD.leaves[:100]))
    await shorter.until(lambda: shorter.follower.size == 100)
    (tmp_path / "replay" / "state").write_bytes(b"damaged")
    third = Following(tmp_path, ServedLog(WORLD.leaves))
    await third.until(lambda: third.follower.size == 600)
    assert not third.keeper.is_stopped


async def test_a_broken_rule_becomes_a_signed_accusation_and_stops_the_work(tmp_path: Path) -> None:
    following = Following(tmp_path, ServedLog([*WORLD.leaves, FORGED, *WORLD.leaves[:10]]))
    await following.until(lambda: bool(following.keeper.list_kept()))
    (row,) = following.keeper.list_kept()
    assert (row["index"], row["rule"], row["is_own"]) == (600, "ledger", True)
    assert following.keeper.is_stopped
    assert following.follower.size == 600
    assert following.follower.is_broken
    again = Following(tmp_path, ServedLog([*WORLD.leaves, FORGED, *WORLD.leaves[:10]]))
    assert again.keeper.is_stopped, "before the replay has come to it again"
    await again.until(lambda: again.follower.is_broken)
    assert len(again.keeper.list_kept()) == 1


@pytest.mark.parametrize("lie", ["/entries/001", "/entries/002", "/tile/0/002", "/tile/1/"])
async def test_a_lying_mirror_is_replaced_by_another_source_and_the_log_is_not_accused(
    tmp_path: Path, lie: str
) -> None:
    following = Following(tmp_path, LyingLog(WORLD.leaves, lie), ServedLog(WORLD.leaves))
    await following.until(lambda: following.follower.size == 600)
    assert set(following.follower.wrong_bytes) <= {"http://source-0/log"}
    assert (following.follower.finding, following.keeper.is_stopped) == (None, False)


async def test_if_every_source_lies_the_owner_is_told_and_the_log_is_not_accused(tmp_path: Path) -> None:
    following = Following(
        tmp_path, LyingLog(WORLD.leaves, "/entries/001"), ServedLog([]), head=ServedLog(WORLD.leaves).seen()
    )
    await following.until(lambda: following.follower.size == 256 and bool(following.follower.problem))
    assert "cannot read entry 256: http://source-0/log sends something else" in following.follower.problem
    assert "http://source-1/log has no tile/entries/001" in following.follower.problem
    assert (following.follower.finding, following.keeper.is_stopped) == (None, False)


async def test_withheld_tiles_of_the_proof_do_not_keep_the_node_working(tmp_path: Path) -> None:
    log = ServedLog([*WORLD.leaves[:255], FORGED])
    log.files()  # of the tree so far; then the tiles vanish
    log._files = {path: raw for path, raw in log.files().items() if "/entries/" in path}
    following = Following(tmp_path, log)
    await following.until(lambda: following.keeper.is_stopped and bool(following.follower.problem))
    assert following.keeper.list_kept() == []
    assert "entry 255" in following.keeper.hold_reason


async def test_times_of_live_entries_are_compared_and_those_of_history_are_not(tmp_path: Path) -> None:
    log, at_ms = ServedLog(WORLD.leaves[:500]), WORLD.state.at_ms
    following = Following(tmp_path, log)
    late_ms = at_ms + LIVE_CLOCK_MS_MAX + 60_000
    following.follower.add_sighting(HeadSighting(500, late_ms, is_newest=True))

    async def grow() -> None:
        log.append(*WORLD.leaves[500:])
        following.follower.add_sighting(HeadSighting(600, late_ms + 1000, is_newest=True))
        following.head = log.seen()
        while following.follower.size < 600 or not following.keeper.list_kept():
            await asyncio.sleep(0.01)

    await following.until(lambda: following.follower.size == 500, grow)
    (row,) = following.keeper.list_kept()
    assert (row["index"], row["rule"]) == (500, str(BrokenRule.CLOCK)), "the first live one, and only one is reported"
    assert (following.follower.size, following.follower.is_broken) == (600, False), "the rules are followed further"


async def test_rules_that_only_a_newer_program_knows_are_told_and_accuse_nobody(tmp_path: Path) -> None:
    world = WORLD.fork()
    world.announce_rules(PROTOCOL_VERSION + 1)
    world.wait(RULES_NOTICE_MS)
    newer = world.seal("ann", world.registration("ann"), None, kind="NotInventedYet", version=PROTOCOL_VERSION + 1)
    following = Following(tmp_path, ServedLog([*world.leaves, newer]))
    wanted = f"upgrade prime-swarm to version 0.{PROTOCOL_VERSION + 1}.0"
    await following.until(lambda: wanted in following.follower.problem)
    assert (following.follower.size, following.keeper.is_stopped) == (601, False)


async def test_a_killed_process_is_an_error_that_a_restart_repairs(tmp_path: Path) -> None:
    following = Following(tmp_path, ServedLog(WORLD.leaves))

    def kill() -> None:
        process = following.follower._process
        assert process is not None
        process._process.kill()

    task = asyncio.create_task(following.follower.run())
    async with asyncio.timeout(60):
        while following.follower.size < 600:
            await asyncio.sleep(0.01)
        kill()
        world = WORLD.fork()
        world.deposit("bob", 7)
        log = ServedLog(world.leaves)
        following.head = log.seen()
        following.follower._sources[0] = LogSource(log, following.follower._sources[0].server, "/log")  # type: ignore[arg-type]
        with pytest.raises(LocalError, match="has ended"):
            await task
    await following.until(lambda: following.follower.size == 601)
