"""Candidates for a second chance: the most overdue first, whoever does not suit stays for another."""

from prime_coordinator.scheduling.capacity import SKIPPED_MAX, Stragglers
from prime_protocol.wire.ids import RunId, Step

RUN, STEP = RunId("run-1"), Step(3)


def yes(number: int) -> bool:
    return True


def take(stragglers: Stragglers, now_ms: int, **tests: object) -> int | None:
    return stragglers.take(RUN, STEP, now_ms, **{"is_open": yes, "suits": yes} | tests)  # type: ignore[arg-type]


def test_no_lease_is_suspect_before_its_time() -> None:
    stragglers = Stragglers()
    assert stragglers.next_ms(RUN, STEP) is None
    stragglers.add(RUN, STEP, 1, 100)
    assert stragglers.next_ms(RUN, STEP) == 100
    assert take(stragglers, 99) is None
    assert take(stragglers, 100) == 1
    assert take(stragglers, 100) is None, "it has its second chance"


def test_the_most_overdue_comes_first_and_closed_ones_are_dropped() -> None:
    stragglers = Stragglers()
    for lease, suspect_ms in ((1, 50), (2, 20), (3, 10)):
        stragglers.add(RUN, STEP, lease, suspect_ms)
    assert take(stragglers, 60, is_open=lambda number: number != 3) == 2
    assert take(stragglers, 60) == 1
    assert take(stragglers, 60) is None


def test_a_lease_that_suits_one_node_not_stays_for_another() -> None:
    stragglers = Stragglers()
    stragglers.add(RUN, STEP, 1, 0)
    assert take(stragglers, 5, suits=lambda number: False) is None
    assert take(stragglers, 5) == 1


def test_one_request_scans_few_leases() -> None:
    stragglers, looked = Stragglers(), []
    for lease in range(1000):
        stragglers.add(RUN, STEP, lease, 0)
    take(stragglers, 5, suits=lambda number: bool(looked.append(number)))
    assert len(looked) == SKIPPED_MAX


def test_only_the_latest_step_is_kept() -> None:
    stragglers = Stragglers()
    stragglers.add(RUN, STEP, 1, 0)
    stragglers.add(RUN, Step(4), 2, 0)
    stragglers.keep(RUN, Step(4))
    assert take(stragglers, 5) is None
    assert stragglers.next_ms(RUN, Step(4)) == 0
