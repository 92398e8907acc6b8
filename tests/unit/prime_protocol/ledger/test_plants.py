"""Planted files: sealed before they were made, opened when the validators have spoken."""

import pytest

from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.plants import plant_seal
from support.ledger_network import TERMS, World, digest

ACCEPT, SOFT, HARD = Outcome.ACCEPT, Outcome.INVALID, Outcome.FRAUDULENT


@pytest.fixture
def world() -> World:
    return World.started()


def test_a_seal_says_nothing_but_opens_to_one_outcome_only() -> None:
    seals = {plant_seal(digest(salt), outcome) for salt in ("a", "b") for outcome in Outcome}
    assert len(seals) == 6
    assert e.NO_SEAL not in seals


def test_a_planted_file_is_nobodys_work_whatever_was_found(world: World) -> None:
    name = world.planted("ann", ACCEPT)
    world.judge(name, ACCEPT, ACCEPT, ACCEPT)
    world.reveal(name, ACCEPT)
    with world.refuses("outcome"):
        world.coordinate(e.Settled(submission=name, outcome=ACCEPT))
    assert world.settle(name) is SOFT
    world.lease("bob", 0)  # the slots are free again


def test_validators_are_paid_and_scored_by_the_truth_and_not_by_their_majority(world: World) -> None:
    name = world.planted("ann", HARD)
    drawn = world.judge(name, ACCEPT, ACCEPT, HARD)
    world.reveal(name, HARD)
    world.settle(name)
    assert world.submission(name).judged is HARD
    right = world.id(drawn[2])
    assert world.run.steps[world.submission(name).step].upheld == {(right, right): 1}
    for fooled in drawn[:2]:
        world.coordinate(e.ValidatorScored(validator=world.id(fooled), submission=name))
    with world.refuses("validator"):
        world.coordinate(e.ValidatorScored(validator=right, submission=name))
    with world.refuses("submission"):
        world.coordinate(e.SlashProposed(submission=name, amount_nano=0, evidence=digest("evidence")))


def test_only_the_planted_worker_opens_its_own_seal(world: World) -> None:
    name = world.planted("ann", HARD)
    world.judge(name, ACCEPT, ACCEPT, ACCEPT)
    truth = e.PlantRevealed(submission=name, outcome=HARD, salt=digest("salt"))
    for author in ("coordinator", "bob", "stranger"):
        with world.refuses("sender"):
            world.write(author, truth)
    world.write("ann", truth)


def test_an_honest_file_cannot_be_called_planted_by_coordinator_or_worker(world: World) -> None:
    name = world.submit(world.lease("ann"))
    world.judge(name, HARD, HARD, HARD)
    for outcome in Outcome:
        with world.refuses("salt"):
            world.reveal(name, outcome)
    assert world.settle(name) is HARD


def test_the_truth_is_the_one_that_was_sealed(world: World) -> None:
    name = world.planted("ann", ACCEPT)
    world.judge(name, ACCEPT, ACCEPT, ACCEPT)
    for outcome in (SOFT, HARD):
        with world.refuses("salt"):
            world.reveal(name, outcome)


def test_the_truth_is_not_shown_while_somebody_may_still_speak(world: World) -> None:
    name = world.planted("ann", HARD)
    with world.refuses("submission"):
        world.reveal(name, HARD)
    drawn = world.judge(name, ACCEPT, ACCEPT)
    with world.refuses("submission"):
        world.reveal(name, HARD)
    world.wait(TERMS.verdict_ms)
    world.reveal(name, HARD)
    with world.refuses("receipt.submission"):
        world.write(drawn[2], world.opinion(drawn[2], name, HARD))
    with world.refuses("submission"):
        world.reveal(name, HARD)
    world.settle(name)
    with world.refuses("submission"):
        world.reveal(name, HARD)


def test_no_round_follows_the_truth(world: World) -> None:
    name = world.planted("ann", HARD)
    world.judge(name, ACCEPT, SOFT, HARD)
    world.reveal(name, HARD)
    world.note_head()
    head = world.submission(name).head
    assert head is not None
    with world.refuses("submission"):
        world.coordinate(e.AuditDrawn(submission=name, round=1, head_size=head[0], validators=()))


def test_a_planted_file_that_no_draw_falls_on_is_not_accepted_either() -> None:
    world = World.started(audit_probation=0, audit_floor=1, slots_per_step=64)
    world.state.nodes[world.id("ann")].streak = 10**6
    name = world.planted("ann", HARD)
    assert world.draw(name) == []
    world.reveal(name, HARD)
    assert world.settle(name) is SOFT
