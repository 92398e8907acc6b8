"""Chooses the audits that run next, over all runs that a validator serves. Pure.

The engine holds one checkpoint, and loading another takes longer than most audits. Audits of the loaded checkpoint
therefore go first, as long as every other audit still meets its deadline. Otherwise the earliest deadline goes first.
The choice is made again after each audit, with the durations measured so far.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from prime_protocol.wire.ids import Digest, RunId
from prime_protocol.wire.messages import AuditTask

AUDIT_MS = 30_000
"""Assumed duration of an audit before the first is measured."""
SWAP_MS = 30_000
"""Assumed time to load another checkpoint before the first is measured: 15 GB from an SSD at 0.5 GB/s."""
DURATION_DECAY = 0.5
"""Weight of the earlier estimate when an audit is done."""
DURATION_MS_MAX = 3_600_000
"""Largest duration that an estimate takes: one audit that hung must not look like the usual case."""


@dataclass(frozen=True, slots=True)
class WaitingAudit:
    """An audit that may start."""

    run: RunId
    task: AuditTask


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCosts:
    """What is known about the engine's work."""

    audit_ms: int = AUDIT_MS
    swap_ms: int = SWAP_MS


def choose_audit(
    waiting: Sequence[WaitingAudit], loaded: Digest | None, costs: EngineCosts, server_ms: int
) -> WaitingAudit | None:
    """The audit to run next, where the engine has the checkpoint `loaded`; None: there is none."""
    ordered = sort_by_deadline(waiting)
    if not ordered:
        return None
    same = next((each for each in ordered if each.task.checkpoint_root == loaded), None)
    if same is None or same is ordered[0]:
        return ordered[0]
    rest = [each for each in ordered if each is not same]
    # What is late even now is no reason to make others late.
    reachable = [each for each in rest if is_in_time([each], loaded, costs, server_ms)]
    after_ms = server_ms + costs.audit_ms
    orders = (reachable, group_by_checkpoint(reachable, loaded))
    return same if any(is_in_time(each, loaded, costs, after_ms) for each in orders) else ordered[0]


def sort_by_deadline(waiting: Iterable[WaitingAudit]) -> list[WaitingAudit]:
    """Earliest deadline first. Audits with one deadline keep their order, which is the owner's order of the runs."""
    return sorted(waiting, key=lambda each: each.task.deadline_ms)


def group_by_checkpoint(ordered: Iterable[WaitingAudit], loaded: Digest | None) -> list[WaitingAudit]:
    """Those of the loaded checkpoint first, then checkpoint by checkpoint, by the earliest deadline of each."""
    groups: dict[Digest | None, list[WaitingAudit]] = {loaded: []}
    for each in ordered:
        groups.setdefault(each.task.checkpoint_root, []).append(each)
    return [each for group in groups.values() for each in group]


def is_in_time(ordered: Iterable[WaitingAudit], loaded: Digest | None, costs: EngineCosts, server_ms: int) -> bool:
    """Whether each audit is done before its deadline, one after the other in this order."""
    for each in ordered:
        server_ms += costs.audit_ms + (costs.swap_ms if each.task.checkpoint_root != loaded else 0)
        loaded = each.task.checkpoint_root
        if server_ms > each.task.deadline_ms:
            return False
    return True


@dataclass(slots=True)
class RunningAudit:
    task: AuditTask
    started_ms: int
    is_swap: bool
    """The engine has to load another checkpoint for it."""


class AuditSchedule:
    """The audits of one node: those that may start, by run, and those that run. All its agents share it."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._waiting: dict[RunId, tuple[WaitingAudit, ...]] = {}
        self._running: dict[tuple[RunId, Digest], RunningAudit] = {}
        self._loaded: Digest | None = None
        """Checkpoint of the audit that started last."""
        self.costs = EngineCosts()

    def reset_run(self, run: RunId) -> None:
        """An agent starts or failed: nothing of its run waits or runs. The order of the first calls settles ties."""
        self._waiting[run] = ()
        for key in [key for key in self._running if key[0] == run]:
            del self._running[key]

    def take_next(self, run: RunId, tasks: Iterable[AuditTask], server_ms: int) -> list[AuditTask]:
        """Those of these tasks, which are all that may start in the run, that start now."""
        self._waiting[run] = tuple(WaitingAudit(run, task) for task in tasks)
        taken: list[AuditTask] = []
        while (best := self._choose(server_ms)) is not None and best.run == run:
            self._waiting[run] = tuple(each for each in self._waiting[run] if each is not best)
            is_swap = best.task.checkpoint_root != self._loaded
            self._running[(run, best.task.submission)] = RunningAudit(best.task, server_ms, is_swap)
            self._loaded = best.task.checkpoint_root
            taken.append(best.task)
        return taken

    def get_next_run(self, server_ms: int) -> RunId | None:
        """The run whose agent may start an audit now; None: there is none, or no room."""
        best = self._choose(server_ms)
        return best.run if best else None

    def finish(self, run: RunId, submission: Digest, server_ms: int) -> None:
        """An audit is done, or has failed."""
        done = self._running.pop((run, submission), None)
        if done is None:
            return
        took_ms = min(DURATION_MS_MAX, max(0, server_ms - done.started_ms))
        audit_ms, swap_ms = self.costs.audit_ms, self.costs.swap_ms
        if done.is_swap:
            swap_ms = _mix(swap_ms, max(0, took_ms - audit_ms))
        else:
            audit_ms = _mix(audit_ms, took_ms)
        self.costs = EngineCosts(audit_ms=audit_ms, swap_ms=swap_ms)

    def _choose(self, server_ms: int) -> WaitingAudit | None:
        if len(self._running) >= self._at_once:
            return None
        waiting = [each for some in self._waiting.values() for each in some if server_ms < each.task.deadline_ms]
        return choose_audit(waiting, self._loaded, self.costs, server_ms)


def _mix(before_ms: int, measured_ms: int) -> int:
    return int(DURATION_DECAY * before_ms + (1 - DURATION_DECAY) * measured_ms)
