"""Appeals that validators cannot decide, rulings of inspectors, and what a refuted verdict costs."""

from dataclasses import replace

import pytest

from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import compute_settled_outcome
from prime_protocol.ledger.entries import NodeStatus, Outcome, Role
from prime_protocol.ledger.terms import SlashDestination
from prime_protocol.wire.ids import Digest
from support.ledger_network import (
    BOND,
    ON_CHAIN,
    PENALTY,
    RUN,
    SLASH,
    STAKE,
    TERMS,
    World,
    digest,
)

ACCEPT, INVALID, FRAUDULENT = Outcome.ACCEPT, Outcome.INVALID, Outcome.FRAUDULENT


def start(**terms: object) -> World:
    """A run with penalties and a registered inspector."""
    world = World.started(validator_slash_nano=PENALTY, **terms)
    world.register("inspector", Role.RELAY)
    return world


def split(world: World, node: str = "ann", rounds: int = 3) -> Digest:
    """A submission on which all validators have spoken and disagree."""
    name = world.submit(world.lease(node))
    for _ in range(rounds):
        world.judge(name, ACCEPT, FRAUDULENT, ACCEPT)
    return name


def list_verdicts(world: World, name: Digest, outcome: Outcome) -> list[str]:
    rounds = world.submission(name).rounds
    return [world.names[node] for each in rounds for node, found in each.verdicts.items() if found is outcome]


# --- Rulings --------------------------------------------------------------------------------------------------------


def test_a_split_waits_for_an_inspector_and_then_a_majority_decides() -> None:
    world = start()
    name = split(world)
    assert compute_settled_outcome(world.state, world.run, name, world.now_ms) is None
    world.now_ms = world.submission(name).rounds[-1].deadline_ms + TERMS.judgement_ms - 1
    assert compute_settled_outcome(world.state, world.run, name, world.now_ms) is None
    world.wait(1)
    assert world.settle(name) is ACCEPT
    assert world.score(list_verdicts(world, name, FRAUDULENT)[0], name) == 0, "a plain majority refutes no verdict"


def test_a_split_without_a_majority_is_invalid_when_no_inspector_decides() -> None:
    world = start()
    name = world.submit(world.lease("ann"))
    for _ in range(3):
        world.judge(name, ACCEPT, FRAUDULENT, INVALID)
    assert compute_settled_outcome(world.state, world.run, name, world.now_ms) is None
    world.now_ms = world.submission(name).rounds[-1].deadline_ms + TERMS.judgement_ms
    assert world.settle(name) is INVALID


@pytest.mark.parametrize("status", [NodeStatus.DRAINED, NodeStatus.BANNED])
def test_an_inspector_that_is_not_at_work_is_not_waited_for(status: NodeStatus) -> None:
    world = start()
    world.coordinate(e.NodeStatusSet(node=world.id("inspector"), status=status, reason=""))
    name = split(world)
    with world.refuses("sender"):
        world.rule(name, ACCEPT)
    assert world.settle(name) is ACCEPT


@pytest.mark.parametrize("outcome", [ACCEPT, INVALID])
def test_a_ruling_is_the_outcome(outcome: Outcome) -> None:
    world = start()
    name = split(world)
    world.rule(name, outcome)
    assert world.settle(name) is outcome
    assert world.submission(name).judged is outcome
    with world.refuses("submission"):
        world.rule(name, outcome)


def test_a_fraudulent_ruling_brings_its_evidence_and_can_be_appealed() -> None:
    world = start()
    name = split(world, rounds=2)
    world.judge(name, ACCEPT, INVALID, FRAUDULENT)
    world.rule(name, FRAUDULENT)
    assert world.settle(name) is FRAUDULENT
    evidence = digest("evidence of inspector")
    world.coordinate(e.SlashProposed(submission=name, amount_nano=SLASH, evidence=evidence))
    world.appeal("ann", name)
    with world.refuses("sender"):
        world.rule(name, FRAUDULENT)  # it has decided before
    with world.refuses("submission"):
        world.execute(name)
    world.wait(TERMS.long_stop_ms)
    world.overturn(name)
    assert (world.stake_of("ann"), world.submission(name).outcome) == (STAKE, INVALID)


def test_validators_that_spoke_against_a_ruling_lose_stake_when_its_slash_is_executed() -> None:
    world = start()
    name = split(world)
    world.rule(name, FRAUDULENT)
    world.settle(name)
    world.propose(name)
    wrong = list_verdicts(world, name, ACCEPT)[0]
    with world.refuses("submission"):
        world.coordinate(e.ValidatorScored(validator=world.id(wrong), submission=name))
    world.wait(TERMS.appeal_ms)
    world.execute(name)
    assert world.score(wrong, name) == PENALTY


