"""How close the numbers of an audit are to what the run allows: each as a strip with its threshold. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from prime_protocol.toploc_verify import ChunkReport

LIMITS = {
    "exponent_mismatches_max": ("exponent_mismatches_max", "exponent mismatches"),
    "sign_mismatches_max": ("sign_mismatches_max", "sign mismatches"),
    "mantissa_error_mean_max": ("mantissa_error_mean_max", "mantissa error, mean"),
    "mantissa_error_median_max": ("mantissa_error_median_max", "mantissa error, median"),
    "margin_max": ("margin_max", "sampling margin, largest"),
    "margin_mean": ("margin_mean_max", "sampling margin, mean"),
    "logprob_error_max": ("logprob_error_max", "log-prob error, largest"),
    "logprob_error_mean": ("logprob_error_mean_max", "log-prob error, mean"),
}
"""A verdict's numbers: which of the run's tolerances each is held to, and what it is called."""
CHUNK_LIMITS = {
    "exponent_mismatches": "exponent_mismatches_max",
    "sign_mismatches": "sign_mismatches_max",
    "mantissa_error_median": "mantissa_error_median_max",
}
POINTS_MAX = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One number of one validator, or of one chunk."""

    who: str
    value: float
    share: float
    """Of the limit: above 1 is more than the run allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """All numbers of one kind."""

    name: str
    title: str
    limit: float
    points: tuple[Point, ...]


def compare_metrics(verdicts: Sequence[tuple[str, dict[str, float]]], tolerance: dict[str, Any]) -> tuple[Strip, ...]:
    """One strip for each number that the run has a limit for, with a point for each verdict."""
    strips = []
    for name, (limit_name, title) in LIMITS.items():
        limit = float(tolerance.get(limit_name, 0))
        values = [(who, metrics[name]) for who, metrics in verdicts if math.isfinite(metrics.get(name, math.nan))]
        if values:
            strips.append(_make_strip(name, title, values, limit))
    return tuple(strips)


def _share(value: float, limit: float) -> float:
    return value / limit if limit > 0 else (2.0 if value > 0 else 0.0)


def read_chunks(evidence: bytes, tolerance: dict[str, Any]) -> tuple[Strip, ...]:
    """From an evidence bundle as prime-node writes it: a strip for each number, with a point for each chunk or row.

    A bundle is a validator's word. What cannot be read gives no strips.
    """
    try:
        numbers = [_read_numbers(each) for each in msgpack.unpackb(evidence, strict_map_key=True)["numbers"]]
    except (ValueError, KeyError, TypeError, msgpack.UnpackException):
        return ()
    strips = []
    for name, limit_name in CHUNK_LIMITS.items():
        values = [
            (f"row {row}, chunk {place}", float(getattr(chunk, name)))
            for row, _, chunks in numbers
            for place, chunk in enumerate(chunks)
        ]
        strips.append(_make_strip(name, f"{name.replace('_', ' ')}, each chunk", values, tolerance[limit_name]))
    margins = [(f"row {row}", margin) for row, margin, _ in numbers]
    strips.append(_make_strip("margin", "sampling margin, largest of each row", margins, tolerance["margin_max"]))
    return tuple(strip for strip in strips if strip.points)


def _read_numbers(raw: Any) -> tuple[int, float, list[ChunkReport]]:
    """A row's number, its largest margin, and the reports of its chunks: rows of 32-bit integers."""
    margin = float(raw["margin_max"])
    if not math.isfinite(margin):
        raise ValueError("a margin that is no number")
    values = np.frombuffer(raw["reports"], dtype="<i4").reshape(-1, len(ChunkReport._fields))
    return int(raw["row"]), margin, list(map(ChunkReport._make, values.tolist()))


def _make_strip(name: str, title: str, values: Sequence[tuple[str, float]], limit: float) -> Strip:
    points = tuple(Point(who=who, value=value, share=_share(value, limit)) for who, value in values[:POINTS_MAX])
    return Strip(name=name, title=title, limit=limit, points=points)
