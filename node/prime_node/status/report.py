"""What a node tells its owner: one report of plain values, the same for the terminal, the page, JSON and metrics.

It is read from a running daemon and changes nothing there. Scripts read its field names.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

from prime_node.agent.agent import Agent
from prime_node.agent_runner import WorkStatus
from prime_node.daemon import Daemon
from prime_node.node_work import NodeWork
from prime_node.policy.enforcer import PolicyEnforcer
from prime_node.status.run_report import describe_refusal, describe_runs, find_weights_problem
from prime_node.storage.journal import DIGESTS, JobRecord, Journal
from prime_node.weights.checkpoints import TransferStatus
from prime_protocol.constants import PROTOCOL_VERSION
from prime_protocol.ledger.entries import RulesChanged
from prime_protocol.wire.ids import NodeId, friendly_name
from prime_protocol.wire.messages import NodeActivity
from prime_protocol.wire.signing import WalletKey
from prime_runtime.gossip.config import P2PStatus
from prime_runtime.shardcast.shard_set import ShardSet
from prime_runtime.supervisor import SupervisedTask

RECORDS_SHOWN = 10
RECORDS_COUNTED = 1_000
"""Newest jobs that are counted by state."""
SHARD_CELLS = 40
P2P_OFF = P2PStatus(
    is_running=False,
    peer_id="",
    addresses=(),
    connected=0,
    known=0,
    banned=0,
    messages_in=0,
    messages_out=0,
    messages_refused=0,
    messages_ignored=0,
    inbox_dropped=0,
    bytes_in=0,
    bytes_out=0,
    restarts=0,
    connections=(),
    last_error="",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """What is known of the process before the node has joined."""

    folder: Path
    key: WalletKey
    enforcer: PolicyEnforcer
    started_ms: int
    page_url: str | None
    parts: tuple[SupervisedTask, ...]
    """Of the process, beside the daemon's."""


def make_joining_report(problem: str, process: ProcessInfo, *, now_ms: int) -> dict[str, Any]:
    """Before the run's trainer is known."""
    return {"state": "joining", "problem": problem, **_describe_process(process, now_ms)}


def make_report(daemon: Daemon, process: ProcessInfo, *, now_ms: int) -> dict[str, Any]:
    config, swarm = daemon.config, daemon.swarm
    first = daemon.work.first.weights
    return {
        "state": "running",
        "problem": "",
        **_describe_process(process, now_ms),
        "role": str(config.role),
        "network": config.network,
        "run": config.run,
        "trainer": str(first.trainer),
        "runs": describe_runs(daemon.work, now_ms),
        "coordinator": _describe_coordinator(daemon, now_ms),
        "owner": {**process.enforcer.describe(), "hold": daemon.work.holds.reason},
        "gpus": process.enforcer.describe_gpus(),
        **_describe_work(daemon.work),
        "p2p": describe_p2p(swarm.libp2p.status(), swarm.libp2p.reason, swarm.find_depth),
        "serving": {
            "urls": list(swarm.urls),
            "text": swarm.reach.describe(),
            "reachability": swarm.reach.dial_back.state,
            "false_answers": swarm.reach.dial_back.false_claims,
            "lanes": swarm.reach.dialer.lanes,
            "linked": len(swarm.reach.gateway.nodes()),
            "depth": min(each.server.offer().depth for each in swarm.runs.values()),
            "nodes_known": sum(len(each.directory) for each in swarm.runs.values()),
            "nodes_in_run": first.relay_client.nodes,
        },
        "weights": _describe_weights(daemon.work),
        "upload": _describe_upload(daemon, now_ms),
        "heads": _describe_heads(daemon),
        "replay": _describe_replay(daemon),
        "accusations": _describe_accusations(daemon),
        "parts": [
            {
                "name": part.name,
                "is_running": part.is_running,
                "restarts": part.restarts,
                "last_error": part.last_error,
            }
            for part in (*daemon.supervisor.tasks, *process.parts)
        ],
    }


def _describe_process(process: ProcessInfo, now_ms: int) -> dict[str, Any]:
    return {
        "node": str(process.key.node),
        "name": friendly_name(process.key.node),
        "peer_id": process.key.peer_id(),
        "protocol_version": PROTOCOL_VERSION,
        "program_version": _get_version(),
        "folder": str(process.folder),
        "page": process.page_url,
        "started_ms": process.started_ms,
        "now_ms": now_ms,
    }


def _get_version() -> str:
    try:
        return version("prime-swarm")
    except PackageNotFoundError:
        return "unknown"


