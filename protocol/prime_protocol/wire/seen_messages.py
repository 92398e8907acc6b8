"""Which messages were seen before: the one detector of repeated messages, for envelopes and for gossip.

It remembers a name until the message expires, and groups names by expiry, so that forgetting costs no search. It is
bounded: the caller asks for room before it remembers. Whether a message is in time is checked by envelope.check_time;
what to answer to a repeated one is decided by ReplayGuard and GossipGuard.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from prime_protocol.wire.ids import NodeId

MessageName = TypeVar("MessageName", bound=Hashable)
BUCKET_MS = 10_000
"""Names that expire within the same ten seconds are forgotten together."""


@dataclass(slots=True)
class ExpiryBucket(Generic[MessageName]):
    """Names that expire within the same BUCKET_MS, with their senders."""

    names: list[tuple[MessageName, NodeId]] = field(default_factory=list)
    issued_ms: int = -1
    """When the latest of them was issued."""


class SeenMessages(Generic[MessageName]):
    """Names of messages that have not expired.

    A message that was forgotten could be repeated after the clock is set back, because it is in time again.
    `may_be_forgotten` is true for every such message. It compares the time of issue, so messages that are issued after
    the clock was corrected are not affected.
    """

    def __init__(self) -> None:
        self._names: set[MessageName] = set()
        self._buckets: dict[int, ExpiryBucket[MessageName]] = {}
        self._held: Counter[NodeId] = Counter()
        self._floor = 0
        self._floor_max = 0
        self._forgotten_ms = -1
        """Latest issue of a forgotten message. One that was issued later cannot be among them."""

    def __contains__(self, name: MessageName) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def count_of_sender(self, sender: NodeId) -> int:
        return self._held[sender]

    def may_be_forgotten(self, *, issued_at_ms: int, expires_at_ms: int) -> bool:
        """Whether a message with these times may have been seen and forgotten. Call after `drop_expired`."""
        return expires_at_ms // BUCKET_MS < self._floor_max and issued_at_ms <= self._forgotten_ms

    def add(self, name: MessageName, sender: NodeId, *, issued_at_ms: int, expires_at_ms: int) -> None:
        self._names.add(name)
        self._held[sender] += 1
        number = expires_at_ms // BUCKET_MS
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = ExpiryBucket()
        bucket.names.append((name, sender))
        bucket.issued_ms = max(bucket.issued_ms, issued_at_ms)

    def drop_expired(self, now_ms: int) -> bool:
        """Forget the buckets in which every message has expired. False if there was nothing to look for yet."""
        floor = now_ms // BUCKET_MS
        if floor == self._floor:
            return False
        self._floor = floor
        self._floor_max = max(self._floor_max, floor)
        for number in [number for number in self._buckets if number < floor]:
            bucket = self._buckets.pop(number)
            self._forgotten_ms = max(self._forgotten_ms, bucket.issued_ms)
            for name, sender in bucket.names:
                self._names.discard(name)
                self._held[sender] -= 1
                if not self._held[sender]:
                    del self._held[sender]
        return True
