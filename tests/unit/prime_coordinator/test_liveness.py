"""Phases of silence: a table with a way back to online from everywhere."""

from prime_coordinator.liveness import NEXT, Liveness, Phase, Sign
from prime_protocol.constants import LATE_MS, LOST_MS
from prime_protocol.ids import NodeId
from prime_protocol.messages import Activity

ANN, BOB = NodeId(b"a" * 20), NodeId(b"b" * 20)


def beat(liveness: Liveness, node: NodeId, now_ms: int, activity: Activity = Activity.IDLE) -> None:
    liveness.beat(node, activity, 0, now_ms)


def test_one_beat_heals_every_phase() -> None:
    assert all(row[Sign.BEAT] is Phase.ONLINE for row in NEXT.values())
    assert set(NEXT) == set(Phase)


def test_silence_makes_late_then_lost_and_a_beat_heals() -> None:
    liveness = Liveness()
    assert liveness.phase(ANN) is Phase.LOST
    beat(liveness, ANN, 0)
    assert liveness.tick(LATE_MS - 1) == []
    assert liveness.tick(LATE_MS) == [(ANN, Phase.LATE)]
    assert liveness.phase(ANN) is Phase.LATE
    beat(liveness, ANN, LATE_MS)
    assert liveness.phase(ANN) is Phase.ONLINE
    assert liveness.tick(LATE_MS + LOST_MS) == [(ANN, Phase.LATE), (ANN, Phase.LOST)]
    assert liveness.phase(ANN) is Phase.LOST
    beat(liveness, ANN, LATE_MS + LOST_MS)
    assert liveness.count() == {Phase.ONLINE: 1, Phase.LATE: 0}


def test_only_the_silent_change() -> None:
    liveness = Liveness()
    beat(liveness, ANN, 0)
    beat(liveness, BOB, 0)
    beat(liveness, ANN, LATE_MS - 1)
    assert liveness.tick(LATE_MS) == [(BOB, Phase.LATE)]


def test_a_request_is_a_sign_of_life_and_keeps_what_the_node_said_it_does() -> None:
    liveness = Liveness()
    liveness.heard(ANN, 3, 0)
    assert liveness.phase(ANN) is Phase.ONLINE
    beat(liveness, ANN, 1, Activity.WORKING)
    liveness.heard(ANN, 4, 2)
    presence = liveness.get(ANN)
    assert presence is not None
    assert (presence.activity, presence.checkpoint_step, presence.beat_ms) == (Activity.WORKING, 4, 2)
