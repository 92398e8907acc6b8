"""How many rollouts (rows) a node may have in hand, how large its next lease is, and until when it runs. Pure.

A GPU generates hundreds of rows at once. Rows differ in length by a factor of ten, so a lease is open until its longest
row is done, while rows of later leases fill the places of its finished ones. A node therefore has several leases in
hand. What it says about its engine is a claim: it grows into it with what it delivers, as a TCP sender does.
"""

from collections import OrderedDict
from dataclasses import dataclass

from prime_coordinator.constants import (
    ACTIVE_MS,
    BATCH_PARTS,
    CREDIT_GROWTH,
    IN_HAND_BATCHES,
    LATENCY_MS_MAX,
    ROWS_CREDIT_MAX,
    TAIL_MEANS,
)
from prime_protocol.constants import LEASE_MS_MAX, LEASE_SLACK, LEASE_TARGET_MS
from prime_protocol.wire.ids import NodeId


class RowCredits:
    """How many rows of each node may be unanswered at once, by what it has delivered and lost."""

    def __init__(self) -> None:
        self._credits: dict[NodeId, int] = {}

    def get(self, node: NodeId, first: int) -> int:
        """`first`: the rows of a probe."""
        return max(first, self._credits.get(node, 0))

    def record_submission(self, node: NodeId, rows: int) -> None:
        self._credits[node] = min(ROWS_CREDIT_MAX, self._credits.get(node, rows) + CREDIT_GROWTH * rows)

    def record_loss(self, node: NodeId) -> None:
        """A lease expired: the node has more in hand than it can do."""
        if node in self._credits:
            self._credits[node] //= 2


class ActiveWorkers:
    """The measured speed of the workers of one run that asked for work lately: the free slots are shared by it.

    Claims do not count here: a stranger must not make the leases of others small.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[NodeId, tuple[int, float]] = OrderedDict()
        self._total = 0.0

    def record(self, node: NodeId, tokens_per_s: float, now_ms: int) -> None:
        self._total += tokens_per_s - self._seen.pop(node, (0, 0.0))[1]
        self._seen[node] = now_ms, tokens_per_s
        while now_ms - next(iter(self._seen.values()))[0] > ACTIVE_MS:
            _, (_, gone) = self._seen.popitem(last=False)
            self._total -= gone

    def get_share(self, node: NodeId) -> float | None:
        """Of all the work, by speed; None where no other worker asks."""
        speed = self._seen[node][1]
        return (speed / max(self._total, speed) if speed else 0.0) if len(self._seen) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """One node, and the rows of the run that it is asked to generate."""

    tokens_per_s: float
    """Of its whole engine, as measured."""
    rows_claimed: int
    """That its engine generates at once; 0: it does not say."""
    credit: int
    """Rows that it may have in hand by what it has delivered."""
    rows_open: int
    """Of its unanswered leases."""
    slot_rows: int
    """Rows of a slot, the smallest lease."""
    row_tokens: float
    """Mean output tokens of a row."""
    row_tokens_max: int
    """Output tokens of the longest possible row."""
    left_ms: float | None
    """Until a result is too late; None: no end is in sight."""

    @property
    def row_ms(self) -> float:
        """Time of the whole engine for a row."""
        return 1000 * self.row_tokens / self.tokens_per_s

    @property
    def rows_fitting(self) -> int:
        """Rows at once of which the long ones are still done in time: each row is slower the more there are."""
        tail_tokens = min(self.row_tokens_max, TAIL_MEANS * self.row_tokens)
        limit_ms = LATENCY_MS_MAX if self.left_ms is None else min(LATENCY_MS_MAX, self.left_ms)
        return int(self.tokens_per_s * limit_ms / 1000 / tail_tokens)

    @property
    def rows_at_once(self) -> int:
        """Rows that it is trusted to generate at once; 0: it does not say."""
        return min(self.rows_claimed, self.credit, max(1, self.rows_fitting))

    @property
    def rows_target(self) -> int:
        """Rows that its engine generates in the time that a lease should take."""
        return max(1, int(LEASE_TARGET_MS / self.row_ms))

    def get_room(self) -> int:
        """Rows that it may have in hand beside those it has."""
        rows = self.rows_at_once
        if not rows:
            return 2 * max(self.rows_target, self.slot_rows) - self.rows_open
        # A lease counts whole until its longest row is done. The fewer rows fit the time of those that the engine would
        # take at once, the fewer leases may lie beside each other.
        batches = max(2, min(IN_HAND_BATCHES, IN_HAND_BATCHES * self.rows_fitting // self.rows_claimed))
        return max(2 * self.rows_target, min(batches * rows, self.credit)) - self.rows_open

    def get_rows(self) -> int:
        """Size of its next lease, as far as it depends on the node alone; below 1: none now."""
        # Not so small that it would need more leases than it may hold.
        wanted = max(self.rows_target, self.rows_at_once // BATCH_PARTS)
        if self.left_ms is not None:
            wanted = min(wanted, int(self.left_ms / (self.slot_rows * self.row_ms)) * self.slot_rows)
        return min(wanted, self.get_room())

    def expect_ms(self, rows: int) -> float:
        """Until its longest row is done, if that is as long as rows may be: the rows before it, then that row."""
        beside = min(self.rows_at_once or rows, self.rows_open + rows)
        row_tokens_per_s = self.tokens_per_s / max(1, beside)
        return rows * self.row_ms + 1000 * self.row_tokens_max / row_tokens_per_s

    def expect_mean_ms(self, rows: int) -> float:
        """Until a row of mean length is done."""
        return (rows + min(self.rows_at_once, self.rows_open)) * self.row_ms

    def get_duration_ms(self, rows: int) -> int:
        """From the grant of so many rows to their deadline."""
        return int(min(LEASE_MS_MAX, max(LEASE_SLACK * self.expect_ms(rows), LEASE_TARGET_MS)))


def limit_to_share(slots: int, *, free: int, total: int, share: float | None, slot_ms: float) -> int:
    """A lease of at most the node's share of the free slots, so that all workers of a step end at about the same time.

    It is not cut below what takes LEASE_TARGET_MS, unless that is more than the node's share of the whole step. Each
    lease costs entries, a file and an audit, and a whole quorum judges every file of a node on probation: leases of one
    slot keep the validators of a small network from judging in time, and work that nobody judged is not paid.
    """
    if share is None:
        return slots
    least = min(total * share, LEASE_TARGET_MS / slot_ms)
    return min(slots, max(1, int(max(free * share, least))))
