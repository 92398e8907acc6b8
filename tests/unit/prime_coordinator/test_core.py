"""What nodes, trainer and operator see of a coordinator, and what a second sending or a restart changes: nothing."""

from dataclasses import replace

import pytest

from prime_coordinator.constants import BAD_FILES_PER_LEASE_MAX
from prime_coordinator.core import Core
from prime_coordinator.intervals import IntervalsConfig
from prime_coordinator.scheduling.eligibility import ELIGIBILITY_RULES, Eligibility
from prime_protocol.constants import PROTOCOL_VERSION, REGISTRATION_MS, RULES_NOTICE_MS
from prime_protocol.errors import RemoteError
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import NodeStatus, Outcome, Role, RunStatus
from prime_protocol.ledger.run_record import RunRecord
from prime_protocol.ledger.versions.lineage import make_checkpoint_entries
from prime_protocol.wire.ids import RunId, Step
from prime_protocol.wire.messages import Heartbeat, LeaseRequest, NodeActivity, NodeCommand, StepRequest
from support.core_network import SECOND_MS, Scene
from support.ledger_network import BUDGET, DAY_MS, RUN, STAKE, TERMS, digest

ACCEPT, INVALID, FRAUDULENT = Outcome.ACCEPT, Outcome.INVALID, Outcome.FRAUDULENT


@pytest.fixture
def scene() -> Scene:
    return Scene.started()


# --- Heartbeats -----------------------------------------------------------------------------------------------------


def test_a_heartbeat_reply_has_everything_a_node_needs(scene: Scene) -> None:
    lease = scene.lease("ann")
    reply = scene.beat("ann")
    checkpoint = scene.run.checkpoints[Step(0)]
    assert reply.weights is not None
    assert (reply.weights.root, reply.weights.beacon) == (checkpoint.root, checkpoint.beacon)
    assert reply.leases == (lease,)
    assert (reply.lag_max, reply.version_min, reply.upgrade_by_ms) == (TERMS.lag_max, PROTOCOL_VERSION, 0)
    assert reply.command is NodeCommand.NONE
    assert reply.now_ms == scene.world.now_ms


def test_a_head_is_sent_to_nodes_with_an_older_one(scene: Scene) -> None:
    scene.core.head, scene.core.head_size = b"note", 5
    for size, told in ((4, b"note"), (5, b"")):
        beat = Heartbeat(activity=NodeActivity.IDLE, checkpoint_step=-1, head_size=size)
        assert scene.core.handle_heartbeat(scene.node("ann"), RUN, beat, scene.world.now_ms).head == told


def test_a_small_network_may_go_faster(scene: Scene) -> None:
    core = Core(
        scene.world.key("coordinator"), scene.world.ledger, now_ms=0, intervals=IntervalsConfig(heartbeat_ms=250)
    )
    beat = Heartbeat(activity=NodeActivity.IDLE, checkpoint_step=-1, head_size=0)
    assert core.handle_heartbeat(scene.node("ann"), RUN, beat, scene.world.now_ms).next_heartbeat_ms == 250


def test_strangers_and_unknown_runs_are_refused(scene: Scene) -> None:
    with pytest.raises(RemoteError, match="not registered"):
        scene.beat("stranger")
    with pytest.raises(RemoteError, match="not registered"):
        scene.ask("stranger")
    beat = Heartbeat(activity=NodeActivity.IDLE, checkpoint_step=-1, head_size=0)
    request = LeaseRequest(checkpoint_step=0, tokens_per_s=1)
    with pytest.raises(RemoteError, match="not created"):
        scene.core.handle_heartbeat(scene.node("ann"), RunId("other"), beat, scene.world.now_ms)
    with pytest.raises(RemoteError, match="not created"):
        scene.core.request_lease(scene.node("ann"), RunId("other"), request, scene.world.now_ms)


# --- What holds for a step ------------------------------------------------------------------------------------------


def test_a_step_keeps_the_terms_of_its_first_lease_for_those_who_judge_it(scene: Scene) -> None:
    scene.lease("ann")
    scene.order(e.RunUpdated(terms=replace(scene.run.terms, temperature=0.5)))
    scene.publish()
    old, new = (scene.core.get_step_facts(RUN, StepRequest(step=Step(step), root=None)) for step in (0, 1))
    assert (old.terms.temperature, new.terms.temperature) == (TERMS.temperature, 0.5)
    assert old.beacon == scene.run.checkpoints[Step(0)].beacon
    assert (new.weights.step, new.weights.root) == (1, scene.run.checkpoints[Step(1)].root)


