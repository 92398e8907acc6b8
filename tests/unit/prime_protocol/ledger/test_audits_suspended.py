"""A coordinator that may know a draw cannot remove a candidate from it: it can only leave the round to its deadline."""

import pytest

from prime_protocol.constants import CANDIDATE_SPANS_KEPT
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import compute_draw
from prime_protocol.ledger.entries import NodeStatus
from prime_protocol.wire.ids import Digest, NodeId, RunId
from support.ledger_network import RUN, STAKE, World


@pytest.fixture
def world() -> World:
    return World.started()


def suspend(world: World, node: NodeId, status: NodeStatus = NodeStatus.DRAINED, run: RunId | None = RUN) -> None:
    world.coordinate(e.NodeStatusSet(node=node, status=status, reason="unwanted", run=run))


def resume(world: World, node: NodeId, run: RunId | None = RUN) -> None:
    suspend(world, node, NodeStatus.ACTIVE, run)


def compute(world: World, name: Digest) -> tuple[NodeId, ...] | None:
    return compute_draw(world.state, world.run, name, world.now_ms)


@pytest.mark.parametrize(
    ("status", "run"), [(NodeStatus.DRAINED, RUN), (NodeStatus.DRAINED, None), (NodeStatus.BANNED, None)]
)
def test_a_suspension_after_the_head_does_not_change_its_draw(
    world: World, status: NodeStatus, run: RunId | None
) -> None:
    name = world.submit(world.lease("ann"))
    world.note_head()
    drawn = compute(world, name)
    assert drawn
    for node in drawn:
        suspend(world, node, status, run)
        assert node not in world.run.validators, "draws with later heads do without it"
        assert world.state.can_validate(node, world.run.terms) is (run is not None), "all it takes but the status"
        assert compute(world, name) == drawn
        resume(world, node, run)
        assert compute(world, name) == drawn, "nor does it come back as one that joined late"
    assert tuple(world.id(each) for each in world.draw(name)) == drawn


def test_a_suspension_before_the_head_counts(world: World) -> None:
    name = world.submit(world.lease("ann"))
    probe = world.fork()
    probe.note_head()
    unwanted = (compute(probe, name) or ())[0]
    suspend(world, unwanted)
    world.note_head()
    assert unwanted not in (compute(world, name) or ())


def test_a_suspension_after_the_head_counts_for_the_next_round(world: World) -> None:
    first = world.submit(world.lease("ann"))
    world.note_head()
    unwanted = (compute(world, first) or ())[0]
    suspend(world, unwanted)
    second = world.submit(world.lease("ann", 1))
    world.note_head()
    assert unwanted in (compute(world, first) or ())
    assert unwanted not in (compute(world, second) or ())


def test_a_suspended_validator_that_takes_back_its_stake_is_not_drawn(world: World) -> None:
    name = world.submit(world.lease("ann"))
    world.note_head()
    (node, *_) = compute(world, name) or ()
    suspend(world, node)
    owner = world.names[world.state.owners[node]]
    world.write(owner, e.Unbonded(node=node, amount_nano=STAKE))
    assert node not in (compute(world, name) or ())
    assert node not in world.run.former


def test_a_few_suspensions_of_a_validator_are_remembered_and_no_more(world: World) -> None:
    name = world.submit(world.lease("ann"))
    world.note_head()
    drawn = compute(world, name) or ()
    for _ in range(CANDIDATE_SPANS_KEPT):
        suspend(world, drawn[0])
        resume(world, drawn[0])
    assert compute(world, name) == drawn
    assert len(world.run.former[drawn[0]]) == CANDIDATE_SPANS_KEPT
    suspend(world, drawn[0])
    assert len(world.run.former[drawn[0]]) == CANDIDATE_SPANS_KEPT
