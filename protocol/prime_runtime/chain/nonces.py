"""The transactions of one key that are not settled yet, and what to do about each. Pure; the files are elsewhere.

A transaction is written down before it is sent, so whatever ends the process, the next one knows which nonces may be in
use and sends the very same bytes again. It stays in the book until it is as deep as the chain is trusted: one that a
reorganisation has taken out again is sent again.
"""

from dataclasses import dataclass, replace
from enum import Enum

RAISE_PERCENT = 125
"""Of the fees of the try before; nodes ask for at least 110 to replace one."""


@dataclass(frozen=True, slots=True)
class Try:
    """The transaction as it was signed once. All tries of one have the same nonce, so only one can ever count."""

    hash: str
    raw: str
    fee_wei: int
    """Most to be paid for a unit of gas."""
    tip_wei: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Sent:
    """One transaction."""

    nonce: int
    purpose: str
    to: str
    data: str
    gas: int
    tries: tuple[Try, ...]
    """Oldest first."""
    mined_in: int | None = None
    """Block that it was last seen in."""

    @property
    def last(self) -> Try:
        return self.tries[-1]

    def tried(self, attempt: Try) -> "Sent":
        return replace(self, tries=(*self.tries, attempt))


class Step(Enum):
    """What to do about a transaction."""

    WAIT = "wait"
    FORGET = "forget"
    """It counts for good, or another one has taken its nonce."""
    SEND_AGAIN = "send again"
    RAISE = "raise"
    """The same with higher fees."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What the chain says of a transaction now."""

    mined_in: int | None
    """Block that any of its tries is in."""
    head: int
    chain_nonce: int
    """Transactions of this key that are in blocks."""
    now_ms: int


def next_step(sent: Sent, sight: Sight, *, confirmations: int, patience_ms: int, fee_wei_max: int) -> Step:
    """What is due for one transaction."""
    if sight.mined_in is not None:
        return Step.FORGET if sight.head - sight.mined_in >= confirmations else Step.WAIT
    if sight.chain_nonce > sent.nonce:
        return Step.FORGET
    if sent.mined_in is not None:
        return Step.SEND_AGAIN  # a reorganisation took it out
    if sight.now_ms - sent.last.at_ms < patience_ms:
        return Step.WAIT
    return Step.RAISE if sent.last.fee_wei < fee_wei_max else Step.SEND_AGAIN


def raise_fees(last: Try, *, fee_wei_max: int) -> tuple[int, int]:
    """Fee and tip of the next try, never above the cap."""
    fee_wei = min(fee_wei_max, last.fee_wei * RAISE_PERCENT // 100 + 1)
    return fee_wei, min(fee_wei, last.tip_wei * RAISE_PERCENT // 100 + 1)


def drop_stranded(book: tuple[Sent, ...], chain_nonce: int) -> tuple[Sent, ...]:
    """Without those that can never be mined, because a nonce before them is neither used nor in the book."""
    kept: list[Sent] = []
    expected = chain_nonce
    for sent in sorted(book, key=lambda each: each.nonce):
        if sent.nonce > expected:
            break
        expected = max(expected, sent.nonce + 1)
        kept.append(sent)
    return tuple(kept)


def next_nonce(book: tuple[Sent, ...], chain_nonce: int) -> int:
    return max([chain_nonce, *(sent.nonce + 1 for sent in book)])
