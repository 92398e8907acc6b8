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
        *_accusations(report),
        *_coordinator(report),
        *_version(report),
        *_eligibility(report),
        *_runs(report),
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
    if report["heads"]["stolen"]:
        names = ", ".join(report["heads"]["stolen"])
        yield f"a rotated log key still signs heads: it was stolen. The evidence is in the folder heads: {names}"


def _accusations(report: dict[str, Any]) -> Iterator[str]:
    accusations, replay = report["accusations"], report["replay"]
    if accusations["is_stopped"]:
        yield f"{accusations['reason']}. The node has stopped working for this coordinator"
    for claim in accusations["claims"]:
        if claim["answer"] == "unknown":
            who = (
                f"{len(claim['accusers'])} nodes claim"
                if len(claim["accusers"]) > 1
                else f"{claim['accusers'][0]} claims"
            )
            yield f"{who} that entry {claim['index']} of the log breaks a rule: {claim['problem']}"
    if replay and replay["problem"]:
        yield f"the log's rules are not being checked: {replay['problem']}"


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
    change = report["coordinator"]["rules_change"]
    if change and not change["is_known"]:
        when = f"{format_time(change['from_ms'])} UTC, {format_relative_time(change['from_ms'], now_ms)}"
        yield (
            f"the log follows rules {change['rules']} from {when}, and this program does not know them:"
            f" before that, pip install --upgrade 'prime-swarm>={change['release']}', then start it again"
        )
    elif by_ms > now_ms:
        when = f"{format_time(by_ms)} UTC, {format_relative_time(by_ms, now_ms)}"
        yield f"this version works until {when}; then the run needs a newer one: pip install --upgrade prime-swarm"
    if report["coordinator"]["is_outdated"] and report["account"] is None:
        # A relay has no account whose eligibility could say so.
        yield f"outdated: {OUTDATED}"


def _eligibility(report: dict[str, Any]) -> Iterator[str]:
    account = report["account"]
    if account is None or account["is_eligible"] or report["owner"]["hold"]:
        return
    ways = {
        "outdated": OUTDATED,
        "unstaked": "this node's stake is below the run's minimum: prime-node stake",
        "excluded": "this node was slashed in this run; stake again at least what was slashed: prime-node stake",
        "banned": "the operator has banned this node",
        "undelegated": "the owner's delegation has expired: prime-node keys delegate, then start --delegation",
    }
    if account["eligibility"] in ways:
        yield f"{account['eligibility']}: {ways[account['eligibility']]}"


def _runs(report: dict[str, Any]) -> Iterator[str]:
    """What keeps a run of several from going on; the other alerts are about the whole node or its only run."""
    for row in report["runs"] if len(report["runs"]) > 1 else ():
        problem = explain_run_problem(row)
        if problem:
            yield f"run {row['run']}: {problem}"


def explain_run_problem(row: dict[str, Any]) -> str:
    """Why a run gives this node no audits, or why its audits fail, with what to do; empty where all is well."""
    if row["status"] == "closed":
        return "it has ended: take it out of the setting `run`"
    if row["status"] == "paused":
        return "its operator has paused it; the node goes on by itself when the run does"
    if row["is_outdated"]:
        return OUTDATED
    if row["refusal"]:
        return f"the coordinator refuses this node's messages: {row['refusal']}"
    if row["hold"]:
        return str(row["hold"])
    if row["weights_problem"]:
        return f"cannot load weights: {row['weights_problem']}"
    if row["audit_problem"]:
        return f"the last audit failed: {row['audit_problem']}. Try: prime-node doctor"
    if row["is_suspended"]:
        return "its audits are suspended for missed or overturned verdicts; the node comes back by itself"
    return ""


def _engine(report: dict[str, Any]) -> Iterator[str]:
    engine = report["engine"]
    if engine and engine["last_error"] and engine["state"] in ("broken", "off"):
        yield f"the engine is down: {engine['last_error']}. Try: prime-node doctor"
    tokenizer = report["tokenizer"]
    if tokenizer and tokenizer["problem"]:
        yield f"the run's tokenizer cannot be used: {tokenizer['problem']}"
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
