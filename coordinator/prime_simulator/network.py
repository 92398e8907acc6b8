"""How messages travel: delays with heavy tails, loss, copies, overtaking, and parts that are cut off for a while."""

from random import Random

DELAY_MS = 15
DELAY_MS_MAX = 60_000
TAIL = 1.6
"""Exponent of the Pareto tail: most messages take tens of milliseconds, one in a thousand takes a second or more."""


class Network:
    """Decides the fate of each message. Two messages of one sender overtake each other as their delays fall."""

    def __init__(self, dice: Random, *, loss: float, duplicate: float) -> None:
        self._dice = dice
        self._loss = loss
        self._duplicate = duplicate
        self._cut_until_ms: dict[int, int] = {}
        self.sent = 0

    def cut_off(self, party: int, until_ms: int) -> None:
        """Nothing gets to or from this party until then."""
        self._cut_until_ms[party] = max(until_ms, self._cut_until_ms.get(party, 0))

    def deliver(self, party: int, now_ms: int) -> list[int]:
        """When the copies of one message between this party and the coordinator arrive; empty if it is lost."""
        self.sent += 1
        if now_ms < self._cut_until_ms.get(party, 0) or self._dice.random() < self._loss:
            return []
        arrivals = [now_ms + self._delay_ms()]
        if self._dice.random() < self._duplicate:
            arrivals.append(now_ms + self._delay_ms())
        return arrivals

    def _delay_ms(self) -> int:
        return min(DELAY_MS_MAX, int(DELAY_MS * self._dice.paretovariate(TAIL)))
