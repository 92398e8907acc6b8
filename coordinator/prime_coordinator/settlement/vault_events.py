"""What the chain has told so far: whose stake stands behind which node, what came in, what was anchored. Pure.

Events are taken once they lie as deep as the settings ask. If the chain turns out to have another history still, all is
read again from the deployment on: a deposit counts once by its reference, so nothing is booked twice.

What came into the pool of a run is booked there and nowhere else, so the log never pays what that pool does not hold.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from prime_protocol.entries import Appealed, Deposited, NodeStatus, NodeStatusSet
from prime_protocol.ids import Digest, NodeId, RunId
from prime_protocol.state import State

BLOCKS_AT_ONCE = 2_000
"""Asked for in one go; public nodes refuse more."""
SHOWN_MAX = 200
"""Anchors and payout roots that are remembered for people."""
PAYERS = {
    ("StakeVault", "Deposited"): "owner",
    ("RewardPool", "Funded"): "funder",
    ("RewardPool", "ForfeitReceived"): "",
}
"""Events by which value comes in, and which field of each names whose it was."""
UNBACKED = "its stake has left the vault on the chain"
UNHEARD = "appealed before the court on the chain"


class Told(Protocol):
    """An event, as the chain's client decodes it."""

    @property
    def contract(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def values(self) -> Mapping[str, Any]: ...
    @property
    def block(self) -> int: ...
    @property
    def transaction(self) -> str: ...


@dataclass(slots=True)
class Stake:
    """What the vault holds for a node."""

    owner: str = ""
    stake: int = 0
    unbonding: int = 0
    escrow: int = 0


@dataclass(frozen=True, slots=True)
class Income:
    """Value that came into a contract, as the log has to know of it."""

    account: str
    amount_nano: int
    reference: str
    run: str = ""
    """How the chain names the run whose pool has it; empty for the vault."""


@dataclass(slots=True)
class Followed:
    """Everything that was taken in, and up to which block."""

    block: int
    """The last one."""
    hash: str = ""
    time_s: int = 0
    """The block's own."""
    stakes: dict[str, Stake] = field(default_factory=dict)
    """By node."""
    judges: dict[str, list[str]] = field(default_factory=dict)
    """By submission: who is behind a slash before the court, and the owners behind them."""
    appealed: list[str] = field(default_factory=list)
    """Submissions whose slash is appealed before the court."""
    anchors: list[dict[str, Any]] = field(default_factory=list)
    promises: list[dict[str, Any]] = field(default_factory=list)
    strays: list[Income] = field(default_factory=list)
    """In pools of runs that the log does not know: they wait until it does."""

    def next_span(self, head: int, confirmations: int) -> range | None:
        """Blocks to read next: as far as they lie deep enough."""
        first, last = self.block + 1, min(head - confirmations, self.block + BLOCKS_AT_ONCE)
        return range(first, last + 1) if first <= last else None

    def take(self, event: Told) -> None:
        """Fold one event in; the order is that of the chain."""
        values = event.values
        match event.contract, event.name:
            case "StakeVault", "Bound":
                self.stakes[low(values["node"])] = Stake(low(values["owner"]))
            case "StakeVault", name if "node" in values:
                self._move(self.stakes.setdefault(low(values["node"]), Stake()), name, int(values["amount"]))
            case "Court", "SlashProposed":
                self.judges[name_of(values)] = [low(each) for each in values["judges"]]
            case "Court", "Appealed":
                self.appealed.append(name_of(values))
            case "Court", "SlashExecuted" | "SlashOverturned":
                self.judges.pop(name_of(values), None)
                self.appealed = [each for each in self.appealed if each != name_of(values)]
            case "LogAnchor", "Anchored":
                self._show(self.anchors, event, ("size",))
            case "RewardPool", "Promised":
                self._show(self.promises, event, ("epoch", "total", "headSize", "maturesAt"))
            case _:
                pass

    def _move(self, stake: Stake, name: str, amount: int) -> None:
        match name:
            case "Deposited":
                stake.stake += amount
            case "Unbonded":
                stake.stake -= amount
                stake.unbonding += amount
            case "Withdrawn":
                stake.unbonding -= amount
            case "Seized":
                from_stake = min(amount, stake.stake)
                stake.stake -= from_stake
                stake.unbonding -= amount - from_stake
                stake.escrow += amount
            case "Restored":
                stake.escrow -= amount
                stake.stake += amount
            case "Forfeited":
                stake.escrow -= amount
            case _:
                pass

    def _show(self, rows: list[dict[str, Any]], event: Told, names: tuple[str, ...]) -> None:
        facts = {name: int(event.values[name]) for name in names}
        run, root = run_text(event.values["run"]), bytes(event.values["root"]).hex()
        rows.append({"run": run, "root": f"0x{root}", **facts, "block": event.block, "transaction": event.transaction})
        del rows[:-SHOWN_MAX]


def low(address: str) -> str:
    return address.lower()


def name_of(values: Mapping[str, Any]) -> str:
    """The submission that an event of the court is about."""
    return str(Digest(bytes(values["submission"])))


def find_unheard(state: State, appealed: Iterable[str]) -> list[tuple[RunId, Appealed]]:
    """Appeals before the court that the log has not heard of: told there, they are judged as any other."""
    wanted = {Digest.parse(name) for name in appealed}
    return [
        (name, Appealed(submission=submission, reason=UNHEARD))
        for name, run in state.runs.items()
        for submission, slash in run.slashes.items()
        if submission in wanted and slash.appealed_at_ms is None
    ]


def is_income(event: Told) -> bool:
    """Whether value came into a contract that the log has to know of."""
    return (event.contract, event.name) in PAYERS


def read_income(event: Told, reference: Digest, scale: int, court: NodeId) -> Income:
    """Of an owner's stake, of a funder, or of the court, which brings what was slashed."""
    payer = PAYERS[event.contract, event.name]
    account = low(event.values[payer]) if payer else str(court)
    run = run_text(event.values["run"]) if event.contract == "RewardPool" else ""
    return Income(account, int(event.values["amount"]) // scale, str(reference), run)


def run_text(key: bytes) -> str:
    """The chain's name of a run, as it prints."""
    return f"0x{bytes(key).hex()}"


def find_strays(found: Iterable[Income], runs: Mapping[str, RunId]) -> list[Income]:
    """What is in the pool of a run that the log does not know. As a balance it could be spent elsewhere."""
    return [income for income in found if income.run and income.run not in runs]


def list_missing(found: Iterable[Income], runs: Mapping[str, RunId], references: set[Digest]) -> list[Deposited]:
    """What the log does not have of these, and can; dust is left out. `runs` goes by the chain's names of them."""
    deposits = (
        Deposited(
            account=NodeId.parse(income.account),
            amount_nano=income.amount_nano,
            reference=Digest.parse(income.reference),
            run=runs[income.run] if income.run else None,
        )
        for income in found
        if income.amount_nano > 0 and (not income.run or income.run in runs)
    )
    return [deposit for deposit in deposits if deposit.reference not in references]


def find_unbacked(state: State, stakes: Mapping[str, Stake], scale: int) -> list[NodeStatusSet]:
    """Nodes whose stake in the log is no longer in the vault get no work, until it is."""
    orders = []
    for node, known in state.nodes.items():
        held = stakes.get(str(node), Stake())
        is_owners = held.owner == str(state.owners[node])
        backed_nano = (held.stake + held.escrow) // scale if is_owners else 0
        is_backed = state.stake_of(node) <= backed_nano
        if not is_backed and known.status is NodeStatus.ACTIVE:
            orders.append(NodeStatusSet(node=node, status=NodeStatus.DRAINED, reason=UNBACKED))
        elif is_backed and known.status is NodeStatus.DRAINED and known.reason == UNBACKED:
            orders.append(NodeStatusSet(node=node, status=NodeStatus.ACTIVE, reason="its stake is in the vault again"))
    return orders
