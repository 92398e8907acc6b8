"""How many gossip messages a node of a large network receives, in virtual time. Pure.

The real sampler decides for every message of every node whether it is gossiped, and the real budget of a receiver
whether it is taken. Nodes publish as AnnounceSchedule and the head monitor do: a record when a manifest is new and when
it is complete, and repetitions. What a message costs is measured with real nodes: see bench/gossip.py.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_protocol.constants import (
    ANNOUNCED_REPEATED_MAX,
    GOSSIP_LIFE_MS,
    GOSSIP_MANIFESTS_MAX,
    GOSSIP_REPEAT_MS,
    HEAD_REPEAT_MS,
    PROTOCOL_VERSION,
)
from prime_protocol.gossip.budget import GossipSampler
from prime_protocol.gossip.guard import GossipBudget
from prime_protocol.gossip.messages import (
    MESSAGE_KINDS,
    CheckpointAnnounced,
    GossipKind,
    GossipMessage,
    HeadSeen,
    ReceivedGossip,
    ServingRecord,
    compute_repeat_ms,
)
from prime_protocol.log.tree_head import TreeHead, sign_tree_head
from prime_protocol.weights.manifest import ManifestKind
from prime_protocol.wire.envelope import Payload
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step

NETWORK, RUN = NetworkId("simulated"), RunId("run-1")
MANIFESTS_PER_STEP = 2
"""A keyframe and a delta."""
ARRIVAL_SHARE, DURATION_SHARE = 0.3, 0.5
"""When a manifest reaches a node, and how long its shards take, as shares of a step: at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipLoadPlan:
    """One simulated network."""

    nodes: int
    seconds: int
    step_s: int = 60
    """Between two checkpoints."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class GossipLoad:
    """What one node receives."""

    published: int
    """Messages that all nodes posted to the coordinator's relay."""
    per_s: dict[GossipKind, float]
    """Messages of each kind that every node receives in a second."""
    refused: int
    """Messages of honest nodes that were over a receiver's budget."""


def simulate_gossip_load(plan: GossipLoadPlan) -> GossipLoad:
    """The first step of the time is a warm-up and not counted."""
    network = _Network(plan)
    taken: Counter[GossipKind] = Counter()
    budget, refused = GossipBudget(), 0
    warm_ms = 1000 * plan.step_s
    for now_ms, gossip, is_exempt in network.run():
        if not is_exempt and not budget.take(RUN, gossip.kind, now_ms):
            refused += 1
        elif now_ms >= warm_ms:
            taken[gossip.kind] += 1
    counted_s = plan.seconds - plan.step_s
    return GossipLoad(network.published, {kind: taken[kind] / counted_s for kind in GossipKind}, refused)


