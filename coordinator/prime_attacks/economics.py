"""What an attack is worth to a worker, in a run's own terms. Pure.

Against honest work, for one submission after probation:

    gain = saves * cost - caught * (pay + slash)        caught = audit_floor * detection

An attack that is refused before anybody audits it is never paid, so there `gain = saves * cost - pay`. The pay of a
submission is its part of what a step pays to workers. Nobody works for less than it costs, so the cost is at most the
pay. What comes after a slash is left out, and would only make it worse: the stake is too small for more work, the good
name begins anew, and the audits with it.
"""

from prime_attacks.gallery import Attack, Verdict
from prime_protocol.constants import BASIS_POINTS
from prime_protocol.terms import RunTerms

COST_SHARE = 0.95
"""Of the pay: a margin as thin as any miner's."""


def pay_nano(terms: RunTerms, slots: int) -> float:
    """Of a submission, where all slots of a step are of the same work."""
    for_workers = terms.step_budget_nano * (BASIS_POINTS - terms.audit_share) / BASIS_POINTS
    return for_workers * slots / terms.slots_per_step


def gain_nano(
    attack: Attack, terms: RunTerms, *, slots: int, detection: float, cost_share: float = COST_SHARE
) -> float:
    """Expected, against answering the same lease honestly; below 0 the attack does not pay."""
    pay = pay_nano(terms, slots)
    saved = attack.saves * cost_share * pay
    if attack.verdict is Verdict.REFUSED:
        return saved - pay
    caught = terms.audit_floor / BASIS_POINTS * detection
    return saved - caught * (pay + terms.slash_nano)


def break_even_nano(terms: RunTerms) -> float:
    """The pay of one submission from which a perfect saving pays: a run must stay below it."""
    floor = terms.audit_floor / BASIS_POINTS
    return floor * terms.slash_nano / (1 - floor)
