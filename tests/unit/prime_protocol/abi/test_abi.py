"""The compiled contracts inside the package."""

import pytest

from prime_protocol import abi
from prime_protocol.log.tree_head import TreeHead
from prime_protocol.wire.signing import keccak
from prime_protocol.wire.typed_data import SubmissionReceipt, VerdictReceipt, solidity_type

NAMES = ("Court", "LogAnchor", "RewardPool", "RunRegistry", "StakeVault", "TestToken")


@pytest.mark.parametrize("name", NAMES)
def test_a_contract_comes_with_what_deploying_and_calling_it_takes(name: str) -> None:
    document = abi.load(name)
    assert document["contract"] == name
    assert document["compiler"].startswith("0.8.37")
    assert {entry["type"] for entry in document["abi"]} >= {"constructor", "function"}
    assert len(bytes.fromhex(document["bytecode"].removeprefix("0x"))) > 1_000


@pytest.mark.parametrize(
    ("name", "document"), [("Court", SubmissionReceipt), ("Court", VerdictReceipt), ("LogAnchor", TreeHead)]
)
def test_contracts_check_the_documents_that_parties_sign(name: str, document: type) -> None:
    type_hash = keccak(solidity_type(document).encode())
    assert type_hash.hex() in abi.load(name)["bytecode"]
