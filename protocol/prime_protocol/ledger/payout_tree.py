"""The Merkle tree of what accounts were paid in all, in the form that OpenZeppelin's contracts check. Pure.

A leaf is keccak(keccak(account, cumulative)), both as 32-byte words; a pair is hashed with the smaller one first, so a
proof needs no sides.
"""

from collections.abc import Mapping

from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.signing import keccak

WORD_BYTES = 32


def compute_payout_leaf(account: NodeId, cumulative: int) -> Digest:
    words = bytes(account).rjust(WORD_BYTES, b"\x00") + cumulative.to_bytes(WORD_BYTES, "big")
    return keccak(keccak(words))


class PayoutTree:
    """Over one table of accounts. The same table gives the same root, whoever builds it."""

    def __init__(self, cumulative: Mapping[NodeId, int]) -> None:
        assert cumulative, "there is nobody to pay"
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


def _hash_sorted_pair(one: Digest, other: Digest) -> Digest:
    return keccak(min(one, other) + max(one, other))
