"""The gallery as a list: every attack has a program, and every program stands in the list."""

from dataclasses import replace
from pathlib import Path

from prime_lab.attacks.attack import AttackResult, AttackVerdict
from prime_lab.attacks.catalog import (
    ALL_ATTACKS,
    ANSWER_ATTACKS,
    COORDINATOR_ATTACKS,
    ENGINE_ATTACKS,
    FILE_ATTACKS,
    GOSSIP_ATTACKS,
    GROUND_DRAW,
    JUDGEMENT_ATTACKS,
    LEDGER_ATTACKS,
    PROGRAM_ATTACKS,
    RELAY_ATTACKS,
    ROW_ATTACKS,
    STEADY_ATTACKS,
    STRANGER_ATTACKS,
    VALIDATOR_ATTACKS,
    WORKER_ATTACKS,
)
from prime_lab.attacks.coordinator.forged_logs import FORGED_LOGS
from prime_lab.attacks.flood_attacks import FLOODS, GOSSIP_SCENARIOS, attack_gossip
from prime_lab.attacks.forged_files import FILE_FORGERS
from prime_lab.attacks.judgement_attacks import JUDGEMENT_SCENARIOS
from prime_lab.attacks.ledger_attacks import LEDGER_SCENARIOS
from prime_lab.attacks.relay_attacks import RELAY_BEHAVIORS
from prime_lab.attacks.retention_attacks import attack_retention
from prime_lab.attacks.sandbox_attacks import HOSTILE_PROGRAMS
from prime_lab.attacks.suite import SuiteSummary, describe_suite
from prime_lab.cheats.registry import CHEATS, PROOF_CHEATS


def test_every_attack_has_a_program_and_no_program_is_left_out() -> None:
    assert {attack.name for attack in (*ROW_ATTACKS, *FILE_ATTACKS)} == FILE_FORGERS.keys()
    # A node that never takes new weights is an older checkpoint after one step; it needs a run that goes on.
    engines = {attack.name for attack in (*ENGINE_ATTACKS, *ANSWER_ATTACKS, *STEADY_ATTACKS)}
    assert engines == CHEATS.keys() - {"stale-weights"} - PROOF_CHEATS.keys()
    assert {attack.name for attack in ROW_ATTACKS} > PROOF_CHEATS.keys()
    assert {attack.name for attack in PROGRAM_ATTACKS} == HOSTILE_PROGRAMS.keys()
    assert {attack.name for attack in (*LEDGER_ATTACKS, *VALIDATOR_ATTACKS)} == LEDGER_SCENARIOS.keys()
    assert {attack.name for attack in JUDGEMENT_ATTACKS} == JUDGEMENT_SCENARIOS.keys()
    assert {attack.name for attack in RELAY_ATTACKS} == RELAY_BEHAVIORS.keys()
    assert {attack.name for attack in COORDINATOR_ATTACKS} == FORGED_LOGS.keys()
    assert {attack.name for attack in STRANGER_ATTACKS} == FLOODS.keys()
    assert {attack.name for attack in GOSSIP_ATTACKS} == GOSSIP_SCENARIOS.keys()
    assert len({attack.name for attack in ALL_ATTACKS}) == len(ALL_ATTACKS) == 125


def test_free_keys_gain_nothing_against_gossip() -> None:
    for attack, outcome in attack_gossip():
        assert outcome.is_as_listed(attack), f"{attack.name}: {outcome.reason}"


def test_no_verdict_or_finding_makes_the_coordinator_delete_a_file_that_is_still_judged(tmp_path: Path) -> None:
    ((attack, outcome),) = attack_retention(tmp_path)
    assert outcome.is_as_listed(attack), outcome.reason


def test_what_nothing_shows_is_said_and_is_missed_only_where_it_is_not_as_listed() -> None:
    unseen = AttackResult(verdict=AttackVerdict.UNDETECTED, checks=(), reason="spared in try 2")
    listed = replace(GROUND_DRAW, verdict=AttackVerdict.UNDETECTED, caught_by=())
    lines = list(describe_suite(SuiteSummary(tries=[(listed, unseen)])))
    assert "NOT CAUGHT, as docs/verification.md says first: ground-draw: spared in try 2" in lines
    assert lines[-1] == "RESULT attacks=1 missed=0 false_rejects=0 honest_chunks=0"
    for other in (
        AttackResult(verdict=None, checks=(), reason="no draw suited"),
        AttackResult(verdict=AttackVerdict.PROVEN, checks=("replay",), reason="seen"),
    ):
        assert SuiteSummary(tries=[(listed, other)]).missed == ["ground-draw"]
    assert SuiteSummary(tries=[(COORDINATOR_ATTACKS[0], unseen)]).missed == [COORDINATOR_ATTACKS[0].name]


def test_an_attack_is_caught_by_the_right_verdict_from_the_right_check_only() -> None:
    attack = WORKER_ATTACKS[0]
    right = AttackResult(verdict=AttackVerdict.FRAUDULENT, checks=attack.caught_by[:1], reason="seen")
    assert right.is_as_listed(attack)
    for wrong in (
        AttackResult(verdict=None, checks=(), reason=""),
        AttackResult(verdict=AttackVerdict.FRAUDULENT, checks=("termination",), reason="by luck"),
        AttackResult(verdict=AttackVerdict.REFUSED, checks=attack.caught_by, reason="by another check"),
    ):
        assert not wrong.is_as_listed(attack)
        assert list(describe_suite(SuiteSummary(tries=[(attack, right), (attack, wrong)], honest_chunks=7)))[-1] == (
            "RESULT attacks=1 missed=1 false_rejects=0 honest_chunks=7"
        )
