"""The chain over JSON-RPC, through web3: blocks, calls, events, transactions. The only file that knows web3.

Every answer is somebody else's: what does not parse, or does not come, is ChainAway; what a contract refuses is
ChainRefused with the contract's own error in words.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from prime_protocol.abi import load
from prime_protocol.errors import LocalError
from prime_protocol.ids import NodeId
from prime_protocol.signing import WalletKey, checksum_address
from prime_runtime.chain.errors import ChainAway, ChainRefused
from prime_runtime.chain.refusals import list_errors, name_refusal

try:
    from eth_account import Account
    from web3 import AsyncHTTPProvider, AsyncWeb3
    from web3.exceptions import (
        BadFunctionCallOutput,
        BlockNotFound,
        ContractLogicError,
        TransactionNotFound,
        Web3Exception,
        Web3RPCError,
    )
except ModuleNotFoundError as error:
    raise LocalError(
        f"settling on a chain needs web3 ({error.name} is missing): pip install prime-swarm[evm]"
    ) from None

CONTRACTS = ("TestToken", "RunRegistry", "LogAnchor", "Court", "StakeVault", "RewardPool")
TIMEOUT_S = 20.0
NEWEST = "latest"
KNOWN_ALREADY = ("already known", "already imported", "nonce too low", "underpriced")
"""What a node answers to bytes that it has, or whose nonce is taken: looking at the chain tells which."""


@dataclass(frozen=True, slots=True)
class Contract:
    """One of ours, at an address."""

    name: str
    address: NodeId


@dataclass(frozen=True, slots=True)
class Block:
    number: int
    hash: str
    time_s: int
    base_fee_wei: int


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a contract of ours."""

    contract: str
    name: str
    values: Mapping[str, Any]
    block: int
    block_hash: str
    transaction: str
    index: int
    """Among the block's."""


@dataclass(frozen=True, slots=True)
class Mined:
    """A transaction in a block."""

    transaction: str
    block: int
    is_good: bool
    first_event: int
    """Index in the block of its first event."""
    contract: NodeId | None
    """That it made."""


