"""Heads, cosignatures and rounds as the coordinator handles them."""

from dataclasses import replace

import pytest

from prime_coordinator.audits import witnesses
from prime_coordinator.constants import GRACE_MS
from prime_protocol.constants import LOST_MS
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import NodeStatus
from prime_protocol.ledger.randomness_chain import sign_round
from prime_protocol.ledger.rounds import find_cosignature_problem
from prime_protocol.ledger.versions.lineage import make_checkpoint_entries
from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.messages import Cosigned, Heartbeat, HeartbeatReply, NodeActivity
from support.core_network import SECOND_MS, Scene
from support.ledger_network import CHAIN, CHAIN_SECRET, RUN, VALIDATORS, digest


def waiting_scene() -> tuple[Scene, Digest]:
    """A submission under a noted head whose round is not out, and whose head is signed."""
    scene = Scene.started()
    name = scene.work("ann")
    scene.is_source_down = True
    scene.tick(2 * SECOND_MS)
    scene.core.set_head(b"the signed head", newest_head(scene))
    return scene, name


def newest_head(scene: Scene) -> int:
    return next(reversed(scene.state.noted_heads))


def beat(scene: Scene, name: str, cosigned: Cosigned | None = None) -> HeartbeatReply:
    sent = Heartbeat(activity=NodeActivity.IDLE, checkpoint_step=0, head_size=2**40, cosigned=cosigned)
    return scene.core.handle_heartbeat(scene.node(name), RUN, sent, scene.world.now_ms)


def cosign(scene: Scene, name: str) -> Cosigned:
    made = scene.world.cosign(name)
    return Cosigned(head_size=made.head_size, time_s=made.time_s, signature=made.signature)


def publish_round(scene: Scene) -> e.RoundRecorded:
    """The oldest round comes out; what was recorded of it."""
    number = next(iter(scene.state.pending_rounds))
    scene.world.now_ms = CHAIN.round_time_ms(number)
    assert scene.core.witnesses.get_wanted_round(scene.world.now_ms) == number
    scene.core.record_round(number, sign_round(CHAIN_SECRET, number), scene.world.now_ms)
    scene.core.tick(scene.world.now_ms)
    found: e.RoundRecorded = scene.written(e.RoundRecorded)[-1]
    return found


def test_a_validator_is_asked_to_cosign_a_head_until_it_has_done_so() -> None:
    scene, _ = waiting_scene()
    assert beat(scene, "ann").witness == b"", "a worker is no witness"
    assert beat(scene, "val-0").witness == b"the signed head"
    assert beat(scene, "val-0").witness == b"the signed head"
    bad = replace(cosign(scene, "val-0"), time_s=1)
    assert beat(scene, "val-0", bad).witness == b"the signed head", "asked again"
    assert beat(scene, "val-0", cosign(scene, "val-0")).witness == b""


def test_a_head_that_was_not_noted_is_not_to_be_cosigned() -> None:
    scene, _ = waiting_scene()
    scene.core.set_head(b"another head", newest_head(scene) + 5)
    assert beat(scene, "val-0").witness == b"the signed head"


def test_a_head_that_was_signed_just_before_it_was_noted_is_to_be_cosigned() -> None:
    scene = Scene.started()
    scene.work("ann")
    scene.is_source_down = True
    scene.core.set_head(b"signed early", scene.state.size)
    scene.tick(2 * SECOND_MS)
    assert newest_head(scene) < scene.state.size
    assert beat(scene, "val-0").witness == b"signed early"


def test_as_many_cosignatures_are_recorded_as_are_needed_and_the_draw_follows() -> None:
    scene, name = waiting_scene()
    for validator in VALIDATORS:
        beat(scene, validator, cosign(scene, validator))
    assert len(publish_round(scene).cosignatures) == 5
    assert len(scene.drawn(name)) == 3


def test_only_the_newest_cosignature_of_a_witness_is_verified_for_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, _ = waiting_scene()
    for validator in VALIDATORS:
        beat(scene, validator, cosign(scene, validator))
    first = newest_head(scene)
    scene.work("bob")
    scene.tick(SECOND_MS // 2)
    newest = newest_head(scene)
    assert newest > first
    for validator in VALIDATORS:
        older = scene.world.cosign(validator)
        made = scene.world.cosign_size(validator, newest, older.time_s)
        beat(scene, validator, Cosigned(head_size=newest, time_s=made.time_s, signature=made.signature))
    verified: list[int] = []

    def count(*given: object, **more: object) -> str:
        verified.append(given[3].head_size)  # type: ignore[attr-defined]
        return find_cosignature_problem(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(witnesses, "find_cosignature_problem", count)
    recorded = publish_round(scene)
    assert {each.head_size for each in recorded.cosignatures} == {newest}
    assert verified == [newest] * len(VALIDATORS)


def test_without_a_majority_another_head_is_noted_and_the_file_is_drawn_for_certain() -> None:
    scene, name = waiting_scene()
    for validator in VALIDATORS[:4]:
        beat(scene, validator, cosign(scene, validator))
    assert publish_round(scene).cosignatures == ()
    assert scene.drawn(name) == []
    assert scene.submission(name).is_unwitnessed
    scene.is_source_down = False
    scene.tick(2 * SECOND_MS)
    assert len(scene.drawn(name)) == 3


def test_a_validator_that_is_gone_leaves_the_draw_so_that_the_others_are_enough() -> None:
    scene = Scene.started()
    for validator in VALIDATORS:
        scene.beat(validator)
    scene.tick(GRACE_MS + LOST_MS)
    scene.work("ann")
    scene.is_source_down = True
    for validator in VALIDATORS[:4]:
        beat(scene, validator)
    scene.tick(2 * SECOND_MS)
    publish_round(scene)
    statuses = {name: scene.state.nodes[scene.node(name)].status for name in VALIDATORS}
    assert [name for name in VALIDATORS if statuses[name] is NodeStatus.ACTIVE] == list(VALIDATORS[:4])


def test_a_step_without_its_round_says_what_it_waits_for_and_resumes_by_itself() -> None:
    scene = Scene.started()
    scene.is_source_down = True
    entry = make_checkpoint_entries((), step=Step(1), root=digest("w"), manifest=digest("m"))[1]
    scene.send("trainer", entry)
    assert "waits for a tree head" in scene.ask("ann").reason
    scene.tick(2 * SECOND_MS)
    (number,) = scene.state.pending_rounds
    assert scene.ask("ann").reason == f"step 1 waits for round {number} of the randomness chain"
    scene.tick(60 * SECOND_MS)
    assert "s late: its source does not answer" in scene.ask("ann").reason
    scene.is_source_down = False
    scene.tick()
    assert scene.ask("ann").lease is not None