def test_only_an_inspector_rules_and_only_on_what_validators_cannot_decide() -> None:
    world = start()
    with world.refuses("submission"):
        world.rule(digest("nothing"), ACCEPT)
    name = world.submit(world.lease("ann"))
    with world.refuses("submission"):
        world.rule(name, ACCEPT)  # nobody was drawn yet
    world.judge(name, ACCEPT, FRAUDULENT)
    with world.refuses("submission"):
        world.rule(name, ACCEPT)  # the round has time
    with world.refuses("sender"):
        world.rule(name, ACCEPT, by="val-0")


def test_an_inspector_that_judged_or_made_the_file_or_whose_owner_did_may_not_rule() -> None:
    seats = [World().id(name) for name in ("val-0", "ann", "brother", "inspector")]
    world = World.started(inspectors=tuple(sorted(seats)))
    world.register("brother", Role.RELAY)
    world.delegate("ann", "brother")
    world.register("inspector", Role.RELAY)
    name = split(world)
    assert "val-0" in world.readers(name)
    for party in ("val-0", "ann", "brother"):
        with world.refuses("sender"):
            world.rule(name, ACCEPT, by=party)
    world.rule(name, ACCEPT)
    assert world.settle(name) is ACCEPT


# --- Appeals --------------------------------------------------------------------------------------------------------


def test_an_inspector_decides_an_appeal_for_which_no_judges_are_left() -> None:
    world = start(validators=5)
    wrong = world.convicted("ann")
    right = world.convicted("bob", 1)
    for node, name in (("ann", wrong), ("bob", right)):
        with world.refuses("submission"):
            world.rule(name, ACCEPT)  # there is no appeal
        world.appeal(node, name)
    world.rule(wrong, ACCEPT)
    world.rule(right, FRAUDULENT)
    with world.refuses("submission"):
        world.execute(wrong)
    world.overturn(wrong)
    world.credit(wrong)
    world.execute(right)
    assert (world.stake_of("ann"), world.balance("ann")) == (STAKE, BOND)
    assert (world.stake_of("bob"), world.balance("bob")) == (STAKE - SLASH, 0)
    for validator in list_verdicts(world, wrong, FRAUDULENT):
        assert world.score(validator, wrong) == PENALTY


def test_an_inspector_decides_an_appeal_whose_judges_take_too_long() -> None:
    world = start()
    name = world.convicted("ann")
    world.appeal("ann", name)
    world.judge(name, ACCEPT)
    world.wait(TERMS.judgement_ms - 1)
    with world.refuses("submission"):
        world.rule(name, ACCEPT)
    world.wait(2)
    world.rule(name, ACCEPT)
    world.overturn(name)
    assert world.submission(name).outcome is ACCEPT


# --- Penalties ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("destination", SlashDestination)
def test_validators_refuted_by_an_appeal_lose_stake_and_it_goes_to_no_judge(destination: SlashDestination) -> None:
    world = start(slash_to=destination)
    name = world.convicted("ann")
    world.appeal("ann", name)
    world.agree(name, ACCEPT)
    world.overturn(name)
    liars, pool_nano = list_verdicts(world, name, FRAUDULENT), world.state.funds.pools[RUN]
    for liar in liars:
        assert liar in [world.names[node] for node in world.run.validators]
        assert world.score(liar, name) == PENALTY
        assert world.stake_of(liar) == STAKE - PENALTY
        assert world.id(liar) not in world.run.validators, "its stake is below the least"
    taken = len(liars) * PENALTY
    is_pooled = destination is SlashDestination.POOL
    assert world.state.funds.pools[RUN] - pool_nano == (taken if is_pooled else 0)
    assert (world.run.forfeited_nano, world.state.funds.burned_nano) == ((taken, 0) if is_pooled else (0, taken))
    assert world.state.funds.is_conserved()


def test_calling_honest_work_fraudulent_costs_stake_when_others_decide_clearly() -> None:
    world = start()
    name = world.submit(world.lease("ann"))
    liar = world.judge(name, FRAUDULENT, ACCEPT, INVALID)
    world.judge(name, ACCEPT, ACCEPT, ACCEPT)
    world.judge(name, ACCEPT, ACCEPT, ACCEPT)
    assert world.settle(name) is ACCEPT
    with world.refuses("penalty_nano"):
        world.coordinate(e.ValidatorScored(validator=world.id(liar[0]), submission=name))
    assert world.score(liar[0], name) == PENALTY
    assert world.score(liar[2], name) == 0, "honest validators may differ about an invalid file"


