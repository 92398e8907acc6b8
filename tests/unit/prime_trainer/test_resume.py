"""Whether a folder fits a run, and what a trainer writes down for people and Prometheus."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prime_protocol.errors import LocalError
from prime_protocol.ledger.terms import ANY_MODEL_FILES
from prime_protocol.wire.ids import Digest, NodeId, Step
from prime_trainer.checkpoints import SavedCheckpoint, TrainState
from prime_trainer.data.submissions import TrainerRunInfo
from prime_trainer.metrics import MetricsLog
from prime_trainer.resume import StartPoint, verify_run
from prime_trainer.status import render_status

KEY, OTHER = NodeId(bytes(20)), NodeId(bytes([1] * 20))
FILES = Digest(bytes([2] * 32))
SEEN = TrainerRunInfo(
    trainer=KEY, model_files=ANY_MODEL_FILES, lag_max=2, latest_step=5, slots_done={}, is_exhausted=False
)
FACTS: dict[str, Any] = {
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


def start_at(step: int | None) -> StartPoint:
    position = TrainState(step=Step(step or 0))
    saved = None if step is None else SavedCheckpoint(Path("checkpoint"), position)
    return StartPoint(Path("model"), position, saved)


@pytest.mark.parametrize(("step", "latest"), [(None, -1), (0, -1), (5, 5), (6, 5)])
def test_folder_that_is_at_the_run_s_step_or_one_ahead_goes_on(step: int | None, latest: int) -> None:
    verify_run(replace(SEEN, latest_step=latest), KEY, FILES, start_at(step))
    verify_run(replace(SEEN, latest_step=latest, model_files=FILES), KEY, FILES, start_at(step))


@pytest.mark.parametrize(
    ("seen", "step", "text"),
    [
        (replace(SEEN, trainer=OTHER), 5, "the run's trainer is"),
        (replace(SEEN, model_files=Digest(bytes([3] * 32))), 5, "bound to model files"),
        (SEEN, None, "has no checkpoint of it"),
        (SEEN, 4, "is this the folder of this run"),
        (SEEN, 7, "is this the folder of this run"),
    ],
)
def test_folder_that_does_not_fit_is_refused_with_what_to_do(seen: TrainerRunInfo, step: int | None, text: str) -> None:
    with pytest.raises(LocalError, match=text):
        verify_run(seen, KEY, FILES, start_at(step))


def test_steps_are_written_once_and_mended_after_a_crash(tmp_path: Path) -> None:
    notes, path = MetricsLog(tmp_path, 0), tmp_path / "steps.jsonl"
    notes.repair(0, {})
    notes.write_step(FACTS)
    with path.open("a") as file:
        file.write('{"step": 2, "los')
    for _ in range(2):
        notes = MetricsLog(tmp_path, 1)
        notes.repair(2, {**FACTS, "step": 2})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]
    assert notes.last["step"] == 2
    assert list(notes.curves["reward_mean"]) == [0.25, 0.25], "as far as the file goes back"
    text = notes.metrics.registry.get_sample_value
    assert text("prime_trainer_last_reward_mean") == 0.25
    notes.write_step({**FACTS, "step": 3})
    notes.write_step({**FACTS, "step": 4, "is_applied": False})
    assert text("prime_trainer_starved_s_total") == 4.0
    assert text("prime_trainer_steps_skipped_total") == 1
    assert text("prime_trainer_trained_tokens_total") == 100
    notes = MetricsLog(tmp_path, 2)
    notes.repair(3, {**FACTS, "step": 3})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3], "step 4 will be another"


def test_status_is_shown_from_the_report_alone() -> None:
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
        "last": {**FACTS, "problem": "the gradient's norm is nan"},
        "curves": {"reward_mean": [0.0, 0.5, 1.0], "entropy": [2.0, 2.0]},
    }
    lines = render_status(report).splitlines()
    assert "step        7, published 6" in lines
    assert "left out    2 for prompt_tokens" in lines
    assert "PROBLEM     the coordinator does not answer" in lines
    assert "held-out     █  0.250 to 0.500, step 10" in lines
    assert lines[-3].endswith("not applied: the gradient's norm is nan")
    assert lines[-2:] == ["reward_mean  ▄█  0 to 1, now 1", "entropy     ▄▄  2 to 2, now 2"]
