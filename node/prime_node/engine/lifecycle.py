"""Manages one engine process: starts it when first needed, lends it to its callers, restarts it.

Callers that need the same checkpoint use the engine together. One that needs another waits until they are done, and
callers that come after it wait behind it: no row mixes two checkpoints, and no checkpoint waits for ever.

A process that dies is restarted after a pause that doubles with each death. After DEATHS_MAX deaths without a success,
callers get EngineBroken until the pause is over. Deaths count for the run whose job was at work: a model that is too
large for this machine must not stop another run. The loaded checkpoint is remembered, so only changes are loaded.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from prime_node.engine.config import EngineConfig
from prime_node.engine.interface import NO_CAPACITY, EngineCapacity, EngineFacts
from prime_node.engine.machine_class import get_engine_class
from prime_node.engine.process import EngineDied, EngineProcess, OnQueue, build_command, build_environment
from prime_node.engine.shared_lock import SharedLock
from prime_protocol.errors import LocalError
from prime_protocol.proofs.tolerance import Precision
from prime_protocol.wire.ids import Digest
from prime_runtime.clock import Clock

log = logging.getLogger(__name__)

RESTART_PAUSE_MS = 500
RESTART_PAUSE_MS_MAX = 600_000
"""Pause before a restart, doubled with each death since the last success."""
DEATHS_MAX = 3
"""After this many deaths without a success the engine counts as broken, and callers no longer wait for it."""

BuildCommand = Callable[[EngineConfig, Precision], Sequence[str]]
FindChangedTensors = Callable[[Digest, Digest], frozenset[str] | None]
"""The tensors that differ between two checkpoints; None if unknown."""


class EngineState(StrEnum):
    """State of the engine's process."""

    OFF = "off"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    BROKEN = "broken"


class EngineBroken(LocalError):
    """The engine keeps dying; it gets no jobs until the pause is over."""


@dataclass(slots=True)
class EngineDeaths:
    """Deaths with the jobs of one run since its last success."""

    count: int = 0
    retry_at_ms: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class EngineSession:
    """Use of the engine with a checkpoint loaded, together with other callers that need the same one."""

    process: EngineProcess
    facts: EngineFacts

    @property
    def capacity(self) -> EngineCapacity:
        return self.process.capacity

    @property
    def software(self) -> tuple[str, ...]:
        return self.process.software


