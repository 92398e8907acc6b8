"""Findings: anyone may say that an accepted file is fraudulent before its pay has vested, and drawn judges decide.

Where too few judges are left an inspector does.
"""

from typing import Any

import pytest

from prime_protocol.constants import FINDINGS_MAX, ROUNDS_MAX
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import compute_draw
from prime_protocol.ledger.entries import Outcome, Role, RunStatus
from prime_protocol.ledger.replay import Ledger
from prime_protocol.ledger.terms import SlashDestination, TrainOn
from prime_protocol.wire.ids import Digest
from support.ledger_network import (
    DAY_MS,
    NETWORK,
    ON_CHAIN,
    PENALTY,
    RUN,
    SLASH,
    STAKE,
    TERMS,
    TOKEN,
    World,
)

ACCEPT, INVALID, FRAUDULENT = Outcome.ACCEPT, Outcome.INVALID, Outcome.FRAUDULENT
FINDING_BOND = TERMS.finding_bond_nano
BOUNTY = SLASH // 5
BARE: dict[str, Any] = {"audit_probation": 0, "audit_floor": 1, "slots_per_step": 64}
"""Terms under which most files are not drawn."""


def undrawn(world: World, node: str = "ann") -> Digest:
    """An accepted and credited submission that nobody has read."""
    return world.not_drawn(node)


@pytest.fixture
def world() -> World:
    world = World.started(vesting_ms=DAY_MS, validators=9, **BARE)
    world.deposit("eve", 20 * TOKEN)
    return world


@pytest.fixture
def forged(world: World) -> Digest:
    return undrawn(world)


def uphold(world: World, name: Digest) -> None:
    world.agree(name, FRAUDULENT)
    world.uphold(name)


def test_a_forged_file_that_was_not_drawn_costs_stake_and_pay_and_the_finder_gets_a_bounty(
    world: World, forged: Digest
) -> None:
    pending, ann = world.run.steps[0].units[(world.id("ann"),) * 2], world.id("ann")
    assert pending > 0
    world.file_finding("eve", forged)
    assert world.balance("eve") == 20 * TOKEN - FINDING_BOND
    uphold(world, forged)
    assert world.submission(forged).outcome is FRAUDULENT
    assert world.run.get_record(ann).streak == 0
    world.publish()
    world.wait(DAY_MS)
    with world.refuses("step"):  # a slash comes first
        world.pay_out(0)
    world.propose(forged)
    world.wait(TERMS.appeal_ms)
    world.execute(forged)
    assert world.balance("eve") == 20 * TOKEN + BOUNTY
    assert world.state.funds.burned_nano == SLASH - BOUNTY
    assert not world.run.steps[0].units[(ann, ann)]
    assert not world.run.findings
    world.wait(DAY_MS)
    world.pay_out(0)
    assert world.state.nodes[ann].earned_nano == 0
    assert world.state.funds.is_conserved()


@pytest.mark.parametrize("slash_to", list(SlashDestination))
def test_a_finding_that_judges_do_not_agree_with_costs_its_bond_and_the_worker_is_paid(
    slash_to: SlashDestination,
) -> None:
    world = World.started(vesting_ms=DAY_MS, validators=9, slash_to=slash_to, train_on=TrainOn.AUDITED, **BARE)
    world.deposit("eve", 20 * TOKEN)
    name = undrawn(world)
    units, pool = world.run.steps[0].units.copy(), world.state.funds.pools[RUN]
    world.file_finding("eve", name)
    assert world.run.steps[0].units.total() < units.total()
    with world.refuses("submission"):
        world.dismiss(name)
    world.agree(name, ACCEPT)
    with world.refuses("submission"):
        world.uphold(name)
    judges = world.run.steps[0].upheld.total()
    world.dismiss(name)
    assert world.run.steps[0].upheld.total() > judges, "judges are paid for what they read"
    assert world.run.steps[0].units == units
    assert world.balance("eve") == 20 * TOKEN - FINDING_BOND
    gain = world.state.funds.pools[RUN] - pool
    assert (gain, world.state.funds.burned_nano) == ((0, FINDING_BOND) if slash_to == "burn" else (FINDING_BOND, 0))
    world.publish(name)  # it counts as audited now
    world.wait(DAY_MS)
    world.pay_out(0)
    assert world.state.nodes[world.id("ann")].earned_nano > 0
    assert world.state.funds.is_conserved()


