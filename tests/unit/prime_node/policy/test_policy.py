"""An owner's policy: hours, idleness, pauses, caps and ends, each with a reason that says what to do or wait for."""

from dataclasses import replace
from typing import Any

import pytest

from prime_node.policy.policy import (
    DAY_MS,
    MINUTE_MS,
    GpuUsage,
    MachineState,
    OwnerPolicy,
    PolicyConfig,
    PolicyDecision,
    WorkHours,
    parse_time,
    parse_window,
    split_local_time,
)
from prime_runtime.settings.schema import ConfigError

HOUR_MS = 60 * MINUTE_MS
MONDAY_MS = 4 * DAY_MS
"""1970-01-05."""
QUIET = MachineState(
    local_ms=MONDAY_MS,
    monotonic_ms=0,
    cpu_others_percent=0.0,
    gpus=(),
    engine_gpus=(),
    data_bytes_today=0,
    disk_free_bytes=10**12,
    leases_done=0,
    is_paused=False,
    paused_gpus=frozenset(),
)
EVERY_DAY = frozenset(range(7))


def hold(config: PolicyConfig, **changes: Any) -> str:
    decision = OwnerPolicy(config).decide(replace(QUIET, **changes))
    assert decision.stop == ""
    return decision.hold


def test_a_machine_whose_owner_says_nothing_works_always() -> None:
    policy = OwnerPolicy(PolicyConfig())
    for hour in range(7 * 24):
        seen = replace(QUIET, local_ms=MONDAY_MS + hour * HOUR_MS, cpu_others_percent=100.0)
        assert policy.decide(seen) == PolicyDecision()


# --- Hours ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("22:00-07:00", WorkHours(EVERY_DAY, 1320, 420)),
        ("9:30-17:05", WorkHours(EVERY_DAY, 570, 1025)),
        ("sat,sun 00:00-24:00", WorkHours(frozenset({5, 6}), 0, 1440)),
        ("Mon-Fri 18:30-08:00", WorkHours(frozenset(range(5)), 1110, 480)),
        ("fri-mon,wed 00:00-01:00", WorkHours(frozenset({4, 5, 6, 0, 2}), 0, 60)),
    ],
)
def test_hours_are_read_as_people_write_them(text: str, span: WorkHours) -> None:
    assert parse_window(text) == span


@pytest.mark.parametrize(
    "text", ["", "22-7", "22:00", "24:00-01:00", "08:00-08:00", "00:00-24:30", "9:60-10:00", "25:00-01:00"]
)
def test_hours_that_are_none_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"policy\.hours has .*write"):
        PolicyConfig(hours=(text,))


@pytest.mark.parametrize("days", ["xyz", "mon-xyz", "mon,", "-mon", "monday"])
def test_days_that_are_none_are_named(days: str) -> None:
    with pytest.raises(ConfigError, match="is no day"):
        PolicyConfig(hours=(f"{days} 08:00-09:00",))


@pytest.mark.parametrize("text", ["7", "24:00", "7:5", "noon", "-1:00"])
def test_a_time_to_stop_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"policy\.stop_at"):
        PolicyConfig(stop_at=text)
    assert parse_time("07:05") == 425


@pytest.mark.parametrize(
    ("hours", "day", "time", "is_open"),
    [
        (("22:00-07:00",), 0, "21:59", False),
        (("22:00-07:00",), 0, "22:00", True),
        (("22:00-07:00",), 0, "06:59", True),
        (("22:00-07:00",), 0, "07:00", False),
        (("mon 22:00-07:00",), 0, "06:59", False),
        (("mon 22:00-07:00",), 1, "06:59", True),
        (("mon 22:00-07:00",), 1, "22:00", False),
        (("sat,sun 00:00-24:00",), 5, "23:59", True),
        (("sat,sun 00:00-24:00",), 4, "23:59", False),
        (("09:00-10:00", "12:00-13:00"), 2, "12:30", True),
        (("09:00-10:00", "12:00-13:00"), 2, "11:00", False),
    ],
)
def test_work_is_taken_in_the_owners_hours_only(hours: tuple[str, ...], day: int, time: str, is_open: bool) -> None:
    local_ms = MONDAY_MS + day * DAY_MS + parse_time(time) * MINUTE_MS
    assert split_local_time(local_ms) == (day, parse_time(time))
    assert (hold(PolicyConfig(hours=hours), local_ms=local_ms) == "") is is_open


@pytest.mark.parametrize(
    ("hours", "time", "shown"),
    [
        (("22:00-07:00",), "12:00", "again at 22:00"),
        (("08:00-09:00",), "12:00", "again on tue at 08:00"),
        (("mon 08:00-09:00",), "12:00", "again on mon at 08:00"),
        (("sun 08:00-09:00", "sat 10:15-11:00"), "12:00", "again on sat at 10:15"),
    ],
)
def test_a_node_outside_its_hours_says_when_they_begin(hours: tuple[str, ...], time: str, shown: str) -> None:
    text = hold(PolicyConfig(hours=hours), local_ms=MONDAY_MS + parse_time(time) * MINUTE_MS)
    assert text.endswith(shown), text


