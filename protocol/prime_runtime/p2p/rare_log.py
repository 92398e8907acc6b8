"""Log lines that strangers can cause: some at once, then one every few seconds, with the number of those left out."""

import logging
from collections.abc import Callable
from typing import Any

from prime_runtime.rates import Rate, TokenBuckets

LINES = Rate(per_second=0.2, burst=20)


class RareLog:
    """Writes to a logger, but not as often as it is told."""

    def __init__(self, logger: logging.Logger, now_ms: Callable[[], int]) -> None:
        self._logger = logger
        self._now_ms = now_ms
        self._lines = TokenBuckets(LINES, keys_max=1)
        self._left_out = 0

    def say(self, level: int, text: str, *args: Any, error: BaseException | None = None) -> None:
        if self._lines.take("", self._now_ms()):
            self._left_out += 1
            return
        more = f" ({self._left_out} such lines left out)" if self._left_out else ""
        self._left_out = 0
        self._logger.log(level, text + more, *args, exc_info=error)
