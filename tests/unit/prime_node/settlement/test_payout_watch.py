"""A validator's watch over payout roots: right ones pass, a wrong one gets its vote once, others wait for the log."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prime_node.config import NodeConfig
from prime_node.settlement import chain_session, challenges
from prime_node.settlement.payout_check import PaidHistory, PostedRoot, is_right_for, read_paid
from prime_node.settlement.payout_watch import PayoutWatch
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.payout_tree import PayoutTree, list_payable
from prime_protocol.ledger.state import LedgerState
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_runtime.chain.transactions import ContractReverted
from prime_runtime.clock import SystemClock
from support.ledger_network import RUN, World, digest

SCALE = 10
MALLORY = NodeId(b"\x07" * 20)


class Replayed:
    """The follower of a log that grows by hand."""

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def size(self) -> int:
        return self.world.state.size

    async def query(self, function: Any, /, *args: Any) -> Any:
        return function(self.world.state, *args)


class Court:
    """The chain as the watch sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pending: list[PostedRoot] = []
        self.votes: list[int] = []
        self.refusal: Exception | None = None
        monkeypatch.setattr(chain_session, "open_chain_session", self.open)
        monkeypatch.setattr(challenges, "read_pending_roots", self.read_pending_roots)
        monkeypatch.setattr(challenges, "find_head_root", self.find_head_root)
        monkeypatch.setattr(challenges, "vote", self.vote)

    @asynccontextmanager
    async def open(self, *_: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(contracts=SimpleNamespace(scale=SCALE))

    async def read_pending_roots(self, session: Any, run: RunId) -> list[PostedRoot]:
        return self.pending

    async def find_head_root(self, session: Any, run: RunId, size: int) -> Digest:
        return digest("head")

    async def vote(self, session: Any, run: RunId, node: NodeId, posted: PostedRoot, head_root: Digest) -> Any:
        if self.refusal:
            raise self.refusal
        self.votes.append(posted.epoch)
        return 1, False


@pytest.fixture
def court(monkeypatch: pytest.MonkeyPatch) -> Court:
    return Court(monkeypatch)


@pytest.fixture
def world() -> World:
    made = World.started()
    made.settled("ann", Outcome.ACCEPT)
    made.publish()
    made.pay_out(0)
    return made


@pytest.fixture
def watch(tmp_path: Path, world: World) -> PayoutWatch:
    config = NodeConfig(folder=tmp_path, run=RUN, rpc="http://127.0.0.1:1", domain="5:0x" + "0c" * 20)
    assert PayoutWatch.is_allowed(config)
    assert not PayoutWatch.is_allowed(replace(config, rpc=""))
    return PayoutWatch(config, world.keys["ann"], Replayed(world), SystemClock())


def right_root(state: LedgerState, epoch: int = 1) -> PostedRoot:
    tree = PayoutTree(list_payable(state.runs[RUN].paid, SCALE))
    return PostedRoot(epoch, tree.root, tree.total, state.size, matures_at_s=9)


async def test_a_right_root_passes_and_a_wrong_one_gets_one_vote(
    court: Court, world: World, watch: PayoutWatch, caplog: pytest.LogCaptureFixture
) -> None:
    await watch.sample()
    right = right_root(world.state)
    wrong = replace(right, epoch=2, root=PayoutTree({MALLORY: 70}).root)
    court.pending = [right, wrong]
    for _ in range(3):
        await watch.sample()
        await watch.check_chain()
    assert court.votes == [2]
    assert "THE PAYOUT ROOT OF EPOCH 2 IS WRONG" in caplog.text


async def test_a_root_waits_for_the_replay_and_is_checked_at_the_head_it_names(
    court: Court, world: World, watch: PayoutWatch
) -> None:
    await watch.sample()
    court.pending = [replace(right_root(world.state), head_size=world.state.size + 1)]
    await watch.check_chain()
    assert not court.votes
    world.wait(1)
    world.note_head()
    await watch.sample()
    await watch.check_chain()
    assert not court.votes, "nothing was paid between the two samples, so the table at the head is known"


async def test_without_a_sample_the_node_votes_on_nothing_and_says_so(
    court: Court, world: World, watch: PayoutWatch, caplog: pytest.LogCaptureFixture
) -> None:
    await watch.sample()
    court.pending = [replace(right_root(world.state), head_size=3, root=digest("any"))]
    await watch.check_chain()
    await watch.check_chain()
    assert not court.votes
    assert caplog.text.count("compare it with: prime-node challenge") == 1


async def test_a_refused_vote_is_not_repeated(
    court: Court, world: World, watch: PayoutWatch, caplog: pytest.LogCaptureFixture
) -> None:
    await watch.sample()
    court.pending = [replace(right_root(world.state), root=digest("wrong"))]
    court.refusal = ContractReverted("JudgeTooNew()", "JudgeTooNew")
    with caplog.at_level(logging.WARNING):
        await watch.check_chain()
        await watch.check_chain()
    assert caplog.text.count("is refused: JudgeTooNew()") == 1


def test_the_table_is_known_between_two_samples_that_are_the_same_and_nowhere_else() -> None:
    history = PaidHistory()
    assert history.paid is None
    one, two = {MALLORY: 1}, {MALLORY: 2}
    for size, paid in ((10, one), (20, one), (30, two), (30, two)):
        history.add(size, paid)
    assert [history.find(size) for size in (9, 10, 15, 20, 25, 30, 31)] == [None, one, one, one, None, two, None]
    assert history.paid == two
    history.add(5, one)
    assert (history.find(5), history.find(30)) == (one, None), "the ledger was replayed from the start"


def test_a_table_is_sent_only_when_its_total_has_changed(world: World) -> None:
    size, paid = read_paid(world.state, RUN, -1)
    assert size == world.state.size and paid == dict(world.run.paid)
    assert read_paid(world.state, RUN, sum(paid.values())) == (size, None)
    assert read_paid(world.state, RunId("other"), -1) == (size, {})
    assert not is_right_for({}, right_root(world.state), scale=SCALE)
    assert is_right_for(paid, right_root(world.state), scale=SCALE)
    assert not is_right_for(paid, replace(right_root(world.state), total=1), scale=SCALE)
