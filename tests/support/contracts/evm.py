"""The contracts as shipped, on an EVM inside this process (pyrevm): for one network, with a clock that is told.

No node, no compiler, no sockets. A call either returns plain values or raises Refused with the contract's own error.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import eth_abi
from pyrevm import EVM, BlockEnv

from prime_protocol import abi
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.signing import keccak

NAMES = ("TestToken", "RunRegistry", "LogAnchor", "Court", "StakeVault", "RewardPool")
CHAIN_ID = 1
"""pyrevm's own."""
SUPPLY = 10**24
DAY_S = 86_400
REVERT = re.compile(r"^Revert .*output: 0x([0-9a-f]*)")

TERMS: dict[str, int | bool] = {
    "stakeMin": 1000,
    "slashAmount": 600,
    "slashPerDay": 1500,
    "validatorSlash": 400,
    "appealBond": 50,
    "epochBudget": 10_000,
    "epochTime": 3600,
    "payoutDelay": DAY_S,
    "slashWindow": 4 * DAY_S,
    "appealWindow": 3 * DAY_S,
    "judgementWindow": 3 * DAY_S,
    "judgeAge": 0,
    "quorum": 3,
    "slashToPool": True,
    "bountyShare": 2000,
}


class Refused(Exception):
    """The contract's custom error."""

    def __init__(self, name: str, values: Mapping[str, Any]) -> None:
        super().__init__(f"{name}{dict(values)}")
        self.name = name
        self.values = values


@dataclass(frozen=True)
class Method:
    """One function of an ABI."""

    selector: bytes
    inputs: list[str]
    outputs: list[str]
    names: list[str]
    """Of the returned struct's fields, where one struct is returned."""


def _solidity(part: dict[str, Any]) -> str:
    kind: str = part["type"]
    if not kind.startswith("tuple"):
        return kind
    return f"({','.join(map(_solidity, part['components']))}){kind.removeprefix('tuple')}"


def _selector(entry: dict[str, Any]) -> bytes:
    return keccak(f"{entry['name']}({','.join(map(_solidity, entry['inputs']))})".encode())[:4]


@cache
def methods(contract: str) -> dict[str, Method]:
    found = {}
    for entry in abi.load(contract)["abi"]:
        if entry["type"] == "function":
            outputs = entry["outputs"]
            is_struct = len(outputs) == 1 and outputs[0]["type"] == "tuple"
            fields = outputs[0]["components"] if is_struct else []
            kinds = list(map(_solidity, entry["inputs"])), list(map(_solidity, outputs))
            found[entry["name"]] = Method(_selector(entry), *kinds, [field["name"] for field in fields])
    return found


@cache
def errors() -> dict[bytes, dict[str, Any]]:
    """Of all contracts: a call to one may end in an error of another."""
    return {_selector(entry): entry for name in NAMES for entry in abi.load(name)["abi"] if entry["type"] == "error"}


class Chain:
    """One network's contracts."""

    def __init__(self, operator: bytes, *, now_s: int, delay_s: int, network: str = "testnet") -> None:
        self.start()
        self.deployer = _hex(b"\x11" * 20)
        self.gas: dict[str, int] = {}
        """Of the last call of each function."""
        self._kinds: dict[str, str] = {}
        self.warp(now_s)
        self.token = self._deploy("TestToken", "Prime", "PRM", SUPPLY)
        self.registry = self._deploy("RunRegistry", network, operator, delay_s)
        self.log_anchor = self._deploy("LogAnchor", self.registry)
        self.court = self._deploy("Court", self.token, self.registry, self.log_anchor)
        self.vault = self._know("StakeVault", self.call(self.court, "vault"))
        self.pool = self._know("RewardPool", self.call(self.court, "pool"))

    def call(self, to: str, function: str, *values: Any, by: bytes | str | None = None) -> Any:
        """Send a transaction; what the function returned, a struct as a dictionary."""
        method = methods(self._kinds[to])[function]
        data = method.selector + eth_abi.encode(method.inputs, values)
        output, self.gas[function] = self.send(_hex(by) if by is not None else self.deployer, to, data)
        found = eth_abi.decode(method.outputs, output)
        if method.names:
            return dict(zip(method.names, found[0], strict=True))
        return found[0] if len(found) == 1 else found or None

    @contextmanager
    def refuses(self, name: str) -> Iterator[None]:
        try:
            yield
        except Refused as error:
            assert error.name == name, f"refused {error}, expected {name}"
        else:
            raise AssertionError(f"was not refused; expected {name}")

    def _deploy(self, name: str, *values: Any) -> str:
        document = abi.load(name)
        inputs = next(entry["inputs"] for entry in document["abi"] if entry["type"] == "constructor")
        code = bytes.fromhex(document["bytecode"].removeprefix("0x"))
        place, self.gas[f"deploy {name}"] = self.create(code + eth_abi.encode(list(map(_solidity, inputs)), values))
        return self._know(name, place)

    def _know(self, name: str, place: str) -> str:
        self._kinds[place.lower()] = name
        return place.lower()

    # --- What another EVM would do in its own way -------------------------------------------------------------------

    def start(self) -> None:
        self.evm = EVM(spec_id="CANCUN", gas_limit=2**63)

    def warp(self, now_s: int) -> None:
        self.now_s = now_s
        self.evm.set_block_env(BlockEnv(timestamp=now_s))

    def create(self, code: bytes) -> tuple[str, int]:
        """Where the contract is, and the gas."""
        place = self.evm.deploy(self.deployer, code)
        return place, self.evm.result.gas_used

    def send(self, by: str, to: str, data: bytes) -> tuple[bytes, int]:
        """What came back, and the gas; everything counts as warm here, so it is less than a transaction pays."""
        try:
            return self.evm.message_call(by, to, data), self.evm.result.gas_used
        except RuntimeError as error:
            # pyrevm tells what came back only in the text of its error.
            reverted = REVERT.search(str(error))
            if reverted is None:
                raise
            raise refusal(bytes.fromhex(reverted[1])) from None


def refusal(output: bytes) -> Refused:
    entry = errors()[output[:4]]
    values = eth_abi.decode(list(map(_solidity, entry["inputs"])), output[4:])
    return Refused(entry["name"], dict(zip([part["name"] for part in entry["inputs"]], values, strict=True)))


def _hex(address: bytes | str) -> str:
    return address if isinstance(address, str) else "0x" + bytes(address).hex()


def node_id(address: str) -> NodeId:
    return NodeId(bytes.fromhex(address.removeprefix("0x")))
