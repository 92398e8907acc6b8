"""Evidence that adds up over the files of a node in a run: audits first, then held pay, and a conviction last."""

from dataclasses import replace

import pytest

from prime_protocol.constants import (
    BASIS_POINTS,
    EVIDENCE_BETS,
    EVIDENCE_FILE_MAX,
    REGISTRATION_MS,
    SUSPICION_AUDITED,
    SUSPICION_CONVICTED,
    SUSPICION_HELD,
)
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import compute_audit_rate_bps
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.replay import Ledger
from prime_protocol.ledger.run_record import NO_EVIDENCE, RunRecord, add_evidence, convicts, take_medians
from prime_protocol.wire.ids import RunId
from support.ledger_network import NETWORK, RUN, SLASH, STAKE, TERMS, World

ACCEPT, INVALID, FRAUDULENT = Outcome.ACCEPT, Outcome.INVALID, Outcome.FRAUDULENT


def weigh(weight: int, bet: int = 1) -> tuple[int, ...]:
    return tuple(weight if number == bet else 0 for number in range(EVIDENCE_BETS))


@pytest.fixture
def world() -> World:
    return World.started(slots_per_step=32)


def record(world: World, node: str = "ann") -> RunRecord:
    return world.run.get_record(world.id(node))


def test_a_sum_restarts_at_zero_and_one_file_counts_for_so_much_and_no_more() -> None:
    assert add_evidence(NO_EVIDENCE, weigh(-50)) == NO_EVIDENCE
    assert add_evidence(weigh(30), weigh(7)) == weigh(37)
    assert add_evidence(weigh(30), weigh(-7)) == weigh(23)
    assert add_evidence(weigh(30), weigh(9_000)) == weigh(30 + EVIDENCE_FILE_MAX)
    assert add_evidence(weigh(100), weigh(-9_000)) == weigh(100 - EVIDENCE_FILE_MAX)


def test_the_median_of_all_verdicts_counts_and_a_lying_minority_moves_nothing() -> None:
    assert take_medians([]) is None
    assert take_medians([(), ()]) is None
    assert take_medians([weigh(5), weigh(9_000), weigh(4), weigh(-9_000), weigh(6)]) == weigh(5)
    assert take_medians([weigh(9_000), weigh(3)]) == weigh(3), "of two the one that is better for the node"
    assert take_medians([weigh(4), ()]) == weigh(4)


def test_suspicion_raises_the_audit_rate_before_anything_else() -> None:
    terms = replace(TERMS, audit_probation=2, audit_floor=500)
    assert compute_audit_rate_bps(1_000, terms, SUSPICION_AUDITED - 1) == 500
    assert compute_audit_rate_bps(1_000, terms, SUSPICION_AUDITED) == BASIS_POINTS


def test_pay_is_held_with_two_unlikely_files_and_released_when_files_look_honest_again(world: World) -> None:
    world.settled("ann", ACCEPT, 0, bets=weigh(SUSPICION_AUDITED))
    assert (record(world).suspicion, record(world).is_held) == (SUSPICION_AUDITED, False)
    world.settled("ann", ACCEPT, 1, bets=weigh(45))
    assert record(world).is_held
    paid = world.run.steps[0].units.total()
    assert record(world).held_units == {(world.id("ann"), 0): paid}, "the first file is paid, the second is held"
    for slot in range(2, 4):
        assert record(world).held_units
        world.settled("ann", ACCEPT, slot, bets=weigh(-25))
    assert (record(world).suspicion, record(world).is_held) == (25, False)
    assert not record(world).held_units
    assert world.run.steps[0].units.total() == 4 * paid, "what was held goes back to its step"


def test_what_was_held_beyond_the_payout_of_its_step_is_paid_with_the_next(world: World) -> None:
    for slot in range(2):
        world.settled("ann", ACCEPT, slot, bets=weigh(45))
    held = record(world).held_units.total()
    world.publish()
    world.pay_out(0)
    for slot in range(3):
        world.settled("ann", ACCEPT, slot, bets=weigh(-40))
    assert world.run.carried_units.total() == held


def test_a_file_that_brings_the_sums_to_where_no_honest_noise_gets_convicts_and_it_takes_three() -> None:
    once = add_evidence(NO_EVIDENCE, weigh(9_000))
    twice = add_evidence(once, weigh(9_000))
    assert not convicts(NO_EVIDENCE, weigh(9_000))
    assert not convicts(once, weigh(9_000))
    assert convicts(twice, weigh(9_000))
    assert not convicts(twice, weigh(SUSPICION_CONVICTED - max(twice) - 1))


