"""Rules about what work earns: credit and payout. Whole stories of it are in test_replay_stories.py."""

from dataclasses import replace
from typing import Any

import pytest

from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.terms import SlashDestination
from prime_protocol.wire.ids import Digest, Step
from support.ledger_network import BOND, BUDGET, ON_CHAIN, RUN, SLASH, TERMS, TOKEN, World, digest

ACCEPT, INVALID, FRAUDULENT = Outcome.ACCEPT, Outcome.INVALID, Outcome.FRAUDULENT
FUNDED = 1000 * TOKEN


@pytest.fixture
def world() -> World:
    return World.started()


def test_credit_needs_an_accepted_outcome(world: World) -> None:
    name = world.submit(world.lease("ann"))
    with world.refuses("submission"):
        world.credit(name)
    world.agree(name, ACCEPT)
    with world.refuses("submission"):
        world.credit(name)  # decided, not settled
    world.settle(name)
    assert world.submission(name).credited
    with world.refuses("submission"):
        world.credit(name)  # credited with its outcome
    for outcome, slot in ((INVALID, 1), (FRAUDULENT, 2)):
        rejected = world.settled("bob", outcome, slot)
        with world.refuses("submission"):
            world.credit(rejected)


def overturned(world: World, node: str) -> Digest:
    """A submission that was accepted on appeal: its credit is still to come."""
    name = world.convicted(node)
    world.appeal(node, name)
    world.agree(name, ACCEPT)
    world.overturn(name)
    return name


def test_credit_is_given_once_and_for_the_tokens_there_are(world: World) -> None:
    name = overturned(world, "ann")
    good = e.Credited(submission=name, units=20)
    for units in (0, 19, 21):
        with world.refuses("units"):
            world.coordinate(replace(good, units=units))
    world.coordinate(good)
    assert world.submission(name).credited
    with world.refuses("submission"):
        world.coordinate(good)
    with world.refuses("submission"):
        world.coordinate(replace(good, submission=digest("nothing")))


def test_a_step_is_paid_when_nothing_of_it_is_open(world: World) -> None:
    with world.refuses("step"):
        world.pay_out(0)  # no work
    lease = world.lease("ann")
    with world.refuses("step"):
        world.pay_out(0)  # still worked on
    world.publish()
    with world.refuses("step"):
        world.pay_out(0)  # an open lease
    name = world.submit(lease)
    with world.refuses("step"):
        world.pay_out(0)  # an open submission
    world.agree(name, FRAUDULENT)
    world.settle(name)
    with world.refuses("step"):
        world.pay_out(0)  # a slash to come
    world.propose(name)
    world.appeal("ann", name)
    world.agree(name, ACCEPT)
    world.overturn(name)
    with world.refuses("step"):
        world.pay_out(0)  # a credit to come
    world.credit(name)
    world.pay_out(0)
    with world.refuses("step"):
        world.pay_out(0)


def test_a_cheater_is_not_spared_by_a_payout(world: World) -> None:
    name = world.settled("ann", FRAUDULENT)
    world.publish()
    with world.refuses("step"):
        world.pay_out(0)
    world.propose(name)
    world.pay_out(0)


def test_a_payout_takes_no_more_than_the_pool_has() -> None:
    world = World.started(step_budget_nano=2000 * 10**9, audit_share=0)
    world.settled("ann", ACCEPT)
    world.publish()
    world.pay_out(0)
    assert world.balance("ann") == BOND + 1000 * 10**9
    assert world.state.funds.pools[RUN] == 0


def test_what_nobody_earned_stays_in_the_pool(world: World) -> None:
    before = world.state.funds.pools[RUN]
    world.write("ann", e.LeaseEnded(lease=world.lease("ann"), reason=""))
    world.publish()
    world.pay_out(0)
    assert world.state.funds.pools[RUN] == before
    assert world.run.steps[Step(0)].paid


def test_the_pool_of_an_open_run_stays(world: World) -> None:
    with world.refuses("run"):
        world.write("sponsor", e.PoolReturned(amount_nano=world.state.funds.pools[RUN]))