class Chain:
    """One chain, by the RPC address of a node that follows it."""

    def __init__(self, rpc: str, *, bearer: str | None = None) -> None:
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {bearer}"} if bearer else {})}
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        provider = AsyncHTTPProvider(
            rpc, request_kwargs={"headers": headers, "timeout": timeout}, exception_retry_configuration=None
        )
        self._web3 = AsyncWeb3(provider, middleware=[])
        self._rpc = rpc
        self._abis = {name: load(name)["abi"] for name in CONTRACTS}
        self._errors = list_errors(self._abis.values())
        self._open: dict[Contract, Any] = {}

    async def close(self) -> None:
        await self._web3.provider.disconnect()

    # --- Looking ----------------------------------------------------------------------------------------------------

    async def chain_id(self) -> int:
        async with self._asked():
            return int(await self._web3.eth.chain_id)

    async def block(self, number: int | str = NEWEST) -> Block | None:
        """None where the chain has no such block."""
        async with self._asked():
            try:
                found = await self._web3.eth.get_block(number)
            except BlockNotFound:
                return None
            fee = int(found.get("baseFeePerGas", 0))
            return Block(int(found["number"]), _hex(found["hash"]), int(found["timestamp"]), fee)

    async def newest(self) -> Block:
        found = await self.block()
        if found is None:
            raise ChainAway(f"the chain at {self._rpc} has no block yet")
        return found

    async def balance_wei(self, account: NodeId) -> int:
        async with self._asked():
            return int(await self._web3.eth.get_balance(checksum_address(account)))

    async def nonce(self, account: NodeId) -> int:
        """Transactions of this account that are in blocks."""
        async with self._asked():
            return int(await self._web3.eth.get_transaction_count(checksum_address(account), NEWEST))

    async def has_code(self, address: NodeId) -> bool:
        async with self._asked():
            return bool(await self._web3.eth.get_code(checksum_address(address)))

    async def read(self, contract: Contract, function: str, *values: Any) -> Any:
        """What a view says at the newest block. A struct comes as a mapping of its fields."""
        async with self._asked():
            answer = await getattr(self._get(contract).functions, function)(*map(_plain, values)).call()
        return self._name_fields(contract.name, function, answer)

    async def mined(self, transaction: str) -> Mined | None:
        """None while it is in no block."""
        async with self._asked():
            try:
                found = await self._web3.eth.get_transaction_receipt(transaction)
            except TransactionNotFound:
                return None
            made = found.get("contractAddress")
            events = found["logs"]
            return Mined(
                transaction,
                int(found["blockNumber"]),
                int(found["status"]) == 1,
                int(events[0]["logIndex"]) if events else 0,
                NodeId(bytes.fromhex(made[2:])) if made else None,
            )

    async def events(self, contracts: Sequence[Contract], first: int, last: int) -> list[Event]:
        """All that these contracts have told in the blocks `first` to `last`, in order."""
        by_address = {contract.address: contract for contract in contracts}
        wanted: Any = {
            "address": [checksum_address(address) for address in by_address],
            "fromBlock": first,
            "toBlock": last,
        }
        async with self._asked():
            raw = await self._web3.eth.get_logs(wanted)
        found = [self._decode(by_address[NodeId(bytes.fromhex(each["address"][2:]))], each) for each in raw]
        return sorted((event for event in found if event), key=lambda event: (event.block, event.index))

    # --- Transactions -----------------------------------------------------------------------------------------------

    def encode(self, contract: Contract, function: str, *values: Any) -> str:
        """The data of a transaction that calls the function."""
        return str(self._get(contract).encode_abi(function, args=[_plain(value) for value in values]))

    def encode_creation(self, name: str, *values: Any) -> str:
        """The data of a transaction that makes the contract."""
        made = self._web3.eth.contract(abi=self._abis[name], bytecode=load(name)["bytecode"])
        return str(made.constructor(*map(_plain, values)).data_in_transaction)

    async def estimate_gas(self, sender: NodeId, to: str, data: str) -> int:
        """ChainRefused where it would fail; `to` is empty for a new contract."""
        call: Any = {"from": checksum_address(sender), "data": data, **({"to": to} if to else {})}
        async with self._asked():
            return int(await self._web3.eth.estimate_gas(call))

    async def tip_wei(self) -> int:
        async with self._asked():
            return int(await self._web3.eth.max_priority_fee)

    async def send_raw(self, raw: str) -> None:
        """Hand over a signed transaction; one that the node has already is no error."""
        async with self._asked():
            try:
                await self._web3.eth.send_raw_transaction(bytes.fromhex(raw.removeprefix("0x")))
            except (Web3RPCError, ValueError) as error:
                if not any(words in str(error).lower() for words in KNOWN_ALREADY):
                    raise

    async def ask(self, method: str, *values: Any) -> Any:
        """Any other question, for development chains."""
        async with self._asked():
            answer = await self._web3.provider.make_request(method, list(values))
        if "error" in answer:
            raise ChainAway(f"{method} is refused: {answer['error']}")
        return answer["result"]

    # --- Small parts ------------------------------------------------------------------------------------------------

    def _get(self, contract: Contract) -> Any:
        if contract not in self._open:
            address = checksum_address(contract.address)
            self._open[contract] = self._web3.eth.contract(address=address, abi=self._abis[contract.name])
        return self._open[contract]

    def _name_fields(self, contract: str, function: str, answer: Any) -> Any:
        """Tuples of a struct as mappings, by the ABI."""
        item = next(each for each in self._abis[contract] if each.get("name") == function)
        outputs = item["outputs"]
        return _named(outputs[0], answer) if len(outputs) == 1 else answer

    def _decode(self, contract: Contract, raw: Any) -> Event | None:
        for event in self._get(contract).events:
            if _hex(event().topic) == _hex(raw["topics"][0]):
                values = event().process_log(raw)["args"]
                return Event(
                    contract.name,
                    event.event_name,
                    dict(values),
                    int(raw["blockNumber"]),
                    _hex(raw["blockHash"]),
                    _hex(raw["transactionHash"]),
                    int(raw["logIndex"]),
                )
        return None

    @asynccontextmanager
    async def _asked(self) -> AsyncIterator[None]:
        """Whatever fails in the one way or the other."""
        try:
            yield
        except ContractLogicError as error:
            raise self._explain(error.data, error) from None
        except Web3RPCError as error:
            data = _error_data(error)
            if data is None:
                raise ChainAway(f"the chain at {self._rpc} answers: {error}") from None
            raise self._explain(data, error) from None
        except BadFunctionCallOutput:
            raise ChainAway(f"there is no contract of ours at this address of the chain at {self._rpc}") from None
        except (TimeoutError, aiohttp.ClientError, OSError, Web3Exception, ValueError, KeyError) as error:
            raise ChainAway(f"the chain at {self._rpc} does not answer: {type(error).__name__} {error}") from None

    def _explain(self, data: Any, error: Exception) -> ChainRefused:
        raw = data if isinstance(data, bytes) else bytes.fromhex(str(data or "").removeprefix("0x"))
        if not raw:
            return ChainRefused(f"the contract refuses: {error}")
        name, text = name_refusal(self._errors, raw)
        return ChainRefused(f"the contract refuses: {text}", name)


def sign(key: WalletKey, fields: Mapping[str, Any]) -> tuple[str, str]:
    """Hash and raw bytes of a transaction, as hex."""
    signed = Account.sign_transaction(dict(fields), key.secret())
    return _hex(signed.hash), "0x" + signed.raw_transaction.hex().removeprefix("0x")


def _named(output: Mapping[str, Any], value: Any) -> Any:
    if output["type"] == "tuple":
        return {part["name"]: _named(part, each) for part, each in zip(output["components"], value, strict=True)}
    if output["type"] == "tuple[]":
        return [_named({**output, "type": "tuple"}, each) for each in value]
    return value


def _plain(value: Any) -> Any:
    """Our types as web3 takes them."""
    if isinstance(value, NodeId):
        return checksum_address(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value] if isinstance(value, list) else tuple(_plain(each) for each in value)
    return value


def _hex(value: Any) -> str:
    return value if isinstance(value, str) else "0x" + bytes(value).hex()


def _error_data(error: Web3RPCError) -> Any:
    response = error.rpc_response or {}
    found = response.get("error", {})
    return found.get("data") if isinstance(found, dict) else None
