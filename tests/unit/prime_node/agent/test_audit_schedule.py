"""Audits of several runs on one engine: weights are swapped as rarely as the deadlines allow."""

from collections.abc import Iterable
from hashlib import sha256
from random import Random

import pytest

from prime_node.agent.audit_schedule import (
    AUDIT_MS,
    SWAP_MS,
    AuditSchedule,
    EngineCosts,
    WaitingAudit,
    choose_audit,
    is_in_time,
    sort_by_deadline,
)
from prime_protocol.wire.ids import Digest, NodeId, RunId, Step
from prime_protocol.wire.messages import AuditTask

ONE, TWO = RunId("one"), RunId("two")
COSTS = EngineCosts(audit_ms=10, swap_ms=100)


def digest(text: str) -> Digest:
    return Digest(sha256(text.encode()).digest())


def task(name: str, root: str, deadline_ms: int) -> AuditTask:
    return AuditTask(
        submission=digest(name),
        round=0,
        seed=digest("seed"),
        file_digest=digest("file"),
        lease=9,
        node=NodeId(bytes(20)),
        step=Step(0),
        checkpoint_root=digest(root),
        first_slot=0,
        slots=1,
        deadline_ms=deadline_ms,
    )


def waiting(name: str, root: str, deadline_ms: int) -> WaitingAudit:
    return WaitingAudit(ONE if root == "a" else TWO, task(name, root, deadline_ms))


def choose(audits: Iterable[WaitingAudit], loaded: str = "a", now_ms: int = 0) -> AuditTask | None:
    best = choose_audit(list(audits), digest(loaded), COSTS, now_ms)
    return best.task if best else None


def test_the_earliest_deadline_goes_first_where_no_audit_is_of_the_loaded_checkpoint() -> None:
    late, early = waiting("1", "a", 500), waiting("2", "b", 400)
    assert choose([late, early], loaded="c") == early.task
    assert choose([]) is None


def test_the_loaded_checkpoint_goes_first_while_the_others_are_still_in_time() -> None:
    same, other = waiting("1", "a", 10_000), waiting("2", "b", 1_000)
    assert choose([other, same]) == same.task
    assert choose([other, same], now_ms=880) == same.task, "10 for this one, 110 for the other"
    assert choose([other, same], now_ms=881) == other.task


def test_an_audit_that_cannot_be_in_time_makes_no_other_late() -> None:
    same, lost = waiting("1", "a", 10_000), waiting("2", "b", 50)
    assert choose([lost, same]) == same.task


def test_many_audits_of_two_runs_cost_one_swap_each_way_where_the_deadlines_allow() -> None:
    audits = [waiting(f"{root} {number}", root, 2_000 + number) for number in range(20) for root in "ab"]
    loaded, swaps, now_ms = "a", 0, 0
    while audits:
        chosen = choose(audits, loaded, now_ms)
        assert chosen is not None
        root = "a" if chosen.checkpoint_root == digest("a") else "b"
        swaps += root != loaded
        now_ms += COSTS.audit_ms + (COSTS.swap_ms if root != loaded else 0)
        loaded = root
        assert now_ms <= chosen.deadline_ms
        audits = [each for each in audits if each.task is not chosen]
    assert swaps == 1


@pytest.mark.parametrize("seed", range(50))
def test_no_audit_is_late_that_would_be_in_time_by_deadline_alone(seed: int) -> None:
    rng = Random(seed)
    audits = [waiting(str(n), rng.choice("abc"), rng.randrange(100, 3_000)) for n in range(rng.randrange(1, 12))]
    if not is_in_time(sort_by_deadline(audits), digest("a"), COSTS, 0):
        return
    loaded, now_ms = digest("a"), 0
    while audits:
        best = choose_audit(audits, loaded, COSTS, now_ms)
        assert best is not None
        now_ms += COSTS.audit_ms + (COSTS.swap_ms if best.task.checkpoint_root != loaded else 0)
        loaded = best.task.checkpoint_root
        assert now_ms <= best.task.deadline_ms, f"seed {seed}"
        audits.remove(best)


def test_one_audit_runs_at_a_time_over_all_runs_and_the_next_run_is_named() -> None:
    schedule = AuditSchedule(1)
    schedule.reset_run(ONE)
    schedule.reset_run(TWO)
    first, second = task("1", "a", 10**6), task("2", "b", 10**6)
    assert schedule.take_next(ONE, [first], 0) == [first]
    assert schedule.take_next(TWO, [second], 0) == []
    assert schedule.get_next_run(0) is None
    schedule.finish(ONE, first.submission, 40_000)
    assert schedule.get_next_run(40_000) == TWO
    assert schedule.take_next(ONE, [], 40_000) == []
    assert schedule.take_next(TWO, [second], 40_000) == [second]


def test_a_run_that_takes_no_work_or_has_failed_does_not_block_the_others() -> None:
    schedule = AuditSchedule(1)
    first, second = task("1", "a", 100), task("2", "b", 10**6)
    assert schedule.take_next(ONE, [first], 0) == [first]
    assert schedule.take_next(TWO, [second], 0) == []
    schedule.reset_run(ONE)  # its agent failed in the middle of the audit
    assert schedule.get_next_run(0) == TWO
    schedule.take_next(TWO, [], 0)  # its owner holds it
    assert schedule.get_next_run(0) is None
    schedule.finish(ONE, first.submission, 50)  # and the end of an audit that is forgotten changes nothing
    assert schedule.costs == EngineCosts()


def test_an_audit_past_its_deadline_is_never_chosen() -> None:
    schedule = AuditSchedule(2)
    assert schedule.take_next(ONE, [task("1", "a", 100)], 100) == []


def test_durations_are_measured_with_and_without_a_swap() -> None:
    schedule = AuditSchedule(1)
    for number, took_ms in enumerate((AUDIT_MS + 2 * SWAP_MS, 2 * AUDIT_MS)):
        audit = task(str(number), "a", 10**9)
        assert schedule.take_next(ONE, [audit], 0) == [audit]
        schedule.finish(ONE, audit.submission, took_ms)
    assert schedule.costs == EngineCosts(audit_ms=3 * AUDIT_MS // 2, swap_ms=3 * SWAP_MS // 2)
