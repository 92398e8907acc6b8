"""The newest accepted messages of each run, for peers that join: gossip itself has no history. Pure.

A node that joins asks a few peers for them. So it finds weights within a second instead of waiting for a repetition,
and also while the coordinator, whose relay has them all, is gone.
"""

from collections import OrderedDict
from itertools import chain

from prime_protocol.constants import (
    RECENT_ACCUSATIONS_MAX,
    RECENT_ANNOUNCED_MAX,
    RECENT_BYTES_MAX,
    RECENT_HEADS_MAX,
    RECENT_SERVING_MAX,
)
from prime_protocol.gossip.messages import CheckpointAnnounced, GossipKind, ReceivedGossip, ServingRecord
from prime_protocol.wire.ids import RunId

KEPT_MAX = {
    GossipKind.ANNOUNCED: RECENT_ANNOUNCED_MAX,
    GossipKind.SERVING: RECENT_SERVING_MAX,
    GossipKind.HEAD_SEEN: RECENT_HEADS_MAX,
    GossipKind.ACCUSATION: RECENT_ACCUSATIONS_MAX,
}
"""In the order in which they are given: announcements always fit."""


class RecentGossip:
    """Messages that the guard accepted."""

    def __init__(self) -> None:
        self._kept: dict[tuple[RunId, GossipKind], OrderedDict[bytes, ReceivedGossip]] = {}
        """By subject, the newest last."""

    def put(self, run: RunId, subject: bytes, gossip: ReceivedGossip) -> None:
        """`subject`: what a newer message replaces."""
        kept = self._kept.setdefault((run, gossip.kind), OrderedDict())
        kept.pop(subject, None)
        if isinstance(gossip.message, ServingRecord) and not gossip.message.urls:
            return  # it has stopped to serve
        kept[subject] = gossip
        if len(kept) > KEPT_MAX[gossip.kind]:
            kept.pop(min(kept, key=lambda each: _get_step(kept[each])))

    def list_frames(self, run: RunId, now_ms: int) -> tuple[bytes, ...]:
        """Frames that have not expired, newest of each kind first."""
        kept = chain.from_iterable(reversed(self._kept.get((run, kind), OrderedDict()).values()) for kind in KEPT_MAX)
        frames: list[bytes] = []
        space = RECENT_BYTES_MAX
        for gossip in kept:
            if gossip.payload.expires_at_ms > now_ms and len(gossip.frame) <= space:
                frames.append(gossip.frame)
                space -= len(gossip.frame)
        return tuple(frames)


def _get_step(gossip: ReceivedGossip) -> int:
    """Of announcements those of old steps give way, of other messages, for which this is 0, the oldest."""
    return gossip.message.step if isinstance(gossip.message, CheckpointAnnounced) else 0
