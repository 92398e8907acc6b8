"""Tokens that a contract takes from a wallet: it is allowed to, and then asked to. For stake, funding and bonds.

A payment into a contract, or out of one, that the log has to hear of as well: once, however often its command is
stopped.

It is written down before it is made and crossed out when the log knows. In between, the same command again looks on the
chain whether it was made, and goes on from there.
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
from prime_runtime.http.coordinator_api import JsonClient

APPROVAL_TRIES = 3
"""An approval is of the account and not of a command: two at once may use up each other's."""


async def approve_and_call(
    chain: ChainClient,
    wallet: Wallet,
    at: NetworkContracts,
    purpose: str,
    contract: Contract,
    units: int,
    call: tuple[Any, ...],
) -> MinedTransaction:
    """Let the contract take so much, and call the function that takes it: its name and its values."""
    for left in reversed(range(APPROVAL_TRIES)):
        await _approve(chain, wallet, at, contract, units)
        try:
            return await wallet.send_and_wait(purpose, contract, *call)
        except ContractReverted as error:
            if error.name != "ERC20InsufficientAllowance" or not left:
                raise
    raise AssertionError("the last try returns or raises")


async def _approve(chain: ChainClient, wallet: Wallet, at: NetworkContracts, spender: Contract, units: int) -> None:
    """LocalError where the account holds less."""
    held = int(await chain.read(at.token, "balanceOf", wallet.node))
    if held < units:
        raise LocalError(
            f"{wallet.node} holds {format_amount(held // at.scale)} tokens,"
            f" {format_amount(units // at.scale)} are needed"
        )
    if int(await chain.read(at.token, "allowance", wallet.node, spender.address)) < units:
        await wallet.send_and_wait("the approval", at.token, "approve", spender.address, units)


BLOCKS_AT_ONCE = 2_000
"""Asked for in one go; public nodes refuse more."""
LOGGED_POLL_MS, LOGGED_S_MAX = 500, 1_800
"""How often to look whether the log has a payment, and how long: it has to lie deep enough for the coordinator."""
EVENT_FIELDS = {"Deposited": ("node", "owner"), "Funded": ("run", "funder"), "Claimed": ("run", "account")}
"""Which fields of an event say what it is about, and who has paid or was paid."""


@dataclass(frozen=True, slots=True)
class Payment:
    """What is to be paid."""

    purpose: str
    """Of its transaction."""
    event: str
    """That the contract tells of it."""
    about: str
    """Whom or what it is for, as the event names it."""
    units: int
    since_block: int = 0
    """It is not in a block before this one."""
    since_entry: int = 0
    """Nor does the log speak of it before this entry; for those that the log does not name by their transaction."""

    def matches_event(self, event: ChainEvent, account: NodeId) -> bool:
        if event.name != self.event:
            return False
        about, payer = (_format_value(event.values[name]) for name in EVENT_FIELDS[self.event])
        return (about, payer, int(event.values["amount"])) == (self.about, str(account), self.units)


def _format_value(value: str | bytes) -> str:
    return value.lower() if isinstance(value, str) else f"0x{value.hex()}"


class Payer:
    """One account's way into one contract."""

    def __init__(self, chain: ChainClient, wallet: Wallet, contract: Contract, note: Path) -> None:
        self._chain = chain
        self._wallet = wallet
        self._contract = contract
        self._note = note

    async def pay(self, wanted: Payment, pay: Callable[[], Awaitable[MinedTransaction]]) -> ChainEvent:
        """What the contract tells of it: now, or of one that was begun before and not crossed out."""
        begun = self._read()
        if begun is not None:
            if replace(begun, since_block=0) != wanted:
                raise LocalError(
                    f"{begun.purpose} of {begun.units} units for {begun.about} was begun and not ended: type that again"
                    f" first, or remove {self._note} if the chain will never have it"
                )
            found = await self._go_on(begun)
            if found is not None:
                return found
        head = await self._chain.newest()
        write_atomic(self._note, json.dumps(asdict(replace(wanted, since_block=head.number))).encode(), mode=0o600)
        mined = await pay()
        events = await self._chain.events([self._contract], mined.block, mined.block)
        return next(each for each in events if each.transaction == mined.transaction and each.name == wanted.event)

    async def resume(self) -> Payment | None:
        """What was begun, not crossed out, and is on the chain. What is not there never was: it is crossed out."""
        begun = self._read()
        if begun is not None and await self._go_on(begun) is None:
            self.mark_logged()
            return None
        return begun

    async def _go_on(self, begun: Payment) -> ChainEvent | None:
        """What the contract tells of it, once nothing of it is on its way any more."""
        if any(sent.purpose == begun.purpose and sent.mined_in is None for sent in self._wallet.pending):
            await self._wallet.wait_for(begun.purpose)
        return await self._find(begun)

    async def reference(self, chain_id: int, event: ChainEvent) -> Digest:
        """How the log names it."""
        mined = await self._chain.mined(event.transaction)
        if mined is None:
            raise ChainUnavailable(f"transaction {event.transaction} is gone again: type the same again")
        place = event.index - mined.first_event
        return deposit_reference(chain_id, self._contract.address, event.transaction, place)

    def mark_logged(self) -> None:
        """The log knows."""
        self._note.unlink(missing_ok=True)

    async def _find(self, begun: Payment) -> ChainEvent | None:
        head = await self._chain.newest()
        for first in range(begun.since_block, head.number + 1, BLOCKS_AT_ONCE):
            last = min(first + BLOCKS_AT_ONCE - 1, head.number)
            for event in await self._chain.events([self._contract], first, last):
                if begun.matches_event(event, self._wallet.node):
                    return event
        return None

    def _read(self) -> Payment | None:
        try:
            return Payment(**json.loads(self._note.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise LocalError(
                f"{self._note} cannot be read ({error}): a payment may have been begun. See `prime-node stake`, and"
                " remove it"
            ) from None


async def wait_until_logged(client: JsonClient, reference: Digest, clock: Clock) -> int:
    """The index of the log's entry of a payment into a contract, as soon as it has one."""
    for _ in range(LOGGED_S_MAX * 1000 // LOGGED_POLL_MS):
        rows = (await client.get("/log/entries", subject=str(reference), kind="Deposited"))["rows"]
        if rows:
            return int(rows[0]["index"])
        await clock.sleep_ms(LOGGED_POLL_MS)
    raise ChainUnavailable(
        "the coordinator has not told the log of the payment; it is not lost: type the same again later"
    )
