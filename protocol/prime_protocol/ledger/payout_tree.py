"""The Merkle tree over what each account was paid in total, in the form that OpenZeppelin's contracts verify. Pure.

A leaf is keccak(keccak(account, cumulative)), both as 32-byte words. A pair is hashed with the smaller hash first, so a
proof does not have to say on which side each hash stands.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.signing import keccak

WORD_BYTES = 32


def list_payable(paid_nano: Mapping[NodeId, int], scale: int) -> dict[NodeId, int]:
    """The table of a payout root, from what a run has paid to each account. `scale`: units of the token per nano."""
    return {account: nano * scale for account, nano in paid_nano.items() if nano > 0}


def compute_payout_leaf(account: NodeId, cumulative: int) -> Digest:
    words = bytes(account).rjust(WORD_BYTES, b"\x00") + cumulative.to_bytes(WORD_BYTES, "big")
    return keccak(keccak(words))


class PayoutTree:
    """Over one table of accounts. The same table always gives the same root."""

    def __init__(self, cumulative: Mapping[NodeId, int]) -> None:
        assert cumulative, "there is no account to pay"
        self.cumulative = dict(cumulative)
        leaves = {account: compute_payout_leaf(account, amount) for account, amount in cumulative.items()}
        self._levels = [sorted(leaves.values())]
        self._leaves = leaves
        while len(self._levels[-1]) > 1:
            row = self._levels[-1]
            pairs = [row[place : place + 2] for place in range(0, len(row), 2)]
            # One that has no partner goes up as it is.
            self._levels.append([_hash_sorted_pair(*pair) if len(pair) == 2 else pair[0] for pair in pairs])

    @property
    def root(self) -> Digest:
        return self._levels[-1][0]

    @property
    def total(self) -> int:
        return sum(self.cumulative.values())

    def proof(self, account: NodeId) -> list[Digest]:
        """The partners on the way from the account's leaf to the root."""
        place = self._levels[0].index(self._leaves[account])
        partners = []
        for row in self._levels[:-1]:
            if place ^ 1 < len(row):
                partners.append(row[place ^ 1])
            place >>= 1
        return partners


@dataclass(frozen=True, slots=True)
class PayoutDifference:
    """An account that two tables pay differently, in units of the token."""

    account: NodeId
    by_log: int
    by_table: int


def find_difference(by_log: Mapping[NodeId, int], by_table: Mapping[NodeId, int]) -> PayoutDifference | None:
    """The first account, by address, whose total in a table is not the log's."""
    for account in sorted({*by_log, *by_table}):
        ours, theirs = by_log.get(account, 0), by_table.get(account, 0)
        if ours != theirs:
            return PayoutDifference(account, ours, theirs)
    return None


def _hash_sorted_pair(one: Digest, other: Digest) -> Digest:
    return keccak(min(one, other) + max(one, other))
