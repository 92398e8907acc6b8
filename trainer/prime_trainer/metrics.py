"""Scalars as TensorBoard reads them: a file of checksummed records, each one an Event message in protocol buffers.

Both formats are public, small and settled, so they are written here instead of with a package of forty megabytes.

The numbers of each step, written down: a line of JSON for programs and people, gauges for Prometheus, events for
TensorBoard.
"""

import json
import math
import struct
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prime_runtime.metrics import Metrics

CASTAGNOLI = 0x82F63B78
"""The polynomial of CRC-32C, its bits reversed."""
CRC_MASK = 0xA282EAD8
VERSION = "brain.Event:2"
WALL_TIME, STEP, FILE_VERSION, SUMMARY = 0x09, 0x10, 0x1A, 0x2A
"""Of an Event: field number and wire type in one byte, as protocol buffers write them."""
VALUE, TAG, SIMPLE_VALUE = 0x0A, 0x0A, 0x15
"""Of a Summary, and of a value in it."""


def _make_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (CASTAGNOLI if byte & 1 else 0)
        table.append(byte)
    return table


CRC_TABLE = _make_table()


def compute_crc(data: bytes) -> int:
    """CRC-32C."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _encode_masked_crc(data: bytes) -> bytes:
    """The checksum as records hold it: turned and shifted, so that a checksum of checksums still tells something."""
    crc = compute_crc(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + CRC_MASK) & 0xFFFFFFFF)


def encode_record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _encode_masked_crc(length) + data + _encode_masked_crc(data)


def encode_varint(value: int) -> bytes:
    assert value >= 0
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _encode_bytes(field: int, data: bytes) -> bytes:
    return bytes([field]) + encode_varint(len(data)) + data


def encode_event(at_s: float, step: int, inside: bytes) -> bytes:
    return struct.pack("<Bd", WALL_TIME, at_s) + bytes([STEP]) + encode_varint(step) + inside


def encode_scalars(scalars: Mapping[str, float]) -> bytes:
    values = (
        _encode_bytes(TAG, name.encode()) + struct.pack("<Bf", SIMPLE_VALUE, value) for name, value in scalars.items()
    )
    return _encode_bytes(SUMMARY, b"".join(_encode_bytes(VALUE, value) for value in values))


class EventFile:
    """One process's file; TensorBoard reads all files of a folder as one run."""

    def __init__(self, folder: Path, began_ms: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"events.out.tfevents.{began_ms // 1000:010}.prime-trainer.{began_ms % 1000:03}"
        head = encode_event(began_ms / 1000, 0, _encode_bytes(FILE_VERSION, VERSION.encode()))
        self.path.write_bytes(encode_record(head))

    def write(self, at_ms: int, step: int, scalars: Mapping[str, float]) -> None:
        """Whole records only, so that a reader never waits for the rest of one for long."""
        with self.path.open("ab") as file:
            file.write(encode_record(encode_event(at_ms / 1000, step, encode_scalars(scalars))))


STEPS_NAME = "steps.jsonl"
EVENTS_NAME = "tensorboard"
HELD_OUT = "held_out"
GAUGES = {
    "step": "Checkpoint that was made last.",
    "loss": "Mean loss of a trained token.",
    "reward_mean": "Mean task reward of all rollouts of the step, those of groups without a signal included.",
    "groups": "Groups with a signal in the step.",
    "groups_dropped": "Groups in which all rewards were equal.",
    "samples": "Completions trained on.",
    "tokens": "Tokens trained on.",
    "length_mean": "Mean length of a completion, in tokens.",
    "length_max": "Longest completion, in tokens.",
    "lag_mean": "Mean age of the weights that drew the rollouts, in steps.",
    "lag_max": "Oldest of them.",
    "mismatch_kl": "Distance between the worker's policy and the one that the step started from.",
    "tail": "Share of tokens whose probability changed by more than a factor of 2 since they were drawn.",
    "truncated": "Share of tokens whose correction was cut off.",
    "clipped": "Share of tokens that the clip or its bound took hold of.",
    "entropy": "Mean entropy of the policy, in nats.",
    "kl": "Distance to the weights of step 0.",
    "gradient_norm": "Before it is scaled down.",
    "learning_rate": "Of the step.",
    "learnt_s": "Seconds of forward, backward and update.",
    "saved_s": "Seconds until the checkpoint was on disk.",
    HELD_OUT: "Mean reward on held-out problems.",
}
NUMBERS = sorted({*GAUGES, "waited_s"} - {"step", HELD_OUT})
CURVES = ("reward_mean", "entropy", "mismatch_kl", "lag_mean", "waited_s")
CURVE_STEPS = 60
COUNTERS = {
    "steps": "Steps made.",
    "steps_skipped": "Steps whose gradient was not applied.",
    "starved_s": "Seconds spent waiting for rollouts.",
    "trained_tokens": "Tokens trained on.",
}


class MetricsLog:
    """One trainer's."""

    def __init__(self, folder: Path, began_ms: int) -> None:
        self._path = folder / STEPS_NAME
        self._events = EventFile(folder / EVENTS_NAME, began_ms)
        self.metrics = Metrics("trainer")
        self._gauges = {name: self.metrics.gauge(f"last_{name}", text) for name, text in GAUGES.items()}
        self._counters = {name: self.metrics.counter(name, text) for name, text in COUNTERS.items()}
        self.last: dict[str, Any] = {}
        self.curves: dict[str, deque[float]] = {name: deque(maxlen=CURVE_STEPS) for name in CURVES}
        """The last steps' values, oldest first."""
        self.held_out: deque[tuple[int, float]] = deque(maxlen=CURVE_STEPS)
        """Steps that this process has tried on held-out problems, and their mean rewards."""

    def write_step(self, facts: dict[str, Any]) -> None:
        """After the step's checkpoint is on disk."""
        with self._path.open("a") as file:
            file.write(json.dumps(facts, allow_nan=False) + "\n")
        self.update_gauges(facts)
        self._events.write(facts["at_ms"], facts["step"], select_numbers(facts))
        self._counters["steps"].at().inc()
        self._counters["steps_skipped"].at().inc(0 if facts["is_applied"] else 1)
        self._counters["starved_s"].at().inc(facts["waited_s"])
        self._counters["trained_tokens"].at().inc(facts["tokens"] if facts["is_applied"] else 0)

    def write_held_out(self, step: int, reward: float, at_ms: int) -> None:
        self.held_out.append((step, reward))
        self._gauges[HELD_OUT].at().set(reward)
        self._events.write(at_ms, step, {HELD_OUT: reward})

    def update_gauges(self, facts: dict[str, Any]) -> None:
        self.last = facts
        for name, curve in self.curves.items():
            curve.append(facts[name] if facts[name] is not None else next(reversed(curve), 0.0))
        for name, gauge in self._gauges.items():
            if isinstance(facts.get(name), int | float):
                gauge.at().set(facts[name])

    def repair(self, step: int, facts: dict[str, Any]) -> None:
        """At a start from a checkpoint: drop half a line and steps that are lost, write what was lost between a
        checkpoint and its line.
        """
        lines = self._path.read_text().split("\n") if self._path.exists() else [""]
        whole = [line for line in lines[:-1] if line and json.loads(line)["step"] <= step]
        if whole != lines[:-1] or lines[-1]:
            self._path.write_text("".join(line + "\n" for line in whole))
        for line in whole[-CURVE_STEPS:]:
            self.update_gauges(json.loads(line))
        if facts and facts["step"] > self.last.get("step", 0):
            self.write_step({**facts, "saved_s": None})


def select_numbers(facts: Mapping[str, Any]) -> dict[str, float]:
    """Of the facts of a step, those that are numbers and change from step to step."""
    found = {name: facts.get(name) for name in NUMBERS}
    return {
        name: float(value) for name, value in found.items() if isinstance(value, int | float) and math.isfinite(value)
    }
