"""What `prime-node stake` tells an owner whose stake is too small: where value comes from in this network."""

from typing import Any

import pytest

from prime_node.cli.stake import explain_missing_stake

PRIME = 10**9
FACTS: dict[str, Any] = {"balance_nano": 0, "ticker": "PRIME", "owner": "0xa", "is_on_chain": False, "faucet_nano": 0}


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"balance_nano": 50 * PRIME}, "the stake is 20 below the minimum: prime-node stake add 20"),
        ({"balance_nano": 5 * PRIME}, "15 short. In this network the operator records payments: ask for one to 0xa"),
        ({}, "(prime-coordinator deposit 0xa 20 --reference TEXT), then prime-node stake add 20"),
        ({"is_on_chain": True}, "20 short: send PRIME tokens on the chain to 0xa, then prime-node stake add 20"),
        ({"faucet_nano": PRIME}, "20 short. This network's faucet gives each new node 1 once; ask its operator"),
    ],
)
def test_a_missing_stake_is_explained_by_where_value_comes_from(facts: dict[str, Any], said: str) -> None:
    assert said in explain_missing_stake(20 * PRIME, {**FACTS, **facts})
