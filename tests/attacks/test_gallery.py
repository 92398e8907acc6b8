"""The gallery as a list: every attack has a program, and every program stands in the list."""

from prime_attacks.bent_files import MAKERS
from prime_attacks.gallery import (
    ALL,
    BOOKS,
    COORDINATORS,
    ENGINES,
    FILES,
    GROUND,
    PROGRAMS,
    RELAYS,
    ROWS,
    VALIDATORS,
    WORKERS,
    Outcome,
    Verdict,
)
from prime_attacks.histories import BENT
from prime_attacks.networks import WORLDS
from prime_attacks.programs import ATTACKS
from prime_attacks.relays import LIES
from prime_attacks.table import Tally, describe
from prime_devnet.cheats import CHEATS, PROOF_CHEATS


def test_every_attack_has_a_program_and_no_program_is_left_out() -> None:
    assert {attack.name for attack in (*ROWS, *FILES)} == MAKERS.keys()
    # A node that never takes new weights is an older checkpoint after one step; it needs a run that goes on.
    assert {attack.name for attack in ENGINES} == CHEATS.keys() - {"stale-weights"} - PROOF_CHEATS.keys()
    assert {attack.name for attack in ROWS} > PROOF_CHEATS.keys()
    assert {attack.name for attack in PROGRAMS} == ATTACKS.keys()
    assert {attack.name for attack in (*BOOKS, *VALIDATORS)} == WORLDS.keys()
    assert {attack.name for attack in RELAYS} == LIES.keys()
    assert {attack.name for attack in COORDINATORS} == BENT.keys()
    assert len({attack.name for attack in ALL}) == len(ALL) == 91


def test_what_nothing_shows_is_said_and_is_missed_only_where_it_is_not_as_listed() -> None:
    unseen = Outcome(verdict=Verdict.UNSEEN, checks=(), reason="spared in try 2")
    lines = list(describe(Tally(tries=[(GROUND, unseen)])))
    assert "NOT CAUGHT, as docs/verification.md says first: ground-draw: spared in try 2" in lines
    assert lines[-1] == "RESULT attacks=1 missed=0 false_rejects=0 honest_chunks=0"
    for other in (
        Outcome(verdict=None, checks=(), reason="no draw suited"),
        Outcome(verdict=Verdict.SHOWN, checks=("replay",), reason="seen"),
    ):
        assert Tally(tries=[(GROUND, other)]).missed == ["ground-draw"]
    assert Tally(tries=[(COORDINATORS[0], unseen)]).missed == [COORDINATORS[0].name]


def test_an_attack_is_caught_by_the_right_verdict_from_the_right_check_only() -> None:
    attack = WORKERS[0]
    right = Outcome(verdict=Verdict.HARD, checks=attack.caught_by[:1], reason="seen")
    assert right.is_as_listed(attack)
    for wrong in (
        Outcome(verdict=None, checks=(), reason=""),
        Outcome(verdict=Verdict.HARD, checks=("termination",), reason="by luck"),
        Outcome(verdict=Verdict.REFUSED, checks=attack.caught_by, reason="by another check"),
    ):
        assert not wrong.is_as_listed(attack)
        assert list(describe(Tally(tries=[(attack, right), (attack, wrong)], honest_chunks=7)))[-1] == (
            "RESULT attacks=1 missed=1 false_rejects=0 honest_chunks=7"
        )
