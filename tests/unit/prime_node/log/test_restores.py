"""A restored log is followed if it lost little, once, and says so; everything else stays a fork."""

from dataclasses import replace
from pathlib import Path

import pytest

from prime_node.log.restores import HeadHistory, Restore, open_restore
from prime_node.log.tree_heads import LossNoticed
from prime_protocol.constants import RESTORE_INTERVAL_MS, RESTORE_LOSS_MS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.messages import HeadSeen
from prime_protocol.ledger.entries import LogRecord, LogRestored
from prime_protocol.wire.codec import encode
from prime_protocol.wire.envelope import seal_envelope
from prime_protocol.wire.ids import Digest
from prime_runtime.clock import SystemClock
from support.gossip_examples import NETWORK, NOW_MS, key_of
from support.served_log import ServedLog
from unit.prime_node.log.test_tree_heads import Keeper, leaves_of

MINUTE_MS = 60_000
STARTED_MS = SystemClock().now_ms()
COORDINATOR = key_of("coordinator").node


def restore_at(size: int, name: str = "first") -> Restore:
    return Restore(size=size, at_ms=NOW_MS, leaf_hash=Digest(name.encode().ljust(32, b".")))


def seen(*heads: tuple[int, float]) -> HeadHistory:
    """Heads of these sizes, each after so many minutes."""
    history = HeadHistory()
    for size, minutes in heads:
        history = history.add(size, b"note", NOW_MS + int(minutes * MINUTE_MS))
    return history


# --- The decision -----------------------------------------------------------------------------------------------------


def test_a_restore_that_lost_a_few_minutes_is_followed_however_long_the_coordinator_was_away() -> None:
    history = seen((100, 0), (200, 1), (300, 2))
    for minutes in (3, 60 * 24 * 30):
        assert history.find_objection(restore_at(150), NOW_MS + minutes * MINUTE_MS) == ""
    kept = history.find_kept(restore_at(150))
    assert kept is not None
    assert kept.size == 100
    assert history.find_kept(restore_at(99)) is None


def test_a_restore_that_drops_older_entries_is_not_followed() -> None:
    bound = RESTORE_LOSS_MS_MAX / MINUTE_MS
    history = seen(*[(100 + minute, minute) for minute in range(40)])
    newest, lost = history.heads[-1].size, history.heads[0].size
    assert newest - lost >= bound, "one head is older than the bound"
    assert "the limit is 15" in history.find_objection(restore_at(lost - 1), NOW_MS)
    assert "the limit is 15" in history.find_objection(restore_at(5), NOW_MS)
    assert history.find_objection(restore_at(newest - 5), NOW_MS) == ""


def test_a_restore_that_the_lost_heads_contain_excuses_nothing() -> None:
    history = seen((100, 0), (300, 1)).note(restore_at(150))
    assert "came after that restore" in history.find_objection(restore_at(150), NOW_MS)
    assert history.find_objection(restore_at(150, "another entry"), NOW_MS) == "", "restored from the same copy again"


def test_entries_are_lost_once_a_day_at_most() -> None:
    history = seen((100, 0), (300, 1)).follow(restore_at(150), lost_size=300, now_ms=NOW_MS)
    history = history.add(400, b"note", NOW_MS + MINUTE_MS)
    again = restore_at(350, "second")
    assert "another restore" in history.find_objection(again, NOW_MS + RESTORE_INTERVAL_MS - 1)
    assert history.find_objection(again, NOW_MS + RESTORE_INTERVAL_MS) == ""


def test_lost_heads_of_other_nodes_are_known_by_their_size_and_later_ones_are_a_fork() -> None:
    assert not HeadHistory().is_lost(200, NOW_MS)
    history = seen((100, 0), (300, 1)).follow(restore_at(150), lost_size=300, now_ms=NOW_MS)
    soon, late = NOW_MS + MINUTE_MS, NOW_MS + RESTORE_LOSS_MS_MAX + 1
    assert [history.is_lost(size, soon) for size in (150, 151, 300, 310)] == [False, True, True, True]
    assert [history.is_lost(size, late) for size in (150, 151, 300, 310)] == [False, True, True, False]


def test_a_history_is_bounded_and_the_same_after_a_restart() -> None:
    history = HeadHistory()
    for second in range(0, 7200, 3):
        history = history.add(second + 1, b"note", NOW_MS + second * 1000)
    assert len(history.heads) <= 36
    spans = [history.heads[-1].seen_ms - head.seen_ms for head in history.heads]
    assert spans[0] >= RESTORE_LOSS_MS_MAX > spans[1]
    history = history.note(restore_at(7))
    assert HeadHistory.decode(history.encode()) == history
    with pytest.raises(RemoteError):
        HeadHistory.decode(b"damaged")


def test_a_clock_that_is_set_back_makes_no_head_older() -> None:
    history = seen((100, 10), (200, 0))
    assert [head.seen_ms for head in history.heads] == [NOW_MS + 10 * MINUTE_MS] * 2


# --- The entry --------------------------------------------------------------------------------------------------------


def restored_leaf(
    size: int, *, author: str = "coordinator", kind: str = "LogRestored", named: int | None = None
) -> bytes:
    entry = LogRestored(size=size if named is None else named, root=Digest(bytes(32)))
    frame = seal_envelope(
        key_of(author),
        kind=kind,
        body=encode(entry),
        network=NETWORK,
        run=None,
        sequence=1,
        issued_at_ms=NOW_MS,
        life_ms=1000,
    )
    return encode(LogRecord(at_ms=STARTED_MS, frame=frame))


