"""Which messages enter gossip: a sample of the nodes' records, of the same size in a network of any size. Pure.

Every gossiped message costs every node of its run a few milliseconds, so the rate of the whole network must not grow
with the network. Each node learns from the coordinator, or from its own directory, about how many nodes there are, and
gossips a share of its messages that leaves the same number for any number of nodes. The share is drawn from the
message's digest: the coordinator, which forwards what was posted over HTTP, draws the same. A node that gossips more
than its share is stopped by its receivers (GossipBudget in guard.py).
"""

from collections import OrderedDict
from dataclasses import dataclass

from prime_protocol.constants import (
    ANNOUNCED_REPEATED_MAX,
    GOSSIP_REPEAT_MS,
    GOSSIP_SENDERS_MAX,
    HEAD_REPEAT_MS,
    HEADS_SAMPLE,
    SERVING_SAMPLE,
)
from prime_protocol.gossip.messages import (
    CheckpointAnnounced,
    GossipKind,
    HeadSeen,
    ReceivedGossip,
    ServingRecord,
    compute_repeat_ms,
)
from prime_protocol.wire.ids import Digest, NodeId, RunId, Step

DRAW_BYTES = 8


@dataclass(frozen=True, slots=True)
class ToldRecord:
    """The last serving record of a node that the sampler decided about."""

    manifests: tuple[Digest, ...]
    at_ms: int
    gossiped_until_ms: int
    """When its newest gossiped record expires; 0 if none was gossiped."""


class GossipSampler:
    """Decides which messages enter gossip: those of this node, and in the coordinator those posted over HTTP."""

    def __init__(self) -> None:
        self._told: OrderedDict[tuple[RunId, NodeId], ToldRecord] = OrderedDict()
        self._announced: dict[RunId, dict[Digest, Step]] = {}

    def __len__(self) -> int:
        """Nodes remembered, each for every run."""
        return len(self._told)

    def is_chosen(self, gossip: ReceivedGossip, *, known_nodes: int, now_ms: int) -> bool:
        """Whether an accepted message is gossiped. `known_nodes` serve in its run."""
        run = gossip.payload.run
        assert run is not None, "only messages about a run are gossiped"
        match gossip.message:
            case ServingRecord() as serving:
                return self._is_serving_chosen(run, gossip, serving, known_nodes, now_ms)
            case CheckpointAnnounced() as announced:
                return self._is_announcement_chosen(run, announced)
            case HeadSeen():
                # As with repeated records: in a large network a node says rarely which head it saw.
                sample = HEADS_SAMPLE * compute_repeat_ms(GossipKind.HEAD_SEEN, known_nodes) // HEAD_REPEAT_MS
                return _is_drawn(gossip.digest, sample, known_nodes)
            case _:
                return True

    def _is_serving_chosen(
        self, run: RunId, gossip: ReceivedGossip, serving: ServingRecord, known_nodes: int, now_ms: int
    ) -> bool:
        key = (run, gossip.payload.sender)
        told = self._told.get(key)
        if not serving.urls:
            # Those who have its record should not try in vain.
            self._told.pop(key, None)
            return told is not None and told.gossiped_until_ms > now_ms
        is_repeated = told is not None and told.manifests == serving.manifests
        if told is not None and is_repeated and now_ms - told.at_ms < GOSSIP_REPEAT_MS * 9 // 10:
            return False  # nothing has changed by which others choose their parents
        # In a large network a node repeats its record rarely, so more of the repetitions are gossiped.
        sample = SERVING_SAMPLE
        if is_repeated:
            sample = sample * compute_repeat_ms(GossipKind.SERVING, known_nodes) // GOSSIP_REPEAT_MS
        is_chosen = _is_drawn(gossip.digest, sample, known_nodes)
        until_ms = gossip.payload.expires_at_ms if is_chosen else told.gossiped_until_ms if told is not None else 0
        self._told.pop(key, None)
        self._told[key] = ToldRecord(serving.manifests, now_ms, until_ms)
        if len(self._told) > GOSSIP_SENDERS_MAX:
            self._told.popitem(last=False)
        return is_chosen

    def _is_announcement_chosen(self, run: RunId, announced: CheckpointAnnounced) -> bool:
        """Those of the newest steps, however often they are repeated."""
        known = self._announced.get(run, {}) | {announced.manifest: announced.step}
        newest = sorted(known, key=lambda manifest: (-known[manifest], manifest))[:ANNOUNCED_REPEATED_MAX]
        self._announced[run] = {manifest: known[manifest] for manifest in newest}
        return announced.manifest in newest


def _is_drawn(digest: Digest, sample: int, known_nodes: int) -> bool:
    """True for about `sample` of the messages of that many nodes."""
    return int.from_bytes(digest[:DRAW_BYTES], "big") * known_nodes < sample << (8 * DRAW_BYTES)
