"""Verdicts whose authors had not read the file: who finds that out, and what it costs at the next payouts."""

import pytest

from prime_protocol.constants import REFUTED_VERDICTS
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.ledger.rewards import compute_step_shares
from prime_protocol.wire.ids import Digest, NodeId, Step
from support.ledger_network import BOND, BUDGET, RUN, STAKE, TERMS, World, digest

ACCEPT, INVALID, FRAUDULENT = Outcome.ACCEPT, Outcome.INVALID, Outcome.FRAUDULENT
AUDIT_POT = BUDGET * TERMS.audit_share // 10_000


@pytest.fixture
def world() -> World:
    return World.started()


def first_voter(world: World, name: Digest) -> str:
    return world.readers(name)[0]


def earned(world: World, name: str) -> int:
    return world.state.nodes[world.id(name)].earned_nano


def debt(world: World, name: str) -> int:
    return world.run.debts[(world.id(name), world.id(name))]


def stood(world: World, step: int) -> dict[str, int]:
    """Verdicts of each validator that a payout of the step is about."""
    return {world.names[node]: count for (_, node), count in world.run.steps[Step(step)].upheld.items()}


def pay_next(world: World) -> dict[NodeId, int]:
    """End the latest step and pay it; what each node got, which is what was shown before."""
    step = world.run.latest
    world.publish()
    shown = compute_step_shares(world.state, RUN, world.run.steps[Step(step)])
    before = {node: known.earned_nano for node, known in world.state.nodes.items()}
    pool = world.state.funds.pools[RUN]
    world.pay_out(step)
    paid = {node: known.earned_nano - before[node] for node, known in world.state.nodes.items()}
    assert {node: amount for node, amount in paid.items() if amount} == {
        node: amount for (_, node), amount in shown.items() if amount
    }
    assert pool - world.state.funds.pools[RUN] == sum(paid.values()) <= BUDGET
    assert world.state.funds.is_conserved()
    return paid


# --- The rule -------------------------------------------------------------------------------------------------------


def test_only_an_inspector_of_the_run_inspects(world: World) -> None:
    name = world.settled("ann", ACCEPT)
    for author in ("coordinator", "trainer", "ann", world.readers(name)[0], "stranger"):
        with world.refuses("sender"):
            world.inspect(name, by=author)
    world.inspect(name)
    assert list(world.submission(name).inspected) == [world.id("inspector")]


def test_the_terms_of_now_say_who_is_an_inspector(world: World) -> None:
    name = world.settled("ann", ACCEPT)
    world.coordinate(e.RunUpdated(terms=world.terms(inspectors=(world.id("another"),))))
    with world.refuses("sender"):
        world.inspect(name)
    world.inspect(name, by="another")


def test_a_run_without_inspectors_has_nobody_who_compares() -> None:
    world = World.started(inspectors=())
    name = world.settled("ann", ACCEPT)
    with world.refuses("sender"):
        world.inspect(name)


def test_only_what_is_known_and_settled_is_inspected_and_once_by_each(world: World) -> None:
    with world.refuses("submission"):
        world.write("inspector", world.inspection(digest("nothing"), {}))
    name = world.submit(world.lease("ann"))
    with world.refuses("submission"):
        world.inspect(name)
    world.judge(name, ACCEPT, ACCEPT, ACCEPT)
    with world.refuses("submission"):
        world.inspect(name)
    world.agree(name, ACCEPT)
    with world.refuses("submission"):
        world.inspect(name)
    world.settle(name)
    world.inspect(name)
    with world.refuses("submission"):
        world.inspect(name)


def test_only_a_verdict_that_was_given_is_inspected(world: World) -> None:
    name = world.submit(world.lease("ann"))
    silent = world.judge(name, FRAUDULENT, FRAUDULENT)[2]
    world.wait(TERMS.verdict_ms)
    world.judge(name, FRAUDULENT)
    world.settle(name)
    for other in (silent, "ann", "stranger", "inspector"):
        with world.refuses("seen"):
            world.inspect(name, other)
    world.inspect(name)


def test_an_inspector_that_judged_does_not_judge_itself(world: World) -> None:
    name = world.settled("ann", ACCEPT)
    voter, other, *_ = world.readers(name)
    world.coordinate(e.RunUpdated(terms=world.terms(inspectors=(world.id(voter),))))
    with world.refuses("seen"):
        world.inspect(name, by=voter)
    world.write(voter, world.inspection(name, {other: digest("what it did not see")}))
    assert world.submission(name).refuted == {world.id(other)}


