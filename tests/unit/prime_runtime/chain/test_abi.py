"""A view as call data, and its answer by name; compared with what the contracts' compiler says of selectors."""

from typing import Any

import pytest
from eth_abi.abi import decode, encode

from prime_protocol.abi import load
from prime_runtime.chain.abi import get_abi_type, list_functions


class PlainCodec:
    """web3's own is the same one."""

    def encode(self, types: Any, values: Any) -> bytes:
        return encode(types, values)

    def decode(self, types: Any, data: bytes) -> tuple[Any, ...]:
        return decode(types, data)


CODEC = PlainCodec()


@pytest.mark.parametrize("name", ["TestToken", "RunRegistry", "LogAnchor", "Court", "StakeVault", "RewardPool"])
def test_no_contract_has_two_functions_of_one_name(name: str) -> None:
    abi = load(name)["abi"]
    assert len(list_functions(abi)) == sum(item["type"] == "function" for item in abi)


def test_a_well_known_function_has_its_well_known_bytes() -> None:
    data = list_functions(load("TestToken")["abi"])["balanceOf"].encode(CODEC, ["0x" + "11" * 20])
    assert data == "0x70a08231" + "00" * 12 + "11" * 20


def test_a_struct_comes_with_the_names_of_its_fields() -> None:
    view = list_functions(load("StakeVault")["abi"])["positionOf"]
    values = {"owner": "0x" + "22" * 20, "boundAt": 3, "stake": 4, "unbonding": 5, "escrow": 6}
    (part,) = view.outputs
    order = [each["name"] for each in part["components"]]
    raw = encode([get_abi_type(part)], [tuple(values[name] for name in order)])
    assert view.decode(CODEC, raw) == values


def test_a_list_of_structs_and_several_values_come_as_such() -> None:
    unbondings = list_functions(load("StakeVault")["abi"])["unbondingsOf"]
    raw = encode([get_abi_type(unbondings.outputs[0])], [[(7, 8), (9, 10)]])
    assert unbondings.decode(CODEC, raw) == [{"amount": 7, "maturesAt": 8}, {"amount": 9, "maturesAt": 10}]
    status = list_functions(load("RunRegistry")["abi"])["statusOf"]
    assert status.decode(CODEC, encode(["uint8", "uint48", "uint48"], [1, 2, 3])) == (1, 2, 3)
