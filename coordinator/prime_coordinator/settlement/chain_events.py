"""What the chain's events say: the stake behind each node, deposits, anchors and payout roots. Pure.

Events count once they have the configured confirmations. If the chain reorganises even then, everything is read again
from the deployment on. A deposit counts once by its reference, so nothing is credited twice. A deposit into the pool of
a run is credited to that run only, so the log never pays what the pool does not hold.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from prime_protocol.ledger.entries import Appealed, Deposited, NodeStatus, NodeStatusSet
from prime_protocol.ledger.state import LedgerState
from prime_protocol.wire.ids import Digest, NodeId, RunId

BLOCKS_AT_ONCE = 2_000
"""Blocks per request; public JSON-RPC nodes refuse more."""
HISTORY_MAX = 200
"""Anchors and payout roots kept to be shown."""
DEPOSIT_EVENTS = {
    ("StakeVault", "Deposited"): "owner",
    ("RewardPool", "Funded"): "funder",
    ("RewardPool", "ForfeitReceived"): "",
}
"""Events that bring value in, and the field that names the payer."""
REASON_UNBACKED = "its stake has left the vault on the chain"
REASON_APPEALED_ON_CHAIN = "appealed before the court on the chain"


class ContractEvent(Protocol):
    """A decoded event of one of our contracts."""

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
class VaultStake:
    """What the vault holds for a node."""

    owner: str = ""
    stake: int = 0
    unbonding: int = 0
    escrow: int = 0


@dataclass(frozen=True, slots=True)
class ChainDeposit:
    """Value that came into a contract and belongs into the log."""

    account: str
    amount_nano: int
    reference: str
    run: str = ""
    """Key of the run whose pool has it; empty for the vault."""


@dataclass(slots=True)
class FollowedChain:
    """Everything read from the chain, and up to which block."""

    block: int
    """The last one."""
    hash: str = ""
    time_s: int = 0
    """Time of that block."""
    stakes: dict[str, VaultStake] = field(default_factory=dict)
    """By node."""
    judges: dict[str, list[str]] = field(default_factory=dict)
    """By submission: the validators that judged a slash in court, and their owners."""
    appealed: list[str] = field(default_factory=list)
    """Submissions whose slash is appealed in court."""
    anchors: list[dict[str, Any]] = field(default_factory=list)
    promises: list[dict[str, Any]] = field(default_factory=list)
    unassigned: list[ChainDeposit] = field(default_factory=list)
    """Deposits into pools of runs that the log does not know yet."""

    def next_span(self, head: int, confirmations: int) -> range | None:
        """The next confirmed blocks to read."""
        first, last = self.block + 1, min(head - confirmations, self.block + BLOCKS_AT_ONCE)
        return range(first, last + 1) if first <= last else None

    def apply(self, event: ContractEvent) -> None:
        """Apply one event; call in the order of the chain."""
        values = event.values
        match event.contract, event.name:
            case "StakeVault", "Bound":
                self.stakes[to_lower(values["node"])] = VaultStake(to_lower(values["owner"]))
            case "StakeVault", name if "node" in values:
                self._move(self.stakes.setdefault(to_lower(values["node"]), VaultStake()), name, int(values["amount"]))
            case "Court", "SlashProposed":
                self.judges[get_submission_name(values)] = [to_lower(each) for each in values["judges"]]
            case "Court", "Appealed":
                self.appealed.append(get_submission_name(values))
            case "Court", "SlashExecuted" | "SlashOverturned":
                self.judges.pop(get_submission_name(values), None)
                self.appealed = [each for each in self.appealed if each != get_submission_name(values)]
            case "LogAnchor", "Anchored":
                self._show(self.anchors, event, ("size",))
            case "RewardPool", "Promised":
                self._show(self.promises, event, ("epoch", "total", "headSize", "maturesAt"))
                self.promises[-1] |= {"votes": 0, "void": False}
            case "RewardPool", "Challenged":
                for row in self._list_valid_promises(values["run"], int(values["epoch"]), int(values["epoch"])):
                    row["votes"] = int(values["votes"])
            case "RewardPool", "RootVoided":
                for row in self._list_valid_promises(values["run"], int(values["epoch"]), int(values["last"])):
                    row["void"] = True
            case _:
                pass

    def _list_valid_promises(self, run: bytes, first: int, last: int) -> list[dict[str, Any]]:
        """Payout roots of these numbers that are not void. A number is used again once its root is void."""
        key = format_run_key(run)
        return [row for row in self.promises if row["run"] == key and first <= row["epoch"] <= last and not row["void"]]

    def _move(self, stake: VaultStake, name: str, amount: int) -> None:
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

    def _show(self, rows: list[dict[str, Any]], event: ContractEvent, names: tuple[str, ...]) -> None:
        facts = {name: int(event.values[name]) for name in names}
        run, root = format_run_key(event.values["run"]), bytes(event.values["root"]).hex()
        rows.append({"run": run, "root": f"0x{root}", **facts, "block": event.block, "transaction": event.transaction})
        del rows[:-HISTORY_MAX]


def to_lower(address: str) -> str:
    return address.lower()


def get_submission_name(values: Mapping[str, Any]) -> str:
    """The submission of a court event."""
    return str(Digest(bytes(values["submission"])))


def find_unlogged_appeals(state: LedgerState, appealed: Iterable[str]) -> list[tuple[RunId, Appealed]]:
    """Appeals in court that the log does not have; once logged, they are judged like any other."""
    wanted = {Digest.parse(name) for name in appealed}
    return [
        (name, Appealed(submission=submission, reason=REASON_APPEALED_ON_CHAIN))
        for name, run in state.runs.items()
        for submission, slash in run.slashes.items()
        if submission in wanted and slash.appealed_at_ms is None
    ]


def explain_challenge(event: ContractEvent, runs: Mapping[str, RunId]) -> str:
    """What an operator should know of an event about a payout root; empty for other events."""
    if event.contract != "RewardPool" or event.name not in ("Challenged", "RootVoided"):
        return ""
    values = event.values
    run = runs.get(format_run_key(values["run"]), format_run_key(values["run"]))
    root = f"payout root 0x{bytes(values['root']).hex()} of {run}, epoch {values['epoch']},"
    if event.name == "Challenged":
        return (
            f"THE {root} IS CHALLENGED by {to_lower(values['owner'])}, vote {values['votes']}: it says that the log"
            " gives another one. Compare: prime-node challenge --dry-run"
        )
    return (
        f"THE {root} IS VOID: a quorum of staked owners says that the log up to entry {values['headSize']} gives"
        " another one. The next root is computed anew from the ledger; pay is delayed. Verify the log with"
        " `prime-coordinator log verify`, and find out who is wrong before it happens again"
    )


def is_deposit(event: ContractEvent) -> bool:
    """Whether an event brings value that belongs into the log."""
    return (event.contract, event.name) in DEPOSIT_EVENTS


def read_deposit(event: ContractEvent, reference: Digest, scale: int, court: NodeId) -> ChainDeposit:
    """A deposit of an owner's stake, of a funder, or of the court, which forwards slashed stake."""
    payer = DEPOSIT_EVENTS[event.contract, event.name]
    account = to_lower(event.values[payer]) if payer else str(court)
    run = format_run_key(event.values["run"]) if event.contract == "RewardPool" else ""
    return ChainDeposit(account, int(event.values["amount"]) // scale, str(reference), run)


def format_run_key(key: bytes) -> str:
    """The chain's key of a run, as hex."""
    return f"0x{bytes(key).hex()}"


def find_unassigned(found: Iterable[ChainDeposit], runs: Mapping[str, RunId]) -> list[ChainDeposit]:
    """Deposits into pools of runs that the log does not know. Credited as a balance, they could be spent elsewhere."""
    return [income for income in found if income.run and income.run not in runs]


def list_missing_deposits(
    found: Iterable[ChainDeposit], runs: Mapping[str, RunId], references: set[Digest]
) -> list[Deposited]:
    """Deposits that the log lacks and can take; dust is left out. `runs` are by their key on the chain."""
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


def list_backing_changes(state: LedgerState, stakes: Mapping[str, VaultStake], scale: int) -> list[NodeStatusSet]:
    """Drain nodes whose stake in the log exceeds the vault's, and resume them once it is backed again."""
    orders = []
    for node, known in state.nodes.items():
        held = stakes.get(str(node), VaultStake())
        is_owners = held.owner == str(state.owners[node])
        backed_nano = (held.stake + held.escrow) // scale if is_owners else 0
        is_backed = state.get_stake(node) <= backed_nano
        if not is_backed and known.status is NodeStatus.ACTIVE:
            orders.append(NodeStatusSet(node=node, status=NodeStatus.DRAINED, reason=REASON_UNBACKED))
        elif is_backed and known.status is NodeStatus.DRAINED and known.reason == REASON_UNBACKED:
            orders.append(NodeStatusSet(node=node, status=NodeStatus.ACTIVE, reason="its stake is in the vault again"))
    return orders
