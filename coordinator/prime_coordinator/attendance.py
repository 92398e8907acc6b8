"""Validators that were drawn and said nothing: when they leave the draw. Pure.

A silent validator costs every submission it is drawn for the time of a round, so the coordinator sets it aside until
it is heard of again. How often it happened is forgotten at a restart.
"""

from collections import Counter
from collections.abc import Iterable

from prime_coordinator.constants import GRACE_MS, MISS_WAIT_MS, MISS_WAIT_MS_MAX, MISSES_MAX
from prime_coordinator.liveness import Liveness, Phase
from prime_coordinator.recess import SILENT, Recess
from prime_protocol.ids import NodeId


class Attendance:
    """Counts what validators let pass."""

    def __init__(self, recess: Recess, liveness: Liveness, now_ms: int) -> None:
        self._recess = recess
        self._liveness = liveness
        self._started_ms = now_ms
        self._misses: Counter[NodeId] = Counter()

    def missed(self, validators: Iterable[NodeId], now_ms: int) -> None:
        """A round's time is over, and these have not spoken."""
        if now_ms < self._started_ms + GRACE_MS:
            return
        for node in validators:
            self._misses[node] += 1
            if self._liveness.phase(node) is Phase.LOST:
                is_out = self._recess.begin(node, SILENT, now_ms)
            elif self._misses[node] >= MISSES_MAX:
                is_out = self._recess.begin(node, SILENT, now_ms, wait_ms=MISS_WAIT_MS, wait_ms_max=MISS_WAIT_MS_MAX)
            else:
                continue
            if is_out:
                del self._misses[node]

    def spoke(self, node: NodeId) -> None:
        self._misses.pop(node, None)
        self._recess.forgive(node, SILENT)
