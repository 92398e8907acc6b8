"""TensorBoard's own reader gets out of the trainer's files what was put in."""

from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

from prime_trainer.metrics import EVENTS_NAME, EventFile, MetricsLog, compute_crc, encode_varint


def read_back(path: Path) -> list[tuple[float, int, dict[str, float]]]:
    events = list(LegacyEventFileLoader(str(path)).Load())
    assert events[0].file_version == "brain.Event:2"
    return [
        (event.wall_time, event.step, {each.tag: each.simple_value for each in event.summary.value})
        for event in events[1:]
    ]


def test_scalars_come_back_as_they_were_written(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "runs", 1_800_000_000_250)
    file.write(1_800_000_001_500, 0, {"held_out": 0.25})
    file.write(1_800_000_002_000, 70_000, {"loss": -0.5, "tokens": 4096.0, "größe": 1.0})
    assert read_back(file.path) == [
        (1_800_000_001.5, 0, {"held_out": 0.25}),
        (1_800_000_002.0, 70_000, {"loss": -0.5, "tokens": 4096.0, "größe": 1.0}),
    ]


def test_the_checksum_is_crc_32c() -> None:
    assert compute_crc(b"123456789") == 0xE3069283
    assert encode_varint(300) == b"\xac\x02"


def test_each_step_and_each_trial_is_an_event_and_what_is_none_is_not(tmp_path: Path) -> None:
    notes = MetricsLog(tmp_path, 1_800_000_000_000)
    facts = {"step": 1, "at_ms": 1_800_000_001_000, "reward_mean": 0.5, "entropy": 1.5, "mismatch_kl": None}
    facts |= {"lag_mean": 0.0, "waited_s": 0.25, "is_applied": True, "tokens": 8, "problem": ""}
    notes.write_step(facts)
    notes.write_held_out(1, 0.75, 1_800_000_002_000)
    (path,) = (tmp_path / EVENTS_NAME).iterdir()
    step, trial = read_back(path)
    assert step[2] == {"reward_mean": 0.5, "entropy": 1.5, "lag_mean": 0.0, "waited_s": 0.25, "tokens": 8.0}
    assert trial[1:] == (1, {"held_out": 0.75})
