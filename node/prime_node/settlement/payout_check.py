"""Compares payout roots on the chain with those that the log gives at the heads they name. Pure.

A replay of the log up to an anchored head gives what the run had paid to each account, and so the one right root. The
chain cannot replay it: a wrong root is paid unless a quorum of staked owners challenges it before it matures.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from prime_protocol.ledger.payout_tree import PayoutTree, find_difference, list_payable
from prime_protocol.ledger.state import LedgerState
from prime_protocol.wire.ids import Digest, NodeId, RunId

SPANS_MAX = 64
"""Payouts that are remembered: a root is checked within its delay, and names a head of the last epoch."""


@dataclass(frozen=True, slots=True)
class PostedRoot:
    """A payout root that has not matured."""

    epoch: int
    root: Digest
    total: int
    """Sum of all accounts, as the operator states it, in units of the token."""
    head_size: int
    """Entries of the log that it was computed from."""
    matures_at_s: int


@dataclass(frozen=True, slots=True)
class CheckedRoot:
    """A payout root beside what the log gives."""

    posted: PostedRoot
    head_root: Digest
    """Of the replayed log at the size that the root names."""
    payable: Mapping[NodeId, int]
    """What the log says of each account, in units of the token."""
    root: Digest | None
    """The log's root; None if no account was paid."""

    @property
    def is_right(self) -> bool:
        """Also of the total: a wrong one keeps funds from accounts, or from funders."""
        return self.root == self.posted.root and sum(self.payable.values()) == self.posted.total


def check_root(state: LedgerState, run: RunId, posted: PostedRoot, *, scale: int) -> CheckedRoot:
    """`state` is the ledger's after exactly the entries that the root names. `scale`: units of the token per nano."""
    assert state.size == posted.head_size
    payable = list_payable(state.runs[run].paid, scale) if run in state.runs else {}
    root = PayoutTree(payable).root if payable else None
    return CheckedRoot(posted, state.frontier.root(), payable, root)


def explain_root(checked: CheckedRoot, table: PayoutTree | None, *, scale: int) -> list[str]:
    """Lines for people. `table` is what the coordinator shows for the epoch; it counts if it has the posted root."""
    posted = checked.posted
    name = f"epoch {posted.epoch}, {posted.head_size} entries"
    if checked.is_right:
        return [f"{name}: the log gives the same root {posted.root}"]
    lines = [
        f"{name}: WRONG ROOT",
        f"  posted       {posted.root}, {posted.total // scale} nano in all",
        f"  from the log {checked.root or 'no account was paid'}, {sum(checked.payable.values()) // scale} nano in all",
    ]
    if table is None or table.root != posted.root:
        return [*lines, "  the coordinator shows no table that has the posted root"]
    difference = find_difference(checked.payable, table.cumulative)
    if difference is None:
        return [*lines, "  the accounts are right, the total is not"]
    paid, claimed = difference.by_log // scale, difference.by_table // scale
    return [*lines, f"  first difference: {difference.account} has {paid} nano in the log, {claimed} in the root"]


@dataclass(slots=True)
class PaidSpan:
    """Sizes of the log between which a run paid no account."""

    first: int
    last: int
    paid: Mapping[NodeId, int]
    """Nano of each account in all."""


class PaidHistory:
    """What a run had paid at recent sizes of the log, from samples of the replayed ledger.

    Totals only grow, so a table that is the same at two sizes is the same at every size between them.
    """

    def __init__(self) -> None:
        self._spans: deque[PaidSpan] = deque(maxlen=SPANS_MAX)

    @property
    def paid(self) -> Mapping[NodeId, int] | None:
        """The newest table."""
        return self._spans[-1].paid if self._spans else None

    def add(self, size: int, paid: Mapping[NodeId, int]) -> None:
        """The ledger's table after `size` entries. A ledger that was replayed again from the start begins anew."""
        if self._spans and size < self._spans[-1].last:
            self._spans.clear()
        if self._spans and self._spans[-1].paid == paid:
            self._spans[-1].last = size
        else:
            self._spans.append(PaidSpan(size, size, paid))

    def find(self, size: int) -> Mapping[NodeId, int] | None:
        """The table at a size; None if it is too old, too new, or between two samples with a payout."""
        return next((span.paid for span in self._spans if span.first <= size <= span.last), None)


def read_paid(state: LedgerState, run: RunId, known_nano: int) -> tuple[int, dict[NodeId, int] | None]:
    """The ledger's size and a run's table; None in place of a table whose total is `known_nano`."""
    paid = state.runs[run].paid if run in state.runs else {}
    return state.size, None if sum(paid.values()) == known_nano else dict(paid)


def is_right_for(paid: Mapping[NodeId, int], posted: PostedRoot, *, scale: int) -> bool:
    """Whether a root is the one of a table."""
    payable = list_payable(paid, scale)
    return bool(payable) and PayoutTree(payable).root == posted.root and sum(payable.values()) == posted.total