def test_while_a_finding_is_open_only_its_submission_is_not_paid(world: World, forged: Digest) -> None:
    ann = (world.id("ann"), world.id("ann"))
    world.publish()
    world.wait(DAY_MS - 10_000)
    world.file_finding("eve", forged)
    held = world.run.findings[forged].units
    world.wait(DAY_MS)
    world.pay_out(0)
    assert world.state.nodes[world.id("ann")].earned_nano > 0, "for the submissions that were drawn"
    world.publish()
    world.publish()
    assert forged in world.run.submissions, "its step is kept"
    world.agree(forged, ACCEPT)
    world.dismiss(forged)
    assert world.run.carried_units == {ann: held}


def test_a_finding_that_nobody_decides_ends_with_its_bond_returned_and_may_be_filed_again(
    world: World, forged: Digest
) -> None:
    world.file_finding("eve", forged)
    world.wait(TERMS.judgement_ms - 1)
    with world.refuses("submission"):
        world.dismiss(forged)
    world.wait(1)
    world.dismiss(forged)
    assert world.balance("eve") == 20 * TOKEN
    world.file_finding("eve", forged)


def test_a_finding_about_an_invalid_answer_is_no_finding_of_fraud(world: World, forged: Digest) -> None:
    world.file_finding("eve", forged)
    world.agree(forged, INVALID)
    world.dismiss(forged)
    assert (world.submission(forged).outcome, world.submission(forged).judged) == (ACCEPT, None)


def test_what_may_be_filed_and_by_whom(world: World, forged: Digest) -> None:
    with world.refuses("amount_nano"):
        world.file_finding("poor", forged)
    with world.refuses("sender"):
        world.file_finding("ann", forged)
    waiting = world.submit(world.lease("bob", 40))
    with world.refuses("submission"):
        world.file_finding("eve", waiting)
    world.file_finding("eve", forged)
    with world.refuses("submission"):
        world.file_finding("bob", forged)
    with world.refuses("submission"):
        world.uphold(waiting)
    world.agree(forged, ACCEPT)
    world.dismiss(forged)
    with world.refuses("submission"):
        world.file_finding("eve", forged)


def test_a_paid_submission_is_beyond_findings(world: World, forged: Digest) -> None:
    world.publish()
    world.wait(DAY_MS)
    world.pay_out(0)
    with world.refuses("submission"):
        world.file_finding("eve", forged)


def test_so_many_findings_about_one_submission_and_no_more(world: World, forged: Digest) -> None:
    world.run.dismissed[forged] = tuple(world.id(f"eve-{number}") for number in range(FINDINGS_MAX))
    with world.refuses("submission"):
        world.file_finding("eve", forged)


def test_without_a_bond_in_the_terms_none_is_taken_or_lost() -> None:
    world = World.started(vesting_ms=DAY_MS, validators=9, finding_bond_nano=0, **BARE)
    name = undrawn(world)
    world.file_finding("eve", name)
    world.agree(name, ACCEPT)
    world.dismiss(name)
    assert world.balance("eve") == 0
    again = undrawn_again(world)
    world.file_finding("eve", again)
    uphold(world, again)
    world.propose(again)
    world.wait(TERMS.appeal_ms)
    world.execute(again)
    assert world.balance("eve") == BOUNTY


def undrawn_again(world: World) -> Digest:
    """Another one, of the next step."""
    world.publish()
    return undrawn(world)


def test_no_validator_of_the_finder_or_the_worker_judges_it() -> None:
    world = World.started(vesting_ms=DAY_MS, validators=4, **BARE)
    world.deposit("val-0", FINDING_BOND)
    name = undrawn(world)
    first = {node for each in world.submission(name).rounds for node in each.validators}
    assert not first
    world.file_finding("val-0", name)
    assert world.id("val-0") not in map(world.id, world.draw(name))


def test_a_finding_by_an_owner_keeps_its_nodes_from_judging() -> None:
    world = World.started(vesting_ms=DAY_MS, validators=3, **BARE)
    world.join("clerk", Role.VALIDATOR, owner="eve")
    world.deposit("eve", FINDING_BOND)
    name = undrawn(world)
    world.file_finding("eve", name)
    assert sorted(world.draw(name)) == ["val-0", "val-1", "val-2"]


