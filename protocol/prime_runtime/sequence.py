"""Sequence numbers for the envelopes of one key: rising, and never used twice, also across restarts."""

from collections.abc import Callable
from secrets import randbelow


class Sequence:
    """Numbers from the wall clock, so that nothing has to be kept on disk."""

    STEPS_PER_MS = 1024
    OFFSETS = STEPS_PER_MS // 2
    """The lower half of each millisecond, where a number may begin; the rest is for more of them."""

    def __init__(self, draw: Callable[[], int] = lambda: 0) -> None:
        """`draw` says where in its millisecond a number begins, below OFFSETS."""
        self._last = 0
        self._draw = draw

    @classmethod
    def shared(cls) -> "Sequence":
        """For a key that several processes may use at once, as a trainer and its origin do: they rarely draw alike."""
        return cls(lambda: randbelow(cls.OFFSETS))

    def next(self, now_ms: int) -> int:
        """A clock that steps back is no harm while the process lives: the last number still counts up."""
        self._last = max(self._last + 1, now_ms * self.STEPS_PER_MS + self._draw())
        return self._last