def test_honest_looks_cost_nothing(world: World) -> None:
    name = world.settled("ann", ACCEPT)
    world.inspect(name)
    assert not world.submission(name).refuted
    assert not world.run.debts
    assert not any(node.faults for node in world.state.nodes.values())


def test_a_file_without_looks_is_inspected_all_the_same(world: World) -> None:
    name = world.settled("ann", FRAUDULENT)
    world.write("inspector", world.inspection(name, {}))
    assert world.submission(name).inspected
    assert not world.submission(name).refuted


@pytest.mark.parametrize("is_mute", [False, True], ids=["wrong", "missing"])
def test_wrong_and_missing_looks_cost_alike(world: World, is_mute: bool) -> None:
    name = world.submit(world.lease("ann"))
    said = [b"" if is_mute else digest("a guess"), None, None]
    drawn = world.draw(name)
    world.give(*[world.opinion(each, name, FRAUDULENT, looks=looks) for each, looks in zip(drawn, said, strict=True)])
    world.settle(name)
    world.inspect(name)
    assert world.submission(name).refuted == {world.id(drawn[0])}
    assert [world.state.nodes[world.id(validator)].faults for validator in drawn] == [1, 0, 0]
    assert world.run.debts == {(world.id(drawn[0]), world.id(drawn[0])): REFUTED_VERDICTS}


def test_looks_of_another_validator_do_not_help(world: World) -> None:
    name = world.submit(world.lease("ann"))
    drawn = world.draw(name)
    copied = world.looks(drawn[0], name)
    world.give(*[world.opinion(validator, name, FRAUDULENT, looks=copied) for validator in drawn])
    world.settle(name)
    world.inspect(name)
    assert world.submission(name).refuted == set(map(world.id, drawn[1:]))


def test_a_second_inspector_counts_no_verdict_twice(world: World) -> None:
    world.coordinate(e.RunUpdated(terms=world.terms(inspectors=(world.id("inspector"), world.id("second")))))
    name = world.settled("ann", ACCEPT)
    first, other, *_ = world.readers(name)
    world.inspect(name, first)
    world.inspect(name, first, other, by="second")
    assert world.submission(name).refuted == {world.id(first), world.id(other)}
    assert (debt(world, first), debt(world, other)) == (REFUTED_VERDICTS, REFUTED_VERDICTS)
    assert [world.state.nodes[world.id(each)].faults for each in (first, other)] == [1, 1]


def test_a_second_inspector_takes_nothing_back(world: World) -> None:
    world.coordinate(e.RunUpdated(terms=world.terms(inspectors=(world.id("inspector"), world.id("second")))))
    name = world.settled("ann", ACCEPT)
    voter = world.readers(name)[0]
    world.inspect(name, voter)
    world.inspect(name, by="second")
    assert world.submission(name).refuted == {world.id(voter)}
    assert debt(world, voter) == REFUTED_VERDICTS


def test_the_debt_is_of_who_owned_the_validator_when_it_was_drawn() -> None:
    world = World.started(validators=0)
    for number in range(9):
        world.join(f"node-{number}", Role.VALIDATOR, owner=f"boss-{number}")
    name = world.submit(world.lease("ann"))
    world.agree(name, ACCEPT)
    world.settle(name)
    voter = world.readers(name)[0]
    owner = voter.replace("node", "boss")
    world.write(owner, e.DelegationRevoked(node=world.id(voter)))
    world.inspect(name, voter)
    assert world.run.debts == {(world.id(owner), world.id(voter)): REFUTED_VERDICTS}


def test_it_takes_neither_stake_nor_balance_nor_the_outcome(world: World) -> None:
    name = world.settled("ann", ACCEPT)
    readers = world.readers(name)
    world.inspect(name, *readers)
    assert {(world.stake_of(voter), world.balance(voter)) for voter in readers} == {(STAKE, BOND)}
    assert world.submission(name).outcome is ACCEPT


@pytest.mark.parametrize("outcome", Outcome)
def test_a_verdict_is_refuted_whatever_it_said(world: World, outcome: Outcome) -> None:
    name = world.settled("ann", outcome)
    voter = first_voter(world, name)
    world.inspect(name, voter)
    assert debt(world, voter) == REFUTED_VERDICTS


def test_who_judges_the_appeal_can_be_inspected(world: World) -> None:
    name = world.convicted("ann")
    world.appeal("ann", name)
    judge = world.judge(name, ACCEPT)[0]
    world.inspect(name, judge)
    assert world.submission(name).refuted == {world.id(judge)}


