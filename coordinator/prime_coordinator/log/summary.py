"""What `log verify` prints about a log that passed: its value, runs and nodes, and what was not verified."""

from typing import Any

from prime_coordinator.log.verify import VerifiedLog
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.state import LedgerState, RunState

NANO = 10**9


def summarise_log(verified: VerifiedLog) -> dict[str, Any]:
    """What `log verify --json` prints."""
    state = verified.ledger.state
    funds = state.funds
    return {
        "network": verified.ledger.network,
        "entries": verified.head.size,
        "first_verified": verified.first,
        "snapshots_compared": verified.snapshots,
        "snapshots_unknown": verified.unknown_snapshots,
        "partial_files": verified.partial_files,
        "root": str(verified.head.root),
        "key": str(verified.keys.log_key),
        "key_given": verified.is_key_given,
        "coordinator": str(state.coordinator),
        "rotations": [{"entry": each.index, "kind": str(each.kind), "old": each.old} for each in state.key_rotations],
        "ticker": state.ticker,
        "value_nano": {
            "deposited": funds.deposited_nano,
            "withdrawn": funds.withdrawn_nano,
            "burned": funds.burned_nano,
            "held": funds.total_nano(),
        },
        "nodes": {str(name): summarise_node(state, name) for name in sorted(state.nodes)},
        "runs": {name: summarise_run(run) for name, run in sorted(state.runs.items())},
    }


def summarise_node(state: LedgerState, name: Any) -> dict[str, Any]:
    node = state.nodes[name]
    return {
        "owner": str(state.owners[name]),
        "status": str(node.status),
        "roles": [str(role) for role in node.roles],
        "stake_nano": state.get_stake(name),
        "balance_nano": state.funds.balances[state.owners[name]],
        "settled": {str(outcome): node.settled[outcome] for outcome in Outcome},
        "units": node.units,
        "earned_nano": node.earned_nano,
        "faults": node.faults,
    }


def summarise_run(run: RunState) -> dict[str, Any]:
    return {
        "status": str(run.status),
        "latest_step": run.latest,
        "open_leases": len(run.leases),
        "open_slashes": len(run.slashes),
    }


def describe_log(verified: VerifiedLog) -> list[str]:
    """What `log verify` prints as text."""
    report, state = summarise_log(verified), verified.ledger.state
    value = {name: f"{amount / NANO:,.9g}" for name, amount in report["value_nano"].items()}
    source = (
        "the key you gave" if verified.is_key_given else "the key the log itself names; compare it with the operator's"
    )
    lines = [
        f"log    {verified.head.origin}: {report['entries']} entries, root {report['root']}",
        f"head   signed by {report['key']} ({source})",
        *(f"keys   entry {each.index} rotated the {each.kind} key {each.old}" for each in state.key_rotations),
        *_describe_scope(verified),
        f"value  {value['deposited']} in, {value['withdrawn']} out, {value['burned']} burned, {value['held']} held"
        f" ({state.ticker})",
    ]
    for name, run in report["runs"].items():
        lines.append(f"run    {name}: {run['status']}, step {run['latest_step']}, {run['open_leases']} leases open")
    for name, node in report["nodes"].items():
        settled = ", ".join(f"{count} {outcome}" for outcome, count in node["settled"].items() if count) or "no work"
        stake, balance = node["stake_nano"] / NANO, node["balance_nano"] / NANO
        lines.append(f"node   {name} {node['status']}: {settled}; stake {stake:,.9g}, owner's balance {balance:,.9g}")
    return lines


def _describe_scope(verified: VerifiedLog) -> list[str]:
    """What was verified, and what was not."""
    lines = ["replay every signature, author, rule and tile is valid"]
    if verified.first:
        lines = [
            f"replay every signature, author, rule and tile from entry {verified.first} on is valid",
            f"trust  NOT verified: the first {verified.first} entries. The signed tree contains them, and their state"
            " is the snapshot that the log notes",
        ]
    if verified.snapshots:
        lines.append(f"states the digests of {verified.snapshots} noted snapshots are those of the replayed states")
    if verified.unknown_snapshots:
        lines.append(f"states NOT compared: {verified.unknown_snapshots} noted snapshots are of another format")
    if verified.partial_files:
        lines.append(f"tiles  {verified.partial_files} superseded partial files are the beginning of the full ones")
    if verified.remembered is not None:
        lines.append(f"head   the log extends the remembered head over {verified.remembered.size} entries")
    return lines
