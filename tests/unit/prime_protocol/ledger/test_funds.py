"""The books: value only moves, and what is refused changes nothing."""

from copy import deepcopy

import pytest

from prime_protocol.errors import RemoteError
from prime_protocol.ledger.funds import Escrow, Funds, Unbonding
from prime_protocol.wire.ids import Digest, NodeId, RunId

OWNER, NODE, RUN = NodeId(b"o" * 20), NodeId(b"n" * 20), RunId("run")
PLACE = (OWNER, NODE)
SLASH = Digest(b"s" * 32)


@pytest.fixture
def books() -> Funds:
    """100 in: 50 at stake, of which 10 and 5 unbond; 50 free."""
    made = Funds()
    made.deposit(OWNER, 100)
    made.stake(PLACE, 50)
    made.unbond(PLACE, 10, matures_at_ms=1000, parts_max=3)
    made.unbond(PLACE, 5, matures_at_ms=2000, parts_max=3)
    return made


def test_everything_inside_is_what_came_in_less_what_went_out(books: Funds) -> None:
    books.withdraw(OWNER, 20)
    books.fund(RUN, OWNER, 10)
    books.pay(RUN, NODE, 3)
    books.move_to_escrow(SLASH, PLACE, 40)
    books.post_bond(SLASH, 2)
    assert books.total_nano() == 80
    assert books.is_conserved()
    books.burn(SLASH)
    assert (books.total_nano(), books.burned_nano) == (38, 42)
    assert books.is_conserved()


def test_what_the_court_has_is_out_of_the_books(books: Funds) -> None:
    books.move_to_escrow(SLASH, PLACE, 40)
    books.post_bond(SLASH, 2)
    books.transfer_to_court(SLASH)
    assert (books.total_nano(), books.withdrawn_nano) == (58, 42)
    assert books.is_conserved()


def test_value_from_nowhere_or_lost_is_noticed(books: Funds) -> None:
    books.balances[NODE] += 1
    assert not books.is_conserved()
    books.balances[NODE] -= 2
    assert not books.is_conserved()


@pytest.mark.parametrize("amount_nano", [0, 51])
def test_no_account_goes_below_zero(books: Funds, amount_nano: int) -> None:
    before = deepcopy(books)
    spends = [
        lambda: books.withdraw(OWNER, amount_nano),
        lambda: books.fund(RUN, OWNER, amount_nano),
        lambda: books.stake(PLACE, amount_nano),
        lambda: books.unbond(PLACE, amount_nano, matures_at_ms=0, parts_max=9),
    ]
    for spend in spends:
        with pytest.raises(RemoteError, match="amount_nano"):
            spend()
    assert books == before


def test_unbondings_are_few(books: Funds) -> None:
    books.unbond(PLACE, 1, matures_at_ms=0, parts_max=3)
    with pytest.raises(RemoteError, match="node"):
        books.unbond(PLACE, 1, matures_at_ms=0, parts_max=3)


def test_what_has_matured_is_released(books: Funds) -> None:
    with pytest.raises(RemoteError, match="node"):
        books.release(PLACE, 999)
    books.release(PLACE, 1000)
    assert books.balances[OWNER] == 60
    assert books.unbonding == {PLACE: (Unbonding(5, 2000),)}
    books.release(PLACE, 5000)
    assert books.unbonding == {}


@pytest.mark.parametrize(
    ("amount_nano", "stake", "unbonding"),
    [
        (0, 35, (Unbonding(10, 1000), Unbonding(5, 2000))),
        (30, 5, (Unbonding(10, 1000), Unbonding(5, 2000))),
        (39, 0, (Unbonding(6, 1000), Unbonding(5, 2000))),
        (45, 0, (Unbonding(5, 2000),)),
        (48, 0, (Unbonding(2, 2000),)),
        (50, 0, ()),
    ],
)
def test_a_slash_takes_the_stake_first_then_what_unbonds_oldest_first(
    books: Funds, amount_nano: int, stake: int, unbonding: tuple[Unbonding, ...]
) -> None:
    books.move_to_escrow(SLASH, PLACE, amount_nano)
    assert books.stakes[PLACE] == stake
    assert books.unbonding.get(PLACE, ()) == unbonding
    assert books.escrow == {SLASH: Escrow(PLACE, amount_nano)}
    assert books.is_conserved()


def test_a_refund_restores_stake_and_bond(books: Funds) -> None:
    books.move_to_escrow(SLASH, PLACE, 50)
    books.post_bond(SLASH, 7)
    books.refund(SLASH)
    assert (books.stakes[PLACE], books.balances[OWNER], books.escrow) == (50, 50, {})


def test_a_bond_comes_from_the_balance_or_else_from_the_stake_that_is_left(books: Funds) -> None:
    books.withdraw(OWNER, 48)
    books.move_to_escrow(SLASH, PLACE, 35)
    books.post_bond(SLASH, 4)
    assert books.escrow[SLASH] == Escrow(PLACE, 39)
    assert (books.balances[OWNER], books.stakes[PLACE], books.slashable_nano(PLACE)) == (2, 0, 11)
    books.refund(SLASH)
    assert (books.balances[OWNER], books.stakes[PLACE], books.is_conserved()) == (2, 39, True)


@pytest.mark.parametrize(("pool", "burned", "pooled"), [(None, 37, 0), (RUN, 0, 37)])
def test_forfeited_stake_is_burned_or_goes_to_the_pool(
    books: Funds, pool: RunId | None, burned: int, pooled: int
) -> None:
    books.forfeit_stake(PLACE, 37, pool=pool)
    assert (books.burned_nano, books.pools[RUN], books.slashable_nano(PLACE)) == (burned, pooled, 13)
    assert books.is_conserved()


def test_a_pooled_slash_pays_the_run(books: Funds) -> None:
    books.move_to_escrow(SLASH, PLACE, 50)
    books.pool(SLASH, RUN)
    assert (books.pools[RUN], books.escrow, books.is_conserved()) == (50, {}, True)


def test_our_own_mistakes_are_caught_before_value_moves(books: Funds) -> None:
    books.move_to_escrow(SLASH, PLACE, 1)
    books.post_bond(SLASH, 1)
    before = deepcopy(books)
    mistakes = [
        lambda: books.move_to_escrow(SLASH, PLACE, 1),
        lambda: books.move_to_escrow(Digest(b"t" * 32), PLACE, 50),
        lambda: books.post_bond(SLASH, 1),
        lambda: books.pay(RUN, OWNER, 1),
    ]
    for mistake in mistakes:
        with pytest.raises(AssertionError):
            mistake()
    assert books == before
