"""Verdicts are committed before they are given, so none of a round can be copied from another of it."""

from dataclasses import replace

import pytest

from prime_protocol.constants import REVEAL_MS
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import needs_new_round
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.replay import Ledger
from prime_protocol.wire.ids import Digest
from support.ledger_network import NETWORK, TERMS, World, digest, make_commitment

ACCEPT, FRAUDULENT = Outcome.ACCEPT, Outcome.FRAUDULENT


@pytest.fixture
def world() -> World:
    return World.started()


def is_stuck(world: World, name: Digest) -> bool:
    submission = world.submission(name)
    return needs_new_round(world.state, submission.rounds, world.run.get_terms(submission), world.now_ms)


def test_no_verdict_of_a_round_can_be_read_before_the_last_is_committed(world: World) -> None:
    name = world.submit(world.lease("ann"))
    drawn = world.draw(name)
    verdicts = [world.opinion(validator, name, FRAUDULENT) for validator in drawn]
    for validator, verdict in zip(drawn, verdicts, strict=True):
        with world.refuses("commitment"):
            world.write(drawn[0], verdicts[0])
        world.write(validator, make_commitment(verdict))
    for validator, verdict in zip(drawn, verdicts, strict=True):
        world.write(validator, verdict)
    assert world.settle(name) is FRAUDULENT


def test_a_verdict_is_the_one_that_was_committed(world: World) -> None:
    name = world.submit(world.lease("ann"))
    drawn = world.draw(name)
    good = world.opinion(drawn[0], name, ACCEPT)
    world.commit(good)
    for other in (
        world.opinion(drawn[0], name, FRAUDULENT),
        replace(good, reason="other words"),
        replace(good, read_proof=world.looks(drawn[1], name)),
    ):
        with world.refuses("commitment"):
            world.write(drawn[0], other)
    world.write(drawn[0], good)


def test_a_copied_commitment_cannot_be_revealed(world: World) -> None:
    name = world.submit(world.lease("ann"))
    drawn = world.draw(name)
    good = world.opinion(drawn[0], name, ACCEPT)
    for validator in drawn:
        world.write(validator, make_commitment(good))
    with world.refuses("receipt.validator"):
        world.write(drawn[1], good)
    with world.refuses("commitment"):
        world.write(drawn[1], world.opinion(drawn[1], name, ACCEPT))


def test_a_commitment_is_of_a_drawn_validator_once_and_before_any_verdict_can_be_read(world: World) -> None:
    name = world.submit(world.lease("ann"))
    entry = e.VerdictCommitted(submission=name, commitment=digest("a verdict"))
    with world.refuses("sender"):
        world.write("val-0", entry)  # nobody is drawn yet
    drawn = world.draw(name)
    idle = next(each for each in world.keys if each.startswith("val") and each not in drawn)
    with world.refuses("sender"):
        world.write(idle, entry)
    with world.refuses("submission"):
        world.write(drawn[0], replace(entry, submission=digest("nothing")))
    verdict = world.opinion(drawn[0], name, ACCEPT)
    world.write(drawn[0], make_commitment(verdict))
    with world.refuses("sender"):
        world.write(drawn[0], entry)
    world.wait(TERMS.verdict_ms)
    world.write(drawn[1], entry)  # late, but there is nothing to copy yet
    world.write(drawn[0], verdict)
    with world.refuses("commitment"):
        world.write(drawn[2], entry)


def test_after_the_deadline_committed_verdicts_are_given_and_no_others(world: World) -> None:
    name = world.submit(world.lease("ann"))
    drawn = world.draw(name)
    first, second = (world.opinion(validator, name, ACCEPT) for validator in drawn[:2])
    world.write(drawn[0], make_commitment(first))
    world.write(drawn[1], make_commitment(second))
    world.wait(TERMS.verdict_ms - 1)
    with world.refuses("commitment"):
        world.write(drawn[0], first)
    world.wait(1)
    world.write(drawn[0], first)
    copied = world.opinion(drawn[2], name, ACCEPT)
    for entry in (copied, make_commitment(copied)):
        with world.refuses("commitment"):
            world.write(drawn[2], entry)
    assert not is_stuck(world, name), "one committed verdict may still come"
    world.write(drawn[1], second)
    assert is_stuck(world, name)


@pytest.mark.parametrize("is_complete", [True, False])
def test_a_round_waits_for_committed_verdicts_for_a_limited_time(world: World, is_complete: bool) -> None:
    name = world.submit(world.lease("ann"))
    drawn = world.draw(name)
    for validator in drawn[: 3 if is_complete else 2]:
        world.write(validator, make_commitment(world.opinion(validator, name, ACCEPT)))
    world.wait((0 if is_complete else TERMS.verdict_ms) + REVEAL_MS - 1)
    assert not is_stuck(world, name)
    world.wait(1)
    assert is_stuck(world, name)
    late = world.opinion(drawn[0], name, ACCEPT)
    world.write(drawn[0], late)
    assert world.submission(name).rounds[-1].verdicts == {world.id(drawn[0]): ACCEPT}


def test_a_single_validator_has_nobody_to_copy_from_and_commits_to_nothing() -> None:
    world = World.started(quorum=1)
    name = world.submit(world.lease("ann"))
    (validator,) = world.draw(name)
    verdict = world.opinion(validator, name, ACCEPT)
    with world.refuses("submission"):
        world.write(validator, make_commitment(verdict))
    world.write(validator, verdict)
    assert world.settle(name) is ACCEPT


def test_the_judges_of_an_appeal_commit_too(world: World) -> None:
    name = world.convicted("ann")
    settled = world.opinion("val-0", name, ACCEPT)
    with world.refuses("submission"):
        world.write("val-0", make_commitment(settled))
    world.appeal("ann", name)
    drawn = world.draw(name)
    verdicts = [world.opinion(validator, name, ACCEPT) for validator in drawn]
    with world.refuses("commitment"):
        world.write(drawn[0], verdicts[0])
    world.give(*verdicts)
    world.agree(name, ACCEPT)
    world.overturn(name)


def test_a_replay_finds_the_same_commitments(world: World) -> None:
    name = world.submit(world.lease("ann"))
    world.judge(name, ACCEPT, FRAUDULENT)
    again = Ledger(NETWORK)
    for leaf in world.leaves:
        again.apply(leaf)
    assert again.state == world.state
    assert len(world.submission(name).rounds[0].commitments) == TERMS.quorum
