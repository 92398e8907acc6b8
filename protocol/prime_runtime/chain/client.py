"""The chain over JSON-RPC, through web3: blocks, views, events, transactions. The only module that imports web3.

All answers come from a third party. An answer that is missing or invalid is ChainUnavailable; a call that a contract
rejects is ContractReverted with the contract's own error.
"""

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from prime_protocol.abi import load
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import NodeId, checksum_address
from prime_protocol.wire.signing import WalletKey
from prime_runtime.chain.abi import decode_contract_error, list_errors, list_functions
from prime_runtime.chain.transactions import ChainUnavailable, ContractReverted

try:
    from eth_abi.exceptions import DecodingError
    from eth_account import Account
    from web3 import AsyncHTTPProvider, AsyncWeb3
    from web3.exceptions import (
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

TOKEN = "TestToken"
"""Its ABI serves for every token: it includes ERC-20."""
CONTRACTS = (TOKEN, "RunRegistry", "LogAnchor", "Court", "StakeVault", "RewardPool")
SCHEMES = ("http://", "https://")
TIMEOUT_S = 20.0
KEEP_ALIVE_S = 2.0
"""How long an idle connection is kept: shorter than public nodes keep theirs."""
NEWEST = "latest"
BATCH_MAX = 50
"""Calls in one request; public nodes accept a hundred."""
BATCH_REFUSED = (400, 404, 405, 413, 415, 422, 501)
"""Status codes of a node that does not support batches."""
REVERTED = "revert"
"""Part of every node's message about a reverted call."""
KNOWN_ALREADY = ("already known", "already imported", "nonce too low", "underpriced")
"""Answers of a node that has the transaction, or whose nonce is used: the chain shows which."""


@dataclass(frozen=True, slots=True)
class Contract:
    """One of our contracts at an address."""

    name: str
    address: NodeId


ViewCall = tuple[Contract, str, tuple[Any, ...]]
"""A view: the contract, the function, the arguments."""


@dataclass(frozen=True, slots=True)
class ChainBlock:
    number: int
    hash: str
    time_s: int
    base_fee_wei: int


@dataclass(frozen=True, slots=True)
class ChainEvent:
    """An event of one of our contracts."""

    contract: str
    name: str
    values: Mapping[str, Any]
    block: int
    block_hash: str
    transaction: str
    index: int
    """Index among the events of the block."""


@dataclass(frozen=True, slots=True)
class MinedTransaction:
    """A mined transaction."""

    transaction: str
    block: int
    has_succeeded: bool
    first_event: int
    """Index of its first event in the block."""
    contract: NodeId | None
    """The contract that it created."""


class ChainClient:
    """A chain behind the RPC URL of a node."""

    def __init__(self, rpc: str, *, bearer: str | None = None) -> None:
        if not rpc.startswith(SCHEMES):
            raise LocalError(f"{rpc!r} is not the RPC URL of a chain: write http://host:port")
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {bearer}"} if bearer else {})}
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        provider = AsyncHTTPProvider(
            rpc, request_kwargs={"headers": headers, "timeout": timeout}, exception_retry_configuration=None
        )
        provider.logger.setLevel(logging.WARNING)  # it logs every closed connection
        self._web3 = AsyncWeb3(provider, middleware=[])
        self._rpc = rpc
        self._abis = {name: load(name)["abi"] for name in CONTRACTS}
        self._errors = list_errors(self._abis.values())
        self._views = {name: list_functions(abi) for name, abi in self._abis.items()}
        self._events: dict[Contract, dict[str, Any]] = {}
        self._is_open = False
        self._takes_batches = True

    async def close(self) -> None:
        self._is_open = False
        await self._web3.provider.disconnect()

    # --- Reading ----------------------------------------------------------------------------------------------------

    async def chain_id(self) -> int:
        async with self._request():
            return int(await self._web3.eth.chain_id)

    async def block(self, number: int | str = NEWEST) -> ChainBlock | None:
        """None if the block does not exist."""
        async with self._request():
            try:
                found = await self._web3.eth.get_block(number)
            except BlockNotFound:
                return None
            fee = int(found.get("baseFeePerGas", 0))
            return ChainBlock(int(found["number"]), _hex(found["hash"]), int(found["timestamp"]), fee)

    async def newest(self) -> ChainBlock:
        found = await self.block()
        if found is None:
            raise ChainUnavailable(f"the chain at {self._rpc} has no block yet")
        return found

    async def balance_wei(self, account: NodeId) -> int:
        async with self._request():
            return int(await self._web3.eth.get_balance(checksum_address(account)))

    async def nonce(self, account: NodeId) -> int:
        """Number of mined transactions of this account."""
        async with self._request():
            return int(await self._web3.eth.get_transaction_count(checksum_address(account), NEWEST))

    async def has_code(self, address: NodeId) -> bool:
        async with self._request():
            return bool(await self._web3.eth.get_code(checksum_address(address)))

    async def read(self, contract: Contract, function: str, *values: Any) -> Any:
        """The result of a view at the newest block. A struct becomes a mapping of its fields."""
        (answer,) = await self.read_all([(contract, function, values)])
        if isinstance(answer, ContractReverted):
            raise answer
        return answer

    async def read_all(self, questions: Sequence[ViewCall]) -> list[Any]:
        """The results of several views, in one request if the node supports it. A reverted call gives its error."""
        found = []
        for start in range(0, len(questions), BATCH_MAX):
            asked = questions[start : start + BATCH_MAX]
            async with self._request():
                replies = await self._call(asked)
                found += [self._open_reply(each, reply) for each, reply in zip(asked, replies, strict=True)]
        return found

    async def _call(self, questions: Sequence[ViewCall]) -> list[Any]:
        provider: Any = self._web3.provider
        calls = [
            ("eth_call", [{"to": checksum_address(at.address), "data": self.encode(at, function, *values)}, NEWEST])
            for at, function, values in questions
        ]
        if len(calls) > 1 and self._takes_batches:
            try:
                replies = await provider.make_batch_request(calls)
            except aiohttp.ClientResponseError as error:
                if error.status not in BATCH_REFUSED:
                    raise
                replies = None
            if isinstance(replies, list) and len(replies) == len(calls):
                return replies
            self._takes_batches = False
        return [await provider.make_request(*call) for call in calls]

    def _open_reply(self, question: ViewCall, reply: Any) -> Any:
        """The result, or the contract's error; ChainUnavailable if it is neither."""
        at, function, _ = question
        if (error := reply.get("error")) is not None:
            if REVERTED not in str(error).lower():
                raise ChainUnavailable(f"the chain at {self._rpc} answers: {error.get('message', error)}")
            return self._explain(error.get("data"), str(error.get("message")))
        try:
            return self._views[at.name][function].decode(self._web3.codec, _bytes(reply["result"]))
        except DecodingError:
            what = "token" if at.name == TOKEN else f"{at.name} of ours"
            raise ChainUnavailable(f"there is no {what} at {at.address} on the chain at {self._rpc}") from None

    async def mined(self, transaction: str) -> MinedTransaction | None:
        """None while it is not mined."""
        async with self._request():
            try:
                found = await self._web3.eth.get_transaction_receipt(transaction)
            except TransactionNotFound:
                return None
            made = found.get("contractAddress")
            events = found["logs"]
            return MinedTransaction(
                transaction,
                int(found["blockNumber"]),
                int(found["status"]) == 1,
                int(events[0]["logIndex"]) if events else 0,
                NodeId(_bytes(made)) if made else None,
            )

    async def events(self, contracts: Sequence[Contract], first: int, last: int) -> list[ChainEvent]:
        """The events of these contracts in the blocks `first` to `last`, in order."""
        by_address = {contract.address: contract for contract in contracts}
        wanted: Any = {
            "address": [checksum_address(address) for address in by_address],
            "fromBlock": first,
            "toBlock": last,
        }
        async with self._request():
            raw = await self._web3.eth.get_logs(wanted)
        found = [self._decode(by_address[NodeId(_bytes(each["address"]))], each) for each in raw]
        return sorted((event for event in found if event), key=lambda event: (event.block, event.index))

    # --- Transactions -----------------------------------------------------------------------------------------------

    def encode(self, contract: Contract, function: str, *values: Any) -> str:
        """The call data of a function."""
        return self._views[contract.name][function].encode(self._web3.codec, [_plain(value) for value in values])

    def encode_creation(self, name: str, *values: Any) -> str:
        """The data of a transaction that creates the contract."""
        made = self._web3.eth.contract(abi=self._abis[name], bytecode=load(name)["bytecode"])
        return str(made.constructor(*map(_plain, values)).data_in_transaction)

    async def estimate_gas(self, sender: NodeId, to: str, data: str) -> int:
        """ContractReverted: it would fail. `to` is empty for a new contract."""
        call: Any = {"from": checksum_address(sender), "data": data, **({"to": to} if to else {})}
        async with self._request():
            return int(await self._web3.eth.estimate_gas(call))

    async def tip_wei(self) -> int:
        async with self._request():
            return int(await self._web3.eth.max_priority_fee)

    async def send_raw(self, raw: str) -> None:
        """Send a signed transaction; one that the node already has is no error."""
        async with self._request():
            try:
                await self._web3.eth.send_raw_transaction(_bytes(raw))
            except (Web3RPCError, ValueError) as error:
                if not any(words in str(error).lower() for words in KNOWN_ALREADY):
                    raise

    async def ask(self, method: str, *values: Any) -> Any:
        """Any other RPC method, for development chains."""
        async with self._request():
            answer = await self._web3.provider.make_request(method, list(values))
        if "error" in answer:
            raise ChainUnavailable(f"{method} is refused: {answer['error']}")
        return answer["result"]

    # --- Internal ---------------------------------------------------------------------------------------------------

    def _events_of(self, contract: Contract) -> dict[str, Any]:
        """The events of a contract by topic."""
        if contract not in self._events:
            made = self._web3.eth.contract(address=checksum_address(contract.address), abi=self._abis[contract.name])
            self._events[contract] = {_hex(event().topic): event for event in made.events}
        return self._events[contract]

    def _decode(self, contract: Contract, raw: Any) -> ChainEvent | None:
        event = self._events_of(contract).get(_hex(raw["topics"][0]))
        if event is None:
            return None
        return ChainEvent(
            contract.name,
            event.event_name,
            dict(event().process_log(raw)["args"]),
            int(raw["blockNumber"]),
            _hex(raw["blockHash"]),
            _hex(raw["transactionHash"]),
            int(raw["logIndex"]),
        )

    async def _open(self) -> None:
        """Keep a session: web3 would open a connection for every call."""
        connector = aiohttp.TCPConnector(keepalive_timeout=KEEP_ALIVE_S)
        session = aiohttp.ClientSession(raise_for_status=True, connector=connector)
        await self._web3.provider.cache_async_session(session)
        self._is_open = True

    @asynccontextmanager
    async def _request(self) -> AsyncIterator[None]:
        """Turn every error into ChainUnavailable or ContractReverted."""
        if not self._is_open:
            await self._open()
        try:
            yield
        except ContractLogicError as error:
            raise self._explain(error.data, str(error)) from None
        except Web3RPCError as error:
            data = _error_data(error)
            if data is None:
                raise ChainUnavailable(f"the chain at {self._rpc} answers: {error}") from None
            raise self._explain(data, str(error)) from None
        except aiohttp.ClientConnectorError as error:
            raise ChainUnavailable(f"the chain at {self._rpc} cannot be reached ({error.os_error.strerror})") from None
        except aiohttp.ClientResponseError as error:
            raise ChainUnavailable(
                f"{self._rpc} answers {error.status}: is it the RPC address of a chain's node?"
            ) from None
        except (TimeoutError, aiohttp.ClientError, OSError, Web3Exception, ValueError, KeyError) as error:
            raise ChainUnavailable(
                f"the chain at {self._rpc} does not answer: {type(error).__name__} {error}"
            ) from None

    def _explain(self, data: Any, text: str) -> ContractReverted:
        raw = data if isinstance(data, bytes) else _bytes(str(data or ""))
        if not raw:
            return ContractReverted(f"the contract reverted: {text}")
        name, text = decode_contract_error(self._errors, raw)
        return ContractReverted(f"the contract reverted: {text}", name)


def sign_transaction(key: WalletKey, fields: Mapping[str, Any]) -> tuple[str, str]:
    """Hash and raw bytes of a signed transaction, as hex."""
    signed = Account.sign_transaction(dict(fields), key.secret())
    return _hex(signed.hash), "0x" + signed.raw_transaction.hex().removeprefix("0x")


def _plain(value: Any) -> Any:
    """Convert our types to those of web3."""
    if isinstance(value, NodeId):
        return checksum_address(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value] if isinstance(value, list) else tuple(_plain(each) for each in value)
    return value


def _hex(value: Any) -> str:
    return value if isinstance(value, str) else "0x" + bytes(value).hex()


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def _error_data(error: Web3RPCError) -> Any:
    response = error.rpc_response or {}
    found = response.get("error", {})
    return found.get("data") if isinstance(found, dict) else None
