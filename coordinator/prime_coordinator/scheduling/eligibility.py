"""Whether a node may have work in a run: its liveness, its backoff after failures, and the table of reasons. Pure.

Liveness and backoff are forgotten at a restart. Eligibility is computed whenever it is needed and never stored, so a
node becomes eligible as soon as the cause is gone.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from prime_coordinator.constants import BAD_FILES_PER_LEASE_MAX, FAILURE_WAIT_MS, FAILURE_WAIT_MS_MAX, FAILURES_FREE
from prime_protocol.constants import LATE_MS, LOST_MS
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import NodeStatus, Role
from prime_protocol.ledger.run_record import RunRecord
from prime_protocol.ledger.state import NodeState
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.wire.ids import NodeId, RunId
from prime_protocol.wire.messages import NodeActivity


class NodePhase(StrEnum):
    """Liveness of a node. A node without a heartbeat since the coordinator started is LOST."""

    ONLINE = "online"
    LATE = "late"
    LOST = "lost"


class LivenessEvent(StrEnum):
    """What moves a node from one phase to another."""

    BEAT = "beat"
    SILENT = "silent"
    GONE = "gone"


PHASE_TRANSITIONS: dict[NodePhase, dict[LivenessEvent, NodePhase]] = {
    NodePhase.ONLINE: {
        LivenessEvent.BEAT: NodePhase.ONLINE,
        LivenessEvent.SILENT: NodePhase.LATE,
        LivenessEvent.GONE: NodePhase.LOST,
    },
    NodePhase.LATE: {LivenessEvent.BEAT: NodePhase.ONLINE, LivenessEvent.GONE: NodePhase.LOST},
    NodePhase.LOST: {LivenessEvent.BEAT: NodePhase.ONLINE},
}
"""Every phase leads back to ONLINE with a heartbeat."""


@dataclass(slots=True)
class Presence:
    """The last heartbeat of a node."""

    phase: NodePhase
    beat_ms: int
    activity: NodeActivity
    checkpoint_step: int


class Liveness:
    """Presence of every node that is online or late.

    Nodes are kept in the order of their last heartbeat, so a heartbeat or a tick costs the same however many there are.
    """

    def __init__(self) -> None:
        self._online: OrderedDict[NodeId, Presence] = OrderedDict()
        self._late: OrderedDict[NodeId, Presence] = OrderedDict()

    def beat(self, node: NodeId, activity: NodeActivity, checkpoint_step: int, now_ms: int) -> None:
        known = self._online.get(node)
        if known is not None:
            known.beat_ms, known.activity, known.checkpoint_step = now_ms, activity, checkpoint_step
            self._online.move_to_end(node)
            return
        late = self._late.pop(node, None)
        phase = PHASE_TRANSITIONS[late.phase if late else NodePhase.LOST][LivenessEvent.BEAT]
        self._online[node] = Presence(phase, now_ms, activity, checkpoint_step)

    def record_request(self, node: NodeId, checkpoint_step: int, now_ms: int) -> None:
        """Count a signed request as a heartbeat; the node's activity stays as it was."""
        known = self.get(node)
        self.beat(node, known.activity if known else NodeActivity.IDLE, checkpoint_step, now_ms)

    def tick(self, now_ms: int) -> list[tuple[NodeId, NodePhase]]:
        """Nodes whose phase changed by silence."""
        changed = []
        while self._online and now_ms - next(iter(self._online.values())).beat_ms >= LATE_MS:
            node, presence = self._online.popitem(last=False)
            presence.phase = PHASE_TRANSITIONS[presence.phase][LivenessEvent.SILENT]
            self._late[node] = presence
            changed.append((node, presence.phase))
        while self._late and now_ms - next(iter(self._late.values())).beat_ms >= LOST_MS:
            node, presence = self._late.popitem(last=False)
            changed.append((node, PHASE_TRANSITIONS[presence.phase][LivenessEvent.GONE]))
        return changed

    def get(self, node: NodeId) -> Presence | None:
        return self._online.get(node) or self._late.get(node)

    def phase(self, node: NodeId) -> NodePhase:
        presence = self.get(node)
        return presence.phase if presence else NodePhase.LOST

    def list_online(self) -> list[NodeId]:
        return list(self._online)

    def count(self) -> dict[NodePhase, int]:
        return {NodePhase.ONLINE: len(self._online), NodePhase.LATE: len(self._late)}


DOUBLINGS_MAX = 32
"""Far more than the longest wait needs; keeps the shift small."""


@dataclass(slots=True)
class FailureStreak:
    """Failures in a row, and until when the node gets no work."""

    failures: int = 0
    until_ms: int = 0