def test_new_bounds_forget_what_the_old_ones_found_and_other_terms_do_not(world: World) -> None:
    for slot in range(2):
        world.settled("ann", ACCEPT, slot, bets=weigh(45))
    assert record(world).is_held
    world.coordinate(e.RunUpdated(terms=world.terms(quorum=1)))
    assert record(world).suspicion == 90
    world.coordinate(e.RunUpdated(terms=world.terms(tolerance=replace(TERMS.tolerance, margin_scale=0.5))))
    assert (record(world).evidence, record(world).is_held, record(world).streak) == (NO_EVIDENCE, False, 2)
    assert not record(world).held_units
    assert world.run.steps[0].units.total() > 0


def test_a_fraudulent_file_counts_by_its_slash_and_not_again(world: World) -> None:
    world.settled("ann", FRAUDULENT, 0, bets=weigh(40))
    assert record(world).suspicion == 0
    world.settled("bob", INVALID, 1, bets=weigh(40))
    assert record(world, "bob").suspicion == 40


def test_one_lying_validator_of_a_quorum_moves_nothing(world: World) -> None:
    name = world.submit(world.lease("ann", 0))
    weights = zip(world.draw(name), (9_000, -2, -2), strict=True)
    world.give(*[world.opinion(validator, name, ACCEPT, bets=weigh(weight)) for validator, weight in weights])
    world.agree(name, ACCEPT, bets=weigh(-2))
    world.settle(name)
    assert record(world).suspicion == 0


def test_a_good_name_in_one_run_is_worth_nothing_in_another(world: World) -> None:
    world.settled("ann", ACCEPT, 0, bets=weigh(60))
    world.write("coordinator", e.RunCreated(terms=world.terms()), run="expensive")
    other = world.state.runs[RunId("expensive")]
    assert (record(world).streak, other.get_record(world.id("ann"))) == (1, RunRecord())


def test_a_replay_finds_the_same_sums(world: World) -> None:
    world.settled("ann", ACCEPT, 0, bets=weigh(33, bet=5))
    again = Ledger(NETWORK)
    for leaf in world.leaves:
        again.apply(leaf)
    assert again.state == world.state
    assert again.state.runs[RunId("run-1")].records[world.id("ann")].evidence == weigh(33, bet=5)


def test_a_verdict_states_all_bets_or_none(world: World) -> None:
    name = world.submit(world.lease("ann", 0))
    validator = world.draw(name)[0]
    with pytest.raises(RemoteError, match="bets"):
        world.opinion(validator, name, ACCEPT, bets=(1,))
    with world.refuses("VerdictGiven.bets[1]"):
        world.write(validator, world.opinion(validator, name, ACCEPT, bets=weigh(10_001)))
    assert SUSPICION_HELD > EVIDENCE_FILE_MAX


# --- Exclusion --------------------------------------------------------------------------------------------------------


def test_a_slashed_node_gets_no_work_until_as_much_is_staked_again_and_is_on_probation_then(world: World) -> None:
    world.settled("ann", ACCEPT, 1)
    world.deposit("ann", 2 * SLASH)
    name = world.convicted("ann")
    world.stake("ann", "ann", SLASH)  # the stake is whole again before the slash is final
    world.settled("ann", ACCEPT, 2)
    world.wait(TERMS.appeal_ms)
    world.execute(name)
    assert record(world).streak == 0
    with world.refuses("node"):
        world.lease("ann", 3)
    world.stake("ann", "ann", SLASH - 1)
    with world.refuses("node"):
        world.lease("ann", 3)
    world.stake("ann", "ann", 1)
    world.lease("ann", 3)
    assert record(world).streak == 0


def test_a_slashed_validator_is_not_drawn_in_that_run_until_its_owner_stakes_again(world: World) -> None:
    world.wait(REGISTRATION_MS)
    world.register("val-0", e.Role.VALIDATOR, e.Role.WORKER)
    world.write("coordinator", e.RunCreated(terms=world.terms()), run="other")
    world.wait(REGISTRATION_MS)
    world.write(
        "val-0", replace(world.registration("val-0", e.Role.VALIDATOR, e.Role.WORKER), runs=(RunId("other"), RUN))
    )
    world.deposit("val-0", 2 * STAKE)
    name = world.convicted("val-0")
    world.stake("val-0", "val-0", STAKE)
    val = world.id("val-0")
    assert val in world.run.validators
    world.wait(TERMS.appeal_ms)
    world.execute(name)
    assert val not in world.run.validators
    assert val in world.state.runs[RunId("other")].validators, "in another run it keeps its place"
    world.stake("val-0", "val-0", SLASH)
    assert val in world.run.validators


def test_where_nothing_was_left_to_slash_any_stake_ends_the_exclusion() -> None:
    world = World.started(stake_min_nano=0, slash_nano=0)
    name = world.convicted("ann")
    world.wait(TERMS.appeal_ms)
    world.execute(name)
    with world.refuses("node"):
        world.lease("ann", 1)
    world.stake("ann", "ann", 1)
    world.lease("ann", 1)