def restored_log(copied: int, size: int, leaf: bytes | None = None) -> ServedLog:
    """Continues from the first entries of the long log."""
    more = [f"after the restore {number}".encode() for number in range(size - copied - 1)]
    return ServedLog([*leaves_of(copied), leaf or restored_leaf(copied), *more])


@pytest.mark.parametrize(
    "leaf",
    [
        restored_leaf(400, author="stranger"),
        restored_leaf(400, kind="HeadNoted"),
        restored_leaf(400, named=399),
        b"no entry",
    ],
)
def test_only_the_coordinators_own_entry_at_that_place_notes_a_restore(leaf: bytes) -> None:
    log, good = restored_log(400, 500, leaf), restored_log(400, 500)
    names = {"network": NETWORK, "coordinator": COORDINATOR}
    found = open_restore(good.leaves[400], 400, good.seen().head, good.read_tile, **names)  # type: ignore[arg-type]
    assert found.size == 400
    with pytest.raises(RemoteError):
        open_restore(leaf, 400, log.seen().head, log.read_tile, **names)  # type: ignore[arg-type]
    with pytest.raises(RemoteError):
        open_restore(leaf, 400, good.seen().head, good.read_tile, **names)  # type: ignore[arg-type]


# --- The monitor ------------------------------------------------------------------------------------------------------

OLD, SHORT = ServedLog(leaves_of(700)), ServedLog(leaves_of(600))


async def watched(folder: Path, *sizes: int, log: ServedLog = OLD) -> Keeper:
    """A node that has seen these heads of the old log."""
    keeper = Keeper(folder / "heads", log)
    for size in sizes:
        keeper.monitor.add_coordinator_head(log.note(size))
        await keeper.until(lambda size=size: keeper.verified[-1:] == [size])  # type: ignore[misc]
    return keeper


def restart(folder: Path, log: ServedLog) -> tuple[Keeper, list[LossNoticed]]:
    keeper, losses = Keeper(folder / "heads", log), list[LossNoticed]()
    keeper.monitor.on_loss = losses.append
    return keeper, losses


@pytest.mark.parametrize("size", [402, 500, 700, 900])
async def test_a_node_follows_a_restored_log_that_is_shorter_or_longer_than_what_it_saw(
    tmp_path: Path, size: int
) -> None:
    await watched(tmp_path, 300, 700)
    log = restored_log(400, size)
    keeper, losses = restart(tmp_path, log)
    keeper.monitor.add_coordinator_head(log.note(size), 400)
    await keeper.until(lambda: keeper.verified[-1:] == [size])
    assert keeper.monitor.forks == []
    assert [(loss.restore.size, loss.head_size) for loss in losses] == [(400, size)]
    assert keeper.monitor.latest == log.seen(size)
    assert not any(sighted.note == OLD.note(700) for sighted in keeper.published), "a lost head is not gossiped"
    if size == 900:
        keeper.monitor.add_peer_head(HeadSeen(note=OLD.note(650)))
        keeper.monitor.add_peer_head(HeadSeen(note=log.note(800)))
        await keeper.until(lambda: keeper.monitor.compared == 1)
        assert keeper.monitor.forks == []


async def test_a_restore_that_lost_nothing_the_node_saw_is_remembered_and_excuses_nothing_later(tmp_path: Path) -> None:
    await watched(tmp_path, 300)
    log = restored_log(400, 500)
    keeper, losses = restart(tmp_path, log)
    keeper.monitor.add_coordinator_head(log.note(500), 400)
    await keeper.until(lambda: keeper.monitor.history.restore is not None)
    assert losses == []
    shorter = restored_log(400, 450)
    keeper.served.leaves, keeper.served.tree, keeper.served._files = shorter.leaves, shorter.tree, {}
    keeper.monitor.add_coordinator_head(shorter.note(450), 400)
    await keeper.until(lambda: bool(keeper.monitor.forks))
    assert losses == []
    (name,) = keeper.monitor.forks
    assert "came after that restore" in (tmp_path / "heads" / name).read_text()


@pytest.mark.parametrize("restored_size", [0, 300, 450, 10_000])
async def test_without_an_entry_that_notes_the_restore_a_fork_stays_a_fork(tmp_path: Path, restored_size: int) -> None:
    await watched(tmp_path, 300, 600, log=SHORT)
    log = restored_log(400, 700)
    keeper, losses = restart(tmp_path, log)
    keeper.monitor.add_coordinator_head(log.note(700), restored_size)
    await keeper.until(lambda: bool(keeper.monitor.forks))
    assert losses == []
    assert keeper.monitor.latest == SHORT.seen(600)


async def test_a_log_that_also_changes_what_was_before_the_restore_is_not_followed(tmp_path: Path) -> None:
    await watched(tmp_path, 350, 700)
    forged = ServedLog([*leaves_of(400, " told otherwise"), restored_leaf(400), b"more"])
    keeper, losses = restart(tmp_path, forged)
    keeper.monitor.add_coordinator_head(forged.note(402), 400)
    await keeper.until(lambda: bool(keeper.monitor.forks))
    assert losses == []
    (name,) = keeper.monitor.forks
    assert "Not followed: it does not contain the first 350 entries" in (tmp_path / "heads" / name).read_text()


async def test_a_damaged_history_is_ignored(tmp_path: Path) -> None:
    keeper = await watched(tmp_path, 300)
    assert keeper.monitor.history != HeadHistory()
    (tmp_path / "heads" / "history").write_bytes(b"damaged")
    keeper, _ = restart(tmp_path, OLD)
    await keeper.until(lambda: keeper.verified[-1:] == [300])
    assert replace(keeper.monitor.history, heads=()) == HeadHistory()
