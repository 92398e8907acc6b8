"""The part of a node's report that is about work: lease, engine, audits, pieces, and the node in the books.

What a node tells its owner: one report, the same for the terminal, for JSON and for tests.

Made from the parts of a running daemon; shown by view.py. Names of the fields are for scripts: they stay.
"""

from collections import Counter
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from pathlib import Path
from typing import Any

from prime_node.daemon import Daemon
from prime_node.jobs.runner import JobRunner
from prime_node.joining import explain_refusal
from prime_node.policy.enforcer import PolicyEnforcer
from prime_node.storage.journal import JobRecord
from prime_node.weights.checkpoints import TransferStatus
from prime_protocol.constants import PROTOCOL_VERSION
from prime_protocol.wire.ids import friendly_name
from prime_protocol.wire.signing import WalletKey
from prime_runtime.gossip.config import P2PStatus
from prime_runtime.shardcast.shard_set import ShardSet
from prime_runtime.supervisor import SupervisedTask

RECORDS_SHOWN = 10
RECORDS_COUNTED = 1_000
"""Newest pieces that are counted by state."""


def describe_work(daemon: Daemon) -> dict[str, Any]:
    """Nothing of it on a relay."""
    workshop = daemon.job_runner
    if workshop is None:
        return {"books": None, "engine": None, "work": None, "audits": None, "pieces": None}
    seen = workshop.tracker.account
    return {
        "books": asdict(seen) if seen else None,
        "engine": workshop.engine.get_status(),
        "work": _work(daemon),
        "audits": _audits(daemon),
        "pieces": _records(workshop),
    }


def _work(daemon: Daemon) -> dict[str, Any]:
    agent = daemon.agent
    if agent is None:
        return {"current": None, "waiting": 0, "tokens_per_s": 0, "idle_for": ""}
    current, desk = agent.leases.current, agent.leases
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
        "idle_for": daemon.idle_reason if current is None else "",
    }


def _audits(daemon: Daemon) -> dict[str, Any]:
    if daemon.agent is None:
        return {"done": 0, "inspected": 0, "open": []}
    verdicts = daemon.agent.audits
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
    return {"done": verdicts.verdicts_given, "inspected": verdicts.inspections_given, "open": rows}


def _records(workshop: JobRunner) -> dict[str, Any]:
    pieces = workshop.journal.list_newest(RECORDS_COUNTED)
    counts = Counter(str(piece.state) for piece in pieces)
    return {"counts": dict(counts.most_common()), "last": [describe_record(each) for each in pieces[:RECORDS_SHOWN]]}


def describe_record(piece: JobRecord) -> dict[str, Any]:
    """As JSON has it; also for `prime-node rollouts`."""
    plain = asdict(piece)
    for name in ("submission", "file", "checkpoint_root", "rollout_root"):
        plain[name] = str(plain[name]) if plain[name] is not None else None
    plain["history"] = [{"state": str(state), "at_ms": at_ms} for state, at_ms in piece.history]
    return {**plain, "run": str(piece.run), "state": str(piece.state)}


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
    restarts=0,
    last_error="",
)