def test_a_step_may_be_worked_on_with_an_older_checkpoint(scene: Scene) -> None:
    scene.publish()
    older = scene.run.checkpoints[Step(0)]
    facts = scene.core.get_step_facts(RUN, StepRequest(step=Step(1), root=older.root))
    assert facts.beacon == scene.run.checkpoints[Step(1)].beacon
    assert (facts.weights.step, facts.weights.manifest) == (0, older.manifest)


def test_an_unpublished_checkpoint_is_not_described(scene: Scene) -> None:
    with pytest.raises(RemoteError, match=r"step: 9 has no checkpoint"):
        scene.core.get_step_facts(RUN, StepRequest(step=Step(9), root=None))
    with pytest.raises(RemoteError, match=r"root: .* is not a checkpoint"):
        scene.core.get_step_facts(RUN, StepRequest(step=Step(0), root=digest("another")))


def test_a_node_status_becomes_a_command_in_the_reply(scene: Scene) -> None:
    for status, command in (
        (NodeStatus.DRAINED, NodeCommand.DRAIN),
        (NodeStatus.BANNED, NodeCommand.STOP),
        (NodeStatus.ACTIVE, NodeCommand.NONE),
    ):
        scene.order(e.NodeStatusSet(node=scene.node("ann"), status=status, reason="why"), None)
        assert scene.beat("ann").command is command
    scene.lease("ann")


def test_a_planned_upgrade_is_announced_until_its_date_and_then_required(scene: Scene) -> None:
    date_ms = scene.world.now_ms + DAY_MS
    scene.order(e.RunUpdated(terms=scene.world.terms(version_next=PROTOCOL_VERSION + 1, upgrade_by_ms=date_ms)))
    reply = scene.beat("ann")
    assert (reply.version_min, reply.upgrade_by_ms) == (PROTOCOL_VERSION, date_ms)
    scene.world.wait(DAY_MS)
    reply = scene.beat("ann")
    assert (reply.version_min, reply.upgrade_by_ms) == (PROTOCOL_VERSION + 1, 0)
    assert "outdated" in scene.ask("ann").reason


def test_other_rules_are_announced_with_every_heartbeat_and_then_required() -> None:
    scene = Scene.started(rules=1)
    scene.world.register("old", Role.WORKER)
    scene.state.nodes[scene.node("old")].version = 1
    notice = e.RulesChanged(rules=2, from_ms=scene.world.now_ms + RULES_NOTICE_MS, release="0.2.0")
    scene.order(notice, None)
    for node, by_ms in (("old", notice.from_ms), ("ann", 0)):
        reply = scene.beat(node)
        assert (reply.rules_change, reply.version_min, reply.upgrade_by_ms) == (notice, 1, by_ms)
    scene.world.wait(RULES_NOTICE_MS)
    reply = scene.beat("old")
    assert (reply.rules_change, reply.version_min, reply.upgrade_by_ms) == (None, 2, 0)
    assert "outdated" in scene.ask("old").reason


def test_a_coordinator_announces_no_rules_that_it_does_not_know(scene: Scene) -> None:
    wanted = e.RulesChanged(rules=PROTOCOL_VERSION + 1, from_ms=scene.world.now_ms + RULES_NOTICE_MS, release="9.0")
    with pytest.raises(RemoteError, match=f"this coordinator knows up to {PROTOCOL_VERSION}"):
        scene.core.append_operator_entry(wanted, None, scene.world.now_ms)


def test_before_the_first_checkpoint_there_are_no_weights() -> None:
    scene = Scene.started()
    scene.order(e.RunCreated(terms=scene.world.terms()), RunId("run-2"))
    beat = Heartbeat(activity=NodeActivity.IDLE, checkpoint_step=-1, head_size=0)
    assert scene.core.handle_heartbeat(scene.node("ann"), RunId("run-2"), beat, scene.world.now_ms).weights is None


