"""Who is asked to read a judged file again, when, and what becomes of validators that had not read it."""

from dataclasses import replace

import pytest

from prime_coordinator.audits.validators import REASON_UNREAD
from prime_coordinator.constants import INSPECT_SHARE, UNREAD_WAIT_MS
from prime_protocol.constants import BASIS_POINTS
from prime_protocol.ledger.entries import NodeStatus, NodeStatusSet, Outcome, Role, ValidatorScored
from prime_protocol.proofs.read_proofs import ReadCoverage
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.messages import AuditTask
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, Domain
from support.core_network import SECOND_MS, Scene
from support.ledger_network import ON_CHAIN, PENALTY, STAKE, TERMS, digest


def make_scene(inspect_share: int = BASIS_POINTS, *, validators: int = 9) -> Scene:
    scene = Scene.started(
        inspect_share=inspect_share, validators=validators, slots_per_step=1024, audit_probation=1_000
    )
    scene.join("inspector", Role.WORKER)
    return scene


@pytest.fixture
def scene() -> Scene:
    """Everything is inspected, by one who judges nothing itself."""
    return make_scene()


def judged(scene: Scene) -> Digest:
    name = scene.work("ann")
    scene.judge(name)
    assert scene.submission(name).outcome is Outcome.ACCEPT
    return name


def asked(scene: Scene, inspector: str = "inspector") -> list[AuditTask]:
    return [task for task in scene.beat(inspector).audits if task.readers]


def report(scene: Scene, name: Digest, *unread: str) -> None:
    """The inspector answers: everybody's looks are theirs, but for these."""
    readers = scene.world.readers(name)
    found = {reader: scene.world.looks(reader, name) for reader in readers}
    found |= {reader: digest(f"what {reader} did not see") for reader in unread}
    scene.send("inspector", scene.world.inspection(name, found))


def test_an_inspector_learns_who_judged_a_file_after_its_outcome(scene: Scene) -> None:
    name = scene.work("ann")
    scene.tick(2 * SECOND_MS)
    for validator in scene.drawn(name):
        scene.say(validator, name, Outcome.ACCEPT)
    assert asked(scene) == []
    scene.judge(name)
    (task,) = asked(scene)
    assert task.submission == name
    assert task.readers == tuple(ReadCoverage(node, 0) for node in sorted(map(scene.node, scene.world.readers(name))))
    assert task.file_digest == scene.submission(name).file_digest
    assert task.deadline_ms <= scene.world.now_ms + TERMS.verdict_ms


def test_an_inspector_learns_how_much_of_the_file_a_rejection_covers(scene: Scene) -> None:
    name = scene.work("ann")
    scene.tick(2 * SECOND_MS)
    drawn = list(enumerate(scene.drawn(name)))
    covered = {scene.node(validator): number for number, validator in drawn}
    opinions = [(scene.world.opinion(validator, name, Outcome.FRAUDULENT), number) for number, validator in drawn]
    scene.give(*[replace(opinion, blocks_read=number) for opinion, number in opinions])
    scene.tick(2 * SECOND_MS)
    assert asked(scene) == [], "an appeal may still come, and need an inspector that has not read the file"
    scene.tick(TERMS.appeal_ms)
    (task,) = asked(scene)
    assert {each.reader: each.blocks for each in task.readers} == covered


def test_an_inspection_ends_the_task_and_costs_honest_readers_nothing(scene: Scene) -> None:
    name = judged(scene)
    report(scene, name)
    assert asked(scene) == []
    assert all(scene.state.nodes[scene.node(reader)].faults == 0 for reader in scene.world.readers(name))
    assert scene.written(NodeStatusSet) == []


def test_a_validator_that_had_not_read_is_suspended_for_twice_as_long_each_time(scene: Scene) -> None:
    waits_ms = []
    for _ in range(2):
        name = judged(scene)
        while "val-0" not in scene.world.readers(name):
            report(scene, name)
            name = judged(scene)
        report(scene, name, "val-0")
        assert scene.run.suspended == {scene.node("val-0"): REASON_UNREAD}
        began_ms = scene.world.now_ms
        while scene.run.suspended:
            scene.tick(UNREAD_WAIT_MS // 10)
            scene.beat("val-0")
        waits_ms.append(scene.world.now_ms - began_ms)
    assert waits_ms[0] == pytest.approx(UNREAD_WAIT_MS, rel=0.2)
    assert waits_ms[1] == pytest.approx(2 * UNREAD_WAIT_MS, rel=0.2)


def test_a_small_network_keeps_whom_it_cannot_spare() -> None:
    scene = make_scene(validators=2 * TERMS.quorum + 1)
    name = judged(scene)
    reader = scene.world.readers(name)[0]
    report(scene, name, reader)
    known = scene.state.nodes[scene.node(reader)]
    assert (scene.run.suspended, known.faults) == ({}, 1)
    assert scene.run.debts[(scene.node(reader), scene.node(reader))] > 0, "but it is not paid"


def test_an_unscheduled_inspection_costs_pay_but_suspends_nobody() -> None:
    scene = make_scene(0)
    name = judged(scene)
    assert asked(scene) == []
    reader = scene.world.readers(name)[0]
    report(scene, name, reader)
    assert scene.submission(name).refuted == {scene.node(reader)}
    assert scene.node(reader) in scene.run.validators


def test_a_repeated_inspection_gets_a_reply_and_counts_once(scene: Scene) -> None:
    name = judged(scene)
    reader = scene.world.readers(name)[0]
    for _ in range(2):
        report(scene, name, reader)
    assert scene.state.nodes[scene.node(reader)].faults == 1
    assert len(scene.written(NodeStatusSet)) == 1


def test_about_the_share_that_the_operator_wants_is_inspected() -> None:
    scene = make_scene(INSPECT_SHARE)
    tasks: set[Digest] = set()
    for _ in range(60):
        judged(scene)
        scene.publish()
        tasks |= {task.submission for task in asked(scene)}
    assert 1 <= len(tasks) <= 15


def test_no_node_inspects_what_it_judged_or_while_it_is_drained() -> None:
    scene = make_scene()
    scene.order(NodeStatusSet(node=scene.node("inspector"), status=NodeStatus.DRAINED, reason="rest"), None)
    judged(scene)
    assert asked(scene) == []
    scene.order(NodeStatusSet(node=scene.node("inspector"), status=NodeStatus.ACTIVE, reason=""), None)
    judged(scene)
    assert len(asked(scene)) == 1


def test_a_task_is_forgotten_after_its_time_and_at_a_restart(scene: Scene) -> None:
    judged(scene)
    scene.tick(TERMS.verdict_ms)
    assert asked(scene) == []
    judged(scene)
    assert len(asked(scene)) == 1
    scene.restart()
    assert asked(scene) == []


@pytest.mark.parametrize(("domain", "penalties"), [(ON_CHAIN, [PENALTY]), (EMBEDDED_DOMAIN, [])])
def test_on_a_chain_the_entry_that_the_court_reads_follows_an_inspection_once(
    domain: Domain, penalties: list[int]
) -> None:
    scene = Scene.started(inspect_share=BASIS_POINTS, domain=domain, validator_slash_nano=PENALTY)
    scene.join("inspector", Role.WORKER)
    name = judged(scene)
    reader = scene.world.readers(name)[0]
    for _ in range(2):
        report(scene, name, reader)
    scene.restart()
    scene.tick(SECOND_MS)
    assert [entry.penalty_nano for entry in scene.written(ValidatorScored)] == penalties
    assert scene.world.stake_of(reader) == STAKE - PENALTY