def _describe_coordinator(daemon: Daemon, now_ms: int) -> dict[str, Any]:
    coordinator, runners = daemon.work.coordinator, list(daemon.work.runners.values())
    relay_clients = [runner.weights.relay_client for runner in runners]
    problem = coordinator.problem or relay_clients[0].problem
    replies = [coordinator.last_reply_ms, *(each.answered_ms for each in relay_clients)]
    answered = [at_ms for at_ms in replies if at_ms is not None]
    return {
        "url": daemon.config.coordinator,
        "id": daemon.config.coordinator_id,
        "is_reachable": not problem,
        "problem": problem,
        "answered_ms_ago": now_ms - max(answered) if answered else None,
        "activity": choose_activity([runner.agent.activity for runner in runners if runner.agent]),
        "upgrade_by_ms": min((by_ms for each in runners if (by_ms := each.status.upgrade_by_ms)), default=0),
        "is_outdated": any(runner.status.is_outdated for runner in runners),
        "rules_change": _describe_rules_change(daemon.work.first.status.rules_change),
        "refusal": describe_refusal(daemon.work.first.status, now_ms),
        "held": [
            {"entry": type(held.entry).__name__, "due_ms": due_ms}
            for runner in runners
            for due_ms, held in (runner.agent.list_held() if runner.agent else ())
        ],
    }


def _describe_rules_change(change: RulesChanged | None) -> dict[str, Any] | None:
    if change is None:
        return None
    return {
        "rules": change.rules,
        "from_ms": change.from_ms,
        "release": change.release,
        "is_known": change.rules <= PROTOCOL_VERSION,
    }


def choose_activity(activities: list[NodeActivity]) -> str:
    """The busiest of the runs counts for the node."""
    order = (NodeActivity.WORKING, NodeActivity.LOADING, NodeActivity.IDLE, NodeActivity.DRAINING)
    return str(next((each for each in order if each in activities), NodeActivity.IDLE))


# --- Work -----------------------------------------------------------------------------------------------------------


def _describe_work(work: NodeWork) -> dict[str, Any]:
    """All None on a relay. What only workers have is of the first run: a worker has no other."""
    first, runner = work.first, work.first.job_runner
    if runner is None or work.tools is None:
        return {"account": None, "engine": None, "tokenizer": None, "work": None, "audits": None, "jobs": None}
    account = runner.tracker.account
    contexts = [each.job_runner.contexts for each in work.runners.values() if each.job_runner]
    return {
        "account": asdict(account) if account else None,
        "engine": work.tools.engine.get_status(),
        "tokenizer": {"problem": next((each.tokenizer_problem for each in contexts if each.tokenizer_problem), "")},
        "work": _describe_leases(first.agent, first.status),
        "audits": _describe_audits(work),
        "jobs": _describe_jobs(work.tools.journal),
    }


def _describe_leases(agent: Agent | None, status: WorkStatus) -> dict[str, Any]:
    if agent is None:
        return {"current": None, "others": 0, "tokens_per_s": 0, "idle_reason": ""}
    started = agent.leases.list_started()
    current = started[0] if started else None
    shown = None
    if current is not None:
        lease = current.lease
        progress = status.progress.get(lease.lease)
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
        "others": len(agent.leases.open) - (current is not None),
        "tokens_per_s": agent.leases.tokens_per_s,
        "idle_reason": status.idle_reason if current is None else "",
    }


def _describe_audits(work: NodeWork) -> dict[str, Any]:
    """Over all runs."""
    agents = {run: runner.agent for run, runner in work.runners.items() if runner.agent}
    rows = [
        {
            "run": run,
            "submission": str(task.submission),
            "node": str(task.node),
            "step": task.step,
            "slots": task.slots,
            "deadline_ms": task.deadline_ms,
        }
        for run, agent in agents.items()
        for task in agent.audits.list_open()
    ]
    given = [agent.audits for agent in agents.values()]
    return {
        "done": sum(each.verdicts_given for each in given),
        "committed": sum(len(each.committed) for each in given),
        "inspected": sum(each.inspections_given for each in given),
        "ruled": sum(each.rulings_given for each in given),
        "open": rows,
    }


def _describe_jobs(journal: Journal) -> dict[str, Any]:
    records = journal.list_newest(RECORDS_COUNTED)
    counts = Counter(str(record.state) for record in records)
    return {"counts": dict(counts.most_common()), "last": [describe_record(each) for each in records[:RECORDS_SHOWN]]}


def describe_record(record: JobRecord) -> dict[str, Any]:
    """As JSON has it; also for `prime-node rollouts`."""
    plain = asdict(record)
    for name in DIGESTS:
        plain[name] = str(plain[name]) if plain[name] is not None else None
    plain["history"] = [{"state": str(state), "at_ms": at_ms} for state, at_ms in record.history]
    return {**plain, "run": str(record.run), "state": str(record.state)}


# --- Swarm ----------------------------------------------------------------------------------------------------------


def describe_p2p(
    status: P2PStatus | None, reason: str, find_depth: Callable[[NodeId], int | None] = lambda node: None
) -> dict[str, Any]:
    """`reason` is why libp2p is off. The fields are the same then, and empty. `find_depth`: where a node says it is in
    the broadcast tree; None where it serves no weights."""
    facts = asdict(status or P2P_OFF)
    connections = [{**each, "depth": find_depth(NodeId.parse(each["node"]))} for each in facts["connections"]]
    del facts["peer_id"]
    shown = {"is_on": status is not None, "text": _describe_gossip(status, reason), "peers": facts["connected"]}
    return {**shown, **facts, "addresses": list(facts["addresses"]), "connections": connections}


