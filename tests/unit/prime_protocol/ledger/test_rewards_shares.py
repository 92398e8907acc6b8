"""How a step's budget is shared."""

from collections import Counter

from prime_protocol.ledger.rewards import compute_shares, compute_withheld
from prime_protocol.wire.ids import NodeId

ANN, BOB, VAL = ((NodeId(bytes([number]) * 20), NodeId(bytes([number + 9]) * 20)) for number in range(3))


def test_units_and_upheld_verdicts_have_their_own_pots() -> None:
    shares = compute_shares(budget_nano=1000, audit_share=1000, units={ANN: 1, BOB: 2}, upheld={VAL: 5})
    assert shares == {ANN: 300, BOB: 600, VAL: 100}


def test_a_node_may_earn_from_both() -> None:
    assert compute_shares(budget_nano=1000, audit_share=1000, units={ANN: 3}, upheld={ANN: 1}) == {ANN: 1000}


def test_shares_are_rounded_down() -> None:
    shares = compute_shares(budget_nano=100, audit_share=0, units={ANN: 1, BOB: 1, VAL: 1}, upheld={})
    assert shares == {ANN: 33, BOB: 33, VAL: 33}


def test_a_pot_that_nobody_earned_is_not_shared() -> None:
    assert compute_shares(budget_nano=100, audit_share=5000, units={}, upheld={VAL: 1}) == {VAL: 50}
    assert compute_shares(budget_nano=100, audit_share=5000, units={}, upheld={}) == {}


def test_without_a_budget_nobody_gets_anything() -> None:
    assert compute_shares(budget_nano=0, audit_share=5000, units={ANN: 1}, upheld={VAL: 1}).total() == 0


def test_a_debt_takes_verdicts_that_stood_and_no_more_than_there_are() -> None:
    upheld = Counter({ANN: 3, BOB: 30, VAL: 4})
    assert compute_withheld(upheld, Counter({ANN: 20, BOB: 20})) == {ANN: 3, BOB: 20}
    assert compute_withheld(upheld, Counter()) == Counter()
    assert compute_withheld(Counter(), Counter({ANN: 20})) == Counter()
