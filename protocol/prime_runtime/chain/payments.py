"""Payments into or out of a contract that the log must also record: exactly once, however often a command is stopped.

A payment is written to a file before it is made and removed when the log has it. In between, the same command first
checks whether the payment is on the chain, and continues from there.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import Digest, NodeId
from prime_runtime.chain.client import ChainClient, ChainEvent, Contract, MinedTransaction
from prime_runtime.chain.contracts import NetworkContracts, deposit_reference
from prime_runtime.chain.transactions import ChainUnavailable, ContractReverted
from prime_runtime.chain.wallet import Wallet
from prime_runtime.clock import Clock
from prime_runtime.files import write_atomic
from prime_runtime.formatting import format_amount
from prime_runtime.http.coordinator_api import JsonClient, NotReady

APPROVAL_TRIES = 3
"""An approval belongs to the account: two concurrent commands may use up each other's."""


async def approve_and_call(
    chain: ChainClient,
    wallet: Wallet,
    at: NetworkContracts,
    purpose: str,
    contract: Contract,
    units: int,
    call: tuple[Any, ...],
) -> MinedTransaction:
    """Approve the amount, then call the contract's function that takes it (name and arguments)."""
    for left in reversed(range(APPROVAL_TRIES)):
        await _approve(chain, wallet, at, contract, units)
        try:
            return await wallet.send_and_wait(purpose, contract, *call)
        except ContractReverted as error:
            if error.name != "ERC20InsufficientAllowance" or not left:
                raise
    raise AssertionError("the last try returns or raises")


async def _approve(chain: ChainClient, wallet: Wallet, at: NetworkContracts, spender: Contract, units: int) -> None:
    """LocalError: the account holds less."""
    held = int(await chain.read(at.token, "balanceOf", wallet.node))
    if held < units:
        raise LocalError(
            f"{wallet.node} holds {format_amount(held // at.scale)} tokens,"
            f" {format_amount(units // at.scale)} are needed"
        )
    if int(await chain.read(at.token, "allowance", wallet.node, spender.address)) < units:
        await wallet.send_and_wait("the approval", at.token, "approve", spender.address, units)


BLOCKS_AT_ONCE = 2_000
"""Blocks per request; public nodes refuse more."""
LOGGED_POLL_MS, LOGGED_S_MAX = 500, 1_800
"""How often and how long to check that the log has a payment: the coordinator waits for confirmations."""
EVENT_FIELDS = {"Deposited": ("node", "owner"), "Funded": ("run", "funder"), "Claimed": ("run", "account")}
"""The fields of an event for its subject and its payer or payee."""


@dataclass(frozen=True, slots=True)
class Payment:
    """A payment to make."""

    purpose: str
    """The purpose of its transaction."""
    event: str
    """The name of the contract's event."""
    about: str
    """The subject, as the event names it."""
    units: int
    since_block: int = 0
    """The payment is in no earlier block."""
    since_entry: int = 0
    """The log has it in no earlier entry; for payments that the log does not name by their transaction."""

    def matches_event(self, event: ChainEvent, account: NodeId) -> bool:
        if event.name != self.event:
            return False
        about, payer = (_format_value(event.values[name]) for name in EVENT_FIELDS[self.event])
        return (about, payer, int(event.values["amount"])) == (self.about, str(account), self.units)


def _format_value(value: str | bytes) -> str:
    return value.lower() if isinstance(value, str) else f"0x{value.hex()}"


class Payer:
    """Makes the payments of one account with one contract."""

    def __init__(self, chain: ChainClient, wallet: Wallet, contract: Contract, path: Path) -> None:
        self._chain = chain
        self._wallet = wallet
        self._contract = contract
        self._path = path

    async def pay(self, wanted: Payment, pay: Callable[[], Awaitable[MinedTransaction]]) -> ChainEvent:
        """The contract's event of this payment, which may have been started by an earlier command."""
        started = self._read()
        if started is not None:
            if replace(started, since_block=0) != wanted:
                raise LocalError(
                    f"{started.purpose} of {started.units} units for {started.about} was started and not finished:"
                    f" repeat that command first, or remove {self._path} if the chain will never include it"
                )
            found = await self._continue(started)
            if found is not None:
                return found
        head = await self._chain.newest()
        write_atomic(self._path, json.dumps(asdict(replace(wanted, since_block=head.number))).encode(), mode=0o600)
        mined = await pay()
        events = await self._chain.events([self._contract], mined.block, mined.block)
        return next(each for each in events if each.transaction == mined.transaction and each.name == wanted.event)

    async def resume(self) -> Payment | None:
        """The started payment, if it is on the chain; one that is not on the chain is removed from the file."""
        started = self._read()
        if started is not None and await self._continue(started) is None:
            self.mark_logged()
            return None
        return started

    async def _continue(self, started: Payment) -> ChainEvent | None:
        """Wait for a pending transaction, then find the contract's event."""
        if any(sent.purpose == started.purpose and sent.mined_in is None for sent in self._wallet.pending):
            await self._wallet.wait_for(started.purpose)
        return await self._find(started)

    async def reference(self, chain_id: int, event: ChainEvent) -> Digest:
        """The name of the payment in the log."""
        mined = await self._chain.mined(event.transaction)
        if mined is None:
            raise ChainUnavailable(f"transaction {event.transaction} has disappeared: repeat the command")
        place = event.index - mined.first_event
        return deposit_reference(chain_id, self._contract.address, event.transaction, place)

    def mark_logged(self) -> None:
        """The log has the payment."""
        self._path.unlink(missing_ok=True)

    async def _find(self, started: Payment) -> ChainEvent | None:
        head = await self._chain.newest()
        for first in range(started.since_block, head.number + 1, BLOCKS_AT_ONCE):
            last = min(first + BLOCKS_AT_ONCE - 1, head.number)
            for event in await self._chain.events([self._contract], first, last):
                if started.matches_event(event, self._wallet.node):
                    return event
        return None

    def _read(self) -> Payment | None:
        try:
            return Payment(**json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise LocalError(
                f"{self._path} cannot be read ({error}): a payment may have been started. See `prime-node stake`, and"
                " remove it"
            ) from None


async def wait_until_logged(client: JsonClient, reference: Digest, clock: Clock) -> int:
    """Wait for the log entry of a payment and return its index."""
    for _ in range(LOGGED_S_MAX * 1000 // LOGGED_POLL_MS):
        try:
            rows = (await client.get("/log", about=str(reference), kind="Deposited"))["entries"]["rows"]
        except NotReady:
            rows = []
        if rows:
            return int(rows[0]["idx"])
        await clock.sleep_ms(LOGGED_POLL_MS)
    raise ChainUnavailable("the log does not have the payment yet; it is not lost: repeat the command later")
