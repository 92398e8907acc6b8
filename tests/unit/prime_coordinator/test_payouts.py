"""When steps are paid: each after its pay has vested, and a step that is not due costs nothing."""

from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import FindingDismissed, FindingFiled, FindingUpheld, Outcome
from prime_protocol.wire.ids import Digest
from support.core_network import SECOND_MS, Scene
from support.ledger_network import DAY_MS, RUN, SLASH, TERMS, TOKEN, digest

FRAUDULENT = Outcome.FRAUDULENT


def accepted(scene: Scene, name: str = "ann") -> Digest:
    found = scene.work(name)
    scene.judge(found)
    return found


def paid(scene: Scene) -> list[int]:
    return [entry.step for entry in scene.written(e.PaidOut)]


def test_a_step_is_paid_when_its_last_submission_has_vested_also_after_a_restart() -> None:
    scene = Scene.started(slots_per_step=64, vesting_ms=DAY_MS)
    accepted(scene)
    scene.publish()
    scene.tick(DAY_MS // 2)
    scene.restart()
    scene.tick(SECOND_MS)
    assert paid(scene) == []
    scene.tick(DAY_MS // 2)
    assert paid(scene) == [0]


def test_steps_that_vest_are_not_looked_at() -> None:
    scene = Scene.started(slots_per_step=64, vesting_ms=DAY_MS)
    for _ in range(3):
        accepted(scene)
        scene.publish()
    scene.tick(SECOND_MS)
    payouts = scene.core.payouts
    assert not any(payouts._due.values())
    assert sorted(number for _, _, number in payouts._timers) == [0, 1, 2]
    scene.tick(DAY_MS)
    assert paid(scene) == [0, 1, 2]
    assert not payouts._timers


def undrawn(scene: Scene) -> Digest:
    found = accepted(scene)
    while scene.submission(found).rounds[0].validators:
        found = accepted(scene)
    return found


def file(scene: Scene, name: Digest) -> None:
    scene.order(e.Deposited(account=scene.node("eve"), amount_nano=9 * TOKEN, reference=digest("eve")), None)
    scene.send("eve", FindingFiled(submission=name, evidence=digest("bundle"), reason="another model"))


def test_a_finding_about_a_forged_file_ends_in_a_slash_and_a_bounty() -> None:
    scene = Scene.started(
        slots_per_step=64, vesting_ms=DAY_MS, audit_probation=0, audit_floor=1, validators=9, quorum=1
    )
    name = undrawn(scene)
    file(scene, name)
    scene.restart()
    scene.judge(name, lambda validator, _: FRAUDULENT)
    assert [entry.submission for entry in scene.written(FindingUpheld)] == [name]
    assert name in scene.run.slashes
    scene.tick(TERMS.appeal_ms)
    assert scene.state.funds.balances[scene.node("eve")] == 9 * TOKEN + SLASH // 5
    scene.publish()
    scene.tick(DAY_MS)
    assert paid(scene) == [0]
    assert scene.state.nodes[scene.node("ann")].earned_nano == 0


def test_a_finding_about_an_honest_file_is_dismissed_and_the_worker_is_paid() -> None:
    scene = Scene.started(
        slots_per_step=64, vesting_ms=DAY_MS, audit_probation=0, audit_floor=1, validators=9, quorum=1
    )
    name = undrawn(scene)
    file(scene, name)
    scene.judge(name, lambda validator, _: Outcome.ACCEPT)
    assert [entry.submission for entry in scene.written(FindingDismissed)] == [name]
    assert scene.state.funds.balances[scene.node("eve")] == 9 * TOKEN - TERMS.finding_bond_nano
    scene.publish()
    scene.tick(DAY_MS)
    assert scene.state.nodes[scene.node("ann")].earned_nano > 0
    assert RUN in scene.state.runs


def test_a_finding_that_nobody_judges_is_dismissed_in_the_end() -> None:
    scene = Scene.started(
        slots_per_step=64, vesting_ms=DAY_MS, audit_probation=0, audit_floor=1, validators=1, quorum=1
    )
    name = undrawn(scene)
    scene.order(e.NodeStatusSet(node=scene.node("val-0"), status=e.NodeStatus.BANNED, reason="gone"), None)
    file(scene, name)
    scene.tick(SECOND_MS)
    scene.tick(TERMS.judgement_ms)
    assert [entry.submission for entry in scene.written(FindingDismissed)] == [name]
    assert scene.state.funds.balances[scene.node("eve")] == 9 * TOKEN