def test_an_overturned_slash_gives_credit_and_bond_back_and_pays_no_judge_twice(world: World, forged: Digest) -> None:
    units, paid = world.run.steps[0].units.copy(), world.run.steps[0].upheld.copy()
    world.file_finding("eve", forged)
    uphold(world, forged)
    world.propose(forged)
    world.appeal("ann", forged)
    world.agree(forged, ACCEPT)
    world.overturn(forged)
    world.credit(forged)
    assert world.run.steps[0].units == units
    assert world.balance("eve") == 20 * TOKEN
    assert not world.run.findings
    accepts = sum(list(each.verdicts.values()).count(ACCEPT) for each in world.submission(forged).rounds)
    assert (world.run.steps[0].upheld - paid).total() == accepts
    with world.refuses("submission"):  # it was slashed once
        world.file_finding("bob", forged)


def test_a_validator_is_not_scored_while_a_finding_is_open(world: World) -> None:
    name = world.submit(world.lease("ann"))
    world.judge(name, FRAUDULENT, ACCEPT, ACCEPT)
    world.agree(name, ACCEPT)
    world.settle(name)
    odd = next(
        node for each in world.submission(name).rounds for node, found in each.verdicts.items() if found != ACCEPT
    )
    world.file_finding("eve", name)
    with world.refuses("submission"):
        world.coordinate(e.ValidatorScored(validator=odd, submission=name))


def test_units_in_a_finding_are_lost_with_another_conviction(world: World, forged: Digest) -> None:
    bob = world.settled("bob", ACCEPT, 60)  # its first, so it is drawn
    world.deposit("ann", STAKE)
    world.run.records[world.id("ann")].streak = 0  # so that the draw falls on its next file
    second = world.settled("ann", FRAUDULENT, 50)
    world.file_finding("eve", forged)
    world.deposit("zoe", FINDING_BOND)
    world.file_finding("zoe", bob)
    world.propose(second)
    world.wait(TERMS.appeal_ms)
    world.execute(second)
    assert world.run.findings[forged].units == 0
    assert world.run.findings[bob].units > 0
    world.stake("ann", "ann", SLASH)
    world.dismiss(forged)
    assert not world.run.steps[0].units[(world.id("ann"), world.id("ann"))]


def test_held_units_are_held_back_from_the_hold(world: World, forged: Digest) -> None:
    record, key = world.run.records[world.id("ann")], (world.id("ann"), world.id("ann"))
    units = world.run.steps[0].units.pop(key)
    record.held_units[(world.id("ann"), 0)] = units
    record.is_held = True
    world.file_finding("eve", forged)
    held = world.run.findings[forged].units
    assert record.held_units.total() == units - held
    world.agree(forged, ACCEPT)
    world.dismiss(forged)
    assert record.held_units.total() == units


def test_a_closed_run_pays_and_returns_its_pool_when_findings_are_decided(world: World, forged: Digest) -> None:
    world.file_finding("eve", forged)
    world.set_run(RunStatus.CLOSED)
    world.wait(DAY_MS)
    with world.refuses("run"):
        world.pay_out(0)
    with world.refuses("run"):
        world.write("sponsor", e.PoolReturned(amount_nano=1))
    world.dismiss(forged)
    world.pay_out(0)


def test_the_bounty_is_the_finders_owners_and_the_entry_names_it(world: World, forged: Digest) -> None:
    world.delegate("owner", "eve")
    world.file_finding("eve", forged)
    uphold(world, forged)
    world.propose(forged)
    world.wait(TERMS.appeal_ms)
    for thief in (None, world.id("eve"), world.id("coordinator")):
        with world.refuses("bounty_to"):
            world.coordinate(e.SlashExecuted(submission=forged, bounty_to=thief))
    world.execute(forged)
    assert (world.balance("eve"), world.balance("owner")) == (20 * TOKEN, BOUNTY)


def test_a_slash_without_a_finding_pays_nobody_a_bounty(world: World) -> None:
    name = world.convicted("bob", 40)
    world.wait(TERMS.appeal_ms)
    with world.refuses("bounty_to"):
        world.coordinate(e.SlashExecuted(submission=name, bounty_to=world.id("coordinator")))
    world.execute(name)


