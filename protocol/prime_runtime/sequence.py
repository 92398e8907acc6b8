"""Sequence numbers for the envelopes of one key: rising, and never used twice, also across restarts."""


class Sequence:
    """Numbers from the wall clock, so that nothing has to be kept on disk. One process for each key."""

    STEPS_PER_MS = 1024

    def __init__(self) -> None:
        self._last = 0

    def next(self, now_ms: int) -> int:
        """A clock that steps back is no harm while the process lives: the last number still counts up."""
        self._last = max(self._last + 1, now_ms * self.STEPS_PER_MS)
        return self._last
