"""Payout roots beside the log: the right one is recognised at the head it names, and a wrong one is explained."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest

from prime_node.settlement.challenges import COPY_WAIT_MS, check_roots, wait_for_entries
from prime_node.settlement.payout_check import PostedRoot, check_root, explain_root
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.payout_tree import PayoutTree, list_payable
from prime_protocol.wire.ids import NodeId, RunId
from support.ledger_network import NETWORK, RUN, World, digest

SCALE = 10
MALLORY = NodeId(b"\x00" * 19 + b"\x01")


class Copy:
    """A copy of a log in memory."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._leaves = leaves

    async def read_size(self) -> int:
        return len(self._leaves)

    async def read(self, size: int) -> AsyncIterator[bytes]:
        for leaf in self._leaves[:size]:
            yield leaf


def pay_step(world: World, step: int) -> None:
    world.settled("ann", Outcome.ACCEPT)
    world.publish()
    world.pay_out(step)


def table_of(world: World) -> PayoutTree:
    return PayoutTree(list_payable(world.run.paid, SCALE))


def posted_of(world: World, tree: PayoutTree, epoch: int = 1) -> PostedRoot:
    return PostedRoot(epoch, tree.root, tree.total, world.state.size, matures_at_s=9)


@pytest.fixture
def world() -> World:
    made = World.started()
    pay_step(made, 0)
    return made


async def check(world: World, posted: list[PostedRoot], leaves: Sequence[bytes] | None = None) -> list[bool]:
    checked = await check_roots(
        Copy(world.leaves if leaves is None else leaves),
        posted,
        RUN,
        network=NETWORK,
        coordinator=world.id("coordinator"),
        scale=SCALE,
    )
    return [each.is_right for each in checked]


async def test_each_root_is_compared_at_the_head_it_names(world: World) -> None:
    first = posted_of(world, table_of(world), 1)
    same_head = replace(first, epoch=2)
    pay_step(world, 1)
    second = posted_of(world, table_of(world), 3)
    world.publish()
    assert await check(world, [first, same_head, second]) == [True, True, True]
    early = replace(second, head_size=first.head_size, epoch=2)
    assert await check(world, [first, early, second]) == [True, False, True]


async def test_a_wrong_total_makes_a_right_root_wrong(world: World) -> None:
    right = posted_of(world, table_of(world))
    assert await check(world, [replace(right, total=right.total + 1)]) == [False]
    (line,) = explain_root(check_root(world.state, RUN, right, scale=SCALE), None, scale=SCALE)
    assert "the log gives the same root" in line
    wrong = check_root(world.state, RUN, replace(right, total=right.total + 1), scale=SCALE)
    assert explain_root(wrong, table_of(world), scale=SCALE)[-1].endswith("the accounts are right, the total is not")


def test_the_first_account_that_differs_is_named(world: World) -> None:
    honest = table_of(world)
    false = PayoutTree({**honest.cumulative, MALLORY: 70})
    checked = check_root(world.state, RUN, posted_of(world, false), scale=SCALE)
    lines = explain_root(checked, false, scale=SCALE)
    assert str(false.root) in lines[1] and str(honest.root) in lines[2]
    assert f"{MALLORY} has 0 nano in the log, 7 in the root" in lines[3]
    assert "no table" in explain_root(checked, honest, scale=SCALE)[-1]
    assert "no table" in explain_root(checked, None, scale=SCALE)[-1]


def test_a_root_over_a_run_that_paid_no_account_is_wrong() -> None:
    world = World.started()
    posted = PostedRoot(1, digest("root"), 5, world.state.size, matures_at_s=9)
    for run in (RUN, RunId("unknown")):
        checked = check_root(world.state, run, posted, scale=SCALE)
        assert not checked.is_right
        assert "no account was paid" in explain_root(checked, None, scale=SCALE)[2]


async def test_a_copy_that_is_too_short_or_breaks_a_rule_decides_nothing(world: World) -> None:
    posted = posted_of(world, table_of(world))
    with pytest.raises(LocalError, match=r"names .*: use a newer copy.*--unverified"):
        await check(world, [posted], world.leaves[:-1])
    with pytest.raises(LocalError, match="entry 5 of this log breaks a rule"):
        await check(world, [posted], [*world.leaves[:5], *world.leaves[6:], world.leaves[0]])
    with pytest.raises(LocalError, match="is of the coordinator"):
        await check_roots(Copy(world.leaves), [posted], RUN, network=NETWORK, coordinator=world.id("ann"), scale=SCALE)


class LateCopy(Copy):
    """A copy that gets one more entry each time its size is read."""

    def __init__(self, size: int) -> None:
        super().__init__([b""] * size)

    async def read_size(self) -> int:
        self._leaves = [*self._leaves, b""]
        return len(self._leaves)


class SleepingClock:
    """Time passes only in `sleep_ms`."""

    def __init__(self) -> None:
        self.slept_ms = 0

    def now_ms(self) -> int:
        return self.slept_ms

    def monotonic_ms(self) -> int:
        return self.slept_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        self.slept_ms += duration_ms


async def test_a_copy_that_lags_behind_the_anchored_head_is_waited_for_but_not_for_ever() -> None:
    late, clock = LateCopy(5), SleepingClock()
    await wait_for_entries(late, 8, clock)
    assert await late.read_size() == 9 and 0 < clock.slept_ms < COPY_WAIT_MS
    clock = SleepingClock()
    await wait_for_entries(Copy([b""]), 2, clock)
    assert clock.slept_ms >= COPY_WAIT_MS