def test_on_a_chain_the_court_pays_the_bounty_and_the_bond_is_of_the_log() -> None:
    world = World.started(vesting_ms=DAY_MS, validators=9, domain=ON_CHAIN, slash_to=SlashDestination.POOL, **BARE)
    world.deposit("eve", 2 * FINDING_BOND)
    name = undrawn(world)
    world.file_finding("eve", name)
    uphold(world, name)
    world.propose(name)
    world.wait(TERMS.appeal_ms)
    world.execute(name)
    assert world.balance("eve") == 2 * FINDING_BOND
    world.publish()
    other = undrawn(world, "bob")
    world.file_finding("eve", other)
    world.agree(other, ACCEPT)
    world.dismiss(other)
    assert world.state.funds.burned_nano == FINDING_BOND
    assert world.state.funds.is_conserved()


def test_a_replay_finds_the_same(world: World, forged: Digest) -> None:
    world.file_finding("eve", forged)
    uphold(world, forged)
    ledger = Ledger(NETWORK)
    for leaf in world.leaves:
        ledger.apply(leaf)
    assert ledger.state == world.state


def test_a_finding_that_judges_confirm_is_not_dismissed(world: World, forged: Digest) -> None:
    world.file_finding("eve", forged)
    world.agree(forged, FRAUDULENT)
    with world.refuses("submission"):
        world.dismiss(forged)
    world.uphold(forged)


# --- Without judges -------------------------------------------------------------------------------------------------


def start_small(*inspectors: str, **terms: Any) -> tuple[World, Digest]:
    """A file that one quorum of five validators has accepted, so that no other quorum is left to judge it."""
    named = tuple(sorted(map(World().id, inspectors or ("inspector",))))
    options = {"vesting_ms": DAY_MS, "validators": 5, "validator_slash_nano": PENALTY, "inspectors": named, **terms}
    world = World.started(**options)
    world.deposit("eve", 20 * TOKEN)
    name = world.settled("ann", ACCEPT)
    for inspector in inspectors or ("inspector",):
        world.register(inspector, Role.RELAY)
    return world, name


def test_a_ruling_upholds_a_finding_that_no_judges_are_left_for() -> None:
    world, name = start_small()
    accepted = world.readers(name)
    with world.refuses("submission"):
        world.rule(name, FRAUDULENT)  # there is no finding
    world.file_finding("eve", name)
    world.rule(name, FRAUDULENT)
    with world.refuses("submission"):
        world.rule(name, ACCEPT)  # it is decided
    with world.refuses("submission"):
        world.dismiss(name)
    world.uphold(name)
    world.propose(name)
    world.wait(TERMS.appeal_ms)
    world.execute(name)
    assert world.balance("eve") == 20 * TOKEN + BOUNTY
    assert world.stake_of("ann") == STAKE - SLASH
    assert [world.score(validator, name) for validator in accepted] == [PENALTY] * 3, "they accepted a forgery"
    assert world.state.funds.is_conserved()


@pytest.mark.parametrize("outcome", [ACCEPT, INVALID])
def test_a_ruling_dismisses_a_finding_and_the_bond_is_lost(outcome: Outcome) -> None:
    world, name = start_small()
    units = world.run.steps[0].units.copy()
    world.file_finding("eve", name)
    world.rule(name, outcome)
    with world.refuses("submission"):
        world.uphold(name)
    world.dismiss(name)
    assert world.balance("eve") == 20 * TOKEN - FINDING_BOND
    assert (world.submission(name).outcome, world.submission(name).judged) == (ACCEPT, ACCEPT)
    assert world.run.steps[0].units == units
    with world.refuses("submission"):
        world.file_finding("eve", name)
    world.deposit("zoe", FINDING_BOND)
    world.file_finding("zoe", name)
    with world.refuses("sender"):  # it has decided once
        world.rule(name, outcome)
    assert world.state.funds.is_conserved()


