"""No entry of the gallery comes out as caught because nothing happened, and each can come out as missed."""

import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from prime_lab.attacks.attack import AttackResult, AttackVerdict
from prime_lab.attacks.catalog import (
    COORDINATOR_ATTACKS,
    GROUND_DRAW,
)
from prime_lab.attacks.coordinator.draws import attack_draws, grind_log, make_operator
from prime_lab.attacks.coordinator.grinding import find_grinding_position, grind_draw
from prime_lab.attacks.coordinator.keys import attack_keys
from prime_lab.attacks.coordinator.restores import attack_restores, show_heads
from prime_lab.attacks.coordinator.rules import RULE_BREAKERS, attack_rules, follow_log
from prime_lab.attacks.judgement_attacks import (
    JUDGEMENT_SCENARIOS,
    judge_disowned_workers,
    judge_false_findings,
    judge_found,
    judge_late_candidates,
    judge_left_owners,
    judge_suspended_candidates,
)
from prime_lab.attacks.ledger_attacks import (
    LEDGER_SCENARIOS,
    NODES,
    SEEDS,
    judge_copied,
    judge_deniers,
    judge_duplicates,
    judge_forgers,
    judge_grinders,
    judge_leaks,
    judge_persecutors,
    judge_refused,
    judge_silent,
    judge_swappers,
    judge_two_keys,
    judge_unread,
    judge_validators,
    judge_withholders,
)
from prime_lab.attacks.relay_attacks import RelayObservation, judge_observation
from prime_lab.attacks.sandbox_attacks import list_processes
from prime_lab.simulator.finished_world import FinishedWorld
from prime_lab.simulator.plan import SimulationPlan
from prime_lab.simulator.rare_adversaries import find_victim
from prime_lab.simulator.simulation import simulate_world
from prime_lab.simulator.world import NETWORK
from prime_node.log.restores import Restore
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import findings
from prime_protocol.ledger.entries import Outcome as Finding
from prime_protocol.ledger.replay import replay
from prime_protocol.ledger.state import LedgerState
from prime_protocol.wire.ids import Digest
from sim.mutations import Patch, apply_patch

Judge = Callable[[FinishedWorld], AttackResult | None]
SCENARIOS = {**LEDGER_SCENARIOS, **JUDGEMENT_SCENARIOS}


@pytest.fixture(scope="module")
def honest() -> FinishedWorld:
    return simulate_world(SimulationPlan(seed=1, nodes=16, steps=1, malicious=0.0))[1]


def lie(name: str) -> FinishedWorld:
    """The first world of the gallery in which there is an occasion; a new one each time, so that it can be bent."""
    for seed in SEEDS:
        report, scene = simulate_world(SCENARIOS[name].plan(seed))
        assert not report.complaints
        if SCENARIOS[name].judge(scene) is not None:
            return scene
    raise AssertionError("no world gives the adversaries an occasion")


def judged(name: str, scene: FinishedWorld) -> AttackResult:
    outcome = SCENARIOS[name].judge(scene)
    assert outcome is not None
    return outcome


@pytest.mark.parametrize(
    "judge", dict.fromkeys(world.judge for world in SCENARIOS.values()), ids=lambda judge: judge.__name__
)
def test_no_judge_finds_anything_where_nobody_lied(judge: Judge, honest: FinishedWorld) -> None:
    assert judge(honest) is None


def test_every_judge_is_tried() -> None:
    assert {world.judge for world in SCENARIOS.values()} == {
        judge_copied,
        judge_deniers,
        judge_disowned_workers,
        judge_duplicates,
        judge_false_findings,
        judge_forgers,
        judge_found,
        judge_grinders,
        judge_late_candidates,
        judge_leaks,
        judge_left_owners,
        judge_persecutors,
        judge_refused,
        judge_silent,
        judge_suspended_candidates,
        judge_swappers,
        judge_two_keys,
        judge_unread,
        judge_validators,
        judge_withholders,
    }
    assert NODES >= 16


