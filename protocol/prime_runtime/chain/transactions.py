"""Pending transactions of a key and what to do with each; fee limits; errors of a chain. Pure.

A transaction is stored before it is sent. After a crash the next process knows which nonces may be in use, and sends
the same bytes again. A transaction stays pending until it has enough confirmations: one that a reorganisation removed
is sent again.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated

from prime_protocol.errors import LocalError
from prime_runtime.settings.schema import Between, settings_class


class ChainUnavailable(LocalError):
    """The chain does not answer now. Settlement retries later; nothing is lost."""


class NonceTaken(ChainUnavailable):
    """Another transaction of the same key used the nonce. Ours can never be mined, so it can be sent again."""


class GasCapExceeded(LocalError):
    """The transaction needs more gas than the settings allow."""

    name = ""


class ContractReverted(LocalError):
    """A contract reverted. `name` is its custom error; empty if it is unknown."""

    def __init__(self, what: str, name: str = "") -> None:
        super().__init__(what)
        self.name = name


@settings_class
class GasConfig:
    """The section [settlement.gas]: what a transaction may cost and how long it may wait."""

    fee_gwei_max: Annotated[int, Between(1, 10**6)] = 200
    """Maximum price of a unit of gas; while the chain asks for more, settlement waits."""
    gas_max: Annotated[int, Between(21_000, 30_000_000)] = 12_000_000
    """Maximum gas of one transaction."""
    patience_ms: Annotated[int, Between(1_000, 86_400_000)] = 90_000
    """How long a transaction may wait for a block before it is sent again with higher fees."""


RAISE_PERCENT = 125
"""Fees relative to the previous attempt; nodes require at least 110 to replace a transaction."""


@dataclass(frozen=True, slots=True)
class SignedAttempt:
    """One signature of a transaction. All attempts share a nonce, so at most one is ever mined."""

    hash: str
    raw: str
    fee_wei: int
    """Most to be paid for a unit of gas."""
    tip_wei: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """A transaction and its attempts."""

    nonce: int
    purpose: str
    to: str
    data: str
    gas: int
    attempts: tuple[SignedAttempt, ...]
    """Oldest first."""
    mined_in: int | None = None
    """The block it was last seen in."""

    @property
    def last(self) -> SignedAttempt:
        return self.attempts[-1]

    def add_attempt(self, attempt: SignedAttempt) -> "PendingTransaction":
        return replace(self, attempts=(*self.attempts, attempt))


class TransactionStep(Enum):
    """What to do with a pending transaction."""

    WAIT = "wait"
    FORGET = "forget"
    """It is final, or another transaction has used its nonce."""
    SEND_AGAIN = "send again"
    RAISE = "raise"
    """Send it again with higher fees."""


@dataclass(frozen=True, slots=True)
class TransactionSight:
    """What the chain shows of a transaction now."""

    mined_in: int | None
    """The block of any of its attempts."""
    head: int
    chain_nonce: int
    """Number of mined transactions of this key."""
    now_ms: int


def next_step(
    sent: PendingTransaction, sight: TransactionSight, *, confirmations: int, patience_ms: int, fee_wei_max: int
) -> TransactionStep:
    """The next step for a pending transaction."""
    if sight.mined_in is not None:
        return TransactionStep.FORGET if sight.head - sight.mined_in >= confirmations else TransactionStep.WAIT
    if sight.chain_nonce > sent.nonce:
        return TransactionStep.FORGET
    if sent.mined_in is not None:
        return TransactionStep.SEND_AGAIN  # a reorganisation removed it
    if sight.now_ms - sent.last.at_ms < patience_ms:
        return TransactionStep.WAIT
    return TransactionStep.RAISE if sent.last.fee_wei < fee_wei_max else TransactionStep.SEND_AGAIN


def raise_fees(last: SignedAttempt, *, fee_wei_max: int) -> tuple[int, int]:
    """Fee and tip of the next attempt, never above the limit."""
    fee_wei = min(fee_wei_max, last.fee_wei * RAISE_PERCENT // 100 + 1)
    return fee_wei, min(fee_wei, last.tip_wei * RAISE_PERCENT // 100 + 1)


def drop_stranded(pending: tuple[PendingTransaction, ...], chain_nonce: int) -> tuple[PendingTransaction, ...]:
    """Drop transactions that can never be mined: a nonce before theirs is neither used nor pending."""
    kept: list[PendingTransaction] = []
    expected = chain_nonce
    for sent in sorted(pending, key=lambda each: each.nonce):
        if sent.nonce > expected:
            break
        expected = max(expected, sent.nonce + 1)
        kept.append(sent)
    return tuple(kept)


def next_nonce(pending: tuple[PendingTransaction, ...], chain_nonce: int) -> int:
    return max([chain_nonce, *(sent.nonce + 1 for sent in pending)])
