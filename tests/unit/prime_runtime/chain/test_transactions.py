"""The nonce book: what is due for a transaction, whatever became of it."""

from dataclasses import replace

import pytest

from prime_runtime.chain.transactions import (
    PendingTransaction,
    SignedAttempt,
    TransactionSight,
    TransactionStep,
    drop_stranded,
    next_nonce,
    next_step,
    raise_fees,
)

CAP = 1_000
FIRST = PendingTransaction(5, "anchor", "0x1", "0x", 100, (SignedAttempt("0xa", "0xraw", 100, 10, at_ms=0),))


def step(sent: PendingTransaction, **sight: int | None) -> TransactionStep:
    usual: dict[str, int | None] = {"mined_in": None, "head": 100, "chain_nonce": 5, "now_ms": 0}
    seen = TransactionSight(**{**usual, **sight})  # type: ignore[arg-type]
    return next_step(sent, seen, confirmations=3, patience_ms=1_000, fee_wei_max=CAP)


@pytest.mark.parametrize(
    ("mined_in", "expected"), [(97, TransactionStep.FORGET), (98, TransactionStep.WAIT), (100, TransactionStep.WAIT)]
)
def test_it_is_kept_until_it_lies_deep_enough(mined_in: int, expected: TransactionStep) -> None:
    assert step(FIRST, mined_in=mined_in, chain_nonce=6) is expected


def test_one_whose_nonce_another_has_taken_is_forgotten() -> None:
    assert step(FIRST, chain_nonce=6) is TransactionStep.FORGET


def test_one_that_a_reorganisation_took_out_is_sent_again_at_once() -> None:
    assert step(replace(FIRST, mined_in=99)) is TransactionStep.SEND_AGAIN


def test_one_that_waits_too_long_is_offered_for_more_up_to_the_cap() -> None:
    assert step(FIRST, now_ms=999) is TransactionStep.WAIT
    assert step(FIRST, now_ms=1_000) is TransactionStep.RAISE
    dear = FIRST.add_attempt(SignedAttempt("0xb", "0xraw", CAP, 10, at_ms=0))
    assert step(dear, now_ms=1_000) is TransactionStep.SEND_AGAIN


def test_fees_rise_enough_to_replace_and_stop_at_the_cap() -> None:
    fee_wei, tip_wei = raise_fees(FIRST.last, fee_wei_max=CAP)
    assert fee_wei >= 110 and tip_wei >= 11
    last = FIRST.last
    for _ in range(50):
        fee_wei, tip_wei = raise_fees(last, fee_wei_max=CAP)
        last = SignedAttempt("0xb", "0xraw", fee_wei, tip_wei, at_ms=0)
        assert tip_wei <= fee_wei <= CAP
    assert fee_wei == CAP


def test_a_nonce_is_never_given_twice_while_the_first_may_still_be_mined() -> None:
    second = replace(FIRST, nonce=6)
    assert next_nonce((), 5) == 5
    assert next_nonce((FIRST, second), 5) == 7
    assert next_nonce((FIRST,), 9) == 9


def test_what_waits_behind_a_gap_is_dropped_since_it_can_never_be_mined() -> None:
    second, fourth = replace(FIRST, nonce=6), replace(FIRST, nonce=8)
    assert drop_stranded((fourth, FIRST, second), 5) == (FIRST, second)
    assert drop_stranded((FIRST,), 3) == ()
    assert drop_stranded((FIRST, second), 7) == (FIRST, second)
