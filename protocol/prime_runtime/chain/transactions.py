"""What can go wrong with a chain: it cannot be asked, or it says no.

What transactions may cost, as an operator sets it.

The transactions of one key that are not settled yet, and what to do about each. Pure; the files are elsewhere.

A transaction is written down before it is sent, so whatever ends the process, the next one knows which nonces may be in
use and sends the very same bytes again. It stays in the book until it is as deep as the chain is trusted: one that a
reorganisation has taken out again is sent again.
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated

from prime_protocol.errors import LocalError
from prime_runtime.settings.schema import Between, settings_class


class ChainUnavailable(LocalError):
    """The chain cannot be asked now. Whoever settles tries again later; nothing is lost."""


class NonceTaken(ChainUnavailable):
    """Another program with the same key was quicker. What was sent can never count, so it can be sent again."""


class GasCapExceeded(LocalError):
    """Our own settings are against it."""

    name = ""


class ContractReverted(LocalError):
    """A contract refuses. `name` is its custom error, empty where it gave none that we know."""

    def __init__(self, what: str, name: str = "") -> None:
        super().__init__(what)
        self.name = name


@settings_class
class GasConfig:
    """The section [settlement.gas]: what a transaction may cost, and how long it may wait."""

    fee_gwei_max: Annotated[int, Between(1, 10**6)] = 200
    """Most to be paid for a unit of gas; while the chain asks for more, settlement waits."""
    gas_max: Annotated[int, Between(21_000, 30_000_000)] = 12_000_000
    """Most gas of one transaction."""
    patience_ms: Annotated[int, Between(1_000, 86_400_000)] = 90_000
    """How long a transaction may wait for its block before it is offered again with higher fees."""


RAISE_PERCENT = 125
"""Of the fees of the try before; nodes ask for at least 110 to replace one."""


@dataclass(frozen=True, slots=True)
class SignedAttempt:
    """The transaction as it was signed once. All tries of one have the same nonce, so only one can ever count."""

    hash: str
    raw: str
    fee_wei: int
    """Most to be paid for a unit of gas."""
    tip_wei: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class PendingTransaction:
    """One transaction."""

    nonce: int
    purpose: str
    to: str
    data: str
    gas: int
    attempts: tuple[SignedAttempt, ...]
    """Oldest first."""
    mined_in: int | None = None
    """Block that it was last seen in."""

    @property
    def last(self) -> SignedAttempt:
        return self.attempts[-1]

    def add_attempt(self, attempt: SignedAttempt) -> "PendingTransaction":
        return replace(self, attempts=(*self.attempts, attempt))


class TransactionStep(Enum):
    """What to do about a transaction."""

    WAIT = "wait"
    FORGET = "forget"
    """It counts for good, or another one has taken its nonce."""
    SEND_AGAIN = "send again"
    RAISE = "raise"
    """The same with higher fees."""


@dataclass(frozen=True, slots=True)
class TransactionSight:
    """What the chain says of a transaction now."""

    mined_in: int | None
    """Block that any of its tries is in."""
    head: int
    chain_nonce: int
    """Transactions of this key that are in blocks."""
    now_ms: int


def next_step(
    sent: PendingTransaction, sight: TransactionSight, *, confirmations: int, patience_ms: int, fee_wei_max: int
) -> TransactionStep:
    """What is due for one transaction."""
    if sight.mined_in is not None:
        return TransactionStep.FORGET if sight.head - sight.mined_in >= confirmations else TransactionStep.WAIT
    if sight.chain_nonce > sent.nonce:
        return TransactionStep.FORGET
    if sent.mined_in is not None:
        return TransactionStep.SEND_AGAIN  # a reorganisation took it out
    if sight.now_ms - sent.last.at_ms < patience_ms:
        return TransactionStep.WAIT
    return TransactionStep.RAISE if sent.last.fee_wei < fee_wei_max else TransactionStep.SEND_AGAIN


def raise_fees(last: SignedAttempt, *, fee_wei_max: int) -> tuple[int, int]:
    """Fee and tip of the next try, never above the cap."""
    fee_wei = min(fee_wei_max, last.fee_wei * RAISE_PERCENT // 100 + 1)
    return fee_wei, min(fee_wei, last.tip_wei * RAISE_PERCENT // 100 + 1)


def drop_stranded(book: tuple[PendingTransaction, ...], chain_nonce: int) -> tuple[PendingTransaction, ...]:
    """Without those that can never be mined, because a nonce before them is neither used nor in the book."""
    kept: list[PendingTransaction] = []
    expected = chain_nonce
    for sent in sorted(book, key=lambda each: each.nonce):
        if sent.nonce > expected:
            break
        expected = max(expected, sent.nonce + 1)
        kept.append(sent)
    return tuple(kept)


def next_nonce(book: tuple[PendingTransaction, ...], chain_nonce: int) -> int:
    return max([chain_nonce, *(sent.nonce + 1 for sent in book)])
