"""Rules about runs and work: terms, checkpoints, leases and submissions."""

from dataclasses import replace
from typing import Any

import pytest

from prime_protocol.constants import LEASE_MS_MAX, PROTOCOL_VERSION, REGISTRATION_MS, ROLLOUT_ROWS_MAX, ROUNDS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import compute_draw
from prime_protocol.ledger.entries import NodeStatus, Outcome, Role, RunStatus
from prime_protocol.ledger.terms import TrainOn
from prime_protocol.ledger.versions.lineage import make_checkpoint_entries
from prime_protocol.wire.ids import Digest, NetworkId, RunId, Slot, Step
from support.ledger_network import DAY_MS, HOUR_MS, ON_CHAIN, RUN, STAKE, TERMS, VALIDATORS, World, digest

ACCEPT, INVALID = Outcome.ACCEPT, Outcome.INVALID


@pytest.fixture
def world() -> World:
    return World.started()


def checkpoint(step: int, *trained_on: Digest) -> e.CheckpointPublished:
    return make_checkpoint_entries(trained_on, step=Step(step), root=digest("w"), manifest=digest("m"))[1]


def test_a_run_is_created_once(world: World) -> None:
    with world.refuses("run"):
        world.create_run()


def test_terms_under_which_stake_could_leave_before_the_judgement_are_refused() -> None:
    world = World()
    world.create_network(unbonding_ms=LEASE_MS_MAX + 2 * ROUNDS_MAX * 1000)
    with world.refuses("terms.verdict_ms"):
        world.create_run(verdict_ms=1001, judgement_ms=0)
    world.create_run(verdict_ms=1000, judgement_ms=0)
    with world.refuses("terms.verdict_ms"):
        world.coordinate(e.RunUpdated(terms=world.terms(verdict_ms=1001, judgement_ms=0)))


def test_terms_under_which_stake_could_leave_before_pay_has_vested_and_a_finding_is_judged_are_refused() -> None:
    world = World()
    world.create_network(unbonding_ms=LEASE_MS_MAX + 2 * ROUNDS_MAX * 1000 + DAY_MS + 2 * HOUR_MS)
    with world.refuses("terms.vesting_ms"):
        world.create_run(verdict_ms=1000, vesting_ms=DAY_MS + 1)
    world.create_run(verdict_ms=1000, vesting_ms=DAY_MS)


def test_terms_under_which_one_slot_cannot_be_read_in_time_are_refused() -> None:
    world = World()
    world.create_network()
    slot = (TERMS.samples_per_slot + 1) * (TERMS.prompt_tokens_max + TERMS.output_tokens_max)
    with world.refuses("terms.verdict_ms"):
        world.create_run(verdict_ms=slot - 1, read_us_per_token=1000)
    world.create_run(verdict_ms=slot, read_us_per_token=1000)
    with world.refuses("terms.verdict_ms"):
        world.coordinate(e.RunUpdated(terms=world.terms(verdict_ms=slot, read_us_per_token=1001)))


def test_a_lease_has_no_more_slots_than_validators_can_read_in_time() -> None:
    row = TERMS.prompt_tokens_max + TERMS.output_tokens_max
    world = World.started(verdict_ms=(3 * TERMS.samples_per_slot + 1) * row, read_us_per_token=1000)
    with world.refuses("slots"):
        world.lease("ann", 0, 4)
    world.lease("ann", 0, 3)


def test_a_closed_run_stays_closed(world: World) -> None:
    world.set_run(RunStatus.PAUSED)
    with world.refuses("run"):
        world.lease("ann")
    world.set_run(RunStatus.ACTIVE)
    world.lease("ann")
    world.set_run(RunStatus.CLOSED)
    with world.refuses("run"):
        world.set_run(RunStatus.ACTIVE)
    with world.refuses("run"):
        world.coordinate(e.RunUpdated(terms=world.terms()))
    with world.refuses("run"):
        world.write("trainer", checkpoint(1))
    with world.refuses("run"):
        world.write("ann", e.RunFunded(amount_nano=1))
    with world.refuses("run"):
        world.lease("ann", 1)
    world.submit(0)  # what was leased is still taken