def _describe_gossip(status: P2PStatus | None, reason: str) -> str:
    over_http = "gossip comes from the coordinator over HTTP"
    if status is None:
        return f"off: {reason}; {over_http}"
    if not status.is_running:
        return f"restarting after: {status.last_error}; {over_http}"
    if not status.connected:
        return f"on, but reaches no peer: {over_http}"
    return f"on: {status.connected} peers, {status.known} known"


def _describe_weights(work: NodeWork) -> dict[str, Any]:
    """Over all runs; `wanted` and `problem` of each run are in its row of `runs` too."""
    runners = work.runners.items()
    wanted = work.first.status.wanted_weights
    problems = [(run, find_weights_problem(runner)) for run, runner in runners]
    return {
        "wanted": {"step": wanted.step, "root": str(wanted.root)} if wanted else None,
        "problem": "; ".join(text if len(work.runners) == 1 else f"{run}: {text}" for run, text in problems if text),
        "held": [
            {"run": run, **_describe_shard_set(each)}
            for run, runner in runners
            for each in runner.weights.store.newest_first()
        ],
        "transfers": [
            {"run": run, **_describe_transfer(each)}
            for run, runner in runners
            for each in runner.weights.fetcher.list_transfers()
        ],
        "corrupt": sum(runner.weights.fetcher.corrupt for _, runner in runners),
    }


def _describe_shard_set(shard_set: ShardSet) -> dict[str, Any]:
    manifest = shard_set.manifest
    return {
        "step": manifest.step,
        "kind": manifest.kind,
        "root": str(shard_set.signed.root),
        "manifest": str(shard_set.digest),
        "total_bytes": manifest.transport_bytes,
        "shards": shard_set.shards,
        "shards_held": shard_set.held.bit_count(),
        "is_complete": shard_set.is_complete,
    }


def _describe_transfer(transfer: TransferStatus) -> dict[str, Any]:
    """`finish_ms` is the expected time until the last shard, None while nothing arrives; `corrupt` counts shards that
    failed their digest and were fetched again."""
    progress = transfer.progress
    return {
        "step": transfer.step,
        "kind": transfer.kind,
        "manifest": str(transfer.manifest),
        "bar": draw_shards(transfer.held, transfer.coming, progress.shards),
        "shards": progress.shards,
        "shards_held": progress.held,
        "held_bytes": progress.held_bytes,
        "total_bytes": progress.total_bytes,
        "bytes_per_s": round(progress.rate_bytes_per_s),
        "sources": progress.sources,
        "finish_ms": progress.eta_ms,
        "corrupt": transfer.corrupt,
    }


def draw_shards(held: bytes, coming: bytes, shards: int, cells: int = SHARD_CELLS) -> str:
    """Shards from first to last, several to a cell: # all held, + some of them held or arriving, . none yet."""
    have = int.from_bytes(held, "little")
    begun = have | int.from_bytes(coming, "little")
    cells = min(cells, shards)
    cuts = [n * shards // cells for n in range(cells + 1)]
    masks = [(1 << end) - (1 << start) for start, end in pairwise(cuts)]
    return "".join("#" if have & mask == mask else "+" if begun & mask else "." for mask in masks)


def _describe_upload(daemon: Daemon, now_ms: int) -> dict[str, Any]:
    limits, swarm = daemon.config.upload, daemon.swarm
    servers = [each.server for each in swarm.runs.values()]
    return {
        "slots": limits.limits().slots,
        "slots_free": swarm.slots.slots_free(now_ms),
        "bytes_per_s_max": limits.bytes_per_s or None,
        "bytes_per_day_max": limits.bytes_per_day or None,
        "bytes_today": swarm.slots.sent_today(now_ms),
        "sent_bytes": sum(each.sent_bytes for each in servers),
        "sent_shards": sum(each.sent_shards for each in servers),
        "refused": sum(each.refused for each in servers),
    }


def _describe_heads(daemon: Daemon) -> dict[str, Any]:
    monitor = daemon.swarm.head_monitor
    latest = monitor.latest
    return {
        "size": latest.size if latest else 0,
        "root": str(latest.head.root) if latest else "",
        "compared": monitor.compared,
        "unproven": monitor.unproven,
        "forks": list(monitor.forks),
        "stolen": list(monitor.stolen_heads),
    }


def _describe_replay(daemon: Daemon) -> dict[str, Any] | None:
    """None where this node does not replay the rules."""
    follower, latest = daemon.swarm.ledger_follower, daemon.swarm.head_monitor.latest
    if follower is None:
        return None
    return {
        "size": follower.size,
        "head_size": latest.size if latest else 0,
        "problem": follower.problem,
        "broken": follower.finding.problem if follower.finding else "",
        "broken_index": follower.finding.index if follower.finding else None,
        "wrong_bytes": dict(follower.wrong_bytes),
    }


def _describe_accusations(daemon: Daemon) -> dict[str, Any]:
    keeper, follower = daemon.swarm.accusations, daemon.swarm.ledger_follower
    return {
        "is_stopped": keeper.is_stopped,
        "reason": keeper.hold_reason,
        "kept": keeper.list_kept(),
        "claims": keeper.list_claims(follower.size if follower else None),
    }
