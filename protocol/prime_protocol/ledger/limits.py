"""How many unsolicited entries a key may write: about itself, its delegations and its value.

Every other entry by a node answers one of the coordinator's: a lease, a draw, a slash. These do not, so without a limit
one key could fill the log. Three limits, each with its number in constants.py, and each a rule of the ledger, so that a
coordinator cannot let a friend pass either:

- A key registers, and brings a delegation, at most once in REGISTRATION_MS.
- An owner and its nodes write at most one entry in OWNER_ENTRY_MS, or as many as they have saved up.
- Entries of keys without value come out of one budget of bytes for the whole network, because keys are free.

The last two are token buckets. A bucket is kept as the time when it is full again, so a full one is not kept at all. A
revocation of a living delegation is charged and never refused: there are no more of them than delegations, and an owner
must be able to leave a node whose key was stolen.
"""

from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from prime_protocol.constants import (
    ENTRY_VALUE_NANO,
    FREE_BURST_MS,
    FREE_BYTE_MS,
    OWNER_ENTRIES_BURST,
    OWNER_ENTRY_MS,
    REGISTRATION_MS,
)
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import (
    Delegated,
    DelegationRevoked,
    FindingFiled,
    NodeRegistered,
    Released,
    RunFunded,
    Staked,
    Unbonded,
    Withdrawn,
)
from prime_protocol.ledger.funds import StakeKey
from prime_protocol.ledger.state import EntryContext, LedgerState
from prime_protocol.wire.ids import NodeId

K = TypeVar("K")

EXPIRED_DROPPED_MAX = 2
"""Keys that are looked at for each one that is added: then a table shrinks, at a constant cost."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What an entry uses up, once it is applied."""

    owner: NodeId
    owner_until_ms: int
    free_until_ms: int | None
    """None where the entry is not free."""


def compute_charge(state: LedgerState, context: EntryContext, entry: Any) -> Charge | None:
    """RemoteError where a limit is reached; it says when the entry would pass. None: the entry has no limit here."""
    position = _find_payer(state, context, entry)
    if position is None:
        return None
    at_ms = context.at_ms
    _check_pause(state, context, entry)
    charge = Charge(
        owner=position[0],
        owner_until_ms=max(at_ms, state.owner_until_ms.get(position[0], 0)) + OWNER_ENTRY_MS,
        free_until_ms=max(at_ms, state.free_until_ms) + context.leaf_bytes * FREE_BYTE_MS
        if is_free(state, *position)
        else None,
    )
    if isinstance(entry, DelegationRevoked) and state.owners.get(entry.node) == context.author:
        return charge
    _check_wait(
        charge.owner_until_ms - at_ms - OWNER_ENTRIES_BURST * OWNER_ENTRY_MS,
        f"{charge.owner} and its nodes have written too many entries",
    )
    _check_wait(
        (charge.free_until_ms or 0) - at_ms - FREE_BURST_MS,
        f"the network's entries by keys with less than {ENTRY_VALUE_NANO} nano are used up",
    )
    return charge


def apply_charge(state: LedgerState, charge: Charge | None, at_ms: int) -> None:
    if charge is None:
        return
    state.owner_until_ms.pop(charge.owner, None)
    state.owner_until_ms[charge.owner] = charge.owner_until_ms
    drop_expired(state.owner_until_ms, at_ms)
    if charge.free_until_ms is not None:
        state.free_until_ms = charge.free_until_ms


def is_free(state: LedgerState, owner: NodeId, node: NodeId) -> bool:
    """Whether too little value stands behind what this owner writes about this node."""
    return state.funds.balances[owner] + state.funds.slashable_nano((owner, node)) < ENTRY_VALUE_NANO


def drop_expired(table: dict[K, int], now_ms: int) -> None:
    """Look at the first few times and drop those that are over; the others go to the end, so that all get a turn."""
    for key in tuple(islice(table, EXPIRED_DROPPED_MAX)):
        until_ms = table.pop(key)
        if until_ms > now_ms:
            table[key] = until_ms


def _find_payer(state: LedgerState, context: EntryContext, entry: Any) -> StakeKey | None:
    """The owner whose allowance an entry uses, and the node that it is about."""
    author = context.author
    match entry:
        case NodeRegistered() | FindingFiled():
            return state.owners.get(author, author), author
        case Delegated(delegation=delegation):
            return delegation.owner, author
        case DelegationRevoked(node=node) | Staked(node=node) | Unbonded(node=node) | Released(node=node):
            return author, node
        case Withdrawn() | RunFunded():
            return author, author
        case _:
            return None


def _check_pause(state: LedgerState, context: EntryContext, entry: Any) -> None:
    node = state.nodes.get(context.author)
    match entry:
        case NodeRegistered():
            last = node and node.registered
        case Delegated():
            last = node and node.delegated
        case _:
            return
    if last:
        _check_wait(last.at_ms + REGISTRATION_MS - context.at_ms, f"{context.author} did so in entry {last.index}")


def _check_wait(wait_ms: int, why: str) -> None:
    if wait_ms > 0:
        raise RemoteError("Payload.sender", f"{why}; try again in {-(-wait_ms // 1000)} s", retry_after_ms=wait_ms)
