"""What is wrong with a node, the worst first, each with what to do. Pure: it follows from the report alone."""

from collections.abc import Iterator
from typing import Any

from prime_runtime.formatting import format_duration, format_relative_time, format_time

OUTDATED = "this version is too old for the run: pip install --upgrade prime-swarm, then start it again"
RESTARTS_SHOWN = 3
"""A part that began again less often has had a hiccup, not a trouble."""


def list_alerts(report: dict[str, Any]) -> list[str]:
    if report["state"] != "running":
        return [f"not joined yet: {report['problem']}"] if report["problem"] else []
    return [
        *_forks(report),
        *_coordinator(report),
        *_version(report),
        *_standing(report),
        *_engine(report),
        *_weights(report),
        *_records(report),
        *_parts(report),
    ]


def _forks(report: dict[str, Any]) -> Iterator[str]:
    forks = report["heads"]["forks"]
    if forks:
        names = ", ".join(forks)
        yield f"THE LOG TELLS TWO HISTORIES. Show the evidence to others; it is in the folder heads: {names}"


def _coordinator(report: dict[str, Any]) -> Iterator[str]:
    coordinator = report["coordinator"]
    if coordinator["refusal"]:
        yield f"the coordinator does not take this node's word: {coordinator['refusal']}"
    elif coordinator["is_reachable"]:
        return
    elif coordinator["answered_ms_ago"] is None:
        yield f"the coordinator has not answered yet: {coordinator['problem']}"
    else:
        since = format_duration(coordinator["answered_ms_ago"])
        yield f"the coordinator was last heard {since} ago (the node goes on trying): {coordinator['problem']}"


def _version(report: dict[str, Any]) -> Iterator[str]:
    by_ms, now_ms = report["coordinator"]["upgrade_by_ms"], report["now_ms"]
    if by_ms > now_ms:
        when = f"{format_time(by_ms)} UTC, {format_relative_time(by_ms, now_ms)}"
        yield f"this version works until {when}; then the run needs a newer one: pip install --upgrade prime-swarm"
    if report["coordinator"]["is_outdated"] and report["account"] is None:
        # A relay has no standing in the account to tell it by.
        yield f"outdated: {OUTDATED}"


def _standing(report: dict[str, Any]) -> Iterator[str]:
    account = report["account"]
    if account is None or account["may_work"] or report["owner"]["hold"]:
        return
    ways = {
        "outdated": OUTDATED,
        "unstaked": "too little stands behind this node: prime-node stake",
        "banned": "the operator has banned this node",
        "undelegated": "its owner's delegation has ended: prime-node keys delegate, then start --delegation",
    }
    if account["standing"] in ways:
        yield f"{account['standing']}: {ways[account['standing']]}"


def _engine(report: dict[str, Any]) -> Iterator[str]:
    engine = report["engine"]
    if engine and engine["last_error"] and engine["state"] in ("broken", "off"):
        yield f"the engine does not run: {engine['last_error']}. Try: prime-node doctor"
    for gpu in report["gpus"]:
        if gpu["problem"]:
            yield f"GPU {gpu['number']} is lost: {gpu['problem']}"


def _weights(report: dict[str, Any]) -> Iterator[str]:
    if report["weights"]["problem"]:
        yield f"weights cannot be had: {report['weights']['problem']}"


def _records(report: dict[str, Any]) -> Iterator[str]:
    """The newest work, where it was not taken: older failures are history."""
    jobs = report["jobs"]
    for job in jobs["last"][:1] if jobs else ():
        if job["state"] in ("rejected", "slashed"):
            what = f"lease {job['lease']} was {job['state']}: {job['reason']}"
            yield f"{what}. See: prime-node rollouts {job['lease']}"


def _parts(report: dict[str, Any]) -> Iterator[str]:
    for part in report["parts"]:
        if part["restarts"] >= RESTARTS_SHOWN:
            yield f"the part {part['name']} fails again and again: {part['last_error']}"
