"""Entries on their way to the log: one at a time, in order, again until there is an answer. Pure.

The log takes the entries of one author only with rising sequence numbers, so two in flight could overtake each other
and the first would be refused.
"""

from collections import deque
from collections.abc import Iterable
from random import Random

from prime_node.events import Parcel
from prime_protocol.exchange import Refusal, RefusalCode

BACKOFF_MS = 1_000
BACKOFF_MS_MAX = 30_000
"""Between two attempts, doubling. A coordinator that restarts is back within seconds; one that does not must not be
hammered."""

TRANSIENT = frozenset(
    {
        RefusalCode.SLOW,
        RefusalCode.RATE_LIMITED,
        RefusalCode.INTERNAL,
        RefusalCode.OVERLOADED,
        RefusalCode.RESTARTED,
        RefusalCode.TIMED_OUT,
        RefusalCode.REPLAYED,
        RefusalCode.CLOCK,
    }
)
"""Refusals that say nothing about the request itself: sealed anew, it may pass."""

STALE_FIELDS = frozenset({"Letter.sequence", "Letter.expires_at_ms", "Letter.issued_at_ms"})
"""The envelope came too late or out of order; its content was not looked at."""


def is_final(refusal: Refusal) -> bool:
    """Whether asking again would get the same answer."""
    return refusal.code not in TRANSIENT and refusal.field not in STALE_FIELDS


def backoff_ms(attempts: int, dice: Random) -> int:
    """Half fixed, half drawn, so that nodes that failed together do not come back together."""
    span_ms = min(BACKOFF_MS_MAX, BACKOFF_MS * 2 ** min(attempts, 10))
    return int(span_ms * (0.5 + 0.5 * dice.random()))


class Outbox:
    """First in, first out, and nothing overtakes."""

    def __init__(self, parcels: Iterable[Parcel] = ()) -> None:
        self._parcels = deque(parcels)
        self._attempts = 0
        self.due_ms = 0
        """When the first may be sent; meaningless while it is on its way."""

    def __len__(self) -> int:
        return len(self._parcels)

    def parcels(self) -> tuple[Parcel, ...]:
        return tuple(self._parcels)

    def push(self, parcel: Parcel) -> None:
        self._parcels.append(parcel)

    def drop_stale(self, server_ms: int) -> list[Parcel]:
        """Take out what comes too late from the front. Not while the first is on its way."""
        stale = []
        while self._parcels and server_ms > self._parcels[0].until_ms:
            stale.append(self.pop())
        return stale

    def first(self) -> Parcel:
        return self._parcels[0]

    def pop(self) -> Parcel:
        """The first has its answer."""
        self._attempts = 0
        self.due_ms = 0
        return self._parcels.popleft()

    def put_off(self, now_ms: int, dice: Random, retry_after_ms: int = 0) -> None:
        """The first has to be sent again."""
        self.due_ms = now_ms + retry_after_ms + backoff_ms(self._attempts, dice)
        self._attempts += 1
