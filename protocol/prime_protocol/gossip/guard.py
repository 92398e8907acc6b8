"""Which gossip a node accepts and forwards: well-formed, valid in time, new, by a permitted sender, within its rate.

Every frame passes the guard before it is used or forwarded, over libp2p and over HTTP alike. Memory is bounded: when it
is full of live entries, messages of new senders are ignored, and known senders are not affected.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from threading import Lock
from typing import NamedTuple

from prime_protocol.constants import (
    ACCUSATIONS_ACCEPTED_BURST,
    ACCUSATIONS_ACCEPTED_PER_S,
    ACCUSATIONS_BURST,
    ACCUSATIONS_SENDER_PER_S,
    ANNOUNCED_BURST,
    ANNOUNCED_SENDER_PER_S,
    GOSSIP_SEEN_MAX,
    GOSSIP_SENDERS_MAX,
    GOSSIP_SUBJECTS_MAX,
    HEADS_ACCEPTED_BURST,
    HEADS_ACCEPTED_PER_S,
    HEADS_BURST,
    HEADS_SENDER_PER_S,
    SERVING_ACCEPTED_BURST,
    SERVING_ACCEPTED_PER_S,
    SERVING_BURST,
    SERVING_SENDER_PER_S,
)
from prime_protocol.errors import RemoteError
from prime_protocol.gossip.messages import CheckpointAnnounced, GossipKind, ReceivedGossip, decode_gossip
from prime_protocol.gossip.recent import RecentGossip
from prime_protocol.wire.envelope import check_time
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId
from prime_protocol.wire.seen_messages import SeenMessages

SenderPermission = Callable[[RunId, NodeId], bool]
"""Whether this node may send this in this run. Called from any thread, so it must only read."""

TOLERATED_FIELDS = frozenset({"Payload.version"})
"""Fields that may be wrong in a frame from an honest peer with another software version."""


class GossipRateLimit(NamedTuple):
    """Messages of one kind, of one sender or of all: the burst after a pause, and the sustained rate."""

    burst: int
    per_s: float


GOSSIP_RATE_LIMITS = {
    GossipKind.ANNOUNCED: GossipRateLimit(ANNOUNCED_BURST, ANNOUNCED_SENDER_PER_S),
    GossipKind.SERVING: GossipRateLimit(SERVING_BURST, SERVING_SENDER_PER_S),
    GossipKind.HEAD_SEEN: GossipRateLimit(HEADS_BURST, HEADS_SENDER_PER_S),
    GossipKind.ACCUSATION: GossipRateLimit(ACCUSATIONS_BURST, ACCUSATIONS_SENDER_PER_S),
}

GOSSIP_BUDGET = {
    GossipKind.SERVING: GossipRateLimit(SERVING_ACCEPTED_BURST, SERVING_ACCEPTED_PER_S),
    GossipKind.HEAD_SEEN: GossipRateLimit(HEADS_ACCEPTED_BURST, HEADS_ACCEPTED_PER_S),
    GossipKind.ACCUSATION: GossipRateLimit(ACCUSATIONS_ACCEPTED_BURST, ACCUSATIONS_ACCEPTED_PER_S),
}
"""Of all senders of a run together. Announcements have one sender."""


@dataclass(frozen=True, slots=True)
class GossipAccepted:
    """New and well-formed: use it and forward it."""

    gossip: ReceivedGossip


@dataclass(frozen=True, slots=True)
class GossipIgnored:
    """Valid, but not forwarded: known, older than what is known, or above a rate."""

    reason: str


@dataclass(frozen=True, slots=True)
class GossipRejected:
    """It breaks the rules. If `is_hostile`, no honest peer would have forwarded it."""

    reason: str
    is_hostile: bool


ValidationResult = GossipAccepted | GossipIgnored | GossipRejected


@dataclass(slots=True)
class GossipTokens:
    """A token bucket. A clock that steps back changes nothing."""

    tokens: float
    at_ms: int

    def take(self, rate: GossipRateLimit, now_ms: int) -> bool:
        self.tokens = min(rate.burst, self.tokens + max(0, now_ms - self.at_ms) * rate.per_s / 1000)
        self.at_ms = max(self.at_ms, now_ms)
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class GossipBudget:
    """What a node takes from gossip, of each kind and run: a flood of records of fresh keys costs no more than that."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[RunId, GossipKind], GossipTokens] = {}

    def take(self, run: RunId, kind: GossipKind, now_ms: int) -> bool:
        """True if one more message is within the budget. Runs are those that the node has joined."""
        rate = GOSSIP_BUDGET.get(kind)
        if rate is None:
            return True
        return self._buckets.setdefault((run, kind), GossipTokens(rate.burst, now_ms)).take(rate, now_ms)


@dataclass(slots=True)
class _SenderHistory:
    """What is remembered of one sender's messages of one kind in one run."""

    tokens: GossipTokens
    newest: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """By subject: sequence and expiry of the newest message."""


def allow_any_sender(run: RunId, node: NodeId) -> bool:
    """The permission that every key has."""
    return True


