"""The owner's word at work: pauses that outlast a restart, GPUs that come and go, holds with a reason, a drain."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prime_node.daemon import find_gpus
from prime_node.policy.enforcer import PolicyEnforcer, local_ms, read_pauses
from prime_node.policy.policy import PolicyConfig
from prime_node.policy.usage import CpuMeter, DailyCounter, list_process_tree, read_ticks
from prime_protocol.errors import LocalError
from prime_runtime.clock import SystemClock
from support.node_report import REPORT

DAY_MS = 24 * 3_600_000


@dataclass
class FakeControl:
    """Stands in for a running node."""

    engine_gpus: tuple[int, ...] = ()
    leases_done: int = 0
    transferred_bytes: int = 0
    held: list[str] = field(default_factory=list)
    drained: int = 0
    changes: int = 0

    def hold(self, reason: str) -> None:
        self.held.append(reason)

    def drain(self) -> None:
        self.drained += 1

    def restart_engine(self) -> None:
        self.changes += 1


class Driver:
    """Stands in for pynvml over a list of UUIDs that a test changes."""

    class NVMLError(Exception):
        pass

    NVMLError_NotFound = NVMLError

    def __init__(self, *uuids: str) -> None:
        self.uuids = list(uuids)

    def nvmlInit(self) -> None:
        pass

    nvmlShutdown = nvmlInit

    def nvmlSystemGetDriverVersion(self) -> str:
        return "550"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> str:
        return self.uuids[number]

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        return handle

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "RTX"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(total=24, free=20)

    def nvmlDeviceGetProcessUtilization(self, handle: str, since: int) -> Any:
        raise self.NVMLError


def make(folder: Path, driver: Driver | None = None, **policy: Any) -> tuple[PolicyEnforcer, FakeControl]:
    enforcer, control = PolicyEnforcer(folder, PolicyConfig(**policy), SystemClock(), pid=1, nvml=driver), FakeControl()
    enforcer.control = control
    return enforcer, control


async def test_a_pause_holds_the_node_and_outlasts_its_process(tmp_path: Path) -> None:
    enforcer, control = make(tmp_path)
    await enforcer.poll()
    assert control.held == [""]
    assert "prime-node resume" in enforcer.pause(None)
    assert control.held[-1] == "paused by the owner; prime-node resume"
    again, control = make(tmp_path)
    await again.poll()
    assert control.held[-1].startswith("paused by the owner")
    assert again.describe()["is_paused"]
    assert again.resume(None) == "the node takes work again"
    assert control.held[-1] == ""
    assert not make(tmp_path)[0].pauses.is_all


async def test_a_gpu_can_be_paused_by_number_or_uuid(tmp_path: Path) -> None:
    enforcer, control = make(tmp_path, Driver("GPU-aaaaaaaa", "GPU-bbbbbbbb"), paused_gpus=("1",))
    control.engine_gpus = (0,)
    await enforcer.poll()
    assert control.held[-1] == ""
    enforcer.pause("GPU-aaaaaaaa")
    assert control.held[-1].startswith("GPU 0 is paused")
    assert [row["is_paused"] for row in enforcer.describe_gpus()] == [True, True]
    assert enforcer.resume(None).endswith("still paused: GPU GPU-aaaaaaaa")
    enforcer.resume("GPU-aaaaaaaa")
    assert control.held[-1] == ""
    for wrong in ("7", "the big one", "GPU-cccccccc"):
        with pytest.raises(LocalError, match="there is no GPU"):
            enforcer.pause(wrong)
    with pytest.raises(LocalError, match=r"not paused by a command; see the setting policy\.paused_gpus"):
        enforcer.resume("1")


async def test_gpus_that_appear_and_disappear_are_reported(tmp_path: Path) -> None:
    driver = Driver("GPU-aaaaaaaa")
    enforcer, control = make(tmp_path, driver)
    await enforcer.poll()
    assert control.changes == 0
    driver.uuids.append("GPU-bbbbbbbb")
    await enforcer.poll()
    assert (control.changes, len(enforcer.describe_gpus())) == (1, 2)
    driver.uuids = ["GPU-bbbbbbbb"]
    await enforcer.poll()
    await enforcer.poll()
    assert control.changes == 2, "told once"
    assert {row["uuid"]: row["problem"] for row in enforcer.describe_gpus()} == {
        "GPU-bbbbbbbb": "",
        "GPU-aaaaaaaa": "it stopped answering",
    }
    driver.uuids = ["GPU-aaaaaaaa", "GPU-bbbbbbbb"]
    await enforcer.poll()
    assert (control.changes, enforcer.lost) == (3, {})


async def test_a_drain_is_requested_once_and_stays(tmp_path: Path) -> None:
    enforcer, control = make(tmp_path)
    enforcer.drain()
    await enforcer.poll()
    enforcer.drain()
    assert control.drained == 1
    assert enforcer.describe()["stop"] == "the owner asked for it"


async def test_policy_ends_the_node_after_its_leases(tmp_path: Path) -> None:
    enforcer, control = make(tmp_path, stop_after_leases=2)
    await enforcer.poll()
    control.leases_done = 2
    await enforcer.poll()
    assert (control.drained, enforcer.decision.stop) == (1, "2 leases are done (policy.stop_after_leases)")


async def test_before_the_node_has_joined_there_is_nothing_to_hold(tmp_path: Path) -> None:
    enforcer, _ = make(tmp_path)
    enforcer.control = None
    enforcer.pause(None)
    await enforcer.poll()
    assert enforcer.describe()["hold"] == ""


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"is_all": true}', '{"is_all": true, "gpus": 5}'])
def test_a_damaged_note_of_pauses_is_as_good_as_none(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "paused.json"
    path.write_text(damage)
    assert not read_pauses(path).is_all


def test_local_time_is_the_machines_own() -> None:
    zone = timezone(timedelta(hours=2, minutes=30))
    assert local_ms(1_000_000, lambda at: at.astimezone(zone)) == 1_000_000 + 150 * 60_000
    offset = datetime.now(UTC).astimezone().utcoffset()
    assert offset is not None
    now_ms = SystemClock().now_ms()
    assert local_ms(now_ms) == now_ms + int(offset.total_seconds() * 1000)


@pytest.mark.parametrize(
    ("device", "gpus"), [("cpu", ()), ("auto", ()), ("cuda", (0,)), ("cuda:3", (3,)), ("mps", ()), ("", ())]
)
def test_the_engines_device_names_its_gpu(device: str, gpus: tuple[int, ...]) -> None:
    assert find_gpus(device) == gpus


def test_the_report_has_what_the_owner_says() -> None:
    assert {"hold", "stop", "is_paused", "paused_gpus"} == REPORT["owner"].keys()


# --- What is measured -----------------------------------------------------------------------------------------------


def write_proc(proc: Path, columns: list[int], **processes: tuple[int, int]) -> None:
    """A /proc: the first line of `stat`, and of each process its parent and ticks."""
    proc.mkdir(exist_ok=True)
    (proc / "stat").write_text(f"cpu  {' '.join(map(str, columns))}\ncpu0 1 2 3\n")
    for name, (parent, ticks) in processes.items():
        folder = proc / name.removeprefix("p")
        folder.mkdir(exist_ok=True)
        fields = ["S", str(parent), *["0"] * 9, str(ticks), "0", "0", "0"]
        (folder / "stat").write_text(f"{folder.name} (a) b) {' '.join(fields)}")


def test_what_others_use_leaves_us_and_our_children_out(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    meter = CpuMeter(10, proc)
    #                    user nice system idle iowait irq softirq steal guest
    write_proc(proc, [100, 0, 0, 900, 0, 0, 0, 0, 50], p10=(1, 10), p11=(10, 20), p12=(11, 5), p20=(1, 65))
    assert meter.measure() is None, "one look says nothing"
    write_proc(proc, [160, 0, 0, 940, 0, 0, 0, 0, 90], p10=(1, 20), p11=(10, 30), p12=(11, 15), p20=(1, 95))
    assert meter.measure() == pytest.approx(30.0), "60 of 100 ticks were busy, 30 of them ours"
    assert meter.measure() is None, "no time has passed"
    assert list_process_tree(10, proc) == {10, 11, 12}
    (proc / "stat").write_text("nonsense")
    assert meter.measure() is None


def test_this_system_tells_its_ticks() -> None:
    import os

    ticks = read_ticks(os.getpid())
    assert ticks is not None
    assert 0 < ticks.own <= ticks.busy <= ticks.total
    assert os.getpid() in list_process_tree(os.getpid())


async def test_a_days_bytes_outlast_a_restart_and_a_damaged_note_of_them_is_none(tmp_path: Path) -> None:
    enforcer, control = make(tmp_path, data_bytes_per_day=1_000)
    control.transferred_bytes = 900
    running = asyncio.create_task(enforcer.run())
    while not control.held:
        await asyncio.sleep(0)
    assert control.held[-1] == ""
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    again, later = make(tmp_path, data_bytes_per_day=1_000)
    later.transferred_bytes = 100
    await again.poll()
    assert "the limit policy.data_bytes_per_day is reached" in later.held[-1]
    for damaged in ("", "{", "[]", '{"day": 1}', '{"day": null, "bytes": "x"}'):
        (tmp_path / "daily_transfer.json").write_text(damaged)
        third, last = make(tmp_path, data_bytes_per_day=1_000)
        last.transferred_bytes = 100
        await third.poll()
        assert last.held[-1] == ""


def test_bytes_are_counted_by_the_day() -> None:
    meter = DailyCounter()
    assert meter.measure(100, 5 * DAY_MS) == 100
    assert meter.measure(300, 5 * DAY_MS + 1000) == 300
    assert meter.measure(350, 6 * DAY_MS) == 50
    assert meter.measure(400, 6 * DAY_MS + 5) == 100
    resumed = DailyCounter(1_000, 5 * DAY_MS + 7)
    assert resumed.measure(100, 5 * DAY_MS + 8) == 1_100
    assert resumed.measure(150, 6 * DAY_MS) == 50
