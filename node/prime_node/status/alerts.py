"""What is wrong with a node, the worst first, each with what to do. Derived from the report alone. Pure."""

from collections.abc import Iterator
from typing import Any

from prime_runtime.formatting import format_duration, format_relative_time, format_time

OUTDATED = "this version is too old for the run: pip install --upgrade prime-swarm, then start it again"
RESTARTS_SHOWN = 3
"""A part that restarted less often recovered by itself."""


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
        yield f"THE LOG HAS FORKED. Publish the evidence; it is in the folder heads: {names}"


def _coordinator(report: dict[str, Any]) -> Iterator[str]:
    coordinator = report["coordinator"]
    if coordinator["refusal"]:
        yield f"the coordinator refuses this node's messages: {coordinator['refusal']}"
    elif coordinator["is_reachable"]:
        return
    elif coordinator["answered_ms_ago"] is None:
        yield f"the coordinator has not answered yet: {coordinator['problem']}"
    else:
        since = format_duration(coordinator["answered_ms_ago"])
        yield f"the coordinator has not answered for {since} (the node keeps trying): {coordinator['problem']}"


def _version(report: dict[str, Any]) -> Iterator[str]:
    by_ms, now_ms = report["coordinator"]["upgrade_by_ms"], report["now_ms"]
    if by_ms > now_ms:
        when = f"{format_time(by_ms)} UTC, {format_relative_time(by_ms, now_ms)}"
        yield f"this version works until {when}; then the run needs a newer one: pip install --upgrade prime-swarm"
    if report["coordinator"]["is_outdated"] and report["account"] is None:
        # A relay has no account whose standing could say so.
        yield f"outdated: {OUTDATED}"


def _standing(report: dict[str, Any]) -> Iterator[str]:
    account = report["account"]
    if account is None or account["may_work"] or report["owner"]["hold"]:
        return
    ways = {
        "outdated": OUTDATED,
        "unstaked": "this node's stake is below the run's minimum: prime-node stake",
        "banned": "the operator has banned this node",
        "undelegated": "the owner's delegation has expired: prime-node keys delegate, then start --delegation",
    }
    if account["standing"] in ways:
        yield f"{account['standing']}: {ways[account['standing']]}"


def _engine(report: dict[str, Any]) -> Iterator[str]:
    engine = report["engine"]
    if engine and engine["last_error"] and engine["state"] in ("broken", "off"):
        yield f"the engine is down: {engine['last_error']}. Try: prime-node doctor"
    for gpu in report["gpus"]:
        if gpu["problem"]:
            yield f"GPU {gpu['number']} is lost: {gpu['problem']}"


def _weights(report: dict[str, Any]) -> Iterator[str]:
    if report["weights"]["problem"]:
        yield f"cannot load weights: {report['weights']['problem']}"


def _records(report: dict[str, Any]) -> Iterator[str]:
    """Only the newest job: older failures are no longer news."""
    jobs = report["jobs"]
    for job in jobs["last"][:1] if jobs else ():
        if job["state"] in ("rejected", "slashed"):
            what = f"lease {job['lease']} was {job['state']}: {job['reason']}"
            yield f"{what}. See: prime-node rollouts {job['lease']}"


def _parts(report: dict[str, Any]) -> Iterator[str]:
    for part in report["parts"]:
        if part["restarts"] >= RESTARTS_SHOWN:
            yield f"the part {part['name']} keeps failing: {part['last_error']}"