class EngineManager:
    """Owns one engine process. `gpus` are those that it sees; nothing: all."""

    def __init__(
        self,
        config: EngineConfig,
        folder: Path,
        clock: Clock,
        *,
        changes: FindChangedTensors = lambda old, new: None,
        command: BuildCommand = build_command,
        gpus: Sequence[str] = (),
    ) -> None:
        self._config = config
        self._gpus = gpus
        self._folder = folder
        self._clock = clock
        self._find_changed_tensors = changes
        self._command = command
        self._users = SharedLock[tuple[Digest, Precision]]()
        self._opening = asyncio.Lock()
        """Held while the process starts or loads a checkpoint."""
        self.on_queue: OnQueue = lambda queue: None
        """Hears about the completions in progress."""
        self._process: EngineProcess | None = None
        self._precision = Precision.FLOAT32
        self._deaths: dict[str, EngineDeaths] = {}
        """By run."""
        self.state = EngineState.OFF
        self.loaded: Digest | None = None
        self.facts: EngineFacts | None = None
        self.restarts = 0
        self.last_error = ""
        """Why the engine last died or failed to start."""

    @property
    def capacity(self) -> EngineCapacity:
        """With the loaded checkpoint; zeros where there is none."""
        return self._process.capacity if self._process is not None else NO_CAPACITY

    def is_broken(self, run: str = "") -> bool:
        return self._get_deaths(run).count >= DEATHS_MAX

    def get_retry_wait_ms(self, run: str = "") -> int:
        """Time until a restart is allowed."""
        return max(0, self._get_deaths(run).retry_at_ms - self._clock.monotonic_ms())

    def get_error(self, run: str) -> str:
        """Why the engine last died with a job of this run."""
        return self._get_deaths(run).error

    def _get_deaths(self, run: str) -> EngineDeaths:
        return self._deaths.get(run, EngineDeaths())

    @asynccontextmanager
    async def acquire(
        self, root: Digest, checkpoint: Path, precision: Precision, run: str = ""
    ) -> AsyncIterator[EngineSession]:
        """Use of the engine with this checkpoint. EngineDied if it dies meanwhile; other failures are LocalErrors."""
        # The pause after a death is waited for without the engine, which another run may use meanwhile.
        await self._wait_for_retry(run)
        async with self._users.hold((root, precision)):
            process: EngineProcess | None = None
            try:
                async with self._opening:
                    process = await self._open(precision, run)
                    facts = await self._load(process, root, checkpoint)
                yield EngineSession(process, facts)
                self._deaths.pop(run, None)
            except EngineDied as error:
                # All callers hear of a death, and one that comes late must not blame the process that came after.
                if process is not None and self._process is process:
                    self._record_death(error, run)
                raise
            finally:
                if process is not None and self._process is process and not process.is_alive:
                    self._clear_process()

    async def _wait_for_retry(self, run: str) -> None:
        deaths, wait_ms = self._get_deaths(run), self.get_retry_wait_ms(run)
        if wait_ms and self.is_broken(run):
            raise EngineBroken(f"the engine died {deaths.count} times in a row; the last time: {deaths.error}")
        await self._clock.sleep_ms(wait_ms)

    async def _open(self, precision: Precision, run: str) -> EngineProcess:
        """The running process, or a new one."""
        if self._process is not None and not self._process.is_alive:
            self.restarts += 1
            await self._end(self._process)
        elif self._process is not None and precision is not self._precision:
            await self._end(self._process)
        if self._process is not None:
            return self._process
        # Another caller of this run may have met a death while this one waited for the engine.
        await self._wait_for_retry(run)
        self.state = EngineState.STARTING
        config = self._config
        try:
            self._process = await EngineProcess.start(
                self._command(config, precision),
                build_environment(config, self._folder, self._gpus),
                self._folder,
                start_ms=config.start_ms,
                stall_ms=config.stall_ms,
                on_queue=lambda queue: self.on_queue(queue),
            )
        except LocalError as error:
            self._record_death(error, run)
            raise
        self._precision = precision
        log.info("engine started, process %d", self._process.pid)
        return self._process

    async def _load(self, process: EngineProcess, root: Digest, checkpoint: Path) -> EngineFacts:
        if self.loaded == root and self.facts is not None:
            return self.facts
        changed = self._find_changed_tensors(self.loaded, root) if self.loaded is not None else None
        # Even if loading fails, the old weights are gone.
        self.loaded, self.state = None, EngineState.LOADING
        self.facts = await process.load(checkpoint, changed)
        self.loaded, self.state = root, EngineState.READY
        log.info("engine loaded %s: %s on %s in %s", root, self.facts.engine, self.facts.device, self.facts.precision)
        return self.facts

    def _record_death(self, error: LocalError, run: str) -> None:
        """Set the pause before the next start: what killed the process may still be there."""
        self._clear_process()
        deaths = self._deaths.setdefault(run, EngineDeaths())
        pause_ms = min(RESTART_PAUSE_MS_MAX, RESTART_PAUSE_MS << min(deaths.count, 10))
        deaths.count += 1
        self.restarts += 1
        self.last_error = deaths.error = str(error)
        deaths.retry_at_ms = self._clock.monotonic_ms() + pause_ms
        self.state = EngineState.BROKEN if self.is_broken(run) else EngineState.OFF
        log.warning("%s; it may be restarted in %.1f s", error, pause_ms / 1000)

    def _clear_process(self) -> None:
        self._process = self.loaded = self.facts = None
        self.state = EngineState.OFF

    async def _end(self, process: EngineProcess) -> None:
        await process.close()
        self._clear_process()

    async def invalidate_weights(self) -> None:
        """Make the next caller load all weights."""
        async with self._users.hold(None):
            self.loaded = None

    async def stop_process(self) -> None:
        """Stop the process, so that the next caller starts a new one: this machine's devices have changed."""
        async with self._users.hold(None):
            if self._process is not None:
                await self._end(self._process)

    async def close(self) -> None:
        """Kill the process, even in the middle of a job."""
        if self._process is not None:
            await self._process.kill()
            self._clear_process()

    def get_status(self) -> dict[str, Any]:
        """For the status report."""
        facts = self.facts
        return {
            "state": str(self.state),
            "engine": facts.engine if facts else str(self._config.engine),
            "device": facts.device if facts else self._config.device,
            "precision": facts.precision if facts else "",
            "engine_class": (get_engine_class(facts) or "") if facts else "",
            "pid": self._process.pid if self._process else None,
            "loaded": str(self.loaded) if self.loaded else None,
            "restarts": self.restarts,
            "last_error": self.last_error,
            "retry_ms": max((self.get_retry_wait_ms(run) for run in self._deaths if self.is_broken(run)), default=0),
        }