def test_funding_comes_from_the_balance(world: World) -> None:
    pool = world.state.funds.pools[RUN]
    world.deposit("friend", 10)
    with world.refuses("amount_nano"):
        world.write("friend", e.RunFunded(amount_nano=11))
    world.write("friend", e.RunFunded(amount_nano=10))
    assert world.state.funds.pools[RUN] == pool + 10
    assert world.run.funded == {world.id("sponsor"): pool, world.id("friend"): 10}


def test_where_the_pool_is_on_a_chain_no_balance_funds_a_run() -> None:
    """Neither stake of the vault nor pay: the pool there does not have it, and could not pay it out."""
    world = World.started(domain=ON_CHAIN)
    world.deposit("friend", 10)
    for name in ("friend", "coordinator"):
        with pytest.raises(RemoteError, match="prime-coordinator chain fund"):
            world.write(name, e.RunFunded(amount_nano=10))
        with world.refuses("run"):
            world.write(name, e.RunFunded(amount_nano=10))


def test_checkpoints_are_the_trainers_and_stand_in_order(world: World) -> None:
    with world.refuses("sender"):
        world.write("coordinator", checkpoint(1))
    for step in (0, 2):
        with world.refuses("step"):
            world.write("trainer", checkpoint(step))
    world.write("trainer", checkpoint(1))
    with world.refuses("step"):
        world.lease("ann")  # no head was noted since: the tasks are not fixed yet
    world.note_head()
    world.lease("ann")


def test_the_numbers_of_a_step_are_the_trainers_and_stand_once(world: World) -> None:
    world.write("trainer", checkpoint(1))
    world.measure(1, held_out=0.5, loss=-0.1)
    world.set_run(e.RunStatus.CLOSED)
    world.measure(0, held_out=0.25)
    for step in (0, 1, 2):
        with world.refuses("step"):
            world.measure(step, held_out=0.75)
    assert [world.run.checkpoints[Step(step)].measured is not None for step in range(2)] == [True, True]


def test_beacons_follow_from_the_head_after_the_checkpoint(world: World) -> None:
    world.publish()
    beacons = [world.run.checkpoints[Step(step)].beacon for step in range(2)]
    assert None not in beacons
    assert beacons[0] != beacons[1]


def test_a_checkpoint_names_accepted_submissions_once(world: World) -> None:
    good, bad = world.settled("ann", ACCEPT, 0), world.settled("bob", INVALID, 1)
    with world.refuses("trained_on"):
        world.write("trainer", checkpoint(1, good, good))
    with world.refuses("trained_on[1]"):
        world.write("trainer", checkpoint(1, good, bad))
    with world.refuses("trained_on[0]"):
        world.write("trainer", checkpoint(1, digest("nothing")))
    world.publish(good)
    with world.refuses("trained_on[0]"):
        world.write("trainer", checkpoint(2, good))


def test_where_the_terms_say_so_a_checkpoint_is_trained_on_audited_work_only() -> None:
    world = World.started(audit_probation=0, audit_floor=1, slots_per_step=32, train_on=TrainOn.AUDITED)
    unseen = world.not_drawn("ann")
    audited = next(iter(world.run.submissions))
    assert audited != unseen, "the first is always drawn"
    with world.refuses("trained_on[0]"):
        world.write("trainer", checkpoint(1, unseen))
    world.publish(audited)
    world.coordinate(e.RunUpdated(terms=world.terms(audit_probation=0, audit_floor=1, slots_per_step=32)))
    world.publish(unseen)


def test_a_checkpoint_is_not_trained_on_what_is_too_old(world: World) -> None:
    old, older = world.settled("ann", ACCEPT, 0), world.settled("ann", ACCEPT, 1)
    world.publish()
    world.publish(old)
    with world.refuses("trained_on[0]"):
        world.write("trainer", checkpoint(3, older))


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("lease", {"lease": 1}),
        ("deadline_ms", {"deadline_ms": 0}),
        ("deadline_ms", {"deadline_ms": World().now_ms}),
        ("deadline_ms", {"deadline_ms": World().now_ms + LEASE_MS_MAX + 1}),
        ("step", {"step": Step(1)}),
        ("first_slot", {"first_slot": Slot(TERMS.slots_per_step)}),
        ("first_slot", {"first_slot": Slot(TERMS.slots_per_step - 1), "slots": 2}),
    ],
)
def test_a_lease_is_refused(world: World, field: str, changes: dict[str, Any]) -> None:
    with world.refuses(field):
        world.lease("ann", **changes)


