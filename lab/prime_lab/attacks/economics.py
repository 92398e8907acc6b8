"""What an attack is worth, in a run's own terms. Pure.

A worker past probation that forges k submissions at once, against honest work:

    gain = k * saves * cost - E[X] * pay - E[min(X * slash, stake)]       X ~ Binomial(k, audit_floor * detection)

k is at most what the coordinator leaves unsettled of one node. Each slash is taken from what is left of the stake, so
the more are forged at once the less the last one costs. An attack that is refused before anybody audits it is never
paid and never slashed: `gain = saves * cost - pay`, and nothing at all for who then does the work. The pay of a
submission is its part of what a step pays to workers. Nobody works for less than it costs, so the cost is at most the
pay. What comes after a slash is left out, and would only make it worse: the stake is too small for more work, the good
name begins anew, and the audits with it.

A validator that does not read a part of what it judges, against one that reads all, for each verdict and as a part of
what one that stood is paid:

    gain = max(0, 1 - idle * (wrong + inspected * refuted)) - (1 - idle * saves) * cost - (1 - cost)

`idle` is the part that it does not read, `wrong` how many of those verdicts fall, `inspected` how many of all judged
files an inspector reads again, and `refuted` what one that was not read costs then, in verdicts. Nothing is taken from
its stake, so it cannot lose more than it earns. The recess that follows is left out, and would only make it worse.
"""

from math import comb

from prime_coordinator.constants import INSPECT_SHARE
from prime_lab.attacks.catalog import Attack, AttackVerdict
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
