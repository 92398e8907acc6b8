"""Honest engines write completions and read each other's, in blocks that are kept: what was done is not done again.

Only this program writes to the folder of the blocks. They are pickles, so they must not come from elsewhere.
"""

import pickle
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from prime_node.calibration.measure import (
    DECOY_SEED,
    ROWS_AT_ONCE,
    CalibrationPlan,
    EngineSetup,
    check_claims,
    generate_claims,
    make_requests,
)
from prime_node.engine.config import EngineConfig
from prime_node.engine.measurement import ClaimedRow, RowMeasurement
from prime_node.engine.process import EngineProcess, build_environment

HOUR_MS = 3_600_000
"""No time limit for an engine, however busy the machine is."""
# Threads that spin while they wait for each other take the processor from other processes.
BASE = EngineConfig(device="cpu", variables=("OMP_WAIT_POLICY=PASSIVE",), start_ms=HOUR_MS, stall_ms=HOUR_MS)


RowsByPair = dict[str, list[RowMeasurement]]
"""Measurements by "writer → reader". The number of a row is that of its completion."""


class TimeIsUp(Exception):
    """The time that was given is over, and more is to do."""


class LateEngine:
    """An engine that is started when it is first needed: often all of its blocks are there."""

    def __init__(self, setup: EngineSetup, checkpoint: Path, home: Path) -> None:
        self._setup = setup
        self._checkpoint = checkpoint
        self._home = home
        self._process: EngineProcess | None = None

    async def get(self) -> EngineProcess:
        if self._process is None:
            self._process = await EngineProcess.start(
                self._setup.command(BASE),
                build_environment(self._setup.config(BASE), self._home),
                self._home,
                start_ms=HOUR_MS,
                stall_ms=HOUR_MS,
            )
            await self._process.load(self._checkpoint)
        return self._process

    async def __aenter__(self) -> "LateEngine":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            await self._process.close()


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is measured, where its blocks are, and until when it may go on."""

    plan: CalibrationPlan
    folder: Path
    ends_at: float
    """By time.monotonic."""

    async def run(self) -> RowsByPair:
        """What the rows gave, by pairing of kinds. TimeIsUp where not all is there yet."""
        setups, written = self.plan.setups, []
        for number in range(len(setups)):
            async with self._open(number) as engine:
                written.append(await self._write(number, engine))
        rows: RowsByPair = {f"{writer.kind} → {reader.kind}": [] for reader in setups for writer in setups}
        for number, reader in enumerate(setups):
            async with self._open(number) as engine:
                for author, writer in enumerate(setups):
                    rows[f"{writer.kind} → {reader.kind}"] += await self._read(number, author, written[author], engine)
        return rows

    def _open(self, number: int) -> LateEngine:
        return LateEngine(self.plan.setups[number], self.plan.checkpoint, self.folder / "engine")

    async def _write(self, number: int, engine: LateEngine) -> list[ClaimedRow]:
        async def work(process: EngineProcess, part: Sequence[Any]) -> list[ClaimedRow]:
            return await generate_claims(process, list(part), self.plan.sampling)

        return await self._keep(f"{number}-writes", make_requests(self.plan, number), engine, work)

    async def _read(
        self, number: int, author: int, claims: list[ClaimedRow], engine: LateEngine
    ) -> list[RowMeasurement]:
        async def work(process: EngineProcess, part: Sequence[Any]) -> list[RowMeasurement]:
            return await check_claims(process, list(part), self.plan.sampling, DECOY_SEED)

        part = choose_claims(self.plan.setups, number, self.plan.setups[author], claims)
        # In another order than they were written, so that other rows stand beside each other.
        mixed = random.Random(number).sample(part, len(part))
        return await self._keep(f"{number}-reads-{author}", mixed, engine, work)

    async def _keep(
        self,
        name: str,
        given: Sequence[Any],
        engine: LateEngine,
        work: Callable[[EngineProcess, Sequence[Any]], Awaitable[list[Any]]],
    ) -> list[Any]:
        """What the work gave for all that is given, block by block, from the folder where a block is there."""
        found: list[Any] = []
        for start in range(0, len(given), ROWS_AT_ONCE):
            block = self.folder / f"{self.plan.completions}-{name}-{start}.pickle"
            if not block.exists():
                if time.monotonic() > self.ends_at:
                    raise TimeIsUp
                save(block, await work(await engine.get(), given[start : start + ROWS_AT_ONCE]))
                print(block.stem, flush=True)
            found += pickle.loads(block.read_bytes())
        return found


def choose_claims(
    setups: Sequence[EngineSetup], number: int, writer: EngineSetup, claims: Sequence[ClaimedRow]
) -> list[ClaimedRow]:
    """What one setup checks of another's: each kind checks every row once, split among its setups; slow ones less."""
    reader = setups[number]
    alike = [setup for setup in setups if setup.kind == reader.kind]
    part = claims[alike.index(reader) :: len(alike)]
    return list(part[:: reader.reads_one_in] if reader.reads_one_in > writer.reads_one_in else part)


def save(block: Path, found: list[Any]) -> None:
    """Whole or not at all."""
    partial = block.with_suffix(".partial")
    partial.write_bytes(pickle.dumps(found))
    partial.replace(block)
