"""Rounds and witnesses: a round counts once it is out, and a draw only if its head was cosigned before that."""

from dataclasses import replace
from typing import Any

import pytest

from prime_protocol.constants import REGISTRATION_MS, WITNESSES_MAX
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Role
from prime_protocol.ledger.randomness import compute_witnesses_needed, draw_witnesses
from prime_protocol.ledger.randomness_chain import sign_round
from prime_protocol.ledger.versions.lineage import make_checkpoint_entries
from prime_protocol.wire.ids import NodeId, Step
from support.ledger_network import CHAIN, CHAIN_SECRET, DAY_MS, RANDOMNESS, RUN, TOKEN, VALIDATORS, World, digest

MAJORITY = VALIDATORS[:4]
"""Silent validators that leave five of nine, which is enough; one more is too many."""


@pytest.fixture
def world() -> World:
    return World.started()


def note(world: World) -> int:
    """A head; the round that it waits for."""
    world.coordinate(e.HeadNoted(root=world.state.frontier.root()))
    return next(reversed(world.state.pending_rounds))


def waiting(world: World) -> int:
    """A submission under a noted head, and the round that it waits for, which is out."""
    world.submit(world.lease("ann"))
    number = note(world)
    world.now_ms = max(world.now_ms, CHAIN.round_time_ms(number))
    return number


def test_a_head_fixes_the_first_round_after_the_margin() -> None:
    world = World()
    at: dict[str, Any] = {"chain_id": 0, "contract": NodeId(bytes(20)), **RANDOMNESS, "draw_margin_ms": 20_000}
    world.coordinate(e.NetworkCreated(log_key="key", unbonding_ms=0, **at))
    at_ms = world.now_ms
    number = note(world)
    assert CHAIN.round_time_ms(number - 1) < at_ms + 20_000 <= CHAIN.round_time_ms(number)


def test_a_round_is_recorded_in_order_and_not_before_it_is_out(world: World) -> None:
    with world.refuses("round"):
        world.coordinate(e.RoundRecorded(round=1, signature=sign_round(CHAIN_SECRET, 1), cosignatures=()))
    world.wait(1)
    number = note(world)
    with world.refuses("round"):
        world.coordinate(world.make_round())
    world.wait(5_000)
    later = note(world)
    assert list(world.state.pending_rounds) == [number, later]
    world.now_ms = CHAIN.round_time_ms(later)
    with world.refuses("round"):
        world.coordinate(replace(world.make_round(), round=later, signature=sign_round(CHAIN_SECRET, later)))
    with world.refuses("signature"):
        world.coordinate(replace(world.make_round(), signature=sign_round(CHAIN_SECRET, later)))
    world.record_round()
    world.record_round()
    assert not world.state.pending_rounds


def test_a_majority_of_cosignatures_makes_a_draw(world: World) -> None:
    number = waiting(world)
    (name,) = world.run.submissions
    world.record_round(*MAJORITY)
    found = world.submission(name)
    assert found.randomness is not None
    assert found.randomness[0] == number
    assert not found.is_unwitnessed


def test_without_a_majority_the_next_head_decides_and_the_audit_is_certain() -> None:
    world = World.started(audit_probation=0, audit_floor=1)
    lucky = world.not_drawn("ann")
    assert not world.submission(lucky).rounds[0].validators
    name = world.submit(world.lease("ann", 7))
    note(world)
    world.record_round(*VALIDATORS[:5])
    assert world.submission(name).randomness is None
    assert name in world.run.awaiting_head
    assert world.submission(name).is_unwitnessed
    assert len(world.draw(name)) == 3, "however small the chance of an audit is"


def test_a_cosignature_of_a_later_head_covers_an_earlier_round(world: World) -> None:
    world.wait(1)
    name = world.submit(world.lease("ann", 0))
    first = note(world)
    world.wait(700)
    world.submit(world.lease("ann", 1))
    world.wait(5_000)
    later = note(world)
    assert first < later
    early_s = CHAIN.round_time_ms(first) // 1000 - 1
    size = world.state.pending_rounds[later].head_size
    made = [world.cosign_size(validator, size, early_s) for validator in VALIDATORS]
    world.now_ms = CHAIN.round_time_ms(later)
    honest = world.make_round()
    world.coordinate(replace(honest, cosignatures=tuple(sorted(made, key=lambda each: each.witness))))
    assert world.submission(name).randomness is not None


def test_a_later_head_of_the_same_round_is_the_one_to_cosign(world: World) -> None:
    world.wait(1)
    first = world.submit(world.lease("ann", 0))
    number = note(world)
    old = world.cosign("val-0")
    second = world.submit(world.lease("ann", 1))
    assert note(world) == number
    world.now_ms = CHAIN.round_time_ms(number)
    with world.refuses("cosignatures[0]"):
        world.coordinate(replace(world.make_round(), cosignatures=(old,)))
    world.record_round()
    assert world.submission(first).randomness == world.submission(second).randomness is not None


