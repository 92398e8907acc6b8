"""What an attack is worth under a run's terms. Pure.

A worker past probation that forges k submissions at once, against honest work:

    gain = k * saves * cost - E[X] * pay - E[min(X * slash, stake)]       X ~ Binomial(k, audit_floor * detection)

k is at most the number of submissions of one node that the coordinator leaves unsettled, and together they have at
most UNSETTLED_STEPS_MAX steps of slots. Each slash is taken from the
remaining stake, so the more are forged at once, the less the last one costs. An attack that is refused before an audit
is neither paid nor slashed: `gain = saves * cost - pay`, and zero if the worker then does the work. The pay of a
submission is its share of what a step pays to workers. A worker does not work for less than its cost, so the cost is at
most the pay. Consequences of a slash are left out; they would only lower the gain: the stake is too small for more
work, and probation with its audits starts again.

A validator that does not read a share of the files it judges, against one that reads all, per verdict and relative to
the pay of a confirmed verdict:

    gain = max(0, 1 - idle * (wrong + inspected * refuted)) - (1 - idle * saves) * cost - (1 - cost)

`idle` is the share that it does not read, `wrong` the share of those verdicts that are overruled, `inspected` the share
of all judged files that an inspector reads again, and `refuted` what one unread file costs then, in verdicts. Nothing
is taken from its stake, so it cannot lose more than it earns. The suspension that follows is left out; it would only
lower the gain.
"""

from math import comb

from prime_coordinator.constants import INSPECT_SHARE
from prime_lab.attacks.attack import Attack, AttackVerdict
from prime_protocol.constants import BASIS_POINTS, REFUTED_VERDICTS
from prime_protocol.ledger.terms import RunTerms

COST_SHARE = 0.95
"""Of the pay: a margin as thin as any miner's."""
INSPECTED = INSPECT_SHARE / BASIS_POINTS
"""Of judged files, where the operator runs an inspector and leaves the share as it is."""


def compute_pay_nano(terms: RunTerms, slots: int) -> float:
    """Of a submission, where all slots of a step are of the same work."""
    for_workers = terms.step_budget_nano * (BASIS_POINTS - terms.audit_share) / BASIS_POINTS
    return for_workers * slots / terms.slots_per_step


def compute_gain_nano(
    attack: Attack, terms: RunTerms, *, slots: int, detection: float, leases: int = 1, cost_share: float = COST_SHARE
) -> float:
    """Expected, against answering the same leases honestly; below 0 the attack does not pay."""
    pay = compute_pay_nano(terms, slots)
    saved = leases * attack.saves * cost_share * pay
    if attack.verdict is AttackVerdict.REFUSED:
        return saved - leases * pay
    caught = terms.audit_floor / BASIS_POINTS * detection
    return saved - leases * caught * pay - compute_expected_slash_nano(terms, leases, caught)


def compute_expected_slash_nano(terms: RunTerms, leases: int, caught: float) -> float:
    """Of so many submissions, each caught with that chance; together they take no more than the least stake."""
    chances = (comb(leases, n) * caught**n * (1 - caught) ** (leases - n) for n in range(leases + 1))
    return sum(chance * min(n * terms.slash_nano, terms.stake_min_nano) for n, chance in enumerate(chances))


# --- Validators -----------------------------------------------------------------------------------------------------


def compute_verdict_gain(
    *, saves: float, wrong: float, inspected: float = INSPECTED, idle: float = 1.0, cost_share: float = COST_SHARE
) -> float:
    """Of one verdict, as a part of the pay of one that stands; above 0 it pays not to look."""
    paid = max(0.0, 1.0 - idle * (wrong + inspected * REFUTED_VERDICTS))
    return paid - (1.0 - idle * saves) * cost_share - (1.0 - cost_share)
