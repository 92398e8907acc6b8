"""A schedule is the same for the same seed, and leaves no kind of fault out."""

from itertools import islice

import pytest

from chaos.schedule import ONCE, RULES, Ability, Arena, Kind, draw_faults, first_faults

ALL = frozenset(Ability)
REPEATED = frozenset(Kind) - ONCE


def arena(*abilities: Ability) -> Arena:
    return Arena(workers=2, validators=2, abilities=frozenset(abilities))


def test_the_same_seed_gives_the_same_faults_and_another_one_others() -> None:
    everything = Arena(workers=2, validators=2, abilities=ALL)
    assert first_faults(7, everything, 60) == first_faults(7, everything, 60)
    assert first_faults(7, everything, 60) != first_faults(8, everything, 60)


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_comes_before_any_comes_twice(seed: int) -> None:
    everything = Arena(workers=2, validators=2, abilities=ALL)
    first = list(islice(draw_faults(seed, everything), len(Kind)))
    assert {fault.kind for fault in first} == set(Kind)
    for turn in range(2):
        start = len(Kind) + turn * len(REPEATED)
        drawn = list(islice(draw_faults(seed, everything), start, start + len(REPEATED)))
        assert {fault.kind for fault in drawn} == REPEATED


def test_a_lost_disk_alone_comes_once() -> None:
    only = Arena(workers=2, validators=2, abilities=ALL, only=ONCE)
    assert [fault.kind for fault in draw_faults(1, only)] == [Kind.DISK_LOST]


def test_what_the_machine_cannot_do_is_never_drawn() -> None:
    kinds = {fault.kind for fault in first_faults(1, arena(Ability.FILES), 100)}
    assert kinds == {kind for kind in Kind if RULES[kind].needs in (None, Ability.FILES)}
    assert Kind.PARTITION not in kinds


def test_faults_hit_only_those_who_are_there_and_keep_to_their_rule() -> None:
    everything = Arena(workers=2, validators=1, abilities=ALL)
    for fault in first_faults(3, everything, 500):
        rule = RULES[fault.kind]
        assert fault.party in everything.parties(rule.parties)
        assert fault.party in everything.parties("all")
        assert rule.lasts_s[0] <= fault.lasts_s <= rule.lasts_s[1]
        assert rule.size[0] <= fault.size <= rule.size[1]
