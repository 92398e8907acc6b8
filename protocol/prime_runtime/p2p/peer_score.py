"""How well one peer has behaved: a number that forgets, and bans that end. Pure; the time comes in."""

from dataclasses import dataclass
from enum import Enum

HALF_LIFE_MS = 300_000
"""Both good and bad deeds count half as much after five minutes."""
SCORE_MAX = 20.0
"""Good deeds are cheap, so they buy little: one forged message more than a stranger may send."""
BAN_BELOW = -100.0
BAN_MS = 600_000
BAN_MS_MAX = 24 * 3_600_000
"""A ban lasts ten minutes, and twice as long each time, up to a day."""


class Fault(Enum):
    """What a peer can do wrong."""

    FORGED = "passed on a message that no honest peer would"
    GARBAGE = "sent bytes that are no protocol"
    BAD_CARD = "handed out a peer card that is none"
    FLOOD = "sent more than it may"


WEIGHTS = {Fault.FORGED: 21.0, Fault.GARBAGE: 35.0, Fault.BAD_CARD: 21.0, Fault.FLOOD: 1.0}
"""Points lost. Five forged messages, or a hundred too many, within a minute or so are a ban."""


@dataclass(slots=True)
class Score:
    """0 for a stranger. Below the limit it is banned, and begins anew when the ban ends."""

    points: float = 0.0
    at_ms: int = 0
    bans: int = 0
    banned_until_ms: int = 0
    group: str = ""
    """Where its last connection came from."""

    def at(self, now_ms: int) -> float:
        passed_ms = max(0, now_ms - self.at_ms)
        return float(self.points * 0.5 ** (passed_ms / HALF_LIFE_MS))

    def is_banned(self, now_ms: int) -> bool:
        return now_ms < self.banned_until_ms

    def reward(self, now_ms: int) -> None:
        self._set(min(SCORE_MAX, self.at(now_ms) + 1.0), now_ms)

    def blame(self, fault: Fault, now_ms: int) -> bool:
        """True if this was what it took to be banned."""
        if self.is_banned(now_ms):
            return False
        self._set(self.at(now_ms) - WEIGHTS[fault], now_ms)
        if self.points > BAN_BELOW:
            return False
        self.banned_until_ms = now_ms + min(BAN_MS_MAX, BAN_MS << min(10, self.bans))
        self.bans += 1
        self._set(0.0, now_ms)
        return True

    def _set(self, points: float, now_ms: int) -> None:
        self.points = points
        self.at_ms = max(self.at_ms, now_ms)
