"""How a step's budget is shared: a part to validators whose verdicts stood, the rest by verified units."""

from collections import Counter
from collections.abc import Mapping

from prime_protocol.constants import BASIS_POINTS
from prime_protocol.ids import NodeId


def compute_shares(
    *, budget_nano: int, audit_share: int, units: Mapping[NodeId, int], upheld: Mapping[NodeId, int]
) -> Counter[NodeId]:
    """Who gets how much. Shares are rounded down; what nobody earned and the remainders stay in the pool."""
    audit_nano = budget_nano * audit_share // BASIS_POINTS
    shares: Counter[NodeId] = Counter()
    for pot_nano, weights in ((budget_nano - audit_nano, units), (audit_nano, upheld)):
        total = sum(weights.values())
        for node, weight in weights.items():
            shares[node] += pot_nano * weight // total
    assert sum(shares.values()) <= budget_nano
    return shares
