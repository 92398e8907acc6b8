"""How likely honest noise makes the margins of a completion, and what that weighs against its author. Pure.

A token loses against the replayed winner where rounding turned the order of two nearly equal scores. In honest work
that happens to a share `margin_rate` of all tokens, and the margin is then no larger than an exponential number with
the mean `margin_scale`. So honest noise makes a margin of m or more with the chance

    p(m) = margin_rate * exp(-m / margin_scale)

and a token that somebody chose has one that is arbitrarily unlikely. The sum of -log p over the losing tokens of a
completion needs two numbers only: how many lose, and the sum of their margins.

That sum is weighed by bets. A bet is the likelihood of other work over that of honest work: `rate` times as many tokens
lose, and their margins decay more slowly by the share `tilt`. Its expectation is 1 for honest work at the calibrated
bounds and less below them, whatever the length, so that Ville's inequality bounds how often any sum of bets is large.
Calibration widens the bounds until honest completions keep that on every pair of machines (fit_margins in
prime_node.calibration).
"""

import math
from collections.abc import Sequence

from prime_protocol.constants import EDITED_SHARE, EVIDENCE_MARGIN_MAX, MARGIN_BETS, MARGIN_RATE_MAX
from prime_protocol.proofs.evidence import Deviation, EvidenceCounter, ReplayedChunk
from prime_protocol.proofs.tolerance import Tolerance

DECADE = math.log(10)
DOUBT = math.ceil(10 * math.log10(len(MARGIN_BETS)))
"""The best of several bets is taken, which costs each its share."""


def count_losers(spans: Sequence[ReplayedChunk]) -> tuple[int, int, float]:
    """Tokens of a completion, how many lose, and the sum of their margins."""
    return (
        sum(span.tokens for span in spans),
        sum(span.losers for span in spans),
        sum(span.margin_sum for span in spans),
    )


def compute_surprise(losers: int, margin_sum: float, tolerance: Tolerance) -> float:
    """Minus the logarithm to base 10 of the chance that honest noise makes these margins, token by token."""
    return (margin_sum / tolerance.margin_scale - losers * math.log(tolerance.margin_rate)) / DECADE


def compute_bets(tokens: int, losers: int, margin_sum: float, tolerance: Tolerance) -> tuple[float, ...]:
    """What a completion weighs under each bet, in powers of ten, at most EVIDENCE_MARGIN_MAX either way."""
    honest, scale = tolerance.margin_rate, tolerance.margin_scale
    found = []
    for times, tilt in MARGIN_BETS:
        rate = min(times * honest, MARGIN_RATE_MAX)
        kept = (tokens - losers) * (math.log1p(-rate) - math.log1p(-honest))
        lost = losers * (math.log(rate / honest) + math.log1p(-tilt)) + tilt * margin_sum / scale
        most = EVIDENCE_MARGIN_MAX / 10
        found.append(max(-most, min((kept + lost) / DECADE, most)))
    return tuple(found)


def compute_edit_weight(bets: Sequence[float]) -> int:
    """What a completion weighs if few of a file were edited, in tenths: most likely it was not."""
    edited = sum(10**bet for bet in bets) / len(bets)
    return math.floor(10 * math.log10(1 - EDITED_SHARE + EDITED_SHARE * edited))


def compute_margin_deviation(spans: Sequence[ReplayedChunk], tolerance: Tolerance) -> Deviation:
    """What the margins of one completion weigh. The value is their surprise, the bound what honest work has on
    average at the calibrated bounds.
    """
    tokens, losers, margin_sum = count_losers(spans)
    typical = compute_surprise(1, tolerance.margin_scale, tolerance) * tolerance.margin_rate * tokens
    weight = compute_edit_weight(compute_bets(tokens, losers, margin_sum, tolerance))
    return Deviation("margin_sum", compute_surprise(losers, margin_sum, tolerance), typical, weight)


class MarginCounter:
    """Both tests of margins, one completion at a time in the order of the file."""

    def __init__(self, tolerance: Tolerance) -> None:
        self._tolerance = tolerance
        self._edits = EvidenceCounter()
        self._totals = [0.0] * len(MARGIN_BETS)

    def add(self, spans: Sequence[ReplayedChunk]) -> Deviation:
        mark = compute_margin_deviation(spans, self._tolerance)
        self._edits.add(mark.weight)
        for number, bet in enumerate(compute_bets(*count_losers(spans), self._tolerance)):
            self._totals[number] += bet
        return mark

    def sum_edits(self) -> int:
        """Few edited completions among honest ones. More completions never lower it: a conviction stands."""
        return self._edits.sum().most

    def sum_bets(self) -> tuple[int, ...]:
        """What all completions so far weigh together under each bet, in tenths, rounded down. Honest ones lower it."""
        return tuple(math.floor(10 * total) for total in self._totals)

    def sum_file(self) -> int:
        """The larger of both tests: few edited completions, and a small deviation in all. For a file read whole."""
        return max(self.sum_edits(), max(self.sum_bets()) - DOUBT)
