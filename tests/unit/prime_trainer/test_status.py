"""The report of a trainer as lines for a terminal."""

from typing import Any

from prime_trainer.status import render_status

METRICS: dict[str, Any] = {
    "at_ms": 0,
    "step": 1,
    "is_applied": True,
    "problem": "",
    "reward_mean": 0.25,
    "tokens": 100,
    "samples": 10,
    "lag_mean": 1.0,
    "entropy": 0.5,
    "mismatch_kl": 0.01,
    "gradient_norm": None,
    "waited_s": 2.0,
    "learnt_s": 1.0,
    "saved_s": 0.1,
}


def test_status_depends_on_the_report_alone() -> None:
    report: dict[str, Any] = {
        "run": "demo",
        "network": "devnet",
        "state": "starting",
        "started_ms": 0,
        "now_ms": 65_000,
    }
    assert render_status(report) == "run         demo of devnet, starting, up 1 min 5 s"
    report |= {
        "state": "waiting for rollouts",
        "step": 7,
        "published": 6,
        "groups_waiting": 3,
        "groups_wanted": 32,
        "submissions_refused": {"prompt_tokens": 2},
        "submissions_expired": 1,
        "problem": "the coordinator does not answer",
        "held_out": [[0, 0.25], [10, 0.5]],
        "last": {**METRICS, "problem": "the gradient's norm is nan"},
        "curves": {"reward_mean": [0.0, 0.5, 1.0], "entropy": [2.0, 2.0]},
    }
    lines = render_status(report).splitlines()
    assert "step        7, published 6" in lines
    assert "refused     2 for prompt_tokens" in lines
    assert "PROBLEM     the coordinator does not answer" in lines
    assert "held-out     █  0.250 to 0.500, step 10" in lines
    assert lines[-3].endswith("not applied: the gradient's norm is nan")
    assert lines[-2:] == ["reward_mean  ▄█  0 to 1, now 1", "entropy     ▄▄  2 to 2, now 2"]
