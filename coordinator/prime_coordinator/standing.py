"""Whether a node may have work in a run, and what would change that. A table, computed whenever it is asked. Pure.

Nothing is stored, so nothing can get stuck: a node leaves a standing as soon as its cause is gone. Phases of silence
are in liveness.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from prime_coordinator.liveness import Phase
from prime_protocol.entries import NodeStatus, Role
from prime_protocol.messages import Activity
from prime_protocol.state import NodeState
from prime_protocol.terms import RunTerms


class Standing(StrEnum):
    """What a node is to a run."""

    BANNED = "banned"
    DRAINED = "drained"
    UNDELEGATED = "undelegated"
    OUTDATED = "outdated"
    UNSTAKED = "unstaked"
    LOST = "lost"
    LATE = "late"
    LEAVING = "leaving"
    IDLE = "not a worker"
    SUSPENDED = "suspended"
    PROBING = "probing"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about a node."""

    node: NodeState
    terms: RunTerms
    stake_nano: int
    is_delegated: bool
    phase: Phase
    activity: Activity
    wait_ms: int
    is_measured: bool
    now_ms: int


@dataclass(frozen=True, slots=True)
class Row:
    """One standing: when a node has it, whether it is given work, and the way out."""

    standing: Standing
    holds: Callable[[Facts], bool]
    works: bool
    way_out: str


TABLE: tuple[Row, ...] = (
    Row(Standing.BANNED, lambda f: f.node.status is NodeStatus.BANNED, False, "the operator lifts the ban"),
    Row(
        Standing.DRAINED,
        lambda f: f.node.status is NodeStatus.DRAINED,
        False,
        "the operator takes it back in, or it beats again where silence was the reason",
    ),
    Row(Standing.UNDELEGATED, lambda f: not f.is_delegated, False, "its owner signs a new delegation"),
    Row(
        Standing.OUTDATED,
        lambda f: f.node.version < f.terms.version_at(f.now_ms),
        False,
        "it registers again with a newer version",
    ),
    Row(Standing.UNSTAKED, lambda f: f.stake_nano < f.terms.stake_min_nano, False, "its owner stakes enough"),
    Row(Standing.LOST, lambda f: f.phase is Phase.LOST, False, "it beats"),
    Row(Standing.LATE, lambda f: f.phase is Phase.LATE, False, "it beats"),
    Row(Standing.LEAVING, lambda f: f.activity is Activity.DRAINING, False, "it beats with another activity"),
    Row(Standing.IDLE, lambda f: Role.WORKER not in f.node.roles, False, "it registers again as a worker"),
    Row(Standing.SUSPENDED, lambda f: f.wait_ms > 0, False, "time passes"),
    Row(Standing.PROBING, lambda f: not f.is_measured, True, "it answers its first lease"),
    Row(Standing.READY, lambda f: True, True, "none is needed"),
)
"""The first row that holds is the node's standing."""

assert [row.standing for row in TABLE] == list(Standing), "every standing has its row"


def get_row(facts: Facts) -> Row:
    return next(row for row in TABLE if row.holds(facts))
