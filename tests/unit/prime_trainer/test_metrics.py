"""The metrics of a step: steps.jsonl and its repair, Prometheus gauges, TensorBoard scalars."""

import json
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from prime_trainer.metrics import EVENTS_NAME, MetricsLog

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


def read_back(path: Path) -> list[tuple[float, int, dict[str, float]]]:
    events = list(LegacyEventFileLoader(str(path)).Load())
    assert events[0].file_version == "brain.Event:2"
    steps: dict[tuple[float, int], dict[str, float]] = {}
    for event in events[1:]:
        scalars = steps.setdefault((event.wall_time, event.step), {})
        scalars |= {value.tag: value.simple_value for value in event.summary.value}
    return [(at_s, step, scalars) for (at_s, step), scalars in steps.items()]


def test_tensorboard_gets_the_numbers_of_each_step_and_each_evaluation(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path)
    metrics = {"step": 1, "at_ms": 1_800_000_001_000, "reward_mean": 0.5, "entropy": 1.5, "mismatch_kl": None}
    metrics |= {"lag_mean": 0.0, "waited_s": 0.25, "is_applied": True, "tokens": 8, "problem": ""}
    log.write_step(metrics)
    log.write_held_out(1, 0.75, 1_800_000_002_000)
    (path,) = (tmp_path / EVENTS_NAME).iterdir()
    step, evaluation = read_back(path)
    assert step[:2] == (1_800_000_001.0, 1)
    assert step[2] == {"reward_mean": 0.5, "entropy": 1.5, "lag_mean": 0.0, "waited_s": 0.25, "tokens": 8.0}
    assert evaluation[1:] == (1, {"held_out": 0.75})


def test_steps_are_written_once_and_repaired_after_a_crash(tmp_path: Path) -> None:
    log, path = MetricsLog(tmp_path), tmp_path / "steps.jsonl"
    log.repair(0, {})
    log.write_step(METRICS)
    with path.open("a") as file:
        file.write('{"step": 2, "los')
    for _ in range(2):
        log = MetricsLog(tmp_path)
        log.repair(2, {**METRICS, "step": 2})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]
    assert log.last["step"] == 2
    assert list(log.curves["reward_mean"]) == [0.25, 0.25], "as far as the file goes back"
    sample = log.metrics.registry.get_sample_value
    assert sample("prime_trainer_last_reward_mean") == 0.25
    log.write_step({**METRICS, "step": 3})
    log.write_step({**METRICS, "step": 4, "is_applied": False})
    assert sample("prime_trainer_starved_s_total") == 4.0
    assert sample("prime_trainer_steps_skipped_total") == 1
    assert sample("prime_trainer_trained_tokens_total") == 100
    log = MetricsLog(tmp_path)
    log.repair(3, {**METRICS, "step": 3})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3], "step 4 is trained again"
