"""Parts for tests of nodes at work: a coordinator with a run for a tiny model, published weights, workers, validators.

Every party is the command that a user types. The engine is torch, or where a test is about something else the small
one of fake_engine.py, which starts in a fraction of the time.
"""

import asyncio
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from prime_coordinator.config import LogWriterConfig
from prime_coordinator.intervals import IntervalsConfig
from prime_node.storage.journal import JobRecord, Journal
from prime_protocol.proofs.tolerance import Precision, Tolerance
from prime_runtime.http.coordinator_api import JsonClient, open_json_client
from prime_trainer.model.tiny import make_tiny_checkpoint
from support.processes.coordinator import make_folder, read_entries, running
from support.processes.swarm import Command, Relay, Swarm, run_command

TESTS = Path(__file__).parents[2]
VOCABULARY = 64
TOLERANCE = Tolerance(
    precision=Precision.FLOAT32,
    margin_max=0.05,
    margin_mean_max=0.01,
    logprob_error_max=0.05,
    logprob_error_mean_max=0.01,
)
TERMS: dict[str, Any] = {
    "task_set": "sort-digits",
    "slots_per_step": 4,
    "samples_per_slot": 2,
    "vocabulary": VOCABULARY,
    "prompt_tokens_max": 16,
    "output_tokens_max": 48,
    "tolerance": TOLERANCE,
}
INTERVALS = IntervalsConfig(heartbeat_ms=300, head_ms=100, tick_ms=50)


def alter_checkpoint(source: Path, target: Path, *, share: float) -> Path:
    """A copy in which some of the weights are a little different, as after a step of training."""
    shutil.copytree(source, target)
    path = target / "model.safetensors"
    raw = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(raw[:8], "little")
    values = np.frombuffer(raw, np.uint16, offset=start)
    values ^= (np.random.default_rng(1).random(len(values)) < share).astype(np.uint16)
    path.write_bytes(raw)
    return target


def write_interpreter(path: Path) -> Path:
    """A stand-in for the interpreter that runs the engine's module: it runs the small engine instead."""
    path.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {TESTS / "support/fake_engine.py"} "$@"\n')
    path.chmod(0o700)
    return path


class Node(Relay):
    """One `prime-node start` in a folder of its own, as worker or validator."""

    def __init__(self, swarm: Swarm, name: str, role: str, *flags: str) -> None:
        super().__init__(swarm, name, *flags)
        words = list(self.command.words)
        words[words.index("--role") + 1] = role
        self.command.words = tuple(words)

    def pieces(self) -> list[JobRecord]:
        """The journal, as another process reads it; the newest first."""
        path = self.folder / "journal.db"
        if not path.exists():
            return []
        journal = Journal(path)
        try:
            return journal.list_newest()
        finally:
            journal.close()

    @property
    def engine_pids(self) -> list[int]:
        """Of every engine it has started, as its log tells."""
        mark = "engine started, process "
        return [int(line.partition(mark)[2].split('"')[0]) for line in self.command.lines if mark in line]


class Network(Swarm):
    """A swarm whose nodes work."""

    def __init__(self, folder: Path, *others: Any) -> None:
        super().__init__(folder, *others)
        self.double = write_interpreter(folder / "interpreter")
        self.checkpoint = folder / "step-0"
        self.server: Command | None = None
        """The origin."""

    async def node(self, name: str, role: str, *flags: str, engine: str = "double") -> Node:
        """Started, not yet joined."""
        chosen = ("--engine-python", str(self.double)) if engine == "double" else ("--engine-engine", engine)
        node = Node(self, name, role, *chosen, *flags)
        await self._start(node.command)
        return node

    async def audit(self, *words: str) -> tuple[int, str]:
        """`prime-node audit` with the small engine, from a folder where no node ever was."""
        folder = ("--folder", str(self.folder / "nobody"))
        return await run_command("prime-node", "audit", *words, *folder, PRIME_ENGINE_PYTHON=str(self.double))

    @asynccontextmanager
    async def api(self) -> AsyncIterator[JsonClient]:
        async with open_json_client(self.coordinator.server.url) as client:
            yield client

    async def entries(self, kind: str) -> list[dict[str, Any]]:
        """Bodies of the log's entries of a kind, oldest first."""
        return await asyncio.to_thread(read_entries, self.coordinator.config, kind)


@asynccontextmanager
async def running_network(
    folder: Path,
    *,
    behaviour: str = "",
    model: dict[str, Any] | None = None,
    coordinator: dict[str, Any] | None = None,
    program: str = "coordinator_main.py",
    **terms: Any,
) -> AsyncIterator[Network]:
    """A coordinator with one run, and an origin that serves its first checkpoint. `behaviour` is the small engine's."""
    books, settings = LogWriterConfig(head_ms=100), {"intervals": INTERVALS, **(coordinator or {})}
    config = await make_folder(folder / "coordinator", books=books, settings=settings, **{**TERMS, **terms})
    async with running(config, program) as host, AsyncExitStack() as stack:
        network = Network(folder, host, stack)
        make_tiny_checkpoint(network.checkpoint, vocabulary=VOCABULARY, **(model or {}))
        if behaviour:
            (network.checkpoint / "behaviour").write_text(behaviour)
        await network.publish(network.checkpoint, 0)
        network.server = await network.origin()
        yield network
