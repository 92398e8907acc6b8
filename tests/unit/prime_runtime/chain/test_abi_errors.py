"""Custom errors of the contracts in words."""

from prime_protocol.abi import load
from prime_runtime.chain.abi import decode_contract_error, list_errors

TABLE = list_errors([load("Court")["abi"], load("StakeVault")["abi"]])


def word(number: int) -> bytes:
    return number.to_bytes(32, "big")


def find(name: str) -> bytes:
    return next(selector for selector, error in TABLE.items() if error.name == name)


def test_an_error_is_named_with_its_values() -> None:
    data = find("StakeTooSmall") + word(7) + word(50) + word(60)
    assert decode_contract_error(TABLE, data) == (
        "StakeTooSmall",
        f"StakeTooSmall(node=0x{7:040x}, stake=50, amount=60)",
    )
    name, text = decode_contract_error(TABLE, find("SlashExists") + word(9) + word(2))
    assert (name, text) == ("SlashExists", f"SlashExists(submission=0x{9:064x}, status=2)")


def test_what_is_not_ours_or_cut_short_is_shown_as_it_came() -> None:
    assert decode_contract_error(TABLE, bytes.fromhex("deadbeef")) == ("", "an unknown error, 0xdeadbeef")
    plain = bytes.fromhex("08c379a0") + word(32) + word(5) + b"no ha".ljust(32, b"\x00")
    assert decode_contract_error(TABLE, plain) == ("", "no ha")
    assert decode_contract_error(TABLE, find("StakeTooSmall")) == ("StakeTooSmall", "StakeTooSmall()")