def test_speaking_for_a_cheater_costs_stake_only_if_an_appeal_confirms_the_fraud() -> None:
    for is_appealed in (False, True):
        world = start()
        name = world.submit(world.lease("ann"))
        liar = world.judge(name, ACCEPT, FRAUDULENT, FRAUDULENT)[0]
        world.judge(name, FRAUDULENT, FRAUDULENT, FRAUDULENT)
        world.settle(name)
        world.propose(name)
        if is_appealed:
            world.appeal("ann", name)
            world.judge(name, FRAUDULENT, FRAUDULENT, FRAUDULENT)
        world.wait(TERMS.appeal_ms)
        world.execute(name)
        assert world.score(liar, name) == (PENALTY if is_appealed else 0)


def test_a_penalty_takes_no_more_than_there_is() -> None:
    world = start()
    name = world.submit(world.lease("ann"))
    liar = world.judge(name, FRAUDULENT, ACCEPT, ACCEPT)[0]
    world.agree(name, ACCEPT)
    world.settle(name)
    world.state.funds.forfeit_stake((world.id(liar),) * 2, STAKE - 7, pool=None)
    assert world.score(liar, name) == 7


@pytest.mark.parametrize("slash_to", list(SlashDestination))
def test_on_a_chain_a_penalty_leaves_the_books_for_the_court_and_fills_no_pool(slash_to: SlashDestination) -> None:
    world = start(domain=ON_CHAIN, slash_to=slash_to)
    name = world.submit(world.lease("ann"))
    liar = world.judge(name, FRAUDULENT, ACCEPT, ACCEPT)[0]
    world.agree(name, ACCEPT)
    world.settle(name)
    pool_nano, withdrawn_nano = world.state.funds.pools[RUN], world.state.funds.withdrawn_nano
    assert world.score(liar, name) == PENALTY
    assert world.stake_of(liar) == STAKE - PENALTY
    assert (world.state.funds.pools[RUN], world.run.forfeited_nano) == (pool_nano, 0)
    gone = {SlashDestination.BURN: (PENALTY, 0), SlashDestination.POOL: (0, PENALTY)}[slash_to]
    assert (world.state.funds.burned_nano, world.state.funds.withdrawn_nano - withdrawn_nano) == gone
    assert world.state.funds.is_conserved()


def test_on_a_chain_an_inspection_costs_stake_by_the_entry_that_the_court_reads_and_once() -> None:
    world = start(domain=ON_CHAIN)
    name = world.settled("ann", ACCEPT)
    unread, *others = world.readers(name)
    with world.refuses("validator"):
        world.score(unread, name)
    world.inspect(name, unread)
    assert (world.stake_of(unread), world.state.nodes[world.id(unread)].faults) == (STAKE, 1)
    with world.refuses("penalty_nano"):
        world.coordinate(e.ValidatorScored(validator=world.id(unread), submission=name, penalty_nano=PENALTY + 1))
    assert world.score(unread, name) == PENALTY
    assert (world.stake_of(unread), world.state.nodes[world.id(unread)].faults) == (STAKE - PENALTY, 1)
    for validator in (unread, others[0]):
        with world.refuses("validator"):
            world.score(validator, name)


def test_on_a_chain_a_validator_that_is_refuted_twice_over_a_file_pays_once() -> None:
    world = start(domain=ON_CHAIN)
    name = world.submit(world.lease("ann"))
    liar = world.judge(name, FRAUDULENT, ACCEPT, ACCEPT)[0]
    world.agree(name, ACCEPT)
    world.settle(name)
    world.inspect(name, liar)
    assert world.score(liar, name) == PENALTY
    assert world.score(liar, name) == 0, "its verdict is scored too"
    assert (world.stake_of(liar), world.state.nodes[world.id(liar)].faults) == (STAKE - PENALTY, 2)


def test_a_verdict_without_reading_costs_stake() -> None:
    world = start()
    name = world.settled("ann", ACCEPT)
    unread, *_ = world.readers(name)
    world.inspect(name, unread)
    assert world.stake_of(unread) == STAKE - PENALTY


@pytest.mark.parametrize(
    ("field", "value"), [("validator_slash_nano", TERMS.stake_min_nano + 1), ("long_stop_ms", TERMS.judgement_ms - 1)]
)
def test_terms_that_cannot_be_kept_are_refused(field: str, value: int) -> None:
    with pytest.raises(RemoteError, match=field):
        replace(TERMS, **{field: value})