def test_the_pool_stays_while_a_slash_may_still_go_into_it() -> None:
    world = World.started(slash_to=SlashDestination.POOL)
    name = world.convicted("ann")
    world.publish()
    world.pay_out(0)
    world.set_run(e.RunStatus.CLOSED)
    with world.refuses("run"):
        world.write("sponsor", e.PoolReturned(amount_nano=world.state.funds.pools[RUN]))
    world.wait(TERMS.appeal_ms)
    world.execute(name)
    world.write("sponsor", e.PoolReturned(amount_nano=FUNDED))


def closed(**terms: Any) -> World:
    """A run with two funders that has paid a step and taken a slash into its pool, and is over."""
    world = World.started(slash_to=SlashDestination.POOL, **terms)
    world.fund("friend", 500 * TOKEN)
    world.settled("bob", ACCEPT, 1)
    name = world.convicted("ann")
    world.appeal("ann", name)
    world.agree(name, FRAUDULENT)
    world.execute(name)
    world.publish()
    world.pay_out(0)
    world.set_run(e.RunStatus.CLOSED)
    return world


def test_what_slashes_brought_stays_when_the_funders_have_theirs() -> None:
    world = closed()
    pool = world.state.funds.pools[RUN]
    left = pool - SLASH - BOND
    assert left < FUNDED + 500 * TOKEN, "pay comes out of what was funded"
    with world.refuses("amount_nano"):
        world.write("sponsor", e.PoolReturned(amount_nano=pool * 2 // 3))
    world.write("sponsor", e.PoolReturned(amount_nano=left * 2 // 3))
    world.write("friend", e.PoolReturned(amount_nano=left - left * 2 // 3))
    assert world.state.funds.pools[RUN] == world.run.forfeited_nano == SLASH + BOND
    assert world.state.funds.is_conserved()


def test_funders_get_nothing_where_pay_has_taken_all_they_put_in() -> None:
    world = closed(step_budget_nano=FUNDED + 550 * TOKEN)
    assert 0 < world.state.funds.pools[RUN] < SLASH + BOND, "contributors were paid from what was slashed too"
    for name in ("sponsor", "friend"):
        with world.refuses("amount_nano"):
            world.write(name, e.PoolReturned(amount_nano=1))
        world.write(name, e.PoolReturned(amount_nano=0))


def test_where_the_pool_is_on_a_chain_a_slash_fills_it_when_the_court_does() -> None:
    world = World.started(slash_to=SlashDestination.POOL, domain=ON_CHAIN)
    name = world.convicted("ann")
    world.wait(TERMS.appeal_ms)
    world.execute(name)
    assert (world.state.funds.pools[RUN], world.state.funds.withdrawn_nano) == (FUNDED, SLASH)
    world.forfeit(SLASH - 1)  # the vault had no more
    assert (world.state.funds.pools[RUN], world.run.forfeited_nano) == (FUNDED + SLASH - 1, SLASH - 1)
    assert world.run.funded == {world.id("sponsor"): FUNDED}
    assert world.state.funds.is_conserved()


def test_the_reward_goes_to_the_owner() -> None:
    world = World.started(workers=[])
    world.join("key", e.Role.WORKER, owner="owner")
    world.settled("key", ACCEPT)
    world.publish()
    world.pay_out(0)
    assert world.balance("key") == 0
    assert world.balance("owner") == BOND + BUDGET * (10_000 - TERMS.audit_share) // 10_000


def test_what_a_node_was_credited_and_earned_is_counted_for_it_for_ever() -> None:
    world = World.started(lag_max=0)
    for node, slot in (("ann", 0), ("ann", 1), ("bob", 2)):
        world.settled(node, ACCEPT, slot)
    world.settled("bob", INVALID, 3)
    world.publish()
    world.publish()
    world.pay_out(0)
    ann, bob = (world.state.nodes[world.id(name)] for name in ("ann", "bob"))
    assert not world.run.steps, "the state has forgotten the step"
    assert (ann.units, bob.units) == (40, 20)
    assert ann.earned_nano == 2 * bob.earned_nano == BUDGET * (10_000 - TERMS.audit_share) // 10_000 * 2 // 3
    assert sum(node.earned_nano for node in world.state.nodes.values()) == 1000 * 10**9 - world.state.funds.pools[RUN]
