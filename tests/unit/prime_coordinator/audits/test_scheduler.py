"""From submission to the end: draws, verdicts, credit, slashes, appeals, and what silence costs whom."""

import pytest

from prime_coordinator.audits.validators import REASON_SILENT, REASON_WRONG
from prime_coordinator.constants import (
    AUDIT_RETRY_MS,
    GRACE_MS,
    MISS_WAIT_MS,
    MISSES_MAX,
    OVERTURNED_WAIT_MS,
)
from prime_protocol.constants import BASIS_POINTS, HEARTBEAT_MS, LOST_MS, REVEAL_MS, ROUNDS_MAX
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import NodeStatus, Outcome, Role
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.messages import NodeCommand
from support.core_network import SECOND_MS, Opinion, Scene
from support.ledger_network import BOND, DAY_MS, SLASH, STAKE, TERMS, make_commitment

ACCEPT, INVALID, FRAUDULENT = Outcome.ACCEPT, Outcome.INVALID, Outcome.FRAUDULENT


@pytest.fixture
def scene() -> Scene:
    return Scene.started()


def says(*outcomes: Outcome | None) -> Opinion:
    """One after the other."""
    left = list(outcomes)
    return lambda validator, name: left.pop(0) if left else None


def wait_out(scene: Scene) -> None:
    """Until the present round is over; everybody keeps beating."""
    for _ in range(TERMS.verdict_ms // HEARTBEAT_MS):
        scene.world.wait(HEARTBEAT_MS)
        for name in [*scene.world.keys]:
            if scene.node(name) in scene.state.nodes:
                scene.beat(name)
    scene.tick(SECOND_MS)


def test_a_submission_is_drawn_assigned_judged_and_credited(scene: Scene) -> None:
    name = scene.work("ann")
    asked: list[str] = []
    while not scene.submission(name).credited:
        scene.tick(2 * SECOND_MS)
        drawn = scene.drawn(name)
        assert len(drawn) == TERMS.quorum
        for validator in drawn:
            assert scene.told(validator) == [name]
            assert scene.beat(validator).reveals == ()
            reply = scene.send(validator, make_commitment(scene.world.opinion(validator, name, ACCEPT)))
            assert reply.can_reveal == (validator == drawn[-1]), "the last one may go on at once"
            assert scene.told(validator) == []
        for validator in drawn:
            assert scene.beat(validator).reveals == (name,)
            scene.say(validator, name, ACCEPT)
            assert scene.beat(validator).reveals == ()
        asked += drawn
        scene.tick()
    assert len(set(asked)) == 2 * TERMS.quorum, "what pays is judged by two quorums"


def test_a_lead_that_is_enough_settles_without_the_last_one_and_it_is_excused(scene: Scene) -> None:
    name = scene.work("ann")
    scene.judge(name, says(ACCEPT, ACCEPT, ACCEPT))
    assert scene.submission(name).outcome is None
    scene.judge(name, says(ACCEPT, ACCEPT))
    assert scene.submission(name).outcome is ACCEPT
    assert scene.told(scene.drawn(name)[2]) == []


def test_a_forgery_that_a_whole_quorum_of_liars_lets_pass_is_found_by_the_next() -> None:
    scene = Scene.started(validators=9)
    name = scene.work("ann")
    scene.judge(name, says(ACCEPT, ACCEPT, ACCEPT))
    for _ in range(2):
        scene.judge(name, says(FRAUDULENT, FRAUDULENT, FRAUDULENT))
    assert scene.submission(name).outcome is FRAUDULENT


def test_one_validator_does_not_stop_a_network_that_has_no_others_to_ask() -> None:
    scene = Scene.started(validators=3)
    name = scene.work("ann")
    scene.judge(name, says(ACCEPT, FRAUDULENT, ACCEPT))
    assert scene.submission(name).credited
    other = scene.work("ann")
    scene.judge(other, says(ACCEPT, ACCEPT))
    assert scene.submission(other).outcome is None, "the third one has time to object"
    scene.tick(TERMS.verdict_ms)
    assert scene.submission(other).credited


def test_validators_of_a_large_file_have_more_time() -> None:
    scene = Scene.started(read_us_per_token=100_000)
    name = scene.work("ann")
    scene.tick(2 * SECOND_MS)
    first = scene.drawn(name)
    deadline_ms = scene.submission(name).rounds[0].deadline_ms
    assert {task.deadline_ms for each in first for task in scene.beat(each).audits} == {deadline_ms}
    scene.tick(TERMS.verdict_ms)
    assert scene.drawn(name) == first, "they are still reading"
    assert scene.told(first[0]) == [name]
    scene.tick(deadline_ms - scene.world.now_ms)
    scene.tick(2 * SECOND_MS)
    assert set(scene.drawn(name)).isdisjoint(first)


def test_crashed_is_never_accepted(scene: Scene) -> None:
    """Nobody answers, round after round: no credit, no blame."""
    name = scene.work("ann")
    for _ in range(20):
        scene.tick(TERMS.verdict_ms)
    submission = scene.submission(name)
    assert (submission.outcome, submission.judged, submission.credited) == (INVALID, None, False)
    assert scene.state.get_stake(scene.node("ann")) == STAKE


def test_disagreement_is_escalated_to_other_validators(scene: Scene) -> None:
    name = scene.work("ann")
    scene.judge(name, says(ACCEPT, FRAUDULENT, ACCEPT))
    first = scene.drawn(name, 0)
    scene.judge(name)
    assert len(scene.submission(name).rounds) == 3
    assert set(first).isdisjoint(scene.drawn(name, 1) + scene.drawn(name, 2))
    assert scene.submission(name).outcome is ACCEPT
    assert [scene.state.nodes[scene.node(each)].faults for each in first] == [0, 1, 0]


def test_a_split_is_invalid_only_when_no_validator_is_left_to_ask(scene: Scene) -> None:
    name = scene.work("ann")
    asked = 0
    while scene.submission(name).outcome is None:
        scene.judge(name, says(ACCEPT, INVALID, FRAUDULENT))
        asked += 1
        assert asked <= ROUNDS_MAX
    assert len(scene.submission(name).rounds) == len(scene.run.validators) // scene.run.terms.quorum
    assert scene.submission(name).outcome is INVALID


def test_without_enough_validators_work_waits_and_a_newcomer_ends_the_wait() -> None:
    scene = Scene.started(validators=2)
    name = scene.work("ann")
    scene.tick(SECOND_MS)
    assert scene.drawn(name) == []
    scene.join("val-9", Role.VALIDATOR)
    scene.tick(10 * SECOND_MS)
    assert len(scene.drawn(name)) == 3


def test_without_enough_validators_for_too_long_it_is_soft() -> None:
    scene = Scene.started(validators=2)
    name = scene.work("ann")
    scene.tick(SECOND_MS)
    scene.tick(TERMS.verdict_ms)
    assert scene.submission(name).outcome is INVALID


def test_a_good_name_is_audited_less_often() -> None:
    scene = Scene.started(audit_probation=2, audit_floor=500, slots_per_step=2**14)
    rates = []
    for _ in range(60):
        name = scene.work("ann", took_ms=40 * SECOND_MS)
        scene.judge(name)
        assert scene.submission(name).outcome is ACCEPT
        rates.append(bool(scene.drawn(name)))
    assert all(rates[:2])
    assert sum(rates[30:]) < sum(rates[:30])


def test_heads_are_noted_only_where_a_draw_or_a_beacon_waits(scene: Scene) -> None:
    heads = len(scene.written(e.HeadNoted))
    scene.judge(scene.work("ann"))
    for _ in range(50):
        scene.tick(SECOND_MS)
    assert len(scene.written(e.HeadNoted)) == heads + 2, "one for each round"


def convicted(scene: Scene) -> Digest:
    name = scene.work("ann")
    scene.judge(name, says(FRAUDULENT, FRAUDULENT, FRAUDULENT))
    assert name in scene.run.slashes
    return name


def test_a_hard_outcome_is_slashed_when_the_window_is_over(scene: Scene) -> None:
    name = convicted(scene)
    scene.tick(TERMS.appeal_ms - 5 * SECOND_MS)
    assert name in scene.run.slashes
    scene.tick(5 * SECOND_MS)
    assert scene.state.funds.burned_nano == SLASH
    assert "excluded" in scene.ask("ann").reason


def test_a_restart_does_not_forget_the_end_of_the_appeal_window(scene: Scene) -> None:
    convicted(scene)
    scene.restart()
    scene.tick(SECOND_MS)
    scene.tick(TERMS.appeal_ms)
    assert scene.state.funds.burned_nano == SLASH


def test_an_appeal_is_judged_by_others_and_can_be_won(scene: Scene) -> None:
    name = convicted(scene)
    first = scene.drawn(name)
    scene.send("ann", e.Appealed(submission=name, reason="look again"))
    scene.judge(name)
    assert set(first).isdisjoint(scene.drawn(name, 1) + scene.drawn(name, 2))
    assert scene.submission(name).credited
    assert scene.world.stake_of("ann") == STAKE
    assert scene.world.balance("ann") == BOND
    assert all(scene.state.nodes[scene.node(each)].faults == 1 for each in first)


def test_slots_that_an_appeal_has_credited_are_not_leased_again() -> None:
    scene = Scene.started(slots_per_step=1)
    name = convicted(scene)
    scene.send("ann", e.Appealed(submission=name, reason="look again"))
    scene.judge(name)
    assert scene.submission(name).credited
    assert scene.ask("bob").lease is None


def test_what_was_leased_again_before_an_appeal_was_won_is_credited_once() -> None:
    scene = Scene.started(slots_per_step=1)
    name = convicted(scene)
    lease = scene.lease("bob")
    scene.send("ann", e.Appealed(submission=name, reason="look again"))
    scene.judge(name)
    other = scene.submit(lease)
    scene.judge(other)
    assert (scene.submission(name).credited, scene.submission(other).credited) == (True, False)
    assert scene.submission(other).outcome is ACCEPT


def test_an_appeal_can_be_lost(scene: Scene) -> None:
    name = convicted(scene)
    scene.send("ann", e.Appealed(submission=name, reason="look again"))
    scene.judge(name, says(FRAUDULENT, FRAUDULENT, FRAUDULENT))
    assert scene.state.funds.burned_nano == SLASH + BOND
    assert not scene.run.slashes


def test_an_appeal_without_judges_keeps_the_stake_in_escrow_until_the_long_stop() -> None:
    scene = Scene.started(validators=3)
    name = convicted(scene)
    scene.send("ann", e.Appealed(submission=name, reason="look again"))
    scene.tick(SECOND_MS)
    scene.tick(10 * SECOND_MS)
    assert len(scene.submission(name).rounds) == 1, "there is nobody else to ask"
    scene.tick(TERMS.judgement_ms)
    assert scene.world.stake_of("ann") == STAKE - SLASH
    scene.tick(TERMS.long_stop_ms)
    assert scene.submission(name).outcome is INVALID
    assert scene.world.stake_of("ann") == STAKE


def test_an_appeal_that_stays_undecided_draws_no_more_than_the_rounds_there_are() -> None:
    scene = Scene.started(validators=0, quorum=1, long_stop_ms=DAY_MS)
    for number in range(ROUNDS_MAX + 4):
        scene.join(f"v{number}", Role.VALIDATOR)
    name = scene.work("ann")
    scene.judge(name, says(FRAUDULENT))
    scene.send("ann", e.Appealed(submission=name, reason=""))
    scene.tick(SECOND_MS)
    for _ in range(ROUNDS_MAX + 4):
        scene.tick(TERMS.verdict_ms)
        scene.tick(SECOND_MS)
    assert len(scene.submission(name).rounds) == ROUNDS_MAX
    scene.tick(DAY_MS)
    assert scene.submission(name).outcome is INVALID


# --- Silent validators ----------------------------------------------------------------------------------------------


def test_a_lost_silent_validator_leaves_the_draw_until_its_next_heartbeat(scene: Scene) -> None:
    scene.tick(GRACE_MS)
    name = scene.work("ann")
    scene.tick(SECOND_MS)
    gone = scene.drawn(name)
    scene.tick(TERMS.verdict_ms)
    assert {scene.state.nodes[scene.node(each)].reason for each in gone} == {REASON_SILENT}
    assert not scene.run.validators.keys() & {scene.node(each) for each in gone}
    assert scene.beat(gone[0]).command is NodeCommand.NONE, "it is back before it is told to leave"
    assert scene.state.nodes[scene.node(gone[0])].status is NodeStatus.ACTIVE


def test_a_validator_with_heartbeats_but_no_verdicts_is_suspended_for_growing_times() -> None:
    scene = Scene.started(validators=1, quorum=1, slots_per_step=64)
    (validator,) = (scene.world.names[node] for node in scene.run.validators)
    scene.tick(GRACE_MS)
    for wait_ms in (MISS_WAIT_MS, 2 * MISS_WAIT_MS):
        for _ in range(MISSES_MAX):
            assert scene.node(validator) in scene.run.validators
            scene.work("ann")
            scene.tick(SECOND_MS)
            wait_out(scene)
        assert scene.run.suspended == {scene.node(validator): REASON_SILENT}
        scene.world.wait(wait_ms - 3 * SECOND_MS)
        assert scene.beat(validator).command is NodeCommand.DRAIN
        scene.world.wait(3 * SECOND_MS)
        assert scene.beat(validator).command is NodeCommand.NONE


def test_a_validator_that_commits_and_gives_no_verdict_has_missed_it(scene: Scene) -> None:
    scene.tick(GRACE_MS)
    name = scene.work("ann")
    scene.tick(2 * SECOND_MS)
    *others, gone = scene.drawn(name)
    scene.judge(name, lambda validator, _: None if validator == gone else ACCEPT)
    for validator in others:
        scene.beat(validator)
    scene.tick(REVEAL_MS - 2 * SECOND_MS)
    assert len(scene.submission(name).rounds) == 1, "its verdict may still come"
    scene.restart()
    assert scene.beat(gone).reveals == (name,)
    scene.tick(LOST_MS)
    assert len(scene.submission(name).rounds) == 2
    assert [scene.state.nodes[scene.node(each)].reason for each in (*others, gone)] == ["", "", REASON_SILENT]
    assert scene.beat(gone).reveals == ()


def test_one_verdict_clears_what_was_missed() -> None:
    scene = Scene.started(validators=1, quorum=1, slots_per_step=64)
    (validator,) = (scene.world.names[node] for node in scene.run.validators)
    scene.tick(GRACE_MS)
    for _ in range(3):
        for _ in range(MISSES_MAX - 1):
            scene.work("ann")
            scene.tick(SECOND_MS)
            wait_out(scene)
        scene.judge(scene.work("ann"))
    assert scene.node(validator) in scene.run.validators


def test_a_heartbeat_does_not_resume_what_the_operator_drained(scene: Scene) -> None:
    scene.order(e.NodeStatusSet(node=scene.node("val-0"), status=NodeStatus.DRAINED, reason="repairs"), None)
    assert scene.beat("val-0").command is NodeCommand.DRAIN


def test_no_node_is_blamed_for_the_coordinators_downtime(scene: Scene) -> None:
    name = scene.work("ann")
    scene.tick(SECOND_MS)
    drawn = scene.drawn(name)
    scene.world.wait(TERMS.verdict_ms)
    scene.restart()
    scene.tick()
    assert scene.drawn(name) == drawn, "the round is not given up at once"
    for validator in drawn:
        assert scene.told(validator) == [name]
    for validator in drawn:
        scene.say(validator, name, ACCEPT)
    scene.judge(name)
    assert scene.submission(name).credited
    assert {scene.node(each) for each in drawn} <= set(scene.run.validators)


def test_silence_just_after_a_start_suspends_no_node(scene: Scene) -> None:
    name = scene.work("ann")
    scene.judge(name, says(ACCEPT, ACCEPT, ACCEPT))
    scene.tick(SECOND_MS)
    drawn = scene.drawn(name)
    scene.world.wait(TERMS.verdict_ms)
    scene.restart()
    for validator in drawn[:2]:
        scene.say(validator, name, ACCEPT)
    scene.tick(SECOND_MS)
    assert scene.submission(name).outcome is ACCEPT
    assert scene.node(drawn[2]) in scene.run.validators


def test_a_round_that_ran_out_while_we_were_away_is_given_up_after_a_moment(scene: Scene) -> None:
    name = scene.work("ann")
    scene.tick(SECOND_MS)
    scene.world.wait(TERMS.verdict_ms)
    scene.restart()
    scene.tick()
    scene.tick(GRACE_MS)
    assert len(scene.submission(name).rounds) == 2


def test_a_node_that_is_already_drained_is_not_drained_again(scene: Scene) -> None:
    scene.tick(GRACE_MS)
    name = scene.work("ann")
    scene.tick(SECOND_MS)
    gone = scene.drawn(name)[0]
    scene.order(e.NodeStatusSet(node=scene.node(gone), status=NodeStatus.DRAINED, reason="repairs"), None)
    scene.tick(TERMS.verdict_ms)
    assert scene.state.nodes[scene.node(gone)].reason == "repairs"


def test_an_appeals_round_that_ran_out_while_we_were_away_gets_a_moment_too(scene: Scene) -> None:
    name = convicted(scene)
    scene.send("ann", e.Appealed(submission=name, reason=""))
    scene.tick(SECOND_MS)
    drawn = scene.drawn(name)
    scene.world.wait(TERMS.verdict_ms)
    scene.restart()
    scene.tick()
    assert scene.drawn(name) == drawn
    for validator in drawn:
        scene.say(validator, name, ACCEPT)
    scene.judge(name)
    assert scene.submission(name).credited


# --- Validators that are wrong --------------------------------------------------------------------------------------


def outvoted(scene: Scene, liar: str) -> None:
    """A submission that the liar is drawn for and condemns, and all others accept."""
    while True:
        name = scene.work("ann", took_ms=40 * SECOND_MS)
        scene.judge(name, lambda validator, _: FRAUDULENT if validator == liar else ACCEPT)
        while scene.submission(name).outcome is None:
            scene.judge(name, lambda validator, _: FRAUDULENT if validator == liar else ACCEPT)
        assert scene.submission(name).outcome is ACCEPT
        if any(liar in scene.drawn(name, number) for number in range(len(scene.submission(name).rounds))):
            return


def test_a_validator_whose_verdicts_do_not_stand_leaves_the_draw_for_a_while_that_grows() -> None:
    scene = Scene.started(validators=9, slots_per_step=2**14)
    for wait_ms in (OVERTURNED_WAIT_MS, 2 * OVERTURNED_WAIT_MS):
        while not scene.run.suspended:
            outvoted(scene, "val-0")
        assert scene.run.suspended == {scene.node("val-0"): REASON_WRONG}
        out_ms = scene.world.now_ms
        scene.world.wait(wait_ms - SECOND_MS)
        assert scene.beat("val-0").command is NodeCommand.DRAIN
        scene.world.wait(SECOND_MS)
        assert scene.beat("val-0").command is NodeCommand.NONE
        assert scene.world.now_ms - out_ms == wait_ms
    assert scene.state.nodes[scene.node("val-0")].faults == 3, "two at first, then one: it still gives wrong verdicts"


def test_a_validator_that_withholds_what_it_committed_to_is_blamed_as_if_it_had_been_wrong() -> None:
    scene = Scene.started(validators=9, slots_per_step=2**14)
    scene.tick(GRACE_MS)
    while not scene.run.suspended:
        name = scene.work("ann")
        while scene.submission(name).outcome is None and not scene.run.suspended:
            scene.judge(name, lambda validator, _: None if validator == "val-0" else ACCEPT)
            if "val-0" in scene.drawn(name) and scene.submission(name).outcome is None:
                assert not scene.run.suspended, "its verdict may still come"
                wait_out(scene)
    assert scene.run.suspended == {scene.node("val-0"): REASON_WRONG}
    assert scene.state.nodes[scene.node("val-0")].faults == 0, "a crash looks the same"


def test_an_honest_validator_that_is_outvoted_now_and_then_stays_in_the_draw() -> None:
    scene = Scene.started(validators=9, slots_per_step=2**14)
    for _ in range(3):
        outvoted(scene, "val-0")
        for _ in range(12):
            scene.judge(scene.work("ann", took_ms=40 * SECOND_MS))
        assert not scene.run.suspended


def test_the_last_two_quorums_are_never_taken_out_of_the_draw() -> None:
    scene = Scene.started(validators=7, slots_per_step=2**14)
    for _ in range(5):
        outvoted(scene, "val-0")
    assert scene.node("val-0") in scene.run.validators


def test_a_plain_majority_of_too_few_blames_nobody() -> None:
    scene = Scene.started(validators=3, slots_per_step=2**14)
    for _ in range(5):
        outvoted(scene, "val-0")
    for number in range(5):
        scene.join(f"more-{number}", Role.VALIDATOR)
    outvoted(scene, "val-0")
    assert scene.node("val-0") in scene.run.validators


# --- Inspectors that decide -----------------------------------------------------------------------------------------


def split_scene(**changes: object) -> tuple[Scene, Digest]:
    """All nine validators have spoken and disagree; an inspector is at work."""
    scene = Scene.started(**changes)
    scene.send("inspector", scene.world.registration("inspector", Role.RELAY))
    name = scene.work("ann")
    for _ in range(3):
        scene.judge(name, says(ACCEPT, FRAUDULENT, INVALID))
    assert scene.submission(name).outcome is None
    return scene, name


def asked_to_decide(scene: Scene, name: Digest) -> bool:
    return any(task.is_ruling and task.submission == name for task in scene.beat("inspector").audits)


def decide(scene: Scene, name: Digest, outcome: Outcome) -> None:
    entry = e.RulingGiven(submission=name, outcome=outcome, evidence=Digest(bytes(32)), reason="")
    first = scene.send("inspector", entry)
    assert scene.send("inspector", entry) == first, "a repeat gets its position"
    scene.tick(SECOND_MS)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_inspector_is_asked_to_decide_what_validators_cannot(is_restarted: bool) -> None:
    scene, name = split_scene(validator_slash_nano=STAKE // 10)
    if is_restarted:
        scene.restart()
        scene.world.wait(GRACE_MS)
    scene.tick(SECOND_MS)
    assert asked_to_decide(scene, name)
    decide(scene, name, ACCEPT)
    assert (scene.submission(name).outcome, scene.submission(name).credited) == (ACCEPT, True)
    assert not asked_to_decide(scene, name)
    penalties = sorted(entry.penalty_nano for entry in scene.written(e.ValidatorScored))
    assert penalties == 3 * [0] + 3 * [STAKE // 10], "three said invalid, three said fraudulent"


def test_a_split_that_no_inspector_decides_in_time_is_given_up() -> None:
    scene, name = split_scene()
    scene.tick(scene.submission(name).rounds[-1].deadline_ms + TERMS.judgement_ms - scene.world.now_ms)
    assert scene.submission(name).outcome is INVALID
    assert not asked_to_decide(scene, name)


def test_an_inspector_decides_an_appeal_that_has_no_judges() -> None:
    scene = Scene.started(validators=3)
    scene.send("inspector", scene.world.registration("inspector", Role.RELAY))
    name = convicted(scene)
    assert not asked_to_decide(scene, name)
    scene.send("ann", e.Appealed(submission=name, reason="look again"))
    scene.tick(SECOND_MS)
    scene.tick(SECOND_MS)
    assert asked_to_decide(scene, name)
    decide(scene, name, FRAUDULENT)
    assert not scene.run.slashes
    assert scene.state.funds.burned_nano == SLASH + BOND


def test_an_inspector_is_asked_when_the_judges_of_an_appeal_take_too_long() -> None:
    scene = Scene.started(verdict_ms=2 * TERMS.judgement_ms)
    scene.send("inspector", scene.world.registration("inspector", Role.RELAY))
    name = convicted(scene)
    scene.send("ann", e.Appealed(submission=name, reason="look again"))
    scene.tick(SECOND_MS)
    scene.tick(SECOND_MS)
    assert not asked_to_decide(scene, name)
    scene.tick(TERMS.judgement_ms)
    assert asked_to_decide(scene, name)
    decide(scene, name, ACCEPT)
    assert scene.submission(name).outcome is ACCEPT


def found_scene(**changes: object) -> tuple[Scene, Digest]:
    """Five validators, three of which have accepted a file, and a finding about it; an inspector is at work."""
    scene = Scene.started(validators=5, vesting_ms=DAY_MS, **changes)
    name = scene.work("ann")
    scene.judge(name)
    assert scene.submission(name).credited
    scene.send("inspector", scene.world.registration("inspector", Role.RELAY))
    gift = e.Deposited(account=scene.node("eve"), amount_nano=TERMS.finding_bond_nano, reference=Digest(bytes(32)))
    scene.order(gift, None)
    scene.send("eve", e.FindingFiled(submission=name, evidence=Digest(bytes(32)), reason=""))
    scene.tick(SECOND_MS)
    scene.tick(SECOND_MS)
    return scene, name


@pytest.mark.parametrize("is_restarted", [False, True])
def test_an_inspector_upholds_a_finding_that_has_no_judges_and_the_finder_is_paid(is_restarted: bool) -> None:
    scene, name = found_scene()
    if is_restarted:
        scene.restart()
        scene.tick(SECOND_MS)
    assert asked_to_decide(scene, name)
    decide(scene, name, FRAUDULENT)
    assert not asked_to_decide(scene, name)
    assert (scene.written(e.FindingUpheld), scene.written(e.FindingDismissed)) == (
        [e.FindingUpheld(submission=name)],
        [],
    )
    assert name in scene.run.slashes
    scene.tick(TERMS.appeal_ms)
    bounty = SLASH * TERMS.bounty_share // BASIS_POINTS
    assert scene.world.balance("eve") == TERMS.finding_bond_nano + bounty
    assert scene.state.funds.burned_nano == SLASH - bounty


def test_the_slots_of_an_upheld_finding_about_the_newest_step_are_leased_again() -> None:
    scene, name = found_scene()
    slots = scene.submission(name).slots
    later = scene.work("bob")
    assert scene.submission(later).slots.start not in slots
    decide(scene, name, FRAUDULENT)
    assert scene.lease("bob").first_slot == slots.start


@pytest.mark.parametrize("outcome", [ACCEPT, INVALID])
def test_an_inspector_dismisses_a_finding_that_has_no_judges_and_the_bond_is_lost(outcome: Outcome) -> None:
    scene, name = found_scene()
    decide(scene, name, outcome)
    assert (scene.written(e.FindingUpheld), scene.written(e.FindingDismissed)) == (
        [],
        [e.FindingDismissed(submission=name)],
    )
    assert scene.world.balance("eve") == 0
    assert scene.submission(name).outcome is ACCEPT


def test_no_inspector_is_asked_about_a_finding_whose_time_is_over_or_that_judges_decide() -> None:
    scene, name = found_scene()
    scene.tick(TERMS.judgement_ms)
    assert scene.world.balance("eve") == TERMS.finding_bond_nano
    assert not asked_to_decide(scene, name)
    scene, name = found_scene()
    for number in range(3):
        scene.join(f"more-{number}", Role.VALIDATOR)
    scene.tick(AUDIT_RETRY_MS)
    scene.judge(name, says(*[FRAUDULENT] * 3))
    assert scene.submission(name).outcome is FRAUDULENT
    assert not asked_to_decide(scene, name)