def test_a_lease_fits_one_rollout_file() -> None:
    world = World.started(samples_per_slot=1024, slots_per_step=100)
    slots_max = ROLLOUT_ROWS_MAX // 1024
    with world.refuses("slots"):
        world.lease("ann", slots=slots_max + 1)
    world.lease("ann", slots=slots_max)


def test_a_lease_needs_an_active_worker_with_stake(world: World) -> None:
    with world.refuses("node"):
        world.lease("ghost")
    with world.refuses("node"):
        world.lease("val-0")
    world.register("poor", Role.WORKER)
    with world.refuses("node"):
        world.lease("poor")
    world.write("bob", e.Unbonded(node=world.id("bob"), amount_nano=1))
    with world.refuses("node"):
        world.lease("bob")
    world.coordinate(e.NodeStatusSet(node=world.id("ann"), status=NodeStatus.DRAINED, reason="asked to"))
    with world.refuses("node"):
        world.lease("ann")


def test_a_lease_needs_the_version_of_the_run(world: World) -> None:
    world.coordinate(e.RunUpdated(terms=world.terms(version_min=PROTOCOL_VERSION + 1)))
    with world.refuses("node"):
        world.lease("ann")


def test_a_planned_version_is_needed_from_its_date_on_for_work_and_for_judging(world: World) -> None:
    date_ms = world.now_ms + HOUR_MS
    world.coordinate(e.RunUpdated(terms=world.terms(version_next=PROTOCOL_VERSION + 1, upgrade_by_ms=date_ms)))
    name = world.submit(world.lease("ann"))
    world.wait(HOUR_MS)
    with world.refuses("node"):
        world.lease("ann", 1)
    world.note_head()
    assert compute_draw(world.state, world.run, name, date_ms - 1)
    assert compute_draw(world.state, world.run, name, date_ms) is None


def test_a_lease_is_on_the_stake_of_the_present_owner(world: World) -> None:
    world.delegate("poor", "ann")
    assert world.stake_of("ann") == STAKE
    with world.refuses("node"):
        world.lease("ann")


def test_slots_are_leased_to_one_node_until_they_are_free(world: World) -> None:
    lease = world.lease("ann", 2, 3)
    for slot in (2, 4):
        with world.refuses("first_slot"):
            world.lease("bob", slot)
    world.lease("bob", 5)
    name = world.submit(lease)
    with world.refuses("first_slot"):
        world.lease("bob", 2)  # submitted, not judged
    world.agree(name, INVALID)
    world.settle(name)
    world.lease("bob", 2, 3)


def test_slots_that_were_credited_are_gone_even_for_a_second_chance(world: World) -> None:
    world.settled("ann", ACCEPT)
    with world.refuses("first_slot"):
        world.lease("bob", speculative=True)


def test_a_second_chance_does_not_hold_the_slots(world: World) -> None:
    second = world.lease("bob", speculative=True)
    world.lease("ann")
    world.write("bob", e.LeaseEnded(lease=second, reason=""))
    with world.refuses("first_slot"):
        world.lease("bob")


def test_old_steps_are_not_leased(world: World) -> None:
    world.publish()
    world.lease("ann", step=Step(0))
    world.publish()
    with world.refuses("step"):
        world.lease("ann", step=Step(0))


def test_a_paid_step_is_not_leased(world: World) -> None:
    world.settled("ann", ACCEPT)
    world.publish()
    world.pay_out(0)
    with world.refuses("step"):
        world.lease("ann", 1, step=Step(0))


def test_a_lease_is_ended_by_its_node_at_once_or_by_the_coordinator_after_the_deadline(world: World) -> None:
    first, second = world.lease("ann", 0), world.lease("ann", 1)
    for author in ("coordinator", "bob"):
        with world.refuses("sender"):
            world.write(author, e.LeaseEnded(lease=first, reason=""))
    world.write("ann", e.LeaseEnded(lease=first, reason="no memory"))
    with world.refuses("lease"):
        world.write("ann", e.LeaseEnded(lease=first, reason=""))
    world.wait(HOUR_MS)
    with world.refuses("sender"):
        world.coordinate(e.LeaseEnded(lease=second, reason="late"))
    world.wait(1)
    with world.refuses("sender"):
        world.write("bob", e.LeaseEnded(lease=second, reason=""))
    world.coordinate(e.LeaseEnded(lease=second, reason="late"))
    assert not world.run.leases
    assert not world.run.steps[Step(0)].held


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("receipt.step", {"network": NetworkId("other")}),
        ("receipt.step", {"run": RunId("other")}),
        ("receipt.step", {"step": Step(1)}),
        ("receipt.checkpoint_root", {"checkpoint_root": digest("other weights")}),
    ],
)
def test_a_submission_is_refused_where_its_receipt_is_not_the_leases(
    world: World, field: str, changes: dict[str, Any]
) -> None:
    entry = world.answer(world.lease("ann"), **changes)
    with world.refuses(field):
        world.write("ann", entry)


