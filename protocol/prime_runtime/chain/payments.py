"""A payment into a contract, or out of one, that the log has to hear of as well: once, however often its command is
stopped.

It is written down before it is made and crossed out when the log knows. In between, the same command again looks on the
chain whether it was made, and goes on from there.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from prime_protocol.errors import LocalError
from prime_protocol.ids import Digest, NodeId
from prime_runtime.chain.client import Chain, Contract, Event, Mined
from prime_runtime.chain.contracts import deposit_reference
from prime_runtime.chain.errors import ChainAway
from prime_runtime.chain.wallet import Wallet
from prime_runtime.clock import Clock
from prime_runtime.json_client import JsonClient
from prime_runtime.mirror import write_whole

BLOCKS_AT_ONCE = 2_000
"""Asked for in one go; public nodes refuse more."""
BOOKED_LOOK_MS, BOOKED_S = 500, 1_800
"""How often to look whether the log has a payment, and how long: it has to lie deep enough for the coordinator."""
FIELDS = {"Deposited": ("node", "owner"), "Funded": ("run", "funder"), "Claimed": ("run", "account")}
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

    def is_told_by(self, event: Event, account: NodeId) -> bool:
        if event.name != self.event:
            return False
        about, payer = (_text(event.values[name]) for name in FIELDS[self.event])
        return (about, payer, int(event.values["amount"])) == (self.about, str(account), self.units)


def _text(value: str | bytes) -> str:
    return value.lower() if isinstance(value, str) else f"0x{value.hex()}"


class Payer:
    """One account's way into one contract."""

    def __init__(self, chain: Chain, wallet: Wallet, contract: Contract, note: Path) -> None:
        self._chain = chain
        self._wallet = wallet
        self._contract = contract
        self._note = note

    async def pay(self, wanted: Payment, pay: Callable[[], Awaitable[Mined]]) -> Event:
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
        write_whole(self._note, json.dumps(asdict(replace(wanted, since_block=head.number))).encode(), mode=0o600)
        mined = await pay()
        events = await self._chain.events([self._contract], mined.block, mined.block)
        return next(each for each in events if each.transaction == mined.transaction and each.name == wanted.event)

    async def resume(self) -> Payment | None:
        """What was begun, not crossed out, and is on the chain. What is not there never was: it is crossed out."""
        begun = self._read()
        if begun is not None and await self._go_on(begun) is None:
            self.end()
            return None
        return begun

    async def _go_on(self, begun: Payment) -> Event | None:
        """What the contract tells of it, once nothing of it is on its way any more."""
        if any(sent.purpose == begun.purpose and sent.mined_in is None for sent in self._wallet.book):
            await self._wallet.finish(begun.purpose)
        return await self._find(begun)

    async def reference(self, chain_id: int, event: Event) -> Digest:
        """How the log names it."""
        mined = await self._chain.mined(event.transaction)
        if mined is None:
            raise ChainAway(f"transaction {event.transaction} is gone again: type the same again")
        place = event.index - mined.first_event
        return deposit_reference(chain_id, self._contract.address, event.transaction, place)

    def end(self) -> None:
        """The log knows."""
        self._note.unlink(missing_ok=True)

    async def _find(self, begun: Payment) -> Event | None:
        head = await self._chain.newest()
        for first in range(begun.since_block, head.number + 1, BLOCKS_AT_ONCE):
            last = min(first + BLOCKS_AT_ONCE - 1, head.number)
            for event in await self._chain.events([self._contract], first, last):
                if begun.is_told_by(event, self._wallet.node):
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


async def until_booked(client: JsonClient, reference: Digest, clock: Clock) -> int:
    """The index of the log's entry of a payment into a contract, as soon as it has one."""
    for _ in range(BOOKED_S * 1000 // BOOKED_LOOK_MS):
        rows = (await client.get("/log/entries", subject=str(reference), kind="Deposited"))["rows"]
        if rows:
            return int(rows[0]["index"])
        await clock.sleep_ms(BOOKED_LOOK_MS)
    raise ChainAway("the coordinator has not told the log of the payment; it is not lost: type the same again later")
