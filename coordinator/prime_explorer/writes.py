"""What the parts of the fold hand to each other: the circumstances of an entry, and what is to be written."""

from dataclasses import dataclass, field
from typing import Any

from prime_protocol.ids import NodeId, RunId, Step

Write = tuple[str, tuple[Any, ...]]
"""A statement and its values."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """An entry, who wrote it, and where it stands."""

    index: int
    at_ms: int
    author: NodeId
    run: RunId | None
    entry: Any


@dataclass(slots=True)
class Touched:
    """Whose rows are to be read from the books when a batch ends. Dictionaries for their order."""

    nodes: dict[NodeId, Circumstances] = field(default_factory=dict)
    """With the entry that touched it first: a node's first one of all is kept."""
    accounts: dict[NodeId, None] = field(default_factory=dict)
    seen_ms: dict[NodeId, int] = field(default_factory=dict)
    runs: dict[RunId, Circumstances | None] = field(default_factory=dict)
    """With the entry that created it, where it is new."""
    steps: dict[tuple[RunId, Step], None] = field(default_factory=dict)
