"""How a step's budget is shared: a part to validators whose verdicts stood, the rest by verified units."""

from collections import Counter
from collections.abc import Mapping

from prime_protocol.books import Position
from prime_protocol.constants import BASIS_POINTS


def withhold(upheld: Counter[Position], debts: Counter[Position]) -> Counter[Position]:
    """How many of each position's verdicts go unpaid for its debt: all of the debt, or all that stood."""
    return upheld & debts


def compute_shares(
    *, budget_nano: int, audit_share: int, units: Mapping[Position, int], upheld: Mapping[Position, int]
) -> Counter[Position]:
    """Who gets how much. Shares are rounded down; what nobody earned and the remainders stay in the pool."""
    audit_nano = budget_nano * audit_share // BASIS_POINTS
    shares: Counter[Position] = Counter()
    for pot_nano, weights in ((budget_nano - audit_nano, units), (audit_nano, upheld)):
        total = sum(weights.values())
        for position, weight in weights.items():
            shares[position] += pot_nano * weight // total
    assert sum(shares.values()) <= budget_nano
    return shares