def test_a_reply_has_only_the_leases_and_audits_of_its_run(scene: Scene) -> None:
    scene.order(e.RunCreated(terms=scene.world.terms()), RunId("run-2"))
    scene.lease("ann")
    name = scene.work("bob")
    scene.tick(SECOND_MS)
    beat = Heartbeat(activity=NodeActivity.IDLE, checkpoint_step=-1, head_size=0)
    other = [scene.core.handle_heartbeat(node, RunId("run-2"), beat, scene.world.now_ms) for node in scene.state.nodes]
    assert all(not reply.leases and not reply.audits for reply in other)
    assert scene.told(scene.drawn(name)[0]) == [name]


# --- Eligibility ----------------------------------------------------------------------------------------------------


def eligibility_of(scene: Scene, name: str) -> Eligibility:
    return scene.core.get_eligibility(scene.node(name), RUN, scene.world.now_ms).eligibility


def test_every_eligibility_has_a_remedy() -> None:
    assert all(row.remedy for row in ELIGIBILITY_RULES)
    assert [rule.eligibility for rule in ELIGIBILITY_RULES if rule.is_eligible] == [
        Eligibility.HELD,
        Eligibility.PROBING,
        Eligibility.READY,
    ]


def test_a_node_whose_pay_is_held_goes_on_working_and_is_told_why(scene: Scene) -> None:
    known = scene.run.records.setdefault(scene.node("ann"), RunRecord())
    for _ in range(2):
        known.add((0, 45, 0, 0, 0, 0))
    scene.beat("ann")
    rule = scene.core.get_eligibility(scene.node("ann"), RUN, scene.world.now_ms)
    assert (rule.eligibility, rule.is_eligible) == (Eligibility.HELD, True)
    assert "prime-node calibrate" in rule.remedy


def test_a_slashed_node_is_excluded_and_told_that_its_owner_must_stake_again(scene: Scene) -> None:
    name = scene.work("ann")
    scene.judge(name, lambda validator, _: Outcome.FRAUDULENT)
    scene.tick(TERMS.appeal_ms)
    scene.beat("ann")
    rule = scene.core.get_eligibility(scene.node("ann"), RUN, scene.world.now_ms)
    assert (rule.eligibility, rule.is_eligible) == (Eligibility.EXCLUDED, False)
    assert "stakes again" in scene.ask("ann").reason
    scene.order(e.Deposited(account=scene.node("ann"), amount_nano=STAKE, reference=digest("more")), None)
    scene.send("ann", e.Staked(node=scene.node("ann"), amount_nano=TERMS.slash_nano))
    assert scene.beat("ann").account.is_eligible


def test_a_node_becomes_eligible_when_the_cause_is_gone(scene: Scene) -> None:
    world = scene.world
    assert eligibility_of(scene, "ann") is Eligibility.LOST
    scene.beat("ann", NodeActivity.DRAINING)
    assert eligibility_of(scene, "ann") is Eligibility.LEAVING
    assert "leaving" in scene.ask("ann").reason
    scene.beat("ann")
    assert eligibility_of(scene, "ann") is Eligibility.PROBING
    scene.work("ann")
    assert eligibility_of(scene, "ann") is Eligibility.READY
    scene.tick(40 * SECOND_MS)
    assert eligibility_of(scene, "ann") is Eligibility.LATE
    scene.beat("ann")
    scene.send("ann", e.Unbonded(node=scene.node("ann"), amount_nano=1))
    assert eligibility_of(scene, "ann") is Eligibility.UNSTAKED
    scene.order(e.RunUpdated(terms=world.terms(stake_min_nano=TERMS.slash_nano)))
    assert eligibility_of(scene, "ann") is Eligibility.READY
    for roles, expected in (((Role.RELAY,), Eligibility.IDLE), ((Role.WORKER,), Eligibility.READY)):
        world.wait(REGISTRATION_MS)
        scene.beat("ann")
        scene.send("ann", e.NodeRegistered(roles=roles, hardware=""))
        assert eligibility_of(scene, "ann") is expected


def test_an_expired_delegation_makes_a_node_ineligible(scene: Scene) -> None:
    scene.send("key", scene.world.delegation("ann", "key", life_ms=1000))
    scene.beat("key")
    scene.world.wait(1000)
    assert eligibility_of(scene, "key") is Eligibility.UNDELEGATED


# --- Entries and their repetition -----------------------------------------------------------------------------------


def test_a_repeated_submission_gets_the_same_reply_and_is_logged_once(scene: Scene) -> None:
    entry = scene.world.answer(scene.lease("ann").lease)
    first = scene.send("ann", entry)
    size = scene.state.size
    assert scene.send("ann", entry) == first
    scene.restart()
    assert scene.send("ann", entry) == first
    assert scene.state.size == size