def test_a_verdict_that_did_not_stand_is_scored_and_refuted(world: World) -> None:
    name = world.submit(world.lease("ann"))
    loser = world.judge(name, FRAUDULENT, ACCEPT, ACCEPT)[0]
    world.agree(name, ACCEPT)
    world.settle(name)
    world.coordinate(e.ValidatorScored(validator=world.id(loser), submission=name))
    world.inspect(name, loser)
    assert world.state.nodes[world.id(loser)].faults == 2


def test_a_verdict_is_refuted_while_its_submission_is_remembered() -> None:
    world = World.started(lag_max=1)
    names = [world.settled("ann", ACCEPT, slot) for slot in range(2)]
    voter = first_voter(world, names[0])
    pay_next(world)
    before = earned(world, voter)
    assert before > 0
    world.inspect(names[0], voter)
    assert (earned(world, voter), debt(world, voter)) == (before, REFUTED_VERDICTS), "what was paid stays"
    world.publish()
    assert names[1] not in world.run.submissions, "paid, and too old to train on"
    with world.refuses("submission"):
        world.write("inspector", world.inspection(names[1], {voter: digest("what it did not see")}))


# --- What it costs --------------------------------------------------------------------------------------------------


def test_a_debt_above_what_stood_takes_all_of_it_and_the_others_share_the_pot(world: World) -> None:
    name = world.settled("ann", ACCEPT)
    voter = first_voter(world, name)
    world.inspect(name, voter)
    voices = stood(world, 0)
    assert voices[voter] == 1
    paid = pay_next(world)
    others = sum(voices.values()) - 1
    assert paid[world.id(voter)] == 0
    assert {paid[world.id(node)] for node in voices if node != voter} == {AUDIT_POT // others}
    assert paid[world.id("ann")] == BUDGET - AUDIT_POT, "work is paid as ever"
    assert debt(world, voter) == REFUTED_VERDICTS - 1


def test_a_debt_is_worked_off_over_two_steps_and_then_forgotten() -> None:
    world = World.started(validators=1, quorum=1, slots_per_step=64)
    names = [world.settled("ann", ACCEPT, slot) for slot in range(12)]
    world.inspect(names[0], "val-0")
    assert pay_next(world)[world.id("val-0")] == 0
    assert debt(world, "val-0") == REFUTED_VERDICTS - 12
    for slot in range(12):
        world.settled("ann", ACCEPT, slot)
    assert pay_next(world)[world.id("val-0")] == AUDIT_POT, "4 of 12 are left, and nobody else has any"
    assert not world.run.debts


def test_two_refuted_verdicts_cost_twice(world: World) -> None:
    names = [world.settled("ann", ACCEPT, slot) for slot in range(4)]
    spoke = [{node for each in world.submission(name).rounds for node in each.verdicts} for name in names]
    both = next(node for node in spoke[0] if node in spoke[1])
    for name in names[:2]:
        world.inspect(name, world.names[both])
    assert world.run.debts[(both, both)] == 2 * REFUTED_VERDICTS


def test_where_all_who_judged_owe_their_pot_stays_in_the_pool(world: World) -> None:
    name = world.settled("ann", ACCEPT)
    world.inspect(name, *stood(world, 0))
    pool = world.state.funds.pools[RUN]
    paid = pay_next(world)
    assert {node: amount for node, amount in paid.items() if amount} == {world.id("ann"): BUDGET - AUDIT_POT}
    assert world.state.funds.pools[RUN] == pool - (BUDGET - AUDIT_POT)


def test_what_stood_after_its_step_was_paid_goes_against_the_debt_too(world: World) -> None:
    world.settled("bob", ACCEPT)
    name = world.convicted("ann", 1)
    voter = first_voter(world, name)
    pay_next(world)
    world.wait(TERMS.appeal_ms)
    world.execute(name)
    carried = world.run.carried_upheld[(world.id(voter), world.id(voter))]
    assert carried == 1
    world.inspect(name, voter)
    world.settled("bob", ACCEPT)
    later = stood(world, 1).get(voter, 0)
    assert pay_next(world)[world.id(voter)] == 0
    assert debt(world, voter) == REFUTED_VERDICTS - carried - later


def test_a_closed_run_pays_its_last_step_less_the_debt_and_everybody_can_leave(world: World) -> None:
    name = world.settled("ann", ACCEPT)
    voter = first_voter(world, name)
    world.inspect(name, voter)
    world.set_run(e.RunStatus.CLOSED)
    world.pay_out(0)
    assert earned(world, voter) == 0
    world.write("sponsor", e.PoolReturned(amount_nano=world.state.funds.pools[RUN]))
    assert world.state.funds.pools[RUN] == 0
    assert world.state.funds.is_conserved()
