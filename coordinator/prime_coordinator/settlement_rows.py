"""Settlement as people and programs are told of it: where value is kept, and how far the books were brought there."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from prime_coordinator.asking import Ask
from prime_coordinator.desk import Desk
from prime_coordinator.settlement.chain_files import ChainFiles
from prime_protocol.exchange import RefusalCode
from prime_runtime.http_body import RefuseRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRow:
    """A head of the log that a contract holds."""

    run: str
    """As the chain names it: keccak256 of the name."""
    size: int
    root: str
    block: int
    transaction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseRow:
    """A payout root that a contract holds."""

    run: str
    epoch: int
    root: str
    total: int
    """In units of the token."""
    head_size: int
    matures_at_s: int
    block: int
    transaction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettlementRow:
    """Who holds the value."""

    kind: str
    """embedded or evm."""
    chain_id: int
    """0 for embedded, as the network's first entry says."""
    court: str
    """Address of the contract that receipts are signed for; zeros for embedded."""
    head: int
    """Newest block of the chain that was seen."""
    followed: int
    """Block up to which the chain's events stand in the log."""
    problem: str
    """Why settlement waits; empty while it does not."""
    on_their_way: tuple[str, ...]
    """Transactions that are in no block yet."""
    put_off: tuple[str, ...]
    """What a contract refuses, and why; it is tried again an epoch later."""
    anchors: tuple[AnchorRow, ...]
    """Newest first."""
    promises: tuple[PromiseRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidRow:
    """What an account was paid in a run, in all."""

    account: str
    paid_nano: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PayoutRow:
    """The table behind a payout root. It needs no trust: its tree has the root that is on the chain, or it is wrong."""

    run: str
    epoch: int
    size: int
    """Entries of the log that it was computed from."""
    paid: tuple[PaidRow, ...]


async def get_payout(desk: Desk, ask: Ask) -> PayoutRow:
    assert ask.run is not None and ask.epoch is not None
    path = ChainFiles(desk.config.folder).payout(ask.run, ask.epoch)
    try:
        plain = json.loads(await asyncio.to_thread(path.read_bytes))
    except FileNotFoundError:
        raise RefuseRequest(RefusalCode.UNKNOWN, "epoch", "has no payout root here") from None
    paid = tuple(PaidRow(account=account, paid_nano=nano) for account, nano in plain["paid_nano"].items())
    return PayoutRow(run=plain["run"], epoch=plain["epoch"], size=plain["size"], paid=paid)


async def get_settlement(desk: Desk, ask: Ask) -> SettlementRow:
    told, domain = desk.settlement.describe(), desk.core.state.domain
    return SettlementRow(
        kind=told["kind"],
        chain_id=domain.chain_id,
        court=str(domain.contract),
        head=told.get("head", 0),
        followed=max(0, told.get("followed", 0)),
        problem=told.get("problem", ""),
        on_their_way=tuple(told.get("on_their_way", ())),
        put_off=tuple(f"{action}: {why}" for action, why in told.get("put_off", {}).items()),
        anchors=tuple(AnchorRow(**row) for row in told.get("anchors", ())),
        promises=tuple(_promise(row) for row in told.get("promises", ())),
    )


def _promise(row: dict[str, Any]) -> PromiseRow:
    plain = {name: value for name, value in row.items() if name not in ("headSize", "maturesAt")}
    return PromiseRow(**plain, head_size=row["headSize"], matures_at_s=row["maturesAt"])