def test_other_bytes_for_the_same_lease_are_refused(scene: Scene) -> None:
    lease = scene.lease("ann").lease
    other = scene.world.answer(lease, file_digest=digest("other bytes"))
    entry = scene.world.answer(lease)
    scene.send("ann", entry)
    for wrong in (other, replace(entry, output_tokens=entry.output_tokens + 1)):
        with pytest.raises(RemoteError) as caught:
            scene.send("ann", wrong)
        assert caught.value.field == "receipt.lease"


def test_only_its_sender_gets_the_reply_of_a_repeated_submission(scene: Scene) -> None:
    entry = scene.world.answer(scene.lease("ann").lease)
    scene.send("ann", entry)
    with pytest.raises(RemoteError):
        scene.send("bob", entry)


def test_verdicts_checkpoints_and_registrations_may_be_sent_again_too(scene: Scene) -> None:
    name = scene.work("ann")
    scene.tick(SECOND_MS)
    validator = scene.drawn(name)[0]
    verdict = scene.world.opinion(validator, name, ACCEPT)
    commitments = scene.world.commitments(verdict)
    checkpoint = make_checkpoint_entries((), step=Step(1), root=digest("w"), manifest=digest("m"))[1]
    hello, delegation = e.NodeRegistered(roles=(Role.WORKER,), hardware=""), scene.world.delegation("owner", "key")
    measured = e.StepMeasured(step=Step(1), metrics=(e.Metric(name="held_out", value=0.5),))
    own = (("key", hello), ("key", delegation))
    work = ((validator, verdict), ("trainer", checkpoint), ("trainer", measured))
    for author, entry in (*commitments, *work, *own):
        first = scene.send(author, entry)
        size = scene.state.size
        assert scene.send(author, entry) == first
        scene.restart()
        assert scene.send(author, entry) == first
        assert scene.state.size == size
    with pytest.raises(RemoteError):
        scene.send(validator, scene.world.opinion(validator, name, FRAUDULENT))
    with pytest.raises(RemoteError):
        scene.send("trainer", replace(checkpoint, root=digest("other")))
    with pytest.raises(RemoteError):
        scene.send("trainer", replace(measured, metrics=(e.Metric(name="held_out", value=0.6),)))
    with pytest.raises(RemoteError):
        scene.send("ann", checkpoint)
    with pytest.raises(RemoteError):
        scene.send("ann", scene.world.opinion("ann", digest("nothing"), FRAUDULENT))


def test_money_sent_twice_is_moved_twice(scene: Scene) -> None:
    before = scene.world.balance("ann")
    for _ in range(2):
        scene.send("ann", e.RunFunded(amount_nano=1))
    assert scene.world.balance("ann") == before - 2


def test_only_operator_entries_are_appended_for_the_operator(scene: Scene) -> None:
    with pytest.raises(AssertionError, match="not an operator entry"):
        scene.order(e.PaidOut(step=Step(0)))
    with pytest.raises(RemoteError):
        scene.order(e.NodeStatusSet(node=scene.node("nobody"), status=NodeStatus.BANNED, reason=""), None)


def test_a_refusal_of_our_own_entry_is_a_bug(scene: Scene) -> None:
    with pytest.raises(AssertionError, match="refuses our own"):
        scene.core.entry_writer.append_own(e.PaidOut(step=Step(9)), RUN, scene.world.now_ms)


def test_a_clock_that_runs_backwards_does_not_stop_the_log(scene: Scene) -> None:
    scene.tick()
    scene.lease("ann")
    request = LeaseRequest(checkpoint_step=0, tokens_per_s=100)
    reply = scene.core.request_lease(scene.node("bob"), RUN, request, scene.world.now_ms - DAY_MS)
    assert reply.lease is not None
    assert reply.lease.deadline_ms > scene.world.now_ms


# --- Files ----------------------------------------------------------------------------------------------------------


def test_a_bad_file_costs_nothing_while_a_better_one_may_come(scene: Scene) -> None:
    lease = scene.lease("ann")
    entry = scene.world.answer(lease.lease)
    scene.core.get_expected_submission(scene.node("ann"), RUN, entry, scene.world.now_ms)
    scene.core.record_refused_file(scene.node("ann"), RUN, lease.lease, scene.world.now_ms)
    scene.core.get_expected_submission(scene.node("ann"), RUN, entry, scene.world.now_ms)
    scene.submit(lease)
    assert eligibility_of(scene, "ann") is Eligibility.READY


