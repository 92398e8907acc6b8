"""What a node tells its owner about each of its runs: one row of plain values per run, with what to do.

At most RUNS_SERVED_MAX rows. The report of the whole node is in report.py.
"""

from dataclasses import asdict
from typing import Any

from prime_node.agent_runner import AgentRunner, WorkStatus
from prime_node.joining import explain_refusal
from prime_node.node_work import NodeWork
from prime_protocol.wire.messages import NodeCommand


def describe_runs(work: NodeWork, now_ms: int) -> list[dict[str, Any]]:
    """In the owner's order."""
    return [_describe_run(runner, now_ms) for runner in work.runners.values()]


def _describe_run(runner: AgentRunner, now_ms: int) -> dict[str, Any]:
    agent, status, jobs = runner.agent, runner.status, runner.job_runner
    wanted, account = status.wanted_weights, jobs.tracker.account if jobs else None
    return {
        "run": str(runner.run_id),
        "trainer": str(runner.weights.trainer),
        "status": str(status.run_status),
        "activity": str(agent.activity) if agent else "idle",
        "is_suspended": agent is not None and agent.control.command is NodeCommand.DRAIN,
        "hold": runner.own_hold_reason,
        "refusal": describe_refusal(status, now_ms),
        "upgrade_by_ms": status.upgrade_by_ms,
        "is_outdated": status.is_outdated,
        "weights_step": agent.leases.newest_checkpoint if agent else -1,
        "weights_wanted": {"step": wanted.step, "root": str(wanted.root)} if wanted else None,
        "weights_problem": find_weights_problem(runner),
        "audit_problem": jobs.auditor.problem if jobs else "",
        "account": asdict(account) if account else None,
        "verdicts": agent.audits.verdicts_given if agent else 0,
        "audits_open": len(agent.audits.list_open()) if agent else 0,
        "audits_failed": jobs.auditor.counts["failed"] if jobs else 0,
    }


def find_weights_problem(runner: AgentRunner) -> str:
    return runner.status.weights_problem or runner.weights.fetcher.problem


def describe_refusal(status: WorkStatus, now_ms: int) -> str:
    """Why the coordinator refuses heartbeats. A node that is not registered yet is refused for a moment: not shown."""
    refusal = status.heartbeat_refusal
    if refusal is None or refusal.field == "node":
        return ""
    return explain_refusal(refusal, now_ms) or f"{refusal.field} {refusal.problem}".strip()