def test_a_submission_is_the_lease_holders_and_signed_by_it(world: World) -> None:
    lease = world.lease("ann")
    good = world.answer(lease)
    with world.refuses("receipt.lease"):
        world.write("ann", replace(good, receipt=replace(good.receipt, lease=7)))
    with world.refuses("receipt.node"):
        world.write("bob", good)
    with world.refuses("receipt.node"):
        world.write("ann", world.answer(lease, node=world.id("bob")))
    with world.refuses("SubmissionReceipt.signature"):
        world.write("ann", replace(good, signature=world.sign("bob", good.receipt)))
    world.write("ann", good)
    with world.refuses("receipt.lease"):
        world.write("ann", good)  # once


def test_a_submission_is_taken_until_the_deadline(world: World) -> None:
    lease, late = world.lease("ann", 0), world.lease("ann", 1)
    world.wait(HOUR_MS)
    world.submit(lease)
    world.wait(1)
    with world.refuses("receipt.lease"):
        world.submit(late)


def test_a_submission_has_the_tokens_its_lease_allows(world: World) -> None:
    least, lease = world.lease("ann", 2), world.lease("ann", 0, 2)
    world.submit(least, TERMS.samples_per_slot)
    rollouts = 2 * TERMS.samples_per_slot
    most = rollouts * TERMS.output_tokens_max
    for tokens in (rollouts - 1, most + 1):
        with world.refuses("output_tokens"):
            world.write("ann", world.answer(lease, tokens))
    good = world.answer(lease, most)
    context_max = most * (TERMS.prompt_tokens_max + TERMS.output_tokens_max)
    for context in (most - 1, context_max + 1):
        with world.refuses("context_tokens"):
            world.write("ann", replace(good, context_tokens=context))
    world.write("ann", replace(good, context_tokens=context_max))


def test_a_lease_fixes_the_checkpoint_inside_the_lag(world: World) -> None:
    world.publish()
    world.publish()
    roots = [world.run.checkpoints[Step(step)].root for step in range(3)]
    for step in (0, 3):
        with world.refuses("checkpoint_step"):
            world.lease("ann", checkpoint_step=Step(step))
    lease = world.lease("ann", checkpoint_step=Step(1))
    for root in (roots[0], roots[2]):
        with world.refuses("receipt.checkpoint_root"):
            world.write("ann", world.answer(lease, checkpoint_root=root))
    world.write("ann", world.answer(lease))
    assert [submission.checkpoint_step for submission in world.run.submissions.values()] == [1]


def test_at_the_first_step_there_is_no_older_checkpoint(world: World) -> None:
    lease = world.lease("ann")
    with world.refuses("receipt.checkpoint_root"):
        world.write("ann", world.answer(lease, checkpoint_root=digest("step -1")))


def test_a_new_run_lists_the_validators_that_are_there(world: World) -> None:
    second, dear, other = RunId("second"), RunId("dear"), RunId("other")
    world.wait(REGISTRATION_MS)
    for name in VALIDATORS:
        world.write(name, replace(world.registration(name, Role.VALIDATOR), runs=(dear, RUN, second)))
    world.write("coordinator", e.RunCreated(terms=world.terms(stake_min_nano=STAKE)), second)
    world.write("coordinator", e.RunCreated(terms=world.terms(stake_min_nano=STAKE + 1)), dear)
    world.write("coordinator", e.RunCreated(terms=world.terms(stake_min_nano=STAKE)), other)
    assert set(world.state.runs[second].validators) == set(world.run.validators)
    assert world.state.runs[dear].validators == {}, "their stake is too small for it"
    assert world.state.runs[other].validators == {}, "they serve other runs"


def test_an_unbonding_time_of_a_week_fits_the_terms(world: World) -> None:
    assert world.state.unbonding_ms == 7 * DAY_MS
