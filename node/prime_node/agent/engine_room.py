"""How many rollouts (rows) the engine generates at once, and so whether it has room for another lease. Pure.

The engine must never drain: a row that ends should find another one waiting. It must not hoard either: rows that wait
for long become stale, and other nodes could have begun them. So a worker holds a full batch and a part of the next one.
"""

from dataclasses import dataclass

from prime_node.agent.events import EngineReported

BACKLOG_PARTS = 4
"""Rows that wait beside a full batch, as a part of it. A lease is granted in seconds, and rows take tens of them."""
SHRINK_PARTS = 8
"""A smaller full batch lowers the remembered one by this part of the difference: a batch that is just being filled is
small too, and the engine reports several times a second."""
TOKENS_DECAY = 0.8
"""Weight of the earlier mean length when a lease is done."""


@dataclass(slots=True)
class EngineRoom:
    """What the engine has reported, and what follows from it."""

    running: int = 0
    sequences_max: int = 0
    kv_tokens: int = 0
    _full_rows: int = 0
    """Rows in the batch while others waited for a place; 0: that has not happened yet."""
    _row_tokens: float = 0.0
    """Mean output tokens; 0 before the first lease was done."""

    def record_report(self, report: EngineReported) -> None:
        self.running = report.running
        self.sequences_max, self.kv_tokens = report.sequences_max, report.kv_tokens
        if report.waiting and report.running:
            fewer = max(0, self._full_rows - report.running)
            self._full_rows = max(report.running, self._full_rows - -(-fewer // SHRINK_PARTS))

    def record_rows(self, tokens: float) -> None:
        """A lease was done whose rows had so many output tokens in the mean."""
        known = self._row_tokens
        self._row_tokens = TOKENS_DECAY * known + (1 - TOKENS_DECAY) * tokens if known else tokens

    @property
    def rows_at_once(self) -> int:
        """Rows that the engine generates at once; 0: unknown. What it did counts more than what it should do."""
        if self._full_rows:
            return max(self._full_rows, self.running)
        fitting = self.sequences_max
        if self.kv_tokens and self._row_tokens:
            fitting = min(fitting, int(self.kv_tokens / self._row_tokens))
        return max(fitting, self.running)

    def has_room(self, unfinished: int) -> bool:
        """Whether to take another lease beside so many unfinished rows."""
        rows = self.rows_at_once
        return unfinished < rows + max(1, rows // BACKLOG_PARTS)
