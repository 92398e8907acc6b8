"""The books of a checked log in words and as JSON. Pure."""

from typing import Any

from prime_coordinator.books_check import CheckedLog
from prime_protocol.entries import Outcome
from prime_protocol.state import RunState, State

NANO = 10**9


def summarise(checked: CheckedLog) -> dict[str, Any]:
    """What `log verify --json` prints."""
    state = checked.ledger.state
    books = state.books
    return {
        "network": checked.ledger.network,
        "entries": checked.head.size,
        "root": str(checked.head.root),
        "key": str(checked.key),
        "key_given": checked.key_is_given,
        "coordinator": str(state.coordinator),
        "value_nano": {
            "deposited": books.deposited_nano,
            "withdrawn": books.withdrawn_nano,
            "burned": books.burned_nano,
            "held": books.held_nano(),
        },
        "nodes": {str(name): summarise_node(state, name) for name in sorted(state.nodes)},
        "runs": {name: summarise_run(run) for name, run in sorted(state.runs.items())},
    }


def summarise_node(state: State, name: Any) -> dict[str, Any]:
    node = state.nodes[name]
    return {
        "owner": str(state.owners[name]),
        "status": str(node.status),
        "roles": [str(role) for role in node.roles],
        "stake_nano": state.stake_of(name),
        "balance_nano": state.books.balances[state.owners[name]],
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


def describe(checked: CheckedLog) -> list[str]:
    """What `log verify` prints for people."""
    report = summarise(checked)
    value = {name: f"{amount / NANO:,.9g}" for name, amount in report["value_nano"].items()}
    whose = (
        "the key you gave" if checked.key_is_given else "the key the log names itself; compare it with the operator's"
    )
    lines = [
        f"log    {checked.head.origin}: {report['entries']} entries, root {report['root']}",
        f"head   signed by {report['key']} ({whose})",
        "replay every signature, author, rule and tile holds",
        f"value  {value['deposited']} in, {value['withdrawn']} out, {value['burned']} burned, {value['held']} held",
    ]
    for name, run in report["runs"].items():
        lines.append(f"run    {name}: {run['status']}, step {run['latest_step']}, {run['open_leases']} leases open")
    for name, node in report["nodes"].items():
        settled = ", ".join(f"{count} {outcome}" for outcome, count in node["settled"].items() if count) or "no work"
        stake, balance = node["stake_nano"] / NANO, node["balance_nano"] / NANO
        lines.append(f"node   {name} {node['status']}: {settled}; stake {stake:,.9g}, owner's balance {balance:,.9g}")
    return lines