class _Network:
    """All nodes, their events in the order of time."""

    def __init__(self, plan: GossipLoadPlan) -> None:
        self._plan = plan
        self._rng = Random(plan.seed)
        self._samplers = [GossipSampler() for _ in range(1 + plan.nodes // 10_000)]
        """Each node has its own. Shared here by some, as they are kept by sender, and below the limit of one."""
        self._events: list[tuple[int, int, str]] = []
        self._manifests: list[tuple[Digest, ...]] = [() for _ in range(plan.nodes)]
        self._serving_due_ms = [0] * plan.nodes
        self._serving_repeat_ms = compute_repeat_ms(GossipKind.SERVING, plan.nodes)
        self._heads_repeat_ms = compute_repeat_ms(GossipKind.HEAD_SEEN, plan.nodes)
        self._steps: list[CheckpointAnnounced] = []
        self._records: dict[tuple[Digest, ...], ServingRecord] = {}
        head = TreeHead("simulated/log", 1, Digest(bytes(32)))
        self._head = HeadSeen(note=sign_tree_head(head, Ed25519PrivateKey.from_private_bytes(bytes(32))))
        self.published = 0

    def run(self) -> Iterator[tuple[int, ReceivedGossip, bool]]:
        """Time, message, and whether it is exempt from budgets: the trainer's."""
        end_ms = 1000 * self._plan.seconds
        heappush(self._events, (0, -1, "step"))
        heappush(self._events, (0, -1, "repeat"))
        heappush(self._events, (0, -1, "head"))
        for node in range(self._plan.nodes):
            heappush(self._events, (int(self._rng.random() * self._heads_repeat_ms), node, "head"))
        while self._events and self._events[0][0] < end_ms:
            now_ms, node, what = heappop(self._events)
            for message in self._list_messages(now_ms, node, what):
                self.published += 1
                gossip = self._receive(message, node, now_ms)
                sampler = self._samplers[node % len(self._samplers)]
                is_own = node < 0
                nodes = 0 if is_own else self._plan.nodes
                if sampler.is_chosen(gossip, known_nodes=nodes, now_ms=now_ms):
                    yield now_ms, gossip, is_own and isinstance(message, CheckpointAnnounced)

    def _list_messages(self, now_ms: int, node: int, what: str) -> list[GossipMessage]:
        match what:
            case "step":
                return self._publish_step(now_ms)
            case "repeat":
                heappush(self._events, (now_ms + GOSSIP_REPEAT_MS, -1, "repeat"))
                return list(self._steps)
            case "head":
                pause_ms = HEAD_REPEAT_MS if node < 0 else self._heads_repeat_ms
                heappush(self._events, (now_ms + pause_ms, node, "head"))
                return [self._head]
            case "manifest":
                self._manifests[node] = self._get_newest()
                return [self._serve(node, now_ms)]
            case "complete":
                return [self._serve(node, now_ms)]
            case _:
                # A record that was sent since then took the place of this repetition.
                return [self._serve(node, now_ms)] if now_ms >= self._serving_due_ms[node] else []

    def _publish_step(self, now_ms: int) -> list[GossipMessage]:
        step_ms = 1000 * self._plan.step_s
        heappush(self._events, (now_ms + step_ms, -1, "step"))
        new: list[GossipMessage] = []
        for number in range(MANIFESTS_PER_STEP):
            announced = CheckpointAnnounced(
                step=Step(now_ms // step_ms),
                root=Digest(bytes(32)),
                manifest=Digest((now_ms + number).to_bytes(32, "big")),
                manifest_bytes=5_000,
                kind=ManifestKind.KEYFRAME,
                base=None,
                transport_bytes=10**9,
            )
            new.append(announced)
            self._steps = [*self._steps, announced][-4 * ANNOUNCED_REPEATED_MAX :]
        for node in range(self._plan.nodes):
            arrival_ms = now_ms + int(self._rng.random() * ARRIVAL_SHARE * step_ms)
            heappush(self._events, (arrival_ms, node, "manifest"))
            heappush(self._events, (arrival_ms + int(self._rng.random() * DURATION_SHARE * step_ms), node, "complete"))
        return new

    def _get_newest(self) -> tuple[Digest, ...]:
        return tuple(each.manifest for each in reversed(self._steps[-GOSSIP_MANIFESTS_MAX:]))

    def _serve(self, node: int, now_ms: int) -> ServingRecord:
        self._serving_due_ms[node] = now_ms + self._serving_repeat_ms
        if self._serving_repeat_ms < 1000 * self._plan.seconds:
            heappush(self._events, (self._serving_due_ms[node], node, "again"))
        manifests = self._manifests[node]
        if manifests not in self._records:
            record = ServingRecord(urls=("http://203.0.113.9:1",), depth=1, slots_free=1, manifests=manifests)
            self._records[manifests] = record
        return self._records[manifests]

    def _receive(self, message: GossipMessage, node: int, now_ms: int) -> ReceivedGossip:
        """Unsigned: the sampler reads the sender, the time and the digest, which is as good as random."""
        payload = Payload(
            version=PROTOCOL_VERSION,
            kind=MESSAGE_KINDS[type(message)],
            sender=NodeId((node + 1).to_bytes(20, "big")),
            network=NETWORK,
            run=RUN,
            sequence=self.published,
            issued_at_ms=now_ms,
            expires_at_ms=now_ms + GOSSIP_LIFE_MS,
            body=b"",
        )
        return ReceivedGossip(payload, message, Digest(self._rng.randbytes(32)), b"")
