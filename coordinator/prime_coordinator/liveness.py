"""Which nodes are there: a table of phases, driven by beats and by silence. Pure.

The cost of a beat or a tick does not depend on how many nodes there are: they stand in the order of their last beat.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum

from prime_protocol.constants import LATE_MS, LOST_MS
from prime_protocol.ids import NodeId
from prime_protocol.messages import Activity


class Phase(StrEnum):
    """What silence has made of a node. A key that never beat since the coordinator started is LOST."""

    ONLINE = "online"
    LATE = "late"
    LOST = "lost"


class Sign(StrEnum):
    """What moves a node from one phase to another."""

    BEAT = "beat"
    SILENT = "silent"
    GONE = "gone"


NEXT: dict[Phase, dict[Sign, Phase]] = {
    Phase.ONLINE: {Sign.BEAT: Phase.ONLINE, Sign.SILENT: Phase.LATE, Sign.GONE: Phase.LOST},
    Phase.LATE: {Sign.BEAT: Phase.ONLINE, Sign.GONE: Phase.LOST},
    Phase.LOST: {Sign.BEAT: Phase.ONLINE},
}
"""Every phase has a way back to ONLINE: a node heals by beating."""


@dataclass(slots=True)
class Presence:
    """The last that was heard of a node."""

    phase: Phase
    beat_ms: int
    activity: Activity
    checkpoint_step: int


class Liveness:
    """Presence of every node that beat since the start and is not lost."""

    def __init__(self) -> None:
        self._online: OrderedDict[NodeId, Presence] = OrderedDict()
        self._late: OrderedDict[NodeId, Presence] = OrderedDict()

    def beat(self, node: NodeId, activity: Activity, checkpoint_step: int, now_ms: int) -> None:
        known = self._online.get(node)
        if known is not None:
            known.beat_ms, known.activity, known.checkpoint_step = now_ms, activity, checkpoint_step
            self._online.move_to_end(node)
            return
        late = self._late.pop(node, None)
        phase = NEXT[late.phase if late else Phase.LOST][Sign.BEAT]
        self._online[node] = Presence(phase, now_ms, activity, checkpoint_step)

    def heard(self, node: NodeId, checkpoint_step: int, now_ms: int) -> None:
        """A signed request is as good a sign of life as a beat; what the node does is not known from it."""
        known = self.get(node)
        self.beat(node, known.activity if known else Activity.IDLE, checkpoint_step, now_ms)

    def tick(self, now_ms: int) -> list[tuple[NodeId, Phase]]:
        """Who has changed its phase by silence."""
        changed = []
        while self._online and now_ms - next(iter(self._online.values())).beat_ms >= LATE_MS:
            node, presence = self._online.popitem(last=False)
            presence.phase = NEXT[presence.phase][Sign.SILENT]
            self._late[node] = presence
            changed.append((node, presence.phase))
        while self._late and now_ms - next(iter(self._late.values())).beat_ms >= LOST_MS:
            node, presence = self._late.popitem(last=False)
            changed.append((node, NEXT[presence.phase][Sign.GONE]))
        return changed

    def get(self, node: NodeId) -> Presence | None:
        return self._online.get(node) or self._late.get(node)

    def phase(self, node: NodeId) -> Phase:
        presence = self.get(node)
        return presence.phase if presence else Phase.LOST

    def list_online(self) -> list[NodeId]:
        return list(self._online)

    def count(self) -> dict[Phase, int]:
        return {Phase.ONLINE: len(self._online), Phase.LATE: len(self._late)}
