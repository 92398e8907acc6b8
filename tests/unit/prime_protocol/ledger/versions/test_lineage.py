"""A checkpoint's list of submissions: any length, in order, each once, under one root."""

from dataclasses import replace

import pytest

from prime_protocol.constants import LINEAGE_MAX, LINEAGE_PAUSE_MS
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome, RunStatus
from prime_protocol.ledger.entry_index import list_subjects
from prime_protocol.ledger.versions.lineage import compute_lineage_root, make_checkpoint_entries
from prime_protocol.log.merkle import EMPTY_ROOT, MerkleTree, build_inclusion_proof, compute_leaf_hash, verify_inclusion
from prime_protocol.wire.ids import Digest, Step
from support.ledger_network import World, digest


def make_names(world: World, count: int = 3) -> list[Digest]:
    """Accepted submissions, in rising order."""
    names = [world.settled("ann", Outcome.ACCEPT, slot) for slot in range(count)]
    return sorted(names)


@pytest.fixture
def world() -> World:
    return World.started()


def listed(first: int, *names: Digest, step: int = 1) -> e.SubmissionsListed:
    return e.SubmissionsListed(step=Step(step), first=first, submissions=names)


def checkpoint(names: list[Digest], inline: tuple[Digest, ...]) -> e.CheckpointPublished:
    _, whole = make_checkpoint_entries(names, step=Step(1), root=digest("r"), manifest=digest("m"))
    return replace(whole, trained_on=inline)


def test_a_list_of_any_length_is_cut_into_entries() -> None:
    for count, parts in ((0, 0), (1, 0), (LINEAGE_MAX, 0), (LINEAGE_MAX + 1, 1), (2 * LINEAGE_MAX + 1, 2)):
        names = [digest(str(number)) for number in range(count)]
        ahead, last = make_checkpoint_entries(names, step=Step(1), root=digest("r"), manifest=digest("m"))
        told = [name for part in ahead for name in part.submissions] + list(last.trained_on)
        assert (len(ahead), told, last.trained_on_count) == (parts, sorted(names), count)
        assert [part.first for part in ahead] == [LINEAGE_MAX * number for number in range(parts)]


def test_the_root_is_that_of_a_log_of_the_names() -> None:
    names = sorted(digest(str(number)) for number in range(5))
    tree = MerkleTree(map(compute_leaf_hash, names))
    root = compute_lineage_root(names)
    proof = build_inclusion_proof(3, 5, tree.get_node)
    verify_inclusion(compute_leaf_hash(names[3]), proof, index=3, size=5, root=root)
    assert compute_lineage_root([]) == EMPTY_ROOT


def test_parts_and_rest_are_trained_on_as_one_list(world: World) -> None:
    names = make_names(world)
    world.write("trainer", listed(0, names[0]))
    world.write("trainer", listed(1, names[1]))
    assert [world.submission(name).trained_into for name in names] == [1, 1, None]
    world.write("trainer", checkpoint(names, (names[2],)))
    assert [world.submission(name).trained_into for name in names] == [1, 1, 1]
    assert world.run.lineage is None
    assert list_subjects(None, listed(1, names[1])) == [str(names[1])]


def test_a_list_has_its_order_length_and_root(world: World) -> None:
    names = make_names(world)
    for field, entry in (
        ("trained_on[1]", replace(checkpoint(names, tuple(names)), trained_on=(names[1], names[0], names[2]))),
        ("trained_on", replace(checkpoint(names, tuple(names)), trained_on=(names[0], names[0], names[2]))),
        ("trained_on_count", checkpoint(names, tuple(names[1:]))),
        ("trained_on_root", replace(checkpoint(names, tuple(names)), trained_on_root=digest("another"))),
    ):
        with world.refuses(field):
            world.write("trainer", entry)
    world.write("trainer", listed(0, names[1]))
    with world.refuses("trained_on[0]"):
        world.write("trainer", checkpoint(names, (names[0], names[2])))


def test_a_part_continues_the_list_of_the_next_step(world: World) -> None:
    names = make_names(world)
    for field, entry in (
        ("step", listed(0, names[0], step=2)),
        ("first", listed(1, names[0])),
        ("submissions[1]", listed(0, names[1], names[0])),
        ("submissions[0]", listed(0, digest("not accepted"))),
    ):
        with world.refuses(field):
            world.write("trainer", entry)
    world.write("trainer", listed(0, names[1]))
    with world.refuses("submissions[0]"):
        world.write("trainer", listed(1, names[0]))
    with world.refuses("sender"):
        world.write("ann", listed(1, names[2]))


def test_a_list_may_begin_again_after_a_pause_and_frees_what_it_had(world: World) -> None:
    names = make_names(world)
    world.write("trainer", listed(0, names[0], names[1]))
    with world.refuses("first"):
        world.write("trainer", listed(0, names[1]))
    world.wait(LINEAGE_PAUSE_MS)
    world.write("trainer", listed(0, names[1]))
    assert [world.submission(name).trained_into for name in names] == [None, 1, None]
    world.write("trainer", checkpoint(names[1:], (names[2],)))


def test_a_submission_of_an_earlier_checkpoint_is_not_listed_again(world: World) -> None:
    names = make_names(world)
    world.publish(names[0])
    with world.refuses("submissions[0]"):
        world.write("trainer", listed(0, names[0], step=2))


def test_a_closed_run_lists_nothing(world: World) -> None:
    names = make_names(world)
    world.set_run(RunStatus.CLOSED)
    with world.refuses("run"):
        world.write("trainer", listed(0, names[0]))
