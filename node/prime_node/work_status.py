"""The part of a node's report that is about work: lease, engine, audits, pieces, and the node in the books."""

from collections import Counter
from dataclasses import asdict
from typing import Any

from prime_node.daemon import Daemon
from prime_node.journal import Piece
from prime_node.workshop import Workshop

PIECES_SHOWN = 10
PIECES_COUNTED = 1_000
"""Newest pieces that are counted by state."""


def describe_work(daemon: Daemon) -> dict[str, Any]:
    """Nothing of it on a relay."""
    workshop = daemon.workshop
    if workshop is None:
        return {"books": None, "engine": None, "work": None, "audits": None, "pieces": None}
    seen = workshop.outcomes.seen
    return {
        "books": asdict(seen) if seen else None,
        "engine": workshop.keeper.report(),
        "work": _work(daemon),
        "audits": _audits(daemon),
        "pieces": _pieces(workshop),
    }


def _work(daemon: Daemon) -> dict[str, Any]:
    agent = daemon.agent
    if agent is None:
        return {"current": None, "waiting": 0, "tokens_per_s": 0, "idle_for": ""}
    current, desk = agent.assignments.current, agent.assignments
    shown = None
    if current is not None:
        lease, progress = current.lease, daemon.progress.get(current.lease.lease)
        shown = {
            "lease": lease.lease,
            "step": lease.step,
            "first_slot": lease.first_slot,
            "slots": lease.slots,
            "started_ms": current.started_ms,
            "deadline_ms": lease.deadline_ms,
            "rows_done": progress.rows_done if progress else 0,
            "rows": progress.rows if progress else None,
        }
    return {
        "current": shown,
        "waiting": len(desk.open) - (current is not None),
        "tokens_per_s": desk.tokens_per_s,
        "idle_for": daemon.idle_for if current is None else "",
    }


def _audits(daemon: Daemon) -> dict[str, Any]:
    if daemon.agent is None:
        return {"done": 0, "inspected": 0, "open": []}
    verdicts = daemon.agent.verdicts
    rows = [
        {
            "submission": str(task.submission),
            "node": str(task.node),
            "step": task.step,
            "slots": task.slots,
            "deadline_ms": task.deadline_ms,
        }
        for task in verdicts.list_open()
    ]
    return {"done": verdicts.given, "inspected": verdicts.inspected, "open": rows}


def _pieces(workshop: Workshop) -> dict[str, Any]:
    pieces = workshop.journal.list(PIECES_COUNTED)
    counts = Counter(str(piece.state) for piece in pieces)
    return {"counts": dict(counts.most_common()), "last": [describe_piece(each) for each in pieces[:PIECES_SHOWN]]}


def describe_piece(piece: Piece) -> dict[str, Any]:
    """As JSON has it; also for `prime-node rollouts`."""
    plain = asdict(piece)
    for name in ("submission", "file", "checkpoint_root", "rollout_root"):
        plain[name] = str(plain[name]) if plain[name] is not None else None
    plain["history"] = [{"state": str(state), "at_ms": at_ms} for state, at_ms in piece.history]
    return {**plain, "run": str(piece.run), "state": str(piece.state)}