def draw_shards(held: bytes, coming: bytes, shards: int, cells: int = SHARD_CELLS) -> str:
    """Shards from first to last, some to a cell: # all held, + some of it held or arriving, . nothing yet."""
    have = int.from_bytes(held, "little")
    begun = have | int.from_bytes(coming, "little")
    cells = min(cells, shards)
    cuts = [n * shards // cells for n in range(cells + 1)]
    masks = [(1 << end) - (1 << start) for start, end in pairwise(cuts)]
    return "".join("#" if have & mask == mask else "+" if begun & mask else "." for mask in masks)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldManifestRow:
    """One manifest on disk."""

    step: int
    kind: str
    root: str
    manifest: str
    total_bytes: int
    shards: int
    shards_held: int
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRow:
    """One manifest on its way."""

    step: int
    kind: str
    manifest: str
    bar: str
    shards: int
    shards_held: int
    held_bytes: int
    total_bytes: int
    bytes_per_s: int
    sources: int
    finish_ms: int | None
    """Expected time until the last shard; None while nothing arrives."""
    corrupt: int
    """Shards that came wrong and were fetched again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """Where a node's process lives, and whose it is."""

    folder: Path
    key: WalletKey
    enforcer: PolicyEnforcer
    started_ms: int
    page_url: str | None
    parts: tuple[SupervisedTask, ...]
    """Of the process, beside the daemon's."""


def make_held_row(stock: ShardSet) -> HeldManifestRow:
    manifest = stock.manifest
    return HeldManifestRow(
        step=manifest.step,
        kind=manifest.kind,
        root=str(stock.signed.root),
        manifest=str(stock.digest),
        total_bytes=manifest.transport_bytes,
        shards=stock.shards,
        shards_held=stock.held.bit_count(),
        is_complete=stock.is_complete,
    )


def make_transfer_row(transfer: TransferStatus) -> TransferRow:
    progress = transfer.progress
    return TransferRow(
        step=transfer.step,
        kind=transfer.kind,
        manifest=str(transfer.manifest),
        bar=draw_shards(transfer.held, transfer.coming, progress.shards),
        shards=progress.shards,
        shards_held=progress.held,
        held_bytes=progress.held_bytes,
        total_bytes=progress.total_bytes,
        bytes_per_s=round(progress.rate_bytes_per_s),
        sources=progress.sources,
        finish_ms=progress.eta_ms,
        corrupt=transfer.corrupt,
    )


def make_report(daemon: Daemon, place: ProcessInfo, *, now_ms: int) -> dict[str, Any]:
    """Everything, as plain values."""
    config, swarm = daemon.config, daemon.swarm
    return {
        "state": "running",
        "problem": "",
        **describe_process(place, now_ms),
        "role": str(config.role),
        "network": config.network,
        "run": config.run,
        "trainer": str(swarm.trainer),
        "coordinator": _coordinator(daemon, now_ms),
        "owner": {**place.enforcer.describe(), "hold": daemon.hold_reason},
        "gpus": place.enforcer.describe_gpus(),
        **describe_work(daemon),
        "p2p": describe_p2p(swarm.libp2p.status(), swarm.libp2p.reason),
        "serving": _serving(daemon),
        "weights": _weights(daemon),
        "upload": _upload(daemon, now_ms),
        "heads": _heads(daemon),
        "parts": [
            {
                "name": part.name,
                "is_running": part.is_running,
                "restarts": part.restarts,
                "last_error": part.last_error,
            }
            for part in (*daemon.supervisor.parts, *place.parts)
        ],
    }


def make_joining_report(problem: str, place: ProcessInfo, *, now_ms: int) -> dict[str, Any]:
    """Before the run's trainer is known."""
    return {"state": "joining", "problem": problem, **describe_process(place, now_ms)}


def describe_process(place: ProcessInfo, now_ms: int) -> dict[str, Any]:
    return {
        "node": str(place.key.node),
        "name": friendly_name(place.key.node),
        "peer_id": place.key.peer_id(),
        "protocol_version": PROTOCOL_VERSION,
        "program_version": get_version(),
        "folder": str(place.folder),
        "page": place.page_url,
        "started_ms": place.started_ms,
        "now_ms": now_ms,
    }


def get_version() -> str:
    try:
        return version("prime-swarm")
    except PackageNotFoundError:
        return "unknown"


def _coordinator(daemon: Daemon, now_ms: int) -> dict[str, Any]:
    courier, records = daemon.coordinator, daemon.swarm.relay_client
    problem = courier.problem or records.problem
    answered = [at_ms for at_ms in (courier.last_reply_ms, records.answered_ms) if at_ms is not None]
    return {
        "url": daemon.config.coordinator,
        "id": daemon.config.coordinator_id,
        "is_reachable": not problem,
        "problem": problem,
        "answered_ms_ago": now_ms - max(answered) if answered else None,
        "activity": str(daemon.agent.activity) if daemon.agent else "idle",
        "upgrade_by_ms": daemon.upgrade_by_ms,
        "is_outdated": daemon.is_outdated,
        "refusal": _refusal(daemon, now_ms),
    }


def _refusal(daemon: Daemon, now_ms: int) -> str:
    """Why the coordinator does not take this node's beats. That it is not registered passes in a moment."""
    refusal = daemon.heartbeat_refusal
    if refusal is None or refusal.field == "node":
        return ""
    return explain_refusal(refusal, now_ms) or f"{refusal.field} {refusal.problem}".strip()


def describe_p2p(status: P2PStatus | None, reason: str) -> dict[str, Any]:
    """`reason` is why there is none. The fields are the same then, and empty."""
    facts = asdict(status or P2P_OFF)
    del facts["peer_id"]
    shown = {"is_on": status is not None, "text": _describe_gossip(status, reason), "peers": facts["connected"]}
    return {**shown, **facts, "addresses": list(facts["addresses"])}


def _describe_gossip(status: P2PStatus | None, reason: str) -> str:
    over_http = "records come from the coordinator over HTTP"
    if status is None:
        return f"off: {reason}; {over_http}"
    if not status.is_running:
        return f"restarting after: {status.last_error}; {over_http}"
    if not status.connected:
        return f"on, but reaches nobody: {over_http}"
    return f"on: {status.connected} peers, {status.known} known"


def _serving(daemon: Daemon) -> dict[str, Any]:
    swarm = daemon.swarm
    text = "" if swarm.urls else "outbound only: announce is empty, so this node serves nobody"
    return {
        "urls": list(swarm.urls),
        "text": text,
        "depth": swarm.server.offer().depth,
        "nodes_known": len(swarm.directory),
        "nodes_in_run": swarm.relay_client.nodes,
    }


def _weights(daemon: Daemon) -> dict[str, Any]:
    wanted = daemon.wanted_weights
    return {
        "wanted": {"step": wanted.step, "root": str(wanted.root)} if wanted else None,
        "problem": daemon.weights_problem or daemon.swarm.fetcher.problem,
        "held": [asdict(make_held_row(stock)) for stock in daemon.swarm.store.newest_first()],
        "transfers": [asdict(make_transfer_row(each)) for each in daemon.swarm.fetcher.list_transfers()],
        "corrupt": daemon.swarm.fetcher.corrupt,
    }


def _upload(daemon: Daemon, now_ms: int) -> dict[str, Any]:
    limits, swarm = daemon.config.upload, daemon.swarm
    return {
        "slots": limits.limits().slots,
        "slots_free": swarm.slots.slots_free(now_ms),
        "bytes_per_s_max": limits.bytes_per_s or None,
        "bytes_per_day_max": limits.bytes_per_day or None,
        "bytes_today": swarm.slots.sent_today(now_ms),
        "sent_bytes": swarm.server.sent_bytes,
        "sent_shards": swarm.server.sent_shards,
        "refused": swarm.server.refused,
    }


def _heads(daemon: Daemon) -> dict[str, Any]:
    heads = daemon.swarm.head_monitor
    kept = heads.latest
    return {
        "size": kept.size if kept else 0,
        "root": str(kept.head.root) if kept else "",
        "compared": heads.compared,
        "unproven": heads.unproven,
        "forks": list(heads.forks),
    }