@pytest.mark.parametrize("name", ["late", "backdated", "copycat", "swapped-when-drawn"])
def test_one_try_that_is_taken_is_a_miss(name: str) -> None:
    scene = lie(name)
    assert judged(name, scene).verdict is not None
    scene.world.attempts.append(replace(scene.world.attempts[0], field=""))
    assert judged(name, scene).verdict is None


@pytest.mark.parametrize("name", ["late", "copycat", "duplicate", "swapped-when-drawn", "leaks-draws"])
def test_tries_that_were_never_answered_are_no_occasion(name: str) -> None:
    scene = lie(name)
    scene.world.attempts[:] = [replace(each, field=None) for each in scene.world.attempts]
    assert LEDGER_SCENARIOS[name].judge(scene) is None


def test_two_answers_to_one_lease_in_the_log_are_a_miss() -> None:
    scene = lie("duplicate")
    assert judged("duplicate", scene).verdict is AttackVerdict.REFUSED
    name, logged = next(iter(scene.history.submissions.items()))
    scene.history.submissions[type(name)(bytes(32))] = logged
    assert judged("duplicate", scene).verdict is None


def test_two_keys_are_about_one_owner_and_both_paid_is_a_miss() -> None:
    scene = lie("two-keys")
    assert judged("two-keys", scene).verdict is AttackVerdict.REFUSED
    paid = next(logged.credited for logged in scene.history.submissions.values() if logged.credited)
    for logged in scene.history.submissions.values():
        logged.credited = paid
    assert judged("two-keys", scene).verdict is None
    scene.history.owners = {node: node for node in scene.history.owners}
    assert judge_two_keys(scene) is None


@pytest.mark.parametrize("name", ["lazy", "copies-verdicts"])
def test_who_does_not_read_must_be_inspected_found_out_and_paid_less(name: str) -> None:
    scene = lie(name)
    outcome = judged(name, scene)
    assert (outcome.verdict, outcome.checks) == (AttackVerdict.OVERRULED, ("read_proof",))
    assert judge_unread(replace(scene, honest=frozenset(scene.history.registered))) is None, "nobody lies in it"
    submissions = [logged for logged in scene.history.submissions.values() if logged.unread()]
    line = next(line for line in submissions[0].verdicts if line.author in submissions[0].unread())
    seen = next(each for found in submissions[0].inspected for each in found.entry.seen if each.reader == line.author)
    place = submissions[0].verdicts.index(line)
    submissions[0].verdicts[place] = replace(line, entry=replace(line.entry, read_proof=seen.read_proof))
    assert judged(name, scene).verdict is None, "one that has the right looks after all is a miss"


def test_a_victim_that_is_not_paid_or_a_liar_that_loses_nothing_is_a_miss() -> None:
    scene = lie("starved-victim")
    assert judged("starved-victim", scene).verdict is AttackVerdict.OVERRULED
    victim = find_victim(scene.history)
    accused = [
        logged for logged in scene.history.submissions.values() if logged.receipt.node == victim and logged.scored
    ]
    credited, accused[0].credited = accused[0].credited, []
    assert judged("starved-victim", scene).verdict is None
    accused[0].credited = credited
    for logged in accused:
        logged.scored.clear()
    assert judged("starved-victim", scene).verdict is None


def test_a_copied_verdict_that_is_taken_or_pays_as_well_as_an_honest_one_is_a_miss() -> None:
    scene = lie("copied-verdict")
    outcome = judged("copied-verdict", scene)
    assert outcome.verdict is AttackVerdict.REFUSED
    assert "commitment" in outcome.checks
    core = scene.world.host.core
    assert core is not None
    copiers = {each.node for each in scene.world.attempts}
    for node in copiers:
        core.state.nodes[node].earned_nano += 10**12
    assert judged("copied-verdict", scene).verdict is None
    for node in copiers:
        core.state.nodes[node].earned_nano = 0
    scene.world.attempts.append(replace(scene.world.attempts[0], field=""))
    assert judged("copied-verdict", scene).verdict is None


