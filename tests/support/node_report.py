"""A node's report as the door gives it, for tests of what is shown: a worker in the middle of its work."""

from typing import Any

ROOT = "0x" + "ab" * 32

JOB: dict[str, Any] = {
    "run": "demo",
    "lease": 41,
    "step": 3,
    "first_slot": 8,
    "slots": 4,
    "deadline_ms": 90_000,
    "started_ms": 30_000,
    "state": "credited",
    "reason": "",
    "is_open": True,
    "history": [{"state": "produced", "at_ms": 40_000}],
    "submission": "0x" + "5f" * 32,
    "file": "0x" + "6a" * 32,
    "checkpoint_root": ROOT,
    "rollout_root": ROOT,
    "rows": 32,
    "file_bytes": 12_345,
    "output_tokens": 2_048,
    "context_tokens": 9_000,
}

TRANSFER: dict[str, Any] = {
    "step": 4,
    "kind": "delta",
    "manifest": ROOT,
    "bar": "##+.",
    "shards": 4,
    "shards_held": 2,
    "held_bytes": 2_000_000,
    "total_bytes": 4_000_000,
    "bytes_per_s": 1_500_000,
    "sources": 2,
    "finish_ms": 2_000,
    "corrupt": 0,
}

RUN_ROW: dict[str, Any] = {
    "run": "demo",
    "trainer": "0x" + "11" * 20,
    "status": "active",
    "activity": "working",
    "is_suspended": False,
    "hold": "",
    "refusal": "",
    "upgrade_by_ms": 0,
    "is_outdated": False,
    "weights_step": 3,
    "weights_wanted": None,
    "weights_problem": "",
    "audit_problem": "",
    "account": None,
    "verdicts": 0,
    "audits_open": 0,
    "audits_failed": 0,
}

REPORT: dict[str, Any] = {
    "state": "running",
    "problem": "",
    "node": "0x" + "c4" * 20,
    "name": "quiet-amber-otter",
    "peer_id": "16Uiu2",
    "protocol_version": 1,
    "program_version": "0.1.0",
    "folder": "/n",
    "page": "http://127.0.0.1:8470",
    "started_ms": 0,
    "now_ms": 61_000,
    "role": "worker",
    "network": "devnet",
    "run": "demo",
    "trainer": "0x" + "11" * 20,
    "runs": [RUN_ROW],
    "coordinator": {
        "url": "http://c:1",
        "id": "0x" + "22" * 20,
        "is_reachable": True,
        "problem": "",
        "answered_ms_ago": 400,
        "activity": "working",
        "upgrade_by_ms": 0,
        "rules_change": None,
        "is_outdated": False,
        "refusal": "",
        "held": [],
    },
    "owner": {"hold": "", "stop": "", "is_paused": False, "paused_gpus": []},
    "gpus": [],
    "account": {
        "eligibility": "ready",
        "is_eligible": True,
        "remedy": "none is needed",
        "stake_nano": 100 * 10**9,
        "balance_nano": 25 * 10**8,
        "earned_nano": 10**9,
        "fraudulent": 0,
    },
    "tokenizer": {"problem": ""},
    "engine": {
        "state": "ready",
        "engine": "torch",
        "device": "cpu",
        "precision": "float32",
        "pid": 7,
        "loaded": ROOT,
        "restarts": 0,
        "last_error": "",
        "retry_ms": 0,
        "tensor_parallel": 1,
        "replicas": [{"state": "ready", "gpus": [], "pid": 7}],
    },
    "work": {
        "current": {
            "lease": 42,
            "step": 3,
            "first_slot": 12,
            "slots": 4,
            "started_ms": 50_000,
            "deadline_ms": 121_000,
            "rows_done": 8,
            "rows": 32,
        },
        "others": 1,
        "tokens_per_s": 812,
        "idle_reason": "",
    },
    "audits": {"done": 0, "committed": 0, "inspected": 0, "ruled": 0, "open": []},
    "jobs": {"counts": {"credited": 1}, "last": [JOB]},
    "p2p": {"is_on": False, "text": "off: p2p.enabled is off", "peers": 0, "addresses": [], "connections": []},
    "serving": {"urls": [], "text": "outbound only", "depth": 0, "nodes_known": 1, "nodes_in_run": 2},
    "weights": {
        "wanted": None,
        "problem": "",
        "held": [
            {
                "step": 3,
                "kind": "keyframe",
                "root": ROOT,
                "manifest": ROOT,
                "total_bytes": 9_000_000_000,
                "shards": 9,
                "shards_held": 9,
                "is_complete": True,
            }
        ],
        "transfers": [TRANSFER],
        "corrupt": 0,
    },
    "upload": {
        "slots": 4,
        "slots_free": 3,
        "bytes_per_s_max": None,
        "bytes_per_day_max": None,
        "bytes_today": 0,
        "sent_bytes": 5_000,
        "sent_shards": 1,
        "refused": 0,
    },
    "heads": {"size": 7, "root": ROOT, "compared": 2, "unproven": 0, "forks": [], "stolen": []},
    "replay": {
        "size": 5,
        "head_size": 7,
        "problem": "",
        "broken": "",
        "broken_index": None,
        "wrong_bytes": {},
    },
    "accusations": {"is_stopped": False, "reason": "", "kept": [], "claims": []},
    "parts": [{"name": "agent", "is_running": True, "restarts": 0, "last_error": ""}],
}

RELAY: dict[str, Any] = REPORT | {
    "role": "relay",
    "account": None,
    "engine": None,
    "tokenizer": None,
    "work": None,
    "audits": None,
    "jobs": None,
}

JOINING: dict[str, Any] = {
    "state": "joining",
    "problem": "cannot reach http://c:1: connection refused",
    "node": REPORT["node"],
    "name": REPORT["name"],
    "started_ms": 0,
    "now_ms": 3_600_000,
    "page": None,
    "folder": "/n",
}


def changed(**parts: Any) -> dict[str, Any]:
    """The report with some fields of its parts replaced: changed(owner={"hold": "x"})."""
    merged = {
        name: REPORT[name] | value if isinstance(value, dict) and isinstance(REPORT[name], dict) else value
        for name, value in parts.items()
    }
    return REPORT | merged
