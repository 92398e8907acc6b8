"""Entries that settle many submissions: each is checked as if it stood alone, and a false one refuses them all."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from prime_protocol.constants import LOG_ENTRY_BYTES_MAX, SETTLED_BYTES_MAX, SETTLED_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.audits import compute_draw
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.entry_index import list_subjects
from prime_protocol.ledger.replay import replay
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import Digest
from support.ledger_network import NETWORK, RUN, World, digest, make_settled

ACCEPT, INVALID, FRAUDULENT = Outcome.ACCEPT, Outcome.INVALID, Outcome.FRAUDULENT
WORKERS = tuple(f"worker-{number}" for number in range(12))


@pytest.fixture
def world() -> World:
    """One submission of each worker was accepted, so an audit falls on half of the next ones."""
    world = World.started(workers=WORKERS, audit_probation=0, quorum=1, slots_per_step=2 * len(WORKERS))
    for slot, worker in enumerate(WORKERS):
        world.settled(worker, ACCEPT, slot)
    return world


def submit_all(world: World) -> tuple[list[Digest], list[Digest]]:
    """A submission of each worker, all waiting for one draw: those that it spares, and those that it falls on."""
    names = [world.submit(world.lease(worker, len(WORKERS) + slot)) for slot, worker in enumerate(WORKERS)]
    world.note_head()
    drawn = [name for name in names if compute_draw(world.state, world.run, name, world.now_ms)]
    spared = [name for name in names if name not in drawn]
    assert len(spared) > 2
    assert drawn
    return spared, drawn


def make_shared(world: World, *names: Digest, **changes: Any) -> e.AcceptedUnaudited:
    randomness = world.submission(names[0]).randomness
    assert randomness is not None
    return replace(e.AcceptedUnaudited(randomness_round=randomness[0], submissions=names), **changes)


def sort_by_position(world: World, *names: Digest) -> list[Digest]:
    return sorted(names, key=lambda name: world.submission(name).position.index)


def test_one_entry_accepts_and_credits_all_that_the_draw_spares(world: World) -> None:
    spared, drawn = submit_all(world)
    entry = make_shared(world, *spared)
    world.coordinate(entry)
    assert entry.list_credited() == spared
    for name in spared:
        submission = world.submission(name)
        assert (submission.outcome, submission.judged, submission.credited) == (ACCEPT, None, True)
        assert world.run.records[submission.node].streak == 2
    assert all(world.submission(name).outcome is None for name in drawn)
    assert world.run.steps[0].pending == len(drawn)
    assert world.run.steps[0].credited == {
        slot
        for name in world.run.submissions
        for slot in world.submission(name).slots
        if world.submission(name).credited
    }
    assert replay(NETWORK, world.leaves).state == world.state


def test_a_drawn_submission_among_spared_ones_refuses_the_whole_entry_and_is_named(world: World) -> None:
    spared, drawn = submit_all(world)
    for smuggled in drawn:
        names = sort_by_position(world, *spared, smuggled)
        place = names.index(smuggled)
        with world.refuses(f"submissions[{place}]"):
            world.coordinate(make_shared(world, *names))


def test_what_shares_an_entry_waits_for_the_draw_of_its_round(world: World) -> None:
    spared, _ = submit_all(world)
    first, *others = spared
    number = make_shared(world, first).randomness_round
    with world.refuses("submissions[0]"):
        world.coordinate(make_shared(world, *spared, randomness_round=number + 1))
    world.coordinate(make_shared(world, first))
    with world.refuses("submissions[0]"):
        world.coordinate(make_shared(world, others[0], submissions=(first, *others)))
    world.coordinate(make_shared(world, *others))


def test_what_was_drawn_or_is_unknown_shares_no_entry(world: World) -> None:
    spared, drawn = submit_all(world)
    number = make_shared(world, spared[0]).randomness_round
    validators = compute_draw(world.state, world.run, drawn[0], world.now_ms) or ()
    world.coordinate(e.AuditDrawn(submission=drawn[0], round=0, randomness_round=number, validators=validators))
    with world.refuses("submissions[0]"):
        world.coordinate(make_shared(world, spared[0], submissions=(drawn[0],)))
    with world.refuses("submissions[1]"):
        world.coordinate(make_shared(world, spared[0], digest("nothing")))


def test_a_submission_without_a_draw_to_come_is_not_accepted_unaudited() -> None:
    world = World.started(validators=2)
    name = world.submit(world.lease("ann"))
    with world.refuses("submissions[0]"):
        world.coordinate(e.AcceptedUnaudited(randomness_round=1, submissions=(name,)))
    world.note_head()
    with world.refuses("submissions[0]"):  # too few validators for a quorum
        world.coordinate(make_shared(world, name))


def test_submissions_share_an_entry_in_the_order_of_the_log(world: World) -> None:
    first, second, *_ = submit_all(world)[0]
    for names in ((second, first), (first, first)):
        with world.refuses("submissions[1]"):
            world.coordinate(make_shared(world, *names))


def submit_rivals(world: World) -> tuple[World, Digest, Digest]:
    """Two answers to one slot that the draw spares, the earlier first."""
    for one, other in permutations(WORKERS, 2):
        twin = world.fork()
        slow = twin.lease(one, len(WORKERS))
        early = twin.submit(twin.lease(other, len(WORKERS), speculative=True))
        late = twin.submit(slow)
        twin.note_head()
        if not any(compute_draw(twin.state, twin.run, name, twin.now_ms) for name in (early, late)):
            return twin, early, late
    raise AssertionError("an audit fell on one of each pair; name the workers otherwise")


def test_of_two_answers_to_a_slot_the_earlier_is_credited(world: World) -> None:
    world, early, late = submit_rivals(world)
    for wrong in ((), (early,), (late, late)):
        with world.refuses(f"uncredited[{1 if len(wrong) == 2 else 0}]"):
            world.coordinate(make_shared(world, early, late, uncredited=wrong))
    entry = make_shared(world, early, late, uncredited=(late,))
    world.coordinate(entry)
    assert entry.list_credited() == [early]
    assert [world.submission(name).outcome for name in (early, late)] == [ACCEPT, ACCEPT]
    assert [world.submission(name).credited for name in (early, late)] == [True, False]
    assert not world.run.steps[0].held
    with world.refuses("submission"):
        world.credit(late)


def test_one_entry_settles_what_several_validators_decided() -> None:
    world = World.started()
    outcomes = (ACCEPT, INVALID, FRAUDULENT, ACCEPT)
    names = [world.submit(world.lease("ann", slot)) for slot in range(len(outcomes))]
    for name, outcome in zip(names, outcomes, strict=True):
        if name != names[-1]:
            world.agree(name, outcome)
    settled = [e.SubmissionOutcome(submission=name, outcome=found) for name, found in zip(names, outcomes, strict=True)]
    with world.refuses("settled[3].outcome"):  # its verdicts are still to come
        world.coordinate(e.Settled(settled=tuple(settled)))
    world.agree(names[-1], ACCEPT)
    with world.refuses("settled[1].submission"):
        world.coordinate(e.Settled(settled=tuple(settled[::-1])))
    with world.refuses("settled[2].outcome"):
        world.coordinate(e.Settled(settled=(*settled[:2], replace(settled[2], outcome=INVALID))))
    with world.refuses("uncredited[0]"):
        world.coordinate(e.Settled(settled=tuple(settled), uncredited=(names[1],)))
    entry = e.Settled(settled=tuple(settled))
    world.coordinate(entry)
    assert [world.submission(name).outcome for name in names] == list(outcomes)
    assert entry.list_credited() == [names[0], names[3]]
    assert [name for name in names if world.submission(name).credited] == entry.list_credited()
    assert replay(NETWORK, world.leaves).state == world.state


def test_the_largest_entry_that_settles_fits_the_log() -> None:
    names = tuple(digest(f"submission {number}") for number in range(SETTLED_MAX))
    settled = tuple(e.SubmissionOutcome(submission=name, outcome=FRAUDULENT) for name in names)
    largest = e.Settled(settled=settled, uncredited=names)
    assert len(encode(largest)) <= SETTLED_MAX * SETTLED_BYTES_MAX < LOG_ENTRY_BYTES_MAX
    with pytest.raises(RemoteError, match="exceeds max_array_len"):
        decode(e.Settled, encode(replace(largest, settled=(*settled, *settled[:1]))))
    with pytest.raises(RemoteError, match="allowed is 1 to 512"):
        decode(e.AcceptedUnaudited, encode(e.AcceptedUnaudited(randomness_round=1, submissions=())))


def test_an_entry_is_found_by_each_submission_in_it() -> None:
    names = [digest("one"), digest("two")]
    assert list_subjects(RUN, e.AcceptedUnaudited(randomness_round=1, submissions=tuple(names))) == [
        str(name) for name in names
    ]
    assert list_subjects(RUN, make_settled(names[0], ACCEPT)) == [str(names[0])]