class Backoff:
    """Waiting times of nodes after refused files and expired leases.

    This is no verdict: the node waits and may then try again, and its next good file resets the count.
    """

    def __init__(self) -> None:
        self._streaks: dict[NodeId, FailureStreak] = {}
        self._bad_files: Counter[tuple[RunId, int]] = Counter()

    def record_lost_lease(self, node: NodeId, now_ms: int) -> None:
        streak = self._streaks.setdefault(node, FailureStreak())
        streak.failures += 1
        counted = streak.failures - FAILURES_FREE
        if counted > 0:
            wait_ms = FAILURE_WAIT_MS << min(counted - 1, DOUBLINGS_MAX)
            streak.until_ms = now_ms + min(wait_ms, FAILURE_WAIT_MS_MAX)

    def record_bad_file(self, node: NodeId, run: RunId, lease: int, now_ms: int) -> bool:
        """Count a refused file; returns whether the node may still send a better one before the deadline."""
        self._bad_files[(run, lease)] += 1
        self.record_lost_lease(node, now_ms)
        return self._bad_files[(run, lease)] < BAD_FILES_PER_LEASE_MAX

    def check_file(self, run: RunId, lease: int) -> None:
        """Refuse another file for a lease with too many bad ones."""
        if self._bad_files[(run, lease)] >= BAD_FILES_PER_LEASE_MAX:
            raise RemoteError("receipt.lease", f"{BAD_FILES_PER_LEASE_MAX} files for {lease} were refused; no more")

    def record_good_file(self, node: NodeId) -> None:
        self._streaks.pop(node, None)

    def forget_lease(self, run: RunId, lease: int) -> None:
        self._bad_files.pop((run, lease), None)

    def wait_ms(self, node: NodeId, now_ms: int) -> int:
        """How long the node gets no work."""
        streak = self._streaks.get(node)
        return max(0, streak.until_ms - now_ms) if streak else 0


class Eligibility(StrEnum):
    """Why a node gets work in a run, or does not."""

    BANNED = "banned"
    DRAINED = "drained"
    UNDELEGATED = "undelegated"
    OUTDATED = "outdated"
    EXCLUDED = "excluded"
    UNSTAKED = "unstaked"
    LOST = "lost"
    LATE = "late"
    LEAVING = "leaving"
    IDLE = "not a worker"
    SUSPENDED = "suspended"
    HELD = "pay held"
    PROBING = "probing"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The inputs of the decision."""

    node: NodeState
    terms: RunTerms
    stake_nano: int
    is_delegated: bool
    phase: NodePhase
    activity: NodeActivity
    wait_ms: int
    is_measured: bool
    version_min: int
    """Of the terms and the log's rules."""
    record: RunRecord = field(default_factory=RunRecord)
    """In this run."""
    is_suspended: bool = False
    """In this run."""


@dataclass(frozen=True, slots=True)
class EligibilityRule:
    """One reason: when it applies, and what would change it."""

    eligibility: Eligibility
    matches: Callable[[NodeFacts], bool]
    remedy: str

    @property
    def is_eligible(self) -> bool:
        """Whether the node gets work."""
        return self.eligibility in (Eligibility.HELD, Eligibility.PROBING, Eligibility.READY)


ELIGIBILITY_RULES: tuple[EligibilityRule, ...] = (
    EligibilityRule(Eligibility.BANNED, lambda f: f.node.status is NodeStatus.BANNED, "the operator lifts the ban"),
    EligibilityRule(
        Eligibility.DRAINED,
        lambda f: f.node.status is NodeStatus.DRAINED or f.is_suspended,
        "the operator lifts it, or a heartbeat does if silence was the reason",
    ),
    EligibilityRule(Eligibility.UNDELEGATED, lambda f: not f.is_delegated, "its owner signs a new delegation"),
    EligibilityRule(
        Eligibility.OUTDATED,
        lambda f: f.node.version < f.version_min,
        "it registers again with a newer version",
    ),
    EligibilityRule(
        Eligibility.EXCLUDED,
        lambda f: f.record.restake_nano > 0,
        "its owner stakes again at least what was slashed in this run; then it is on probation again",
    ),
    EligibilityRule(Eligibility.UNSTAKED, lambda f: f.stake_nano < f.terms.stake_min_nano, "its owner stakes enough"),
    EligibilityRule(Eligibility.LOST, lambda f: f.phase is NodePhase.LOST, "it sends a heartbeat"),
    EligibilityRule(Eligibility.LATE, lambda f: f.phase is NodePhase.LATE, "it sends a heartbeat"),
    EligibilityRule(Eligibility.LEAVING, lambda f: f.activity is NodeActivity.DRAINING, "it stops draining"),
    EligibilityRule(Eligibility.IDLE, lambda f: Role.WORKER not in f.node.roles, "it registers again as a worker"),
    EligibilityRule(Eligibility.SUSPENDED, lambda f: f.wait_ms > 0, "time passes"),
    EligibilityRule(
        Eligibility.HELD,
        lambda f: f.record.is_held,
        "its files look honest again, or prime-node calibrate on this kind of machine gives the run other bounds",
    ),
    EligibilityRule(Eligibility.PROBING, lambda f: not f.is_measured, "it submits its first lease"),
    EligibilityRule(Eligibility.READY, lambda f: True, "none is needed"),
)
"""The first rule that matches applies."""

assert [rule.eligibility for rule in ELIGIBILITY_RULES] == list(Eligibility), "every eligibility has its rule"


def get_eligibility(facts: NodeFacts) -> EligibilityRule:
    return next(rule for rule in ELIGIBILITY_RULES if rule.matches(facts))
