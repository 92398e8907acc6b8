"""The keys that a log had before, as pages show them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatedKeySummary:
    """A key of the log that an entry has replaced."""

    index: int
    """Of the entry."""
    at_ms: int
    kind: str
    """`log`: the key of tree heads; `coordinator`: the author of the coordinator's entries."""
    old: str
    new: str


def read_rotations(facts: Mapping[str, Any]) -> tuple[RotatedKeySummary, ...]:
    """From the table meta of the index, newest first."""
    rows = json.loads(facts.get("key_rotations", "[]"))
    return tuple(RotatedKeySummary(**row) for row in reversed(rows))