def test_garbage_again_and_again_is_read_no_more_and_its_slots_go_to_another() -> None:
    scene = Scene.started(slots_per_step=1)
    lease = scene.lease("ann", tokens_per_s=1)
    entry = scene.world.answer(lease.lease)
    assert scene.ask("bob").lease is None
    for _ in range(BAD_FILES_PER_LEASE_MAX):
        scene.core.record_refused_file(scene.node("ann"), RUN, lease.lease, scene.world.now_ms)
    with pytest.raises(RemoteError) as caught:
        scene.core.get_expected_submission(scene.node("ann"), RUN, entry, scene.world.now_ms)
    assert caught.value.field == "receipt.lease"
    assert scene.lease("bob").speculative
    assert eligibility_of(scene, "ann") is Eligibility.SUSPENDED


def test_a_file_is_only_read_for_the_holder_of_an_open_lease(scene: Scene) -> None:
    lease = scene.lease("ann")
    entry = scene.world.answer(lease.lease)
    with pytest.raises(RemoteError) as caught:
        scene.core.get_expected_submission(scene.node("bob"), RUN, entry, scene.world.now_ms)
    assert caught.value.field == "receipt.node"
    with pytest.raises(RemoteError) as caught:
        scene.core.get_expected_submission(scene.node("ann"), RUN, entry, lease.deadline_ms + 1)
    assert caught.value.field == "receipt.lease"
    scene.submit(lease)
    with pytest.raises(RemoteError) as caught:
        scene.core.get_expected_submission(scene.node("ann"), RUN, entry, scene.world.now_ms)
    assert caught.value.field == "receipt.lease"
    with pytest.raises(RemoteError) as caught:
        scene.core.get_expected_submission(scene.node("ann"), RunId("other"), entry, scene.world.now_ms)
    assert caught.value.field == "run"


# --- Payouts and the end of a run -----------------------------------------------------------------------------------


def test_a_step_is_paid_when_the_next_one_is_there_and_nothing_is_open(scene: Scene) -> None:
    name = scene.work("ann")
    scene.judge(name)
    assert not scene.written(e.PaidOut)
    scene.publish(name)
    assert [entry.step for entry in scene.written(e.PaidOut)] == [0]
    assert scene.world.balance("ann") > 0


def test_a_verdict_that_comes_late_stirs_the_payout(scene: Scene) -> None:
    name = scene.work("ann")
    scene.publish()
    assert not scene.written(e.PaidOut)
    scene.judge(name)
    assert scene.written(e.PaidOut)


def test_an_open_lease_holds_up_the_payout_until_it_ends(scene: Scene) -> None:
    scene.judge(scene.work("ann"))
    lease = scene.lease("bob")
    scene.publish()
    assert not scene.written(e.PaidOut)
    scene.tick(lease.deadline_ms - scene.world.now_ms + 1)
    assert scene.written(e.PaidOut)


def test_a_closed_run_accepts_the_last_submissions_pays_and_returns_the_pool(scene: Scene) -> None:
    lease = scene.lease("ann")
    bad = scene.work("bob")
    scene.judge(bad, lambda validator, name: FRAUDULENT)
    scene.order(e.RunStatusSet(status=RunStatus.CLOSED, reason="done"))
    assert "closed" in scene.ask("ann").reason
    scene.judge(scene.submit(lease))
    assert not scene.written(e.PaidOut), "what the slash decides is paid last"
    scene.tick(TERMS.appeal_ms)
    assert [entry.step for entry in scene.written(e.PaidOut)] == [0]
    pool = scene.state.funds.pools[RUN]
    assert pool >= 1000 * 10**9 - BUDGET
    scene.send("sponsor", e.PoolReturned(amount_nano=pool))
    assert scene.state.funds.pools[RUN] == 0


def test_a_quiet_network_writes_nothing(scene: Scene) -> None:
    scene.judge(scene.work("ann"))
    scene.publish()
    size = scene.state.size
    for _ in range(100):
        scene.beat("ann")
        scene.tick(SECOND_MS)
    assert scene.state.size == size