def test_a_leak_needs_a_swap_between_draw_and_outcome_and_is_a_miss_where_it_helped() -> None:
    scene = lie("leaks-draws")
    outcome = judged("leaks-draws", scene)
    assert (outcome.verdict, outcome.checks) == (AttackVerdict.HARMLESS, ("receipt.lease",))
    tries = list(scene.world.attempts)
    scene.world.attempts[:] = [replace(each, at_ms=0) for each in tries]
    assert judge_leaks(scene) is None
    scene.world.attempts[:] = tries
    helped = next(each for each in tries if scene.history.submissions[each.submission].outcome is Finding.FRAUDULENT)
    scene.history.submissions[helped.submission].outcome = Finding.ACCEPT
    assert judged("leaks-draws", scene).verdict is None


def judge_broken(name: str, monkeypatch: pytest.MonkeyPatch, *patches: Patch) -> AttackResult:
    """The gallery's own worlds, with a rule of the ledger taken out. What the invariants say is left aside."""
    for patch in patches:
        apply_patch(patch, monkeypatch)
    scenes = (simulate_world(SCENARIOS[name].plan(seed))[1] for seed in SEEDS)
    return next(found for found in map(SCENARIOS[name].judge, scenes) if found is not None)


HOLD = Patch(
    findings, "_hold_back", "taken = _take_units(step.units, (submission.owner, submission.node), wanted)", "taken = 0"
)
BOUNTY = Patch(findings, "close_finding", "state.funds.pay_bounty(name, account, amount_nano)", "pass")