class GossipGuard:
    """Validates every frame once. Frames come from the libp2p thread and over HTTP, so a lock admits one at a time."""

    def __init__(
        self, network: NetworkId, *, is_trainer: SenderPermission, is_member: SenderPermission = allow_any_sender
    ) -> None:
        self._network = network
        self._is_trainer = is_trainer
        self._is_member = is_member
        self._senders: dict[tuple[RunId, GossipKind, NodeId], _SenderHistory] = {}
        self._seen: SeenMessages[Digest] = SeenMessages()
        """Digests of accepted frames: most copies are recognised before any signature is verified."""
        self._recent = RecentGossip()
        self._lock = Lock()

    def validate(
        self, topic_name: str, frame: bytes, *, run: RunId, now_ms: int, budget: GossipBudget | None = None
    ) -> ValidationResult:
        """What to do with a frame from a topic of this run. An accepted frame is remembered. `budget`: of the frames
        that strangers send unasked."""
        with self._lock:
            self._drop_expired(now_ms)
            if Digest(sha256(frame).digest()) in self._seen:
                return GossipIgnored("known")
            try:
                gossip = decode_gossip(topic_name, frame, network=self._network, run=run)
            except RemoteError as error:
                return GossipRejected(str(error), is_hostile=error.field not in TOLERATED_FIELDS)
            return self._check_sender(gossip, run, now_ms) or self._admit(gossip, run, now_ms, budget)

    def list_recent(self, run: RunId, now_ms: int) -> tuple[bytes, ...]:
        """Accepted frames for a peer that joins the run, in bounds."""
        with self._lock:
            return self._recent.list_frames(run, now_ms)

    def __len__(self) -> int:
        """Senders remembered, each once for every kind and run."""
        return len(self._senders)

    def _check_sender(self, gossip: ReceivedGossip, run: RunId, now_ms: int) -> ValidationResult | None:
        """None if the message is valid now and its sender may send it."""
        sender = gossip.payload.sender
        try:
            check_time(gossip.payload, now_ms)
        except RemoteError as error:
            # It was delayed, or the clock of the sender, the forwarder or this node is wrong; we cannot know which.
            return GossipRejected(str(error), is_hostile=False)
        if gossip.kind is GossipKind.ANNOUNCED and not self._is_trainer(run, sender):
            return GossipRejected(f"Payload.sender: {sender} is not the trainer of {run}", is_hostile=True)
        if gossip.kind is not GossipKind.ANNOUNCED and not self._is_member(run, sender):
            # The forwarder's copy of the log may be newer than ours.
            return GossipRejected(f"Payload.sender: {sender} is not known in {run}", is_hostile=False)
        return None

    def _admit(self, gossip: ReceivedGossip, run: RunId, now_ms: int, budget: GossipBudget | None) -> ValidationResult:
        payload, rate = gossip.payload, GOSSIP_RATE_LIMITS[gossip.kind]
        if self._seen.may_be_forgotten(issued_at_ms=payload.issued_at_ms, expires_at_ms=payload.expires_at_ms):
            return GossipIgnored("issued before this node's clock was set back")
        key = (run, gossip.kind, payload.sender)
        sender = self._senders.get(key) or _SenderHistory(GossipTokens(rate.burst, now_ms))
        subject = get_subject(gossip)
        known = sender.newest.get(subject)
        if known is not None and payload.sequence <= known[0]:
            return GossipIgnored("older than what is known")
        # Announcements come only from the trainer, so other senders cannot crowd them out.
        if (
            key not in self._senders
            and len(self._senders) >= GOSSIP_SENDERS_MAX
            and not isinstance(gossip.message, CheckpointAnnounced)
        ):
            return GossipIgnored("too many senders")
        if known is None and len(sender.newest) >= GOSSIP_SUBJECTS_MAX:
            return GossipIgnored("too many subjects of one sender")
        if not sender.tokens.take(rate, now_ms):
            return GossipIgnored("too many of one sender")
        if (
            budget is not None
            and not self._is_trainer(run, payload.sender)
            and not budget.take(run, gossip.kind, now_ms)
        ):
            return GossipIgnored("too many of all senders")
        self._recent.put(run, bytes(payload.sender) + subject, gossip)
        sender.newest[subject] = (payload.sequence, payload.expires_at_ms)
        self._senders[key] = sender
        if len(self._seen) < GOSSIP_SEEN_MAX:
            self._seen.add(
                gossip.digest, payload.sender, issued_at_ms=payload.issued_at_ms, expires_at_ms=payload.expires_at_ms
            )
        return GossipAccepted(gossip)

    def _drop_expired(self, now_ms: int) -> None:
        """Forget what has expired: it is refused by its time. All at once, every ten seconds."""
        if not self._seen.drop_expired(now_ms):
            return
        for sender in self._senders.values():
            sender.newest = {subject: known for subject, known in sender.newest.items() if known[1] > now_ms}
        self._senders = {key: sender for key, sender in self._senders.items() if sender.newest}


def get_subject(gossip: ReceivedGossip) -> bytes:
    """The key under which a newer message of a sender replaces an older one; for an announcement, its manifest."""
    return gossip.message.manifest if isinstance(gossip.message, CheckpointAnnounced) else b""