def test_a_cosignature_counts_if_it_is_asked_for_in_time_and_by_its_key(world: World) -> None:
    number = waiting(world)
    published_s = CHAIN.round_time_ms(number) // 1000
    honest = world.make_round()
    late = world.cosign("val-0", published_s)
    other = replace(world.cosign("val-0"), time_s=published_s - 2)
    stranger = world.cosign("ann")
    stolen = replace(world.cosign("val-0"), witness=world.id("val-1"))
    unknown = replace(world.cosign("val-0"), head_size=world.state.size + 1)
    for bad in (late, other, stranger, stolen, unknown):
        with world.refuses("cosignatures[0]"):
            world.coordinate(replace(honest, cosignatures=(bad,)))
    world.coordinate(honest)


def test_a_validator_without_a_witness_key_is_not_drawn(world: World) -> None:
    assert world.id("val-0") in world.run.validators
    world.wait(REGISTRATION_MS)
    world.write("val-0", replace(world.registration("val-0", Role.VALIDATOR), witness_key=b""))
    assert world.id("val-0") not in world.run.validators


def test_a_cosignature_by_a_key_that_was_replaced_does_not_count(world: World) -> None:
    world.wait(REGISTRATION_MS)
    waiting(world)
    before = world.make_round()
    world.write("val-0", replace(world.registration("val-0", Role.VALIDATOR), witness_key=b""))
    with world.refuses(f"cosignatures[{[each.witness for each in before.cosignatures].index(world.id('val-0'))}]"):
        world.coordinate(before)


def test_cosignatures_are_sorted_and_each_once(world: World) -> None:
    waiting(world)
    honest = world.make_round()
    for wrong in (honest.cosignatures[::-1], honest.cosignatures[:1] * 2):
        with world.refuses("cosignatures"):
            world.coordinate(replace(honest, cosignatures=wrong))


def test_a_run_without_validators_needs_no_witness_and_its_beacon_comes_all_the_same() -> None:
    world = World.started(validators=0)
    name = world.submit(world.lease("ann"))
    note(world)
    world.record_round()
    assert world.submission(name).randomness is not None


def test_a_submission_that_is_gone_with_its_step_needs_no_round() -> None:
    world = World.started(audit_probation=0, audit_floor=1, lag_max=0)
    name = world.not_drawn("ann")
    note(world)
    world.write("trainer", make_checkpoint_entries((), step=Step(1), root=digest("r"), manifest=digest("m"))[1])
    world.pay_out(0)
    assert name not in world.run.submissions
    while world.state.pending_rounds:
        world.record_round()


def test_the_witnesses_of_many_validators_are_drawn_and_all_of_few() -> None:
    few, many = ([NodeId(number.to_bytes(20, "big")) for number in range(count)] for count in (WITNESSES_MAX, 500))
    assert draw_witnesses(digest("a"), RUN, few) == tuple(few)
    first, second = (draw_witnesses(digest(text), RUN, many) for text in ("a", "b"))
    assert len(set(first)) == len(set(second)) == WITNESSES_MAX
    assert set(first) != set(second)


@pytest.mark.parametrize(("asked", "needed"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (64, 33)])
def test_more_than_half_of_the_witnesses_are_needed(asked: int, needed: int) -> None:
    assert compute_witnesses_needed(asked) == needed


def test_a_validator_that_left_the_workers_owner_is_not_drawn_for_it() -> None:
    world = World.started(workers=[], validators=3)
    world.join("work", Role.WORKER, owner="owner")
    world.join("friend", Role.VALIDATOR, owner="owner")
    lease = world.lease("work")
    world.write("owner", e.DelegationRevoked(node=world.id("friend")))
    world.deposit("friend", 10**12)
    world.stake("friend", "friend")
    assert world.id("friend") in world.run.validators
    for slot in range(1, 8):
        assert "friend" not in world.draw(world.submit(world.lease("work", slot)))
    world.wait(world.state.unbonding_ms)
    world.delegate("owner", "work")
    assert world.state.list_owners(world.id("friend"), world.now_ms) == [world.id("friend")]
    assert lease == 0


def test_a_round_passes_over_a_submission_that_is_gone_with_its_step() -> None:
    world = World.started()
    name = world.submit(world.lease("ann"))
    world.coordinate(e.HeadNoted(root=world.state.frontier.root()))
    del world.run.submissions[name]
    world.record_round()
    assert not world.state.pending_rounds


def test_a_finding_is_not_judged_by_a_round_that_was_fixed_before_it() -> None:
    world = World.started(vesting_ms=DAY_MS)
    world.deposit("eve", 20 * TOKEN)
    name = world.settled("ann", e.Outcome.ACCEPT)
    world.wait(1)
    # After its draw the submission waits for one more round, in case its validators are silent.
    old = note(world)
    world.file_finding("eve", name)
    world.now_ms = CHAIN.round_time_ms(old)
    world.record_round()
    assert world.submission(name).randomness is None, "its author may know that round"
    world.wait(1)
    new = note(world)
    assert new > old
    world.record_round()
    assert world.submission(name).randomness is not None
    assert world.submission(name).randomness[0] == new


def test_a_finding_is_judged_by_the_round_of_its_own_head_even_where_an_earlier_head_waits_for_it_too() -> None:
    world = World.started(vesting_ms=DAY_MS)
    world.deposit("eve", 20 * TOKEN)
    name = world.settled("ann", e.Outcome.ACCEPT)
    world.wait(1)
    number = note(world)
    world.file_finding("eve", name)
    assert note(world) == number
    world.record_round()
    assert world.submission(name).randomness is not None
