"""The payout tree: everybody in it can prove its part, and nobody another one."""

import pytest

from prime_protocol.ledger.payout_tree import (
    PayoutDifference,
    PayoutTree,
    compute_payout_leaf,
    find_difference,
    list_payable,
)
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.signing import keccak

ACCOUNTS = [NodeId(bytes([number]) * 20) for number in range(1, 12)]


def verify_payout(account: NodeId, cumulative: int, proof: list[Digest], root: Digest) -> bool:
    """What OpenZeppelin's MerkleProof checks."""
    found = compute_payout_leaf(account, cumulative)
    for sibling in proof:
        found = keccak(min(found, sibling) + max(found, sibling))
    return found == root


@pytest.mark.parametrize("count", range(1, 12))
def test_every_account_proves_its_own_amount_and_no_other(count: int) -> None:
    tree = PayoutTree({account: 7 * number for number, account in enumerate(ACCOUNTS[:count], 1)})
    for account, amount in tree.cumulative.items():
        proof = tree.proof(account)
        assert verify_payout(account, amount, proof, tree.root)
        assert not verify_payout(account, amount + 1, proof, tree.root)
        assert not verify_payout(NodeId(bytes(20)), amount, proof, tree.root)
    assert tree.total == sum(7 * number for number in range(1, count + 1))


def test_the_root_does_not_hang_on_the_order_of_the_table() -> None:
    table = {account: number for number, account in enumerate(ACCOUNTS)}
    assert PayoutTree(table).root == PayoutTree(dict(reversed(table.items()))).root


def test_one_account_is_its_own_root() -> None:
    tree = PayoutTree({ACCOUNTS[0]: 5})
    assert (tree.root, tree.proof(ACCOUNTS[0])) == (compute_payout_leaf(ACCOUNTS[0], 5), [])


def test_only_accounts_that_were_paid_are_in_the_table() -> None:
    assert list_payable({ACCOUNTS[0]: 3, ACCOUNTS[1]: 0}, 10) == {ACCOUNTS[0]: 30}


def test_the_first_difference_is_the_lowest_address_that_two_tables_pay_differently() -> None:
    first, second, third = ACCOUNTS[:3]
    assert find_difference({first: 1, second: 2}, {second: 2, first: 1}) is None
    assert find_difference({second: 2, third: 3}, {second: 2, third: 4}) == PayoutDifference(third, 3, 4)
    assert find_difference({second: 2}, {first: 9, second: 2}) == PayoutDifference(first, 0, 9)
    assert find_difference({second: 2}, {}) == PayoutDifference(second, 2, 0)
