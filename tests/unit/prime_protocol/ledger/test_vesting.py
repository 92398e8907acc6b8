"""Pay vests: a step is paid late, and whoever is convicted before loses what is not paid yet."""

import gc
import tracemalloc

import pytest

from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome, RunStatus
from prime_protocol.log.tree_head import is_cosigned
from support.ledger_network import BUDGET, DAY_MS, HOUR_MS, TERMS, World

ACCEPT, FRAUDULENT = Outcome.ACCEPT, Outcome.FRAUDULENT
BYTES_PER_SUBMISSION_MAX = 1_100


@pytest.fixture
def world() -> World:
    return World.started(vesting_ms=DAY_MS, slots_per_step=16)


def credited(world: World, node: str, slot: int) -> None:
    world.settled(node, ACCEPT, slot)


def execute(world: World, node: str, slot: int) -> None:
    name = world.convicted(node, slot)
    world.wait(TERMS.appeal_ms)
    world.execute(name)


def test_a_step_is_paid_only_when_its_last_submission_has_vested(world: World) -> None:
    credited(world, "ann", 0)
    world.wait(HOUR_MS)
    credited(world, "bob", 1)
    settled_ms = world.now_ms
    world.publish()
    world.wait(settled_ms + DAY_MS - world.now_ms - 1)
    with world.refuses("step"):
        world.pay_out(0)
    world.wait(1)
    world.pay_out(0)
    assert world.balance("ann") == world.balance("bob")


def test_a_step_in_which_nothing_was_settled_has_nothing_to_vest(world: World) -> None:
    world.lease("ann")
    world.wait(HOUR_MS + 1)
    world.coordinate(e.LeaseEnded(lease=0, reason=""))
    world.publish()
    world.pay_out(0)


def test_a_closed_run_waits_for_its_pay_too(world: World) -> None:
    credited(world, "ann", 0)
    world.set_run(RunStatus.CLOSED)
    with world.refuses("step"):
        world.pay_out(0)
    world.wait(DAY_MS)
    world.pay_out(0)
    assert world.state.nodes[world.id("ann")].earned_nano > 0


def test_a_convicted_node_loses_what_it_has_not_been_paid_in_every_step_and_nobody_else_does(world: World) -> None:
    credited(world, "ann", 0)
    credited(world, "bob", 1)
    world.publish()
    credited(world, "ann", 0)
    execute(world, "ann", 1)
    world.publish()
    ann = world.id("ann")
    before = world.balance("ann")
    world.wait(DAY_MS)
    world.pay_out(0)
    world.pay_out(1)
    assert (world.balance("ann"), world.state.nodes[ann].earned_nano) == (before, 0)
    assert world.state.nodes[world.id("bob")].earned_nano == BUDGET * 3 // 4, "the workers' part of step 0"


def test_held_and_carried_pay_is_lost_too_and_so_is_what_was_in_judgement(world: World) -> None:
    run, ann = world.run, world.id("ann")
    late = world.submit(world.lease("ann", 2))
    credited(world, "ann", 0)
    run.carried_units[(ann, ann)] = 7
    run.records[ann].held_units[(ann, 0)] = 7
    run.records[ann].held_units[(world.id("bob"), 0)] = 7  # of an owner that it left
    execute(world, "ann", 1)
    world.agree(late, ACCEPT)
    world.settle(late)
    assert not run.carried_units[(ann, ann)]
    assert run.records[ann].held_units == {(world.id("bob"), 0): 7}
    assert not run.steps[0].units[(ann, ann)]


def test_a_submission_that_was_not_drawn_takes_few_bytes_until_its_pay_has_vested() -> None:
    """10,000 nodes make about 7 million a day, and the ledger keeps them in memory for that day."""
    world = World.started(audit_probation=0, audit_floor=1, slots_per_step=2**12, samples_per_slot=1)
    for slot in range(300):  # until the draw falls on few
        finish(world, slot)
    gc.collect()
    tracemalloc.start()
    before, kept = tracemalloc.get_traced_memory()[0], len(world.run.submissions)
    undrawn = [finish(world, slot) for slot in range(300, 900)]
    world.leaves.clear()
    is_cosigned.cache_clear()  # bounded, whatever the number of submissions
    gc.collect()
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert undrawn.count(True) > 580
    assert len(world.run.submissions) == kept + 600
    assert taken < 600 * BYTES_PER_SUBMISSION_MAX, f"{taken / 600:.0f} bytes each"


def finish(world: World, slot: int) -> bool:
    """A submission from lease to credit; whether no audit fell on it."""
    name = world.submit(world.lease("ann", slot))
    is_drawn = bool(world.draw(name))
    if is_drawn:
        world.agree(name, ACCEPT, is_drawn=True)
        world.settle(name)
    return not is_drawn
