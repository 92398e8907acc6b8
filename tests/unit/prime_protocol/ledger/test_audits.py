"""Rules that judge: audit draws, verdicts, what they add up to, slashes and appeals."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from prime_protocol.constants import BASIS_POINTS, PROTOCOL_VERSION, ROUNDS_MAX
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import (
    INVALID_BY_TWO_QUORUMS,
    compute_audit_rate_bps,
    compute_verdict_ms,
    decide_outcome,
    needs_new_round,
    tally_outcome,
)
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.ledger.funds import Escrow
from prime_protocol.ledger.state import AuditRoundState
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step
from support.ledger_network import BOND, SLASH, STAKE, TERMS, World, digest, make_settled

ACCEPT, INVALID, FRAUDULENT = Outcome.ACCEPT, Outcome.INVALID, Outcome.FRAUDULENT


@pytest.fixture
def world() -> World:
    return World.started()


def rounds(*votes: tuple[Outcome, ...]) -> list[AuditRoundState]:
    voters = (NodeId(bytes(19) + bytes([number])) for number in range(99))
    return [AuditRoundState({}, digest("seed"), 0, 0, {next(voters): vote for vote in round_}) for round_ in votes]


@pytest.mark.parametrize(
    ("expected", "quorum", "votes"),
    [
        (None, 3, [()]),
        (None, 3, [(ACCEPT, ACCEPT, ACCEPT)]),
        (None, 3, [(ACCEPT, ACCEPT, ACCEPT), (ACCEPT,)]),
        (ACCEPT, 3, [(ACCEPT, ACCEPT, ACCEPT), (ACCEPT, ACCEPT)]),
        (None, 3, [(ACCEPT, ACCEPT, ACCEPT), (ACCEPT, FRAUDULENT, ACCEPT)]),
        (None, 3, [(ACCEPT, ACCEPT, ACCEPT), (ACCEPT, INVALID, ACCEPT)]),
        (ACCEPT, 3, [(ACCEPT, FRAUDULENT, ACCEPT), (ACCEPT, ACCEPT, ACCEPT), (ACCEPT,)]),
        (None, 3, [(ACCEPT, FRAUDULENT, FRAUDULENT), (ACCEPT, ACCEPT, ACCEPT), (ACCEPT, ACCEPT)]),
        (
            FRAUDULENT,
            3,
            [(ACCEPT, ACCEPT, ACCEPT), (FRAUDULENT, FRAUDULENT, FRAUDULENT), (FRAUDULENT, FRAUDULENT, FRAUDULENT)],
        ),
        (None, 3, [(FRAUDULENT, FRAUDULENT)]),
        (FRAUDULENT, 3, [(FRAUDULENT, FRAUDULENT, FRAUDULENT)]),
        (None, 3, [(FRAUDULENT, ACCEPT, FRAUDULENT)]),
        (None, 3, [(FRAUDULENT, FRAUDULENT, ACCEPT), (FRAUDULENT,)]),
        (FRAUDULENT, 3, [(FRAUDULENT, FRAUDULENT, ACCEPT), (FRAUDULENT, FRAUDULENT)]),
        (None, 3, [(FRAUDULENT, FRAUDULENT, ACCEPT), (FRAUDULENT, INVALID, FRAUDULENT)]),
        (None, 3, [(FRAUDULENT, ACCEPT, INVALID)]),
        (None, 3, [(INVALID, INVALID)]),
        (None, 3, [(INVALID, INVALID, INVALID)]),
        (INVALID, 3, [(INVALID, INVALID, INVALID), (INVALID, INVALID)]),
        (None, 3, [(INVALID, ACCEPT, INVALID)]),
        (None, 3, [(INVALID, ACCEPT, INVALID), (INVALID, INVALID)]),
        (INVALID, 3, [(INVALID, ACCEPT, INVALID), (INVALID, INVALID, INVALID), (INVALID,)]),
        (ACCEPT, 1, [(ACCEPT,)]),
        (INVALID, 1, [(INVALID,)]),
        (None, 2, [(ACCEPT, ACCEPT)]),
        (ACCEPT, 2, [(ACCEPT, ACCEPT), (ACCEPT,)]),
        (None, 2, [(INVALID,)]),
        (None, 2, [(INVALID, FRAUDULENT)]),
        (None, 4, [(FRAUDULENT, FRAUDULENT)]),
        (None, 4, [(FRAUDULENT, FRAUDULENT, FRAUDULENT)]),
        (FRAUDULENT, 4, [(FRAUDULENT, FRAUDULENT, FRAUDULENT, FRAUDULENT)]),
        (FRAUDULENT, 1, [(FRAUDULENT,)]),
    ],
)
def test_a_decision_leads_all_others_by_a_quorum_and_an_acceptance_by_two_less_one(
    expected: Outcome | None, quorum: int, votes: list[tuple[Outcome, ...]]
) -> None:
    assert decide_outcome(rounds(*votes), quorum, PROTOCOL_VERSION) is expected


@pytest.mark.parametrize("rules", [1, 2, INVALID_BY_TWO_QUORUMS])
def test_logs_of_older_rules_keep_the_lead_of_a_quorum_for_an_invalid_file(rules: int) -> None:
    votes = rounds((INVALID, INVALID, INVALID))
    assert decide_outcome(votes, 3, rules) is (None if rules == INVALID_BY_TWO_QUORUMS else INVALID)


def test_whatever_one_round_says_a_decision_stands_when_the_rest_of_it_speaks() -> None:
    for votes in product(Outcome, repeat=3):
        early = [decide_outcome(rounds(votes[:count]), 3, PROTOCOL_VERSION) for count in range(4)]
        decided = [outcome for outcome in early if outcome is not None]
        assert len(set(decided)) <= 1
        assert early[-1] is not None or not decided


def test_the_audit_rate_falls_with_the_good_name_and_not_below_the_floor() -> None:
    terms = replace(TERMS, audit_probation=9, audit_floor=300)
    rates = [compute_audit_rate_bps(streak, terms) for streak in range(2000)]
    assert rates[:10] == [BASIS_POINTS] * 10
    assert rates[19] == BASIS_POINTS // 2
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == 300
    assert compute_audit_rate_bps(0, replace(terms, audit_probation=0)) == BASIS_POINTS


SOMEBODY = (NodeId(bytes(20)),)


def draw_of(world: World, name: Digest, **changes: Any) -> e.AuditDrawn:
    """The right draw, and what is wrong about it; the head must be there."""
    twin = world.fork()
    twin.draw(name)
    head = world.submission(name).randomness
    drawn = tuple(twin.submission(name).rounds[-1].validators)
    honest = e.AuditDrawn(submission=name, round=0, randomness_round=head[0] if head else 0, validators=drawn)
    return replace(honest, **changes)


def test_a_draw_comes_from_the_round_that_the_first_head_after_the_submission_fixes(world: World) -> None:
    name = world.submit(world.lease("ann"))
    with world.refuses("randomness_round"):
        world.coordinate(e.AuditDrawn(submission=name, round=0, randomness_round=1, validators=SOMEBODY))
    world.coordinate(e.HeadNoted(root=world.state.frontier.root()))
    (first,) = world.state.pending_rounds
    assert world.submission(name).randomness is None, "the round is not out yet"
    world.record_round()
    world.wait(5_000)
    world.note_head()
    for number in (0, first - 1, first + 1):
        with world.refuses("randomness_round"):
            world.coordinate(draw_of(world, name, randomness_round=number))
    assert draw_of(world, name).randomness_round == first
    world.coordinate(draw_of(world, name))


def test_a_draw_is_what_the_head_gives(world: World) -> None:
    name = world.submit(world.lease("ann"))
    world.note_head()
    good = draw_of(world, name)
    wrong = [good.validators[:2], good.validators[::-1], (*good.validators, world.id("ann"))]
    for validators in wrong:
        with world.refuses("validators"):
            world.coordinate(replace(good, validators=validators))
    with world.refuses("submission"):
        world.coordinate(replace(good, submission=digest("nothing")))
    with world.refuses("round"):
        world.coordinate(replace(good, round=1))
    world.coordinate(good)
    with world.refuses("round"):
        world.coordinate(good)


def test_validators_are_of_different_owners_and_not_of_the_workers() -> None:
    world = World.started(workers=[], validators=0)
    world.join("work", Role.WORKER, owner="owner")
    for owner in ("owner", "one", "two", "three"):
        for number in range(2):
            world.join(f"{owner}-{number}", Role.VALIDATOR, owner=owner)
    for slot in range(8):
        drawn = world.draw(world.submit(world.lease("work", slot)))
        owners = sorted(name.split("-")[0] for name in drawn)
        assert owners == ["one", "three", "two"]


def test_a_next_round_is_due_when_the_last_is_stuck(world: World) -> None:
    name = world.submit(world.lease("ann"))
    world.judge(name, ACCEPT, FRAUDULENT)
    world.note_head()
    again = draw_of_next(world, name)
    with world.refuses("round"):
        world.coordinate(again)  # one verdict may still come
    world.wait(TERMS.verdict_ms)
    world.coordinate(again)


@pytest.mark.parametrize("tokens", [2, 64])
def test_validators_have_time_for_every_token_of_a_file(tokens: int) -> None:
    world = World.started(read_us_per_token=100_000)
    name = world.submit(world.lease("ann"), tokens)
    terms = world.run.get_terms(world.submission(name))
    prompts = TERMS.samples_per_slot * TERMS.prompt_tokens_max
    row = TERMS.prompt_tokens_max + TERMS.output_tokens_max
    verdict_ms = compute_verdict_ms(terms, world.submission(name))
    assert verdict_ms == TERMS.verdict_ms + 100 * (prompts + tokens + row)
    world.draw(name)
    assert world.submission(name).rounds[0].deadline_ms == world.now_ms + verdict_ms
    for wait_ms, is_over in ((verdict_ms - 1, False), (1, True)):
        world.wait(wait_ms)
        assert needs_new_round(world.state, world.submission(name).rounds, terms, world.now_ms) == is_over


def draw_of_next(world: World, name: Digest) -> e.AuditDrawn:
    """A draw of the second round with the right head; the validators are checked last."""
    head = world.submission(name).randomness
    assert head is not None
    world.wait(TERMS.verdict_ms)
    try:
        return draw_of(world, name, round=1, randomness_round=head[0])
    finally:
        world.wait(-TERMS.verdict_ms)


def test_no_round_is_drawn_after_a_decision_or_for_what_was_not_drawn() -> None:
    world = World.started(audit_probation=0)
    lucky = world.not_drawn("ann")
    world.note_head()
    assert world.submission(lucky).randomness is None, "it waits for no further round"
    world.wait(TERMS.verdict_ms)
    with world.refuses("submission"):
        world.coordinate(e.AuditDrawn(submission=lucky, round=1, randomness_round=0, validators=SOMEBODY))
    name = world.submit(world.lease("bob", 7))
    world.agree(name, ACCEPT)
    world.note_head()
    head = world.submission(name).randomness
    assert head is not None
    with world.refuses("round"):
        world.coordinate(e.AuditDrawn(submission=name, round=2, randomness_round=head[0], validators=SOMEBODY))
    world.settle(name)
    with world.refuses("submission"):
        world.coordinate(e.AuditDrawn(submission=name, round=2, randomness_round=head[0], validators=SOMEBODY))


def test_no_round_is_drawn_for_a_slash_that_nobody_appealed(world: World) -> None:
    name = world.convicted("ann")
    with world.refuses("submission"):
        world.coordinate(e.AuditDrawn(submission=name, round=1, randomness_round=0, validators=SOMEBODY))


def test_the_chance_is_asked_once_and_every_later_round_has_a_full_quorum() -> None:
    world = World.started(audit_probation=0, quorum=1, slots_per_step=30)
    for slot in range(30):
        name = world.submit(world.lease("ann", slot))
        if world.draw(name):
            world.wait(TERMS.verdict_ms)
            assert len(world.judge(name, ACCEPT)) == 1
            world.settle(name)
        world.wait(1)
    assert world.run.records[world.id("ann")].streak == 30


def test_the_next_round_is_drawn_from_randomness_of_its_own(world: World) -> None:
    name = world.submit(world.lease("ann"))
    world.note_head()
    first = world.submission(name).randomness
    assert first is not None
    world.coordinate(draw_of(world, name))
    assert world.submission(name).randomness is None, "that of the first draw is used up"
    world.wait(TERMS.verdict_ms)
    with world.refuses("randomness_round"):
        world.coordinate(e.AuditDrawn(submission=name, round=1, randomness_round=first[0], validators=SOMEBODY))
    world.note_head()
    second = world.submission(name).randomness
    assert second is not None
    assert second[0] > first[0]


def test_the_draw_of_an_appeal_needs_a_head_noted_after_it(world: World) -> None:
    name = world.convicted("ann")
    world.note_head()
    old = world.submission(name).randomness
    assert old is not None
    world.appeal("ann", name)
    with world.refuses("randomness_round"):
        world.coordinate(e.AuditDrawn(submission=name, round=1, randomness_round=old[0], validators=SOMEBODY))
    world.draw(name)


def test_the_number_of_rounds_has_an_end() -> None:
    world = World.started(workers=["ann"], validators=0, quorum=1)
    for number in range(ROUNDS_MAX + 1):
        world.join(f"v{number}", Role.VALIDATOR)
    name = world.submit(world.lease("ann"))
    for _ in range(ROUNDS_MAX):
        world.draw(name)
        world.wait(TERMS.verdict_ms)
    world.note_head()
    head = world.submission(name).randomness
    assert head is not None
    with world.refuses("round"):
        world.coordinate(e.AuditDrawn(submission=name, round=ROUNDS_MAX, randomness_round=head[0], validators=SOMEBODY))
    assert world.settle(name) is INVALID


def test_a_verdict_is_of_a_drawn_validator_once_and_signed(world: World) -> None:
    name = world.submit(world.lease("ann"))
    with world.refuses("sender"):
        world.write("val-0", world.opinion("val-0", name, ACCEPT))  # nobody is drawn yet
    drawn = world.draw(name)
    judge = drawn[0]
    idle = next(each for each in world.keys if each.startswith("val") and each not in drawn)
    with world.refuses("sender"):
        world.write(idle, world.opinion(idle, name, ACCEPT))
    with world.refuses("submission"):
        world.write(judge, world.opinion(judge, digest("nothing"), ACCEPT))
    good, other = world.opinion(judge, name, ACCEPT), world.opinion(drawn[1], name, ACCEPT)
    unsigned = replace(other, signature=world.sign(idle, other.receipt))
    world.commit(good, unsigned)
    with world.refuses("VerdictReceipt.signature"):
        world.write(drawn[1], unsigned)
    world.write(judge, good)
    with world.refuses("sender"):
        world.write(judge, world.opinion(judge, name, FRAUDULENT))


@pytest.mark.parametrize("changes", [{"network": NetworkId("other")}, {"run": RunId("other")}, {"validator": "idle"}])
def test_a_verdict_is_for_this_network_run_and_validator(world: World, changes: dict[str, Any]) -> None:
    name = world.submit(world.lease("ann"))
    judge = world.draw(name)[0]
    if "validator" in changes:
        changes = {"validator": world.id("idle")}
    with world.refuses("receipt.validator"):
        world.write(judge, world.opinion(judge, name, ACCEPT, **changes))


def test_the_outcome_of_a_verdict_is_its_receipts(world: World) -> None:
    name = world.submit(world.lease("ann"))
    judge = world.draw(name)[0]
    good = world.opinion(judge, name, ACCEPT)
    object.__setattr__(good, "outcome", FRAUDULENT)
    with world.refuses("VerdictGiven.outcome"):
        world.write(judge, good)


def test_a_verdict_comes_before_the_settlement_and_in_the_latest_round(world: World) -> None:
    name = world.submit(world.lease("ann"))
    first = world.draw(name)
    world.wait(TERMS.verdict_ms)
    second = world.judge(name, FRAUDULENT, FRAUDULENT, FRAUDULENT)
    with world.refuses("sender"):
        world.write(first[0], world.opinion(first[0], name, ACCEPT))
    world.settle(name)
    late = world.opinion(second[2], name, ACCEPT)
    with world.refuses("receipt.submission"):
        world.write(second[2], late)
    world.propose(name)
    world.appeal("ann", name)
    with world.refuses("receipt.submission"):
        world.write(second[2], late)  # the appeal is for others to judge
    world.coordinate(e.HeadNoted(root=world.state.frontier.root()))


def test_a_settlement_is_what_the_verdicts_give(world: World) -> None:
    name = world.submit(world.lease("ann"))
    for outcome in Outcome:
        with world.refuses("settled[0].outcome"):
            world.coordinate(make_settled(name, outcome))
    world.judge(name, ACCEPT, ACCEPT, ACCEPT)
    first, other = (world.opinion(validator, name, ACCEPT) for validator in world.draw(name)[:2])
    world.commit(first, other)
    world.write(world.names[first.receipt.validator], first)
    for outcome in Outcome:
        with world.refuses("settled[0].outcome"):
            world.coordinate(make_settled(name, outcome))
    world.write(world.names[other.receipt.validator], other)
    for outcome in (INVALID, FRAUDULENT):
        with world.refuses("settled[0].outcome"):
            world.coordinate(make_settled(name, outcome))
    world.coordinate(make_settled(name, ACCEPT))
    with world.refuses("settled[0].submission"):
        world.coordinate(make_settled(name, ACCEPT))
    with world.refuses("settled[0].submission"):
        world.coordinate(make_settled(digest("nothing"), ACCEPT))


def test_a_rejected_submission_ends_the_good_name(world: World) -> None:
    world.settled("ann", ACCEPT, 0)
    world.settled("ann", INVALID, 1)
    assert world.state.nodes[world.id("ann")].settled == {ACCEPT: 1, INVALID: 1}
    assert world.run.records[world.id("ann")].streak == 0


def test_only_a_verdict_against_the_judgement_is_scored() -> None:
    world = World.started(validators=8)
    name = world.submit(world.lease("ann"))
    drawn = world.judge(name, ACCEPT, ACCEPT, INVALID)
    world.judge(name, ACCEPT, ACCEPT, ACCEPT)
    accused = e.ValidatorScored(validator=world.id(drawn[2]), submission=name)
    with world.refuses("submission"):
        world.coordinate(accused)
    world.settle(name)
    for other in (drawn[0], "stranger"):
        with world.refuses("validator"):
            world.coordinate(replace(accused, validator=world.id(other)))
    world.coordinate(accused)
    with world.refuses("validator"):
        world.coordinate(accused)


def test_who_spoke_for_a_cheater_is_scored_when_the_slash_is_executed(world: World) -> None:
    name = world.submit(world.lease("ann"))
    drawn = world.judge(name, FRAUDULENT, FRAUDULENT, ACCEPT)
    world.judge(name, FRAUDULENT, FRAUDULENT)
    world.settle(name)
    world.propose(name)
    world.wait(TERMS.appeal_ms)
    world.execute(name)
    world.coordinate(e.ValidatorScored(validator=world.id(drawn[2]), submission=name))
    assert world.state.nodes[world.id(drawn[2])].faults == 1


def test_a_slash_needs_a_hard_outcome_evidence_and_the_right_amount(world: World) -> None:
    name = world.submit(world.lease("ann"))
    drawn = world.judge(name, FRAUDULENT, ACCEPT, FRAUDULENT)
    world.judge(name, FRAUDULENT, FRAUDULENT, FRAUDULENT)
    evidence = digest(f"evidence of {drawn[0]}")
    good = e.SlashProposed(submission=name, amount_nano=SLASH, evidence=evidence)
    with world.refuses("submission"):
        world.coordinate(good)
    world.settle(name)
    with world.refuses("evidence"):
        world.coordinate(replace(good, evidence=digest(f"evidence of {drawn[1]}")))
    for amount_nano in (0, SLASH - 1, SLASH + 1):
        with world.refuses("amount_nano"):
            world.coordinate(replace(good, amount_nano=amount_nano))
    world.coordinate(good)
    with world.refuses("submission"):
        world.coordinate(good)
    mild = world.settled("bob", INVALID, 1)
    with world.refuses("submission"):
        world.coordinate(replace(good, submission=mild))


def test_a_slash_takes_no_more_than_there_is(world: World) -> None:
    names = [world.settled("ann", FRAUDULENT, slot) for slot in range(1)]
    leases = [world.lease("ann", 1), world.lease("ann", 2)]
    for lease in leases:
        name = world.submit(lease)
        world.judge(name, FRAUDULENT, FRAUDULENT, FRAUDULENT)
        world.settle(name)
        names.append(name)
    for name in names:
        world.propose(name)
    held = [world.state.funds.escrow[name].amount_nano for name in names]
    assert held == [SLASH, STAKE - SLASH, 0]


def test_an_appeal_needs_a_slash_and_its_bond(world: World) -> None:
    with world.refuses("submission"):
        world.appeal("ann", digest("nothing"))
    name = world.convicted("ann")
    world.appeal("ann", name)
    assert world.state.funds.escrow[name].bond_nano == BOND
    assert world.balance("ann") == 0


@pytest.mark.parametrize("left_nano", [STAKE - SLASH, BOND - 1, 0])
def test_an_owner_without_balance_appeals_with_the_stake_that_it_has(world: World, left_nano: int) -> None:
    name = world.convicted("ann")
    world.write("ann", e.Withdrawn(amount_nano=1))
    if left_nano < STAKE - SLASH:
        world.state.funds.forfeit_stake((world.id("ann"),) * 2, STAKE - SLASH - left_nano, pool=None)
    world.appeal("ann", name)
    bond_nano = min(BOND, left_nano)
    assert world.state.funds.escrow[name] == Escrow((world.id("ann"),) * 2, SLASH + bond_nano)
    assert (world.stake_of("ann"), world.balance("ann")) == (left_nano - bond_nano, BOND - 1)
    world.agree(name, ACCEPT)
    world.overturn(name)
    assert (world.stake_of("ann"), world.balance("ann")) == (SLASH + left_nano, BOND - 1), "it comes back as stake"


def test_an_appeal_without_a_bond_is_free() -> None:
    world = World.started(appeal_bond_nano=0)
    name = world.convicted("ann")
    world.appeal("ann", name)
    assert world.balance("ann") == BOND


def test_what_was_not_appealed_is_not_overturned(world: World) -> None:
    name = world.convicted("ann")
    world.wait(TERMS.appeal_ms + TERMS.long_stop_ms)
    with world.refuses("submission"):
        world.overturn(name)
    world.execute(name)
    for act in (world.overturn, world.execute):
        with world.refuses("submission"):
            act(name)


def test_a_validator_whose_stake_is_in_escrow_is_not_drawn(world: World) -> None:
    world.join("both", Role.VALIDATOR, Role.WORKER)
    name = world.convicted("both")
    assert world.id("both") not in world.run.validators
    world.appeal("both", name)
    world.agree(name, ACCEPT)
    world.overturn(name)
    assert world.id("both") in world.run.validators


def test_an_unbonded_stake_taken_back_from_escrow_stands_behind_the_node_again(world: World) -> None:
    world.write("ann", e.Unbonded(node=world.id("ann"), amount_nano=1))
    world.deposit("ann", 1)
    world.stake("ann", "ann", 1)
    name = world.submit(world.lease("ann"))
    world.write("ann", e.Unbonded(node=world.id("ann"), amount_nano=STAKE))
    world.judge(name, FRAUDULENT, FRAUDULENT, FRAUDULENT)
    world.settle(name)
    world.propose(name)
    world.appeal("ann", name)
    world.agree(name, ACCEPT)
    world.overturn(name)
    assert world.stake_of("ann") == SLASH
    assert world.state.funds.slashable_nano((world.id("ann"), world.id("ann"))) == STAKE + 1
    assert world.run.steps[Step(0)].pending == 0


def test_one_quorum_that_agrees_on_invalid_is_the_last_word_where_no_other_is_left_and_is_paid() -> None:
    world = World.started(validators=TERMS.quorum)
    name = world.submit(world.lease("ann"))
    world.judge(name, *[INVALID] * TERMS.quorum)
    assert tally_outcome(world.state, world.run, name, world.now_ms) is INVALID
    assert world.settle(name) is INVALID
    assert world.submission(name).judged is INVALID
