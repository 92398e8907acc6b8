"""Phases of silence: a table with a way back to online from everywhere."""

from prime_coordinator.scheduling.eligibility import PHASE_TRANSITIONS, Liveness, LivenessEvent, NodePhase
from prime_protocol.constants import LATE_MS, LOST_MS
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.messages import NodeActivity

ANN, BOB = NodeId(b"a" * 20), NodeId(b"b" * 20)


def beat(liveness: Liveness, node: NodeId, now_ms: int, activity: NodeActivity = NodeActivity.IDLE) -> None:
    liveness.beat(node, activity, 0, now_ms)


def test_one_heartbeat_brings_every_phase_back_online() -> None:
    assert all(row[LivenessEvent.BEAT] is NodePhase.ONLINE for row in PHASE_TRANSITIONS.values())
    assert set(PHASE_TRANSITIONS) == set(NodePhase)


def test_silence_leads_to_late_then_lost_and_a_heartbeat_back_to_online() -> None:
    liveness = Liveness()
    assert liveness.phase(ANN) is NodePhase.LOST
    beat(liveness, ANN, 0)
    assert liveness.tick(LATE_MS - 1) == []
    assert liveness.tick(LATE_MS) == [(ANN, NodePhase.LATE)]
    assert liveness.phase(ANN) is NodePhase.LATE
    beat(liveness, ANN, LATE_MS)
    assert liveness.phase(ANN) is NodePhase.ONLINE
    assert liveness.tick(LATE_MS + LOST_MS) == [(ANN, NodePhase.LATE), (ANN, NodePhase.LOST)]
    assert liveness.phase(ANN) is NodePhase.LOST
    beat(liveness, ANN, LATE_MS + LOST_MS)
    assert liveness.count() == {NodePhase.ONLINE: 1, NodePhase.LATE: 0}


def test_only_the_silent_change() -> None:
    liveness = Liveness()
    beat(liveness, ANN, 0)
    beat(liveness, BOB, 0)
    beat(liveness, ANN, LATE_MS - 1)
    assert liveness.tick(LATE_MS) == [(BOB, NodePhase.LATE)]


def test_a_request_is_a_sign_of_life_and_keeps_what_the_node_said_it_does() -> None:
    liveness = Liveness()
    liveness.record_request(ANN, 3, 0)
    assert liveness.phase(ANN) is NodePhase.ONLINE
    beat(liveness, ANN, 1, NodeActivity.WORKING)
    liveness.record_request(ANN, 4, 2)
    presence = liveness.get(ANN)
    assert presence is not None
    assert (presence.activity, presence.checkpoint_step, presence.beat_ms) == (NodeActivity.WORKING, 4, 2)
