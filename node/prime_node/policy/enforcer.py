"""Enforces the owner's policy: measures the machine every few seconds, decides by policy.py, holds or drains the node.

What the owner has paused by hand is kept in a file of the node's folder, so that it stays paused after a restart.
"""

import asyncio
import json
import logging
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from prime_node.doctor.facts import GpuFacts, GpuListing
from prime_node.doctor.machine import list_gpus, observe_gpus
from prime_node.policy.policy import GPU, GpuUsage, MachineState, OwnerPolicy, PolicyConfig, PolicyDecision
from prime_node.policy.usage import CpuMeter, DailyCounter, DailyCounterFile, list_process_tree
from prime_node.storage.node_folder import NodeFolder
from prime_protocol.errors import LocalError
from prime_runtime.clock import Clock
from prime_runtime.files import write_atomic

log = logging.getLogger(__name__)

POLL_MS = 3_000


class NodeControl(Protocol):
    """What the policy may do with the running node, and what it has to know of it."""

    def hold(self, reason: str) -> None:
        """Take no more work; an empty reason ends that."""
        ...

    def drain(self) -> None:
        """Finish the current jobs, then stop."""
        ...

    def restart_engine(self) -> None:
        """A GPU appeared or disappeared."""
        ...

    @property
    def leases_done(self) -> int: ...

    @property
    def transferred_bytes(self) -> int:
        """Sent and received since the start."""
        ...

    @property
    def engine_gpus(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class Pauses:
    """What the owner has paused by hand."""

    is_all: bool = False
    gpus: frozenset[str] = frozenset()


class PolicyEnforcer:
    """Applies one owner's policy to one node."""

    def __init__(self, folder: Path, config: PolicyConfig, clock: Clock, *, pid: int, nvml: Any | None) -> None:
        self._path = NodeFolder(folder).paused
        self._folder = folder
        self._config = config
        self._clock = clock
        self._nvml = nvml
        self._pid = pid
        self._policy = OwnerPolicy(config)
        self._cpu = CpuMeter(pid)
        self._daily_file = DailyCounterFile(NodeFolder(folder).daily_transfer, clock)
        self._daily_counter = DailyCounter(self._daily_file.load(), clock.now_ms())
        self._transferred_today = self._daily_counter.measure(0, clock.now_ms())
        self._drain_reason = ""
        self._gpus: tuple[GpuUsage, ...] = ()
        self.control: NodeControl | None = None
        """Set once the node has joined."""
        self.pauses = read_pauses(self._path)
        self.decision = PolicyDecision()
        self.listing: GpuListing = list_gpus(nvml)
        self.lost: dict[str, GpuFacts] = {}
        """GPUs that stopped answering, by UUID."""

    # --- Commands of the owner --------------------------------------------------------------------------------------

    def pause(self, gpu: str | None) -> str:
        if gpu is None:
            self._save_pauses(Pauses(True, self.pauses.gpus))
            return "paused: the node finishes its current jobs and takes no more. Continue with: prime-node resume"
        self._check_gpu(gpu)
        self._save_pauses(Pauses(self.pauses.is_all, self.pauses.gpus | {gpu}))
        return f"GPU {gpu} is paused. Continue with: prime-node resume --gpu {gpu}"

    def resume(self, gpu: str | None) -> str:
        if gpu is None:
            self._save_pauses(Pauses(False, self.pauses.gpus))
            left = f"; still paused: GPU {', '.join(sorted(self.pauses.gpus))}" if self.pauses.gpus else ""
            return f"the node takes work again{left}"
        if gpu not in self.pauses.gpus:
            raise LocalError(f"GPU {gpu} was not paused by a command; see the setting policy.paused_gpus")
        self._save_pauses(Pauses(self.pauses.is_all, self.pauses.gpus - {gpu}))
        return f"GPU {gpu} is used again"

    def drain(self) -> str:
        self._drain_reason = "the owner asked for it"
        self._apply()
        return "the node finishes its current jobs, then stops; watch it with: prime-node status"

    def _check_gpu(self, gpu: str) -> None:
        known = {name for each in self.listing.gpus for name in (str(each.number), each.uuid)}
        if not GPU.fullmatch(gpu) or (known and gpu not in known):
            raise LocalError(f"there is no GPU {gpu}; prime-node doctor lists them by number and UUID")

    def _save_pauses(self, pauses: Pauses) -> None:
        self.pauses = pauses
        plain = {"is_all": pauses.is_all, "gpus": sorted(pauses.gpus)}
        write_atomic(self._path, json.dumps(plain).encode())
        self._apply()

    # --- Enforcement ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                await self.poll()
                self._daily_file.save_if_due(self._transferred_today)
                await self._clock.sleep_ms(POLL_MS)
        finally:
            self._daily_file.save(self._transferred_today)

    async def poll(self) -> None:
        """Measures and applies once. A GPU driver may answer slowly, so it is asked in a thread."""
        if self._nvml is not None:
            self._update_gpus(await asyncio.to_thread(list_gpus, self._nvml))
        if self._config.idle_only or self.pauses.gpus or self._config.paused_gpus:
            self._gpus = await asyncio.to_thread(observe_gpus, self._nvml, list_process_tree(self._pid))
        self._apply()

    def _apply(self) -> None:
        if self.control is None:
            return
        decision = self._policy.decide(self._measure(self.control))
        if self._drain_reason:
            decision = PolicyDecision(hold=decision.hold, stop=self._drain_reason)
        if decision.hold != self.decision.hold:
            log.info("owner's policy: %s", decision.hold or "work allowed")
        is_ending = decision.stop and not self.decision.stop
        self.decision = decision
        self.control.hold(decision.hold)
        if is_ending:
            self.control.drain()

    def _measure(self, control: NodeControl) -> MachineState:
        self._transferred_today = self._daily_counter.measure(control.transferred_bytes, self._clock.now_ms())
        return MachineState(
            local_ms=local_ms(self._clock.now_ms()),
            monotonic_ms=self._clock.monotonic_ms(),
            cpu_others_percent=self._cpu.measure() if self._config.idle_only else None,
            gpus=self._gpus or tuple(_without_use(gpu) for gpu in self.listing.gpus),
            engine_gpus=control.engine_gpus,
            data_bytes_today=self._transferred_today,
            disk_free_bytes=shutil.disk_usage(self._folder).free,
            leases_done=control.leases_done,
            is_paused=self.pauses.is_all,
            paused_gpus=self.pauses.gpus,
        )

    def _update_gpus(self, listing: GpuListing) -> None:
        """Logs GPUs that appear or disappear, and restarts the engine on a change."""
        before, self.listing = self.listing, listing
        known = {gpu.uuid: gpu for gpu in before.gpus if not gpu.problem} | self.lost
        present = {gpu.uuid: gpu for gpu in self.listing.gpus if not gpu.problem}
        lost = {uuid: gpu for uuid, gpu in known.items() if uuid not in present}
        for uuid in lost.keys() - self.lost.keys():
            log.error("GPU %d (%s) stopped answering", lost[uuid].number, uuid)
        came = [uuid for uuid in present if uuid in self.lost or uuid not in known]
        for uuid in came:
            log.info("GPU %d (%s) is available", present[uuid].number, uuid)
        is_news = bool(came) or lost.keys() != self.lost.keys()
        self.lost = lost
        if is_news and self.control is not None:
            self.control.restart_engine()

    # --- For the report ---------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        return {
            "hold": self.decision.hold,
            "stop": self.decision.stop,
            "is_paused": self.pauses.is_all,
            "paused_gpus": sorted(self.pauses.gpus | set(self._config.paused_gpus)),
        }

    def describe_gpus(self) -> list[dict[str, Any]]:
        paused = self.pauses.gpus | set(self._config.paused_gpus)
        rows = [_gpu_row(gpu, gpu.problem, paused) for gpu in self.listing.gpus]
        shown = {gpu.uuid for gpu in self.listing.gpus}
        rows += [_gpu_row(gpu, "it stopped answering", paused) for uuid, gpu in self.lost.items() if uuid not in shown]
        return rows


def _without_use(gpu: GpuFacts) -> GpuUsage:
    return GpuUsage(number=gpu.number, uuid=gpu.uuid, others_percent=None)


def _gpu_row(gpu: GpuFacts, problem: str, paused: Collection[str]) -> dict[str, Any]:
    return {
        "number": gpu.number,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "problem": problem,
        "is_paused": bool({str(gpu.number), gpu.uuid} & set(paused)),
    }


def read_pauses(path: Path) -> Pauses:
    """Nothing where the file is missing or damaged."""
    try:
        plain = json.loads(path.read_text())
        return Pauses(plain["is_all"] is True, frozenset(str(gpu) for gpu in plain["gpus"]))
    except (OSError, ValueError, KeyError, TypeError):
        return Pauses()


def local_ms(now_ms: int, zone: Callable[[datetime], datetime] = datetime.astimezone) -> int:
    """The wall clock of this machine's time zone, as if it were UTC."""
    there = zone(datetime.fromtimestamp(now_ms / 1000, UTC))
    offset = there.utcoffset()
    assert offset is not None
    return now_ms + int(offset.total_seconds() * 1000)
