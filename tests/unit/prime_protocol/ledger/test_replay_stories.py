"""Whole lives of submissions, from lease to payout or slash, each written as the log would have it."""

import pytest

from prime_protocol.constants import ENTRY_VALUE_NANO, REGISTRATION_MS
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import compute_settled_outcome
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.ledger.terms import SlashDestination
from prime_protocol.ledger.versions.lineage import make_checkpoint_entries
from prime_protocol.wire.ids import Step
from prime_protocol.wire.typed_data import Domain
from support.ledger_network import (
    BOND,
    BUDGET,
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    RUN,
    SLASH,
    STAKE,
    TERMS,
    World,
    make_settled,
)

ACCEPT, INVALID, FRAUDULENT = Outcome.ACCEPT, Outcome.INVALID, Outcome.FRAUDULENT
WORK_POT = BUDGET * 3 // 4
AUDIT_POT = BUDGET // 4


def test_honest_work_is_judged_credited_and_paid() -> None:
    world = World.started()
    name = world.submit(world.lease("ann"))
    drawn = world.judge(name, ACCEPT, ACCEPT, ACCEPT) + world.judge(name, ACCEPT, ACCEPT)
    world.settle(name)
    world.publish(name)
    world.pay_out(0)
    assert world.balance("ann") == BOND + WORK_POT
    assert [world.balance(validator) for validator in drawn] == [BOND + AUDIT_POT // 5] * 5 + [BOND]
    assert world.state.funds.pools[RUN] == 1000 * 10**9 - BUDGET
    assert world.submission(name).trained_into == 1
    assert world.run.records[world.id("ann")].streak == 1


def test_two_workers_share_by_units() -> None:
    world = World.started()
    few, many = world.lease("ann", 0, 1), world.lease("bob", 1, 3)
    for lease in (few, many):
        name = world.submit(lease)
        world.agree(name, ACCEPT)
        world.settle(name)
    world.publish()
    world.pay_out(0)
    assert world.balance("ann") == BOND + WORK_POT // 4
    assert world.balance("bob") == BOND + WORK_POT * 3 // 4


@pytest.mark.parametrize("slash_to", SlashDestination)
def test_a_cheater_who_does_not_appeal_is_slashed_after_the_window(slash_to: SlashDestination) -> None:
    world = World.started(slash_to=slash_to)
    pool = world.state.funds.pools[RUN]
    name = world.settled("ann", FRAUDULENT)
    world.propose(name)
    assert world.stake_of("ann") == STAKE - SLASH
    with world.refuses("submission"):
        world.execute(name)
    world.wait(TERMS.appeal_ms - 1)
    with world.refuses("submission"):
        world.execute(name)
    world.wait(1)
    with world.refuses("submission"):
        world.appeal("ann", name)
    world.execute(name)
    assert world.stake_of("ann") == STAKE - SLASH
    burned, pooled = world.state.funds.burned_nano, world.state.funds.pools[RUN] - pool
    assert (burned, pooled) == ((SLASH, 0) if slash_to is SlashDestination.BURN else (0, SLASH))
    assert not world.state.funds.escrow
    with world.refuses("submission"):
        world.credit(name)


def test_an_appeal_that_fails_costs_the_bond_too() -> None:
    world = World.started()
    name = world.convicted("ann")
    world.appeal("ann", name)
    assert world.balance("ann") == 0
    with world.refuses("submission"):
        world.appeal("ann", name)
    world.wait(TERMS.appeal_ms)
    with world.refuses("submission"):
        world.execute(name)  # the window is over, but the appeal is not decided
    world.judge(name, FRAUDULENT, FRAUDULENT, FRAUDULENT)
    with world.refuses("submission"):
        world.overturn(name)
    world.execute(name)
    assert world.state.funds.burned_nano == SLASH + BOND
    assert world.submission(name).outcome is FRAUDULENT


def test_an_appeal_before_a_court_is_told_by_the_coordinator_whatever_the_logs_window_and_without_its_bond() -> None:
    world = World.started()
    world.state.domain = Domain(5, world.id("court"))
    name = world.convicted("ann")
    world.wait(TERMS.appeal_ms)
    with world.refuses("submission"):
        world.appeal("ann", name)
    with world.refuses("sender"):
        world.appeal("bob", name)
    balance = world.balance("ann")
    world.appeal("coordinator", name)
    assert world.balance("ann") == balance
    with world.refuses("submission"):
        world.appeal("coordinator", name)
    world.judge(name, FRAUDULENT, FRAUDULENT, FRAUDULENT)
    world.execute(name)
    assert world.state.funds.burned_nano == SLASH


def test_where_there_is_no_court_the_coordinator_appeals_for_nobody() -> None:
    world = World.started()
    name = world.convicted("ann")
    with world.refuses("sender"):
        world.appeal("coordinator", name)


def test_an_appeal_that_is_decided_does_not_wait_for_the_window() -> None:
    world = World.started()
    name = world.convicted("ann")
    world.appeal("ann", name)
    world.judge(name, FRAUDULENT, FRAUDULENT, FRAUDULENT)
    world.execute(name)
    assert world.state.funds.burned_nano == SLASH + BOND


def test_one_voice_for_the_worker_on_appeal_is_enough_to_keep_the_stake_where_nobody_is_left_to_ask() -> None:
    world = World.started()
    name = world.convicted("ann")
    world.appeal("ann", name)
    world.judge(name, FRAUDULENT, FRAUDULENT, ACCEPT)
    for end in (world.execute, world.overturn):
        with world.refuses("submission"):
            end(name)
    world.wait(TERMS.long_stop_ms)
    world.overturn(name)
    assert (world.stake_of("ann"), world.balance("ann")) == (STAKE, BOND)
    assert (world.submission(name).outcome, world.submission(name).judged) == (INVALID, None)


def test_an_appeal_that_succeeds_gives_back_stake_bond_and_credit() -> None:
    world = World.started()
    name = world.submit(world.lease("ann"))
    wrong = world.judge(name, FRAUDULENT, FRAUDULENT, FRAUDULENT)
    world.settle(name)
    world.propose(name)
    world.appeal("ann", name)
    right = world.judge(name, ACCEPT, ACCEPT, ACCEPT)
    for end in (world.execute, world.overturn):
        with world.refuses("submission"):
            end(name)  # credit needs as many voices as without a slash
    right += world.judge(name, ACCEPT, ACCEPT, ACCEPT)
    assert set(right).isdisjoint(wrong)
    with world.refuses("submission"):
        world.execute(name)
    world.overturn(name)
    assert (world.stake_of("ann"), world.balance("ann")) == (STAKE, BOND)
    world.credit(name)
    node = world.state.nodes[world.id("ann")]
    assert (node.settled[FRAUDULENT], node.settled[ACCEPT]) == (0, 1)
    assert world.run.records[world.id("ann")].streak == 1
    world.publish(name)
    world.pay_out(0)
    assert world.balance("ann") == BOND + WORK_POT
    assert [world.balance(validator) - BOND for validator in wrong] == [0, 0, 0]
    assert [world.balance(validator) - BOND for validator in right] == [AUDIT_POT // 6] * 6


def test_an_appeal_that_too_few_can_confirm_gives_the_stake_back_but_no_credit() -> None:
    world = World.started(validators=8)
    name = world.convicted("ann")
    world.appeal("ann", name)
    world.judge(name, ACCEPT, ACCEPT, ACCEPT)
    with world.refuses("submission"):
        world.overturn(name)  # three against three, and nobody is left to ask
    world.wait(TERMS.long_stop_ms)
    world.overturn(name)
    assert (world.stake_of("ann"), world.submission(name).outcome) == (STAKE, INVALID)


def test_an_appeal_can_end_soft_with_the_stake_back_and_no_credit() -> None:
    world = World.started(validators=9)
    name = world.convicted("ann")
    world.appeal("ann", name)
    world.judge(name, INVALID, INVALID, INVALID)
    with world.refuses("submission"):
        world.coordinate(e.SlashOverturned(submission=name))
    world.judge(name, INVALID, INVALID, INVALID)
    world.overturn(name)
    assert (world.stake_of("ann"), world.submission(name).outcome) == (STAKE, INVALID)
    with world.refuses("submission"):
        world.credit(name)


def test_an_appeal_that_has_no_judges_keeps_the_stake_until_the_long_stop() -> None:
    world = World.started()
    name = world.convicted("ann")
    world.appeal("ann", name)
    world.judge(name, FRAUDULENT)
    world.wait(TERMS.long_stop_ms - 1)
    with world.refuses("submission"):
        world.overturn(name)
    world.wait(1)
    with world.refuses("submission"):
        world.execute(name)
    world.overturn(name)
    assert (world.stake_of("ann"), world.balance("ann")) == (STAKE, BOND)
    assert world.submission(name).outcome is INVALID
    with world.refuses("submission"):
        world.credit(name)
    world.note_head()
    with world.refuses("trained_on[0]"):
        world.publish(name)
    assert not world.run.steps[Step(0)].upheld, "nobody's verdict stood"


def test_a_stuck_appeal_can_be_drawn_again() -> None:
    world = World.started(quorum=1)
    name = world.submit(world.lease("ann"))
    world.judge(name, FRAUDULENT)
    world.settle(name)
    world.propose(name)
    world.appeal("ann", name)
    world.draw(name)
    world.wait(TERMS.verdict_ms)
    world.judge(name, ACCEPT)
    world.overturn(name)
    assert world.submission(name).outcome is ACCEPT


def test_a_submission_that_is_not_drawn_is_accepted() -> None:
    world = World.started(audit_probation=0)
    name = world.not_drawn("ann")
    assert world.submission(name).outcome is ACCEPT
    assert world.submission(name).judged is None
    world.publish(name)
    world.pay_out(0)
    assert world.balance("ann") == BOND + WORK_POT


def test_validators_who_disagree_are_followed_by_another_round_of_others() -> None:
    world = World.started()
    name = world.submit(world.lease("ann"))
    first = world.judge(name, ACCEPT, FRAUDULENT, ACCEPT)
    rest = world.judge(name, ACCEPT, ACCEPT, ACCEPT) + world.judge(name, ACCEPT)
    assert set(first).isdisjoint(rest)
    assert world.settle(name) is ACCEPT
    dissenter = e.ValidatorScored(validator=world.id(first[1]), submission=name)
    world.coordinate(dissenter)
    assert world.state.nodes[world.id(first[1])].faults == 1


def test_an_audit_that_stays_stuck_ends_soft_and_blames_nobody() -> None:
    world = World.started()
    name = world.submit(world.lease("ann"))
    drawn = world.judge(name, ACCEPT, INVALID)
    for _ in range(2):
        world.wait(TERMS.verdict_ms)
        assert compute_settled_outcome(world.state, world.run, name, world.now_ms) is None, "others can be asked"
        drawn += world.judge(name)
    world.wait(TERMS.verdict_ms)
    assert world.settle(name) is INVALID
    for validator in drawn:
        with world.refuses("submission"):
            world.coordinate(e.ValidatorScored(validator=world.id(validator), submission=name))
    assert not world.run.steps[Step(0)].upheld
    assert world.stake_of("ann") == STAKE
    world.lease("bob")  # the slot is free again


def test_a_submission_for_which_no_quorum_can_be_drawn_ends_soft() -> None:
    world = World.started(validators=2)
    name = world.submit(world.lease("ann"))
    invalid = make_settled(name, INVALID)
    world.wait(TERMS.verdict_ms)
    with world.refuses("settled[0].outcome"):
        world.coordinate(invalid)  # no head: whether it can be drawn is not known
    world.note_head()
    size = world.submission(name).randomness
    assert size is not None
    with world.refuses("validators"):
        world.coordinate(
            e.AuditDrawn(submission=name, round=0, randomness_round=size[0], validators=(world.id("val-0"),))
        )
    world.coordinate(invalid)
    world.publish()
    world.pay_out(0)


def test_no_soft_end_while_validators_can_still_be_drawn_or_come() -> None:
    world = World.started(validators=2)
    name = world.submit(world.lease("ann"))
    world.note_head()
    invalid = make_settled(name, INVALID)
    world.wait(TERMS.verdict_ms - 1)
    with world.refuses("settled[0].outcome"):
        world.coordinate(invalid)
    world.join("late", Role.VALIDATOR)
    world.wait(1)
    with world.refuses("settled[0].outcome"):
        world.coordinate(invalid)
    world.judge(name, ACCEPT, ACCEPT, ACCEPT)
    assert world.settle(name) is ACCEPT


def test_where_nobody_is_left_to_ask_a_majority_accepts_when_its_round_is_over() -> None:
    world = World.started(validators=5)
    name = world.submit(world.lease("ann"))
    world.judge(name, ACCEPT, ACCEPT)
    for outcome in Outcome:
        with world.refuses("settled[0].outcome"):
            world.coordinate(make_settled(name, outcome))
    world.wait(TERMS.verdict_ms)
    with world.refuses("settled[0].outcome"):
        world.coordinate(make_settled(name, INVALID))
    assert world.settle(name) is ACCEPT
    assert world.submission(name).judged is ACCEPT


@pytest.mark.parametrize(
    "votes", [(ACCEPT,), (ACCEPT, INVALID), (ACCEPT, FRAUDULENT, INVALID), (ACCEPT, FRAUDULENT, FRAUDULENT)]
)
def test_where_nobody_is_left_to_ask_and_most_did_not_accept_it_ends_soft(votes: tuple[Outcome, ...]) -> None:
    world = World.started(validators=5)
    name = world.submit(world.lease("ann"))
    world.judge(name, *votes)
    world.wait(TERMS.verdict_ms)
    assert world.settle(name) is INVALID
    assert world.submission(name).judged is None


def test_while_others_can_be_asked_a_majority_accepts_nothing() -> None:
    world = World.started(validators=6)
    name = world.submit(world.lease("ann"))
    world.judge(name, ACCEPT, ACCEPT, ACCEPT)
    with world.refuses("settled[0].outcome"):
        world.coordinate(make_settled(name, ACCEPT))
    world.judge(name, ACCEPT, FRAUDULENT, ACCEPT)
    assert world.settle(name) is ACCEPT


def test_overlapping_leases_are_credited_once() -> None:
    world = World.started()
    slow = world.lease("ann", 0, 2)
    with world.refuses("first_slot"):
        world.lease("bob", 1)
    fast = world.submit(world.lease("bob", 0, 2, speculative=True))
    late = world.submit(slow)
    for name in (fast, late):
        world.agree(name, ACCEPT)
        world.settle(name)
    with world.refuses("submission"):
        world.credit(late)
    world.publish()
    world.pay_out(0)
    assert (world.balance("bob"), world.balance("ann")) == (BOND + WORK_POT, BOND)


def test_what_is_earned_after_the_payout_is_carried_to_the_next() -> None:
    world = World.started()
    name = world.convicted("ann", 0)
    early = world.settled("bob", ACCEPT, 1)
    world.publish(early)
    world.pay_out(0)
    world.appeal("ann", name)
    right = world.judge(name, ACCEPT, ACCEPT, ACCEPT) + world.judge(name, ACCEPT, ACCEPT, ACCEPT)
    earned = [world.balance(validator) for validator in right]
    world.overturn(name)
    world.credit(name)
    assert world.run.carried_units.total() == 20
    other = world.settled("bob", ACCEPT, 0)
    world.publish(other)
    before = world.balance("ann")
    world.pay_out(1)
    assert world.balance("ann") - before == WORK_POT // 2
    gains = [world.balance(validator) - had for validator, had in zip(right, earned, strict=True)]
    assert min(gains) >= AUDIT_POT // 12, "the appeal's validators are paid too"
    assert not world.run.carried_units
    assert not world.run.carried_upheld


def test_slots_beside_those_of_an_overturned_slash_can_be_leased_again() -> None:
    world = World.started()
    wronged = world.convicted("ann", 0)
    wider = world.submit(world.lease("bob", 0, 2))
    world.appeal("ann", wronged)
    world.judge(wronged, ACCEPT, ACCEPT, ACCEPT)
    world.judge(wronged, ACCEPT, ACCEPT, ACCEPT)
    world.overturn(wronged)
    world.credit(wronged)
    world.agree(wider, ACCEPT)
    assert world.settle(wider) is ACCEPT
    with world.refuses("submission"):
        world.credit(wider)
    world.settled("bob", ACCEPT, 1)
    assert world.run.steps[Step(0)].credited == {0, 1}


def test_a_hard_verdict_is_paid_when_the_slash_is_final() -> None:
    world = World.started()
    name = world.submit(world.lease("ann"))
    drawn = world.judge(name, FRAUDULENT, FRAUDULENT, FRAUDULENT)
    world.settle(name)
    world.propose(name)
    assert not world.run.steps[Step(0)].upheld
    world.wait(TERMS.appeal_ms)
    world.execute(name)
    world.publish()
    world.pay_out(0)
    assert [world.balance(validator) for validator in drawn] == [BOND + AUDIT_POT // 3] * 3


def test_unbonding_does_not_outrun_a_slash() -> None:
    world = World.started()
    lease = world.lease("ann")
    world.write("ann", e.Unbonded(node=world.id("ann"), amount_nano=STAKE))
    name = world.submit(lease)
    world.judge(name, FRAUDULENT, FRAUDULENT, FRAUDULENT)
    world.settle(name)
    world.propose(name)
    world.wait(7 * DAY_MS)
    world.write("ann", e.Released(node=world.id("ann")))
    assert world.balance("ann") == BOND + STAKE - SLASH
    world.execute(name)
    assert world.state.funds.burned_nano == SLASH


def test_changing_the_owner_after_the_lease_does_not_outrun_a_slash() -> None:
    world = World.started()
    lease = world.lease("ann")
    world.delegate("puppet", "ann")
    with world.refuses("receipt.node"):
        world.submit(lease)


def test_changing_the_owner_after_the_submission_moves_neither_slash_nor_reward() -> None:
    world = World.started()
    world.join("key", Role.WORKER, owner="owner")
    good = world.settled("key", ACCEPT, 0)
    bad = world.settled("key", FRAUDULENT, 1)
    world.wait(REGISTRATION_MS)
    world.delegate("puppet", "key")
    world.propose(bad)
    world.publish(good)
    world.pay_out(0)
    assert world.stake_of("owner", "key") == STAKE - SLASH
    assert (world.balance("owner"), world.balance("puppet")) == (BOND + WORK_POT, 0)


def test_a_revoked_node_cannot_bring_its_old_delegation_again() -> None:
    world = World.started()
    world.join("key", Role.WORKER, owner="owner")
    old = world.delegation("owner", "key")
    world.wait(REGISTRATION_MS)
    world.write("owner", e.DelegationRevoked(node=world.id("key")))
    with world.refuses("delegation.issued_at_ms"):
        world.write("key", old)
    with world.refuses("node"):
        world.lease("key")
    world.wait(1)
    world.delegate("owner", "key")
    world.lease("key")


def test_an_owner_can_revoke_what_was_not_brought_yet() -> None:
    world = World.started()
    world.deposit("owner", ENTRY_VALUE_NANO)
    leaked = world.delegation("owner", "stolen")
    world.write("owner", e.DelegationRevoked(node=world.id("stolen")))
    with world.refuses("delegation.issued_at_ms"):
        world.write("stolen", leaked)


def test_a_node_that_has_left_does_not_spend_its_former_owners_bond() -> None:
    world = World.started()
    world.join("key", Role.WORKER, owner="owner")
    name = world.convicted("key")
    world.write("owner", e.DelegationRevoked(node=world.id("key")))
    with world.refuses("sender"):
        world.appeal("key", name)
    world.appeal("owner", name)
    assert world.balance("owner") == 0


def test_a_node_appeals_with_the_bond_of_its_owner() -> None:
    world = World.started()
    world.join("key", Role.WORKER, owner="owner")
    name = world.convicted("key")
    with world.refuses("sender"):
        world.appeal("ann", name)
    world.appeal("key", name)
    assert world.balance("owner") == 0


def test_an_expired_delegation_ends_leases_and_draws() -> None:
    world = World.started(validators=2)
    world.join("key", Role.VALIDATOR, Role.WORKER, owner="owner")
    world.wait(REGISTRATION_MS)
    world.delegate("owner", "key", life_ms=HOUR_MS)
    name = world.submit(world.lease("ann"))
    assert "key" in world.draw(name)
    world.wait(HOUR_MS)
    other = world.submit(world.lease("ann", 1))
    with world.refuses("node"):
        world.lease("key", 2)
    world.note_head()
    head = world.submission(other).randomness
    assert head is not None
    with world.refuses("validators"):
        world.coordinate(
            e.AuditDrawn(submission=other, round=0, randomness_round=head[0], validators=(world.id("key"),))
        )


def test_paid_steps_are_forgotten_when_they_are_too_old_to_train_on() -> None:
    world = World.started()
    name = world.settled("ann", ACCEPT)
    world.publish(name)
    world.pay_out(0)
    assert name in world.run.submissions
    world.publish()
    assert name not in world.run.submissions
    assert Step(0) not in world.run.steps
    with world.refuses("step"):
        world.pay_out(0)
    with world.refuses("submission"):
        world.coordinate(e.Credited(submission=name, units=20))


def test_a_forgotten_step_is_not_leased_again_when_the_lag_grows() -> None:
    world = World.started()
    name = world.settled("ann", ACCEPT)
    world.publish(name)
    world.pay_out(0)
    world.publish()
    world.coordinate(e.RunUpdated(terms=world.terms(lag_max=64)))
    with world.refuses("step"):
        world.lease("ann", step=Step(0))
    world.lease("ann", step=Step(1))


def test_a_step_with_an_open_slash_or_an_open_credit_is_kept() -> None:
    world = World.started()
    name = world.convicted("ann")
    world.publish()
    world.pay_out(0)
    world.publish()
    world.publish()
    assert name in world.run.submissions
    world.appeal("ann", name)
    world.agree(name, ACCEPT)
    world.overturn(name)
    world.publish()
    assert name in world.run.submissions, "its credit has not come yet"
    world.credit(name)
    world.publish()
    assert name not in world.run.submissions
    assert world.run.carried_units.total() == 20


def test_a_head_that_comes_after_its_submission_is_gone_is_no_trouble() -> None:
    world = World.started(audit_probation=0, lag_max=0)
    name = world.not_drawn("ann")
    root = world.state.frontier.root()
    _, trained = make_checkpoint_entries((), step=Step(1), root=root, manifest=root)
    world.write("trainer", trained)
    world.pay_out(0)
    assert name not in world.run.submissions
    world.note_head()
    assert not world.run.awaiting_head


def test_new_terms_do_not_change_what_a_begun_step_is_judged_and_paid_by() -> None:
    world = World.started()
    name = world.submit(world.lease("ann"))
    harsher = world.terms(
        quorum=1, verdict_ms=0, appeal_ms=0, slash_nano=STAKE, step_budget_nano=0, output_tokens_max=1, lag_max=0
    )
    other = world.lease("bob", 1)
    world.coordinate(e.RunUpdated(terms=harsher))
    drawn = world.draw(name)
    assert len(drawn) == TERMS.quorum
    first, *others = [world.opinion(validator, name, FRAUDULENT) for validator in drawn]
    world.commit(first, *others)
    world.write(drawn[0], first)
    for outcome in (FRAUDULENT, INVALID):
        with world.refuses("settled[0].outcome"):
            world.coordinate(make_settled(name, outcome))
    for validator, verdict in zip(drawn[1:], others, strict=True):
        world.write(validator, verdict)
    world.settle(name)
    world.propose(name)
    assert world.stake_of("ann") == STAKE - SLASH
    with world.refuses("submission"):
        world.execute(name)
    honest = world.submit(other)
    world.agree(honest, ACCEPT)
    world.settle(honest)
    world.publish()
    world.pay_out(0)
    assert world.balance("bob") == BOND + WORK_POT


def test_a_closed_run_pays_its_last_step_and_gives_back_the_rest() -> None:
    world = World.started()
    world.deposit("friend", 500 * 10**9)
    world.write("friend", e.RunFunded(amount_nano=500 * 10**9))
    world.settled("ann", ACCEPT)
    bad = world.convicted("bob", 1)
    with world.refuses("step"):
        world.pay_out(0)
    world.set_run(e.RunStatus.CLOSED)
    with world.refuses("run"):
        world.pay_out(0)  # the slash may still be overturned, and there is no later payout to carry it to
    with world.refuses("run"):
        world.write("sponsor", e.PoolReturned(amount_nano=0))
    world.wait(TERMS.appeal_ms)
    world.execute(bad)
    with world.refuses("run"):
        world.write("sponsor", e.PoolReturned(amount_nano=0))
    world.pay_out(0)
    assert world.balance("ann") == BOND + WORK_POT
    left = world.state.funds.pools[RUN]
    with world.refuses("amount_nano"):
        world.write("sponsor", e.PoolReturned(amount_nano=left))
    with world.refuses("sender"):
        world.write("ann", e.PoolReturned(amount_nano=0))
    world.write("sponsor", e.PoolReturned(amount_nano=left * 2 // 3))
    with world.refuses("sender"):
        world.write("sponsor", e.PoolReturned(amount_nano=0))
    world.write("friend", e.PoolReturned(amount_nano=left - left * 2 // 3))
    assert world.state.funds.pools[RUN] == 0
    assert world.state.funds.is_conserved()


def test_an_expired_lease_is_given_to_another() -> None:
    world = World.started()
    lease = world.lease("ann")
    world.wait(HOUR_MS + 1)
    with world.refuses("receipt.lease"):
        world.submit(lease)
    world.coordinate(e.LeaseEnded(lease=lease, reason="late"))
    assert world.lease("bob") == lease + 1


def test_a_validator_scored_only_when_the_slash_is_final() -> None:
    world = World.started()
    for number in range(3):
        world.join(f"more-{number}", Role.VALIDATOR)
    name = world.submit(world.lease("ann"))
    drawn = world.judge(name, FRAUDULENT, FRAUDULENT, ACCEPT)
    world.judge(name, FRAUDULENT, FRAUDULENT)
    world.settle(name)
    accused = e.ValidatorScored(validator=world.id(drawn[2]), submission=name)
    with world.refuses("submission"):
        world.coordinate(accused)
    world.propose(name)
    with world.refuses("submission"):
        world.coordinate(accused)
    world.appeal("ann", name)
    world.agree(name, ACCEPT)
    world.overturn(name)
    with world.refuses("validator"):
        world.coordinate(accused)  # it was right all along
    world.coordinate(e.ValidatorScored(validator=world.id(drawn[0]), submission=name))
    with world.refuses("validator"):
        world.coordinate(e.ValidatorScored(validator=world.id(drawn[0]), submission=name))
    assert [world.state.nodes[world.id(validator)].faults for validator in drawn] == [1, 0, 0]


def test_the_reward_of_a_verdict_goes_to_the_owner_of_the_draw() -> None:
    world = World.started(validators=0, quorum=1)
    world.join("key", Role.VALIDATOR, owner="owner")
    name = world.submit(world.lease("ann"))
    world.judge(name, ACCEPT)
    world.wait(REGISTRATION_MS)
    world.delegate("puppet", "key")
    world.settle(name)
    world.publish()
    world.pay_out(0)
    assert (world.balance("owner"), world.balance("puppet")) == (BOND + AUDIT_POT, 0)


def test_a_validator_does_not_judge_twice_for_another_owner() -> None:
    world = World.started(validators=1, quorum=1)
    name = world.submit(world.lease("ann"))
    world.draw(name)
    world.wait(TERMS.verdict_ms)
    world.deposit("friend", STAKE)
    world.delegate("friend", "val-0")
    world.stake("friend", "val-0")
    world.note_head()
    head = world.submission(name).randomness
    assert head is not None
    with world.refuses("validators"):
        world.coordinate(
            e.AuditDrawn(submission=name, round=1, randomness_round=head[0], validators=(world.id("val-0"),))
        )


def test_an_owner_does_not_judge_twice_through_two_nodes() -> None:
    world = World.started(workers=["ann"], validators=0, quorum=1)
    for node in ("one", "two"):
        world.join(node, Role.VALIDATOR, owner="owner")
    world.join("other", Role.VALIDATOR)
    for slot in range(8):
        name = world.submit(world.lease("ann", slot))
        first = world.draw(name)
        world.wait(10 * MINUTE_MS)
        assert "other" in first + world.draw(name)