# --- Pauses and caps ------------------------------------------------------------------------------------------------


def test_a_paused_node_says_how_to_go_on() -> None:
    assert "prime-node resume" in hold(PolicyConfig(), is_paused=True)


def test_a_paused_gpu_holds_the_engine_that_works_on_it_and_no_other() -> None:
    gpus = tuple(GpuUsage(number=n, uuid=f"GPU-0000000{n}", others_percent=None) for n in range(2))
    assert hold(PolicyConfig(paused_gpus=("1",)), gpus=gpus, engine_gpus=(0,)) == ""
    assert "GPU 1 is paused" in hold(PolicyConfig(paused_gpus=("1",)), gpus=gpus, engine_gpus=(0, 1))
    assert "GPU 1 is paused" in hold(PolicyConfig(paused_gpus=("GPU-00000001",)), gpus=gpus, engine_gpus=(1,))
    assert "--gpu 0" in hold(PolicyConfig(), gpus=gpus, engine_gpus=(0,), paused_gpus=frozenset({"0"}))
    assert "GPU 3 is paused" in hold(PolicyConfig(paused_gpus=("3",)), engine_gpus=(3,)), "also where it is lost"
    with pytest.raises(ConfigError, match="number or the UUID"):
        PolicyConfig(paused_gpus=("the big one",))


def test_caps_hold_and_name_the_setting() -> None:
    config = PolicyConfig(data_bytes_per_day=10**9, disk_free_bytes_min=10**9)
    assert hold(config, data_bytes_today=10**9 - 1, disk_free_bytes=10**9) == ""
    assert "1.0 GB were transferred today; the limit policy.data_bytes_per_day" in hold(config, data_bytes_today=10**9)
    assert "999.0 MB are free" in hold(config, disk_free_bytes=999_000_000)
    assert hold(PolicyConfig(disk_free_bytes_min=0), disk_free_bytes=0) == ""


# --- Idleness -------------------------------------------------------------------------------------------------------


def test_work_begins_when_others_have_left_the_machine_alone_for_a_while() -> None:
    policy = OwnerPolicy(PolicyConfig(idle_only=True, idle_ms=60_000))

    def decide_at(at_ms: int, cpu: float, gpu: float = 0.0) -> str:
        gpus = (GpuUsage(number=0, uuid="GPU-00000000", others_percent=gpu),)
        return policy.decide(replace(QUIET, monotonic_ms=at_ms, cpu_others_percent=cpu, gpus=gpus)).hold

    assert decide_at(0, 5.0) == "", "a machine that is idle from the start needs no waiting"
    assert decide_at(5_000, 80.0) == "other programs use the machine: 80 % of the cores"
    assert decide_at(10_000, 80.0, 50.0) == "other programs use the machine: 80 % of the cores, 50 % of GPU 0"
    assert decide_at(20_000, 5.0).endswith("work starts in 1 min 0 s")
    assert decide_at(79_000, 5.0).endswith("work starts in 1 s")
    assert decide_at(80_000, 5.0) == ""
    assert decide_at(85_000, 5.0, 21.0) == "other programs use the machine: 21 % of GPU 0"
    assert decide_at(90_000, 5.0) != ""


def test_idle_only_where_nothing_is_known_holds_rather_than_disturbs() -> None:
    assert "not known yet" in hold(PolicyConfig(idle_only=True), cpu_others_percent=None)
    gpus = (GpuUsage(number=0, uuid="GPU-00000000", others_percent=None),)
    assert hold(PolicyConfig(idle_only=True), gpus=gpus) == ""


# --- Ends -----------------------------------------------------------------------------------------------------------


def test_a_node_drains_at_the_time_its_owner_set() -> None:
    policy = OwnerPolicy(PolicyConfig(stop_at="07:00"))
    evening, morning = MONDAY_MS + 20 * HOUR_MS, MONDAY_MS + DAY_MS + 7 * HOUR_MS
    assert policy.decide(replace(QUIET, local_ms=evening)) == PolicyDecision()
    assert policy.decide(replace(QUIET, local_ms=morning - 1)) == PolicyDecision()
    late = policy.decide(replace(QUIET, local_ms=morning))
    assert late.stop == late.hold == "it is 07:00 (policy.stop_at)"
    assert policy.decide(replace(QUIET, local_ms=morning + 5 * HOUR_MS)).stop, "and that does not pass"


def test_a_node_started_at_the_very_minute_has_a_day() -> None:
    policy = OwnerPolicy(PolicyConfig(stop_at="07:00"))
    assert policy.decide(replace(QUIET, local_ms=MONDAY_MS + 7 * HOUR_MS)) == PolicyDecision()


def test_a_node_stops_after_so_many_leases() -> None:
    policy = OwnerPolicy(PolicyConfig(stop_after_leases=3))
    assert policy.decide(replace(QUIET, leases_done=2)) == PolicyDecision()
    assert policy.decide(replace(QUIET, leases_done=3)).stop == "3 leases are done (policy.stop_after_leases)"