@pytest.mark.parametrize("rule", [HOLD, BOUNTY], ids=["hold", "bounty"])
def test_a_found_forgery_that_keeps_its_pay_or_brings_no_bounty_is_a_miss(
    rule: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judge_broken("found-after-the-draw", monkeypatch, rule).verdict is None


def test_a_found_forgery_that_is_not_slashed_is_a_miss() -> None:
    scene = lie("found-after-the-draw")
    assert judged("found-after-the-draw", scene).verdict is AttackVerdict.FRAUDULENT
    found = next(logged for logged in scene.history.submissions.values() if logged.upheld)
    found.executed = []
    assert judged("found-after-the-draw", scene).verdict is None


@pytest.mark.parametrize(
    "rule",
    [
        Patch(findings, "dismiss_finding", "earn(run, submission, finding.units)", "pass"),
        Patch(findings, "dismiss_finding", "if outcome is None:\n        state", "if True:\n        state"),
    ],
    ids=["units", "bond"],
)
def test_a_false_finding_that_costs_the_worker_its_pay_or_the_finder_nothing_is_a_miss(
    rule: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert judge_broken("false-finding", monkeypatch, rule).verdict is None


def test_a_validator_that_judges_the_owner_it_has_left_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    forgets = Patch(LedgerState, "list_owners", "return [self.owners[node], *recent]", "return [self.owners[node]]")
    assert judge_broken("revoked-owner-draw", monkeypatch, forgets).verdict is None


def test_a_worker_that_its_disowning_owner_judges_is_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    its_own = "for run in self.runs.values() for each in run.submissions.values() if each.node == node"
    follows = f"[setattr(each, 'owner', owner) {its_own}]"
    present = Patch(LedgerState, "change_owner", "self.owners[node] = owner", f"self.owners[node] = owner; {follows}")
    assert judge_broken("disowned-worker", monkeypatch, present).verdict is None


@pytest.mark.parametrize("name", ["denied-victim", "withheld-verdict"])
def test_a_victim_whose_file_is_not_accepted_is_a_miss(name: str) -> None:
    scene = lie(name)
    assert judged(name, scene).verdict is not None
    accused = [
        logged
        for logged in scene.history.submissions.values()
        if logged.receipt.node == find_victim(scene.history) and logged.draws
    ]
    for logged in accused:
        logged.credited, logged.outcome = [], Finding.INVALID
    assert judged(name, scene).verdict is None


def test_silence_must_have_been_kept_and_must_have_cost_nobody_the_pay() -> None:
    scene = lie("silent")
    assert judged("silent", scene).verdict is AttackVerdict.HARMLESS
    # In a small network two silent ones of six leave too few to ask: docs/verification.md says so first.
    small = replace(LEDGER_SCENARIOS["silent"], nodes=NODES, malicious=0.25)
    outcomes = (judge_silent(simulate_world(small.plan(seed))[1]) for seed in SEEDS)
    outcome = next(found for found in outcomes if found is not None and found.verdict is None)
    found = re.fullmatch(r"(\d+) files had a silent judge, (\d+) accepted after up to 2 rounds", outcome.reason)
    assert found is not None
    assert 0 < int(found[2]) < int(found[1]), outcome.reason
    assert judge_silent(replace(scene, honest=frozenset())) is None


def test_a_relay_is_refused_only_where_something_named_it_and_the_weights_are_right() -> None:
    for seen, checks in (
        (RelayObservation(corrupt=1, is_exact=True), ("digest",)),
        (RelayObservation(given_up=1, is_exact=True), ("speed",)),
        (RelayObservation(absent=1, is_exact=True), ("absent",)),
    ):
        assert (judge_observation(seen).verdict, judge_observation(seen).checks) == (AttackVerdict.REFUSED, checks)
        assert judge_observation(replace(seen, is_fooled=True)).verdict is None
        assert judge_observation(replace(seen, is_exact=False)).verdict is None
    assert judge_observation(RelayObservation(is_exact=True)).verdict is None


def test_a_process_that_is_left_behind_is_found(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], env={"HOME": str(tmp_path)}) as left:
        try:
            # Its environment can be read a moment after it has begun.
            deadline_s = time.monotonic() + 10
            while not (found := list_processes([str(tmp_path)])) and time.monotonic() < deadline_s:
                time.sleep(0.01)
            assert found == {left.pid}
            assert list_processes([str(tmp_path / "other")]) == set()
        finally:
            left.kill()
    assert list_processes([str(tmp_path)]) == set()


def test_a_draw_that_was_ground_suits_the_coordinator_and_every_replay_refuses_it() -> None:
    _, scene = simulate_world(SimulationPlan(seed=1, nodes=24, steps=5, malicious=0.0))
    host = scene.world.host
    operator = make_operator(host)
    place = find_grinding_position(operator, list(host.disk))
    assert place is not None
    found = grind_draw(operator, place, lambda drawn: not drawn)
    assert found is not None
    assert found.drawn == ()
    with pytest.raises(RemoteError, match=r"cosignatures\[0\]: of 0x\w+: is no valid signature"):
        replay(NETWORK, found.leaves, coordinator=host.key.node)
    assert found.leaves[: place.head - 1] == place.leaves[: place.head - 1]
    assert [outcome.verdict for _, outcome in attack_draws()] == 3 * [AttackVerdict.PROVEN]


def test_a_draw_cannot_be_ground_away_where_everybody_is_on_probation(honest: FinishedWorld) -> None:
    outcome = grind_log(honest.world.host, list(honest.world.host.disk))
    assert (outcome.verdict, outcome.is_as_listed(GROUND_DRAW)) == (None, False)
    assert all(attack.name != GROUND_DRAW.name for attack in COORDINATOR_ATTACKS)


def test_one_key_of_two_and_a_rotated_key_are_worth_nothing() -> None:
    results = dict(attack_keys())
    assert all(outcome.is_as_listed(attack) for attack, outcome in results.items()), results
    assert [attack.name for attack in results] == ["old-key-head", "self-rotated-key"]


def test_the_follower_of_a_node_finds_each_broken_rule_and_nothing_in_an_honest_log(honest: FinishedWorld) -> None:
    for attack, outcome in attack_rules():
        assert outcome.is_as_listed(attack), outcome
    host = honest.world.host
    assert follow_log(host, list(host.disk)) is None
    for break_rule in RULE_BREAKERS.values():
        leaves = break_rule(host, list(host.disk))
        accusation = follow_log(host, leaves)
        assert accusation is not None
        assert accusation.index == len(leaves) - 1


def test_a_false_restore_is_caught_and_one_that_lost_minutes_is_followed() -> None:
    for attack, outcome in attack_restores():
        assert outcome.is_as_listed(attack), outcome
    history, now_ms = show_heads(600)
    assert history.find_objection(Restore(size=590, at_ms=now_ms, leaf_hash=Digest(bytes(32))), now_ms) == ""