def test_no_party_to_a_finding_rules_on_it() -> None:
    parties = ("eve", "clerk", "boss", "inspector")
    world, name = start_small(*parties)
    world.delegate("eve", "clerk")
    world.delegate("boss", "eve")
    world.file_finding("eve", name)
    for party in ("eve", "clerk", "boss"):
        with world.refuses("sender"):
            world.rule(name, FRAUDULENT, by=party)
    with world.refuses("sender"):
        world.rule(name, FRAUDULENT, by="bob")
    world.rule(name, FRAUDULENT)
    world.uphold(name)
    world.propose(name)
    world.appeal("ann", name)
    for party in ("eve", "clerk", "boss", "inspector"):  # the finder gains by a slash, the inspector has decided
        with world.refuses("sender"):
            world.rule(name, FRAUDULENT, by=party)


def test_no_ruling_while_judges_can_be_asked_or_have_time(world: World, forged: Digest) -> None:
    world.register("inspector", Role.RELAY)
    world.file_finding("eve", forged)
    with world.refuses("submission"):
        world.rule(forged, FRAUDULENT)
    world.draw(forged)
    with world.refuses("submission"):
        world.rule(forged, FRAUDULENT)


def test_a_ruling_when_all_rounds_are_drawn(world: World, forged: Digest) -> None:
    world.register("inspector", Role.RELAY)
    world.file_finding("eve", forged)
    world.judge(forged, FRAUDULENT, ACCEPT, ACCEPT)
    with world.refuses("submission"):
        world.rule(forged, ACCEPT)
    submission = world.submission(forged)
    first, last = submission.rounds[0], submission.rounds[-1]
    submission.rounds = (first,) * (ROUNDS_MAX - 1) + (last,)
    world.run.findings[forged].rounds_before = ROUNDS_MAX - 1
    world.rule(forged, ACCEPT)
    world.dismiss(forged)
    assert world.balance("eve") == 20 * TOKEN - FINDING_BOND


def split_finding(**terms: Any) -> tuple[World, Digest]:
    """All judges of a finding have spoken and disagree; most accept."""
    world = World.started(
        vesting_ms=DAY_MS, validators=9, validator_slash_nano=PENALTY, audit_probation=1_000, slots_per_step=64, **terms
    )
    world.deposit("eve", 20 * TOKEN)
    name = world.settled("ann", ACCEPT)
    world.register("inspector", Role.RELAY)
    world.file_finding("eve", name)
    world.judge(name, FRAUDULENT, ACCEPT, ACCEPT)
    return world, name


def test_a_split_finding_waits_for_an_inspector_and_then_a_majority_dismisses_it() -> None:
    world, name = split_finding()
    until_ms = world.run.findings[name].judged_until_ms
    world.wait(until_ms - 1 - world.now_ms)
    with world.refuses("submission"):
        world.dismiss(name)
    world.wait(1)
    world.dismiss(name)
    assert world.balance("eve") == 20 * TOKEN - FINDING_BOND, "a silent inspector makes no false finding free"


def test_a_judge_that_a_ruling_refutes_loses_stake() -> None:
    world, name = split_finding()
    submission = world.submission(name)
    (wrong,) = (node for node, found in submission.rounds[-1].verdicts.items() if found is FRAUDULENT)
    submission.is_refuting = False
    world.rule(name, ACCEPT)
    world.dismiss(name)
    assert world.score(world.names[wrong], name) == PENALTY


@pytest.mark.parametrize(("rules", "balance"), [(2, 19 * TOKEN), (3, 20 * TOKEN)])
def test_a_finding_whose_judges_are_all_silent_is_not_dismissed_by_the_verdicts_it_is_about(
    rules: int, balance: int
) -> None:
    world = World.started(vesting_ms=DAY_MS, validators=3 * TERMS.quorum, rules=rules)
    world.deposit("eve", 20 * TOKEN)
    name = world.settled("ann", ACCEPT)
    world.file_finding("eve", name)
    world.draw(name)
    world.wait(TERMS.judgement_ms)
    world.dismiss(name)
    assert world.balance("eve") == balance


def test_without_an_inspector_a_finding_that_has_no_judges_is_free() -> None:
    world, name = start_small()
    world.coordinate(e.NodeStatusSet(node=world.id("inspector"), status=e.NodeStatus.BANNED, reason=""))
    world.file_finding("eve", name)
    world.note_head()
    assert compute_draw(world.state, world.run, name, world.now_ms) is None
    with world.refuses("sender"):
        world.rule(name, ACCEPT)
    world.wait(TERMS.judgement_ms)
    world.dismiss(name)
    assert world.balance("eve") == 20 * TOKEN
