"""Parts for tests of a whole swarm of real processes on loopback: coordinator, publishing trainer, origin, relays.

Everything is the command that a user types. Tests wait on what `prime-node status --json` says, and end only what they
started.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from prime_coordinator.config import LogWriterConfig
from prime_node.cli.context import call_node
from prime_protocol.wire.keystore import encrypt_key
from prime_runtime.gossip.config import P2PConfig
from prime_runtime.http.control_api import ProgramNotRunning
from support.processes.coordinator import NETWORK, RUN, CoordinatorProcess, key_of, make_folder, running
from support.processes.coordinator_main import PASSWORD

WAIT_S = 90.0
"""How long a condition may take on a busy machine. On an idle one each takes a few seconds."""
HERE = "/ip4/127.0.0.1/tcp/0"
ANY_URL = "http://127.0.0.1:0"
SHARD_BYTES = 16_384


def write_key(path: Path, name: str) -> Path:
    """The keystore of a party, cheap to open."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(encrypt_key(key_of(name), PASSWORD, salt=bytes(32), iv=bytes(16), file_id="test", scrypt_n=2))
    path.chmod(0o600)
    return path


def make_checkpoint(folder: Path, *, seed: int, values: int = 100_000, changed: float = 0.0) -> Path:
    """Two safetensors files of bf16-sized noise; `changed` is the share of values that `seed` alters."""
    folder.mkdir(parents=True)
    base = np.random.default_rng(7)
    dice = np.random.default_rng(seed)
    for number in range(2):
        data = base.integers(0, 2**16, values, dtype=np.uint16)
        hits = dice.random(values) < changed
        data[hits] = dice.integers(0, 2**16, int(hits.sum()), dtype=np.uint16)
        name = f"layer.{number}.weight"
        header = json.dumps({name: {"dtype": "BF16", "shape": [values], "data_offsets": [0, 2 * values]}}).encode()
        header += b" " * (-len(header) % 8)
        raw = len(header).to_bytes(8, "little") + header + data.tobytes()
        (folder / f"model-{number}.safetensors").write_bytes(raw)
    return folder


def digests_of(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.safetensors"))}


@dataclass
class Command:
    """A command of ours as a process: it starts, says things, is stopped or killed, and starts again."""

    words: Sequence[str]
    lines: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    _process: asyncio.subprocess.Process | None = None
    _reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        program, *words = self.words
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"{program.replace('-', '_')}.cli",
            *words,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={
                **os.environ,
                "PYTHONFAULTHANDLER": "1",
                "PRIME_LOG_FORMAT": "json",
                "PRIME_PASSWORD": PASSWORD,
                **self.variables,
            },
        )
        assert self._process.stdout is not None
        self._reading = asyncio.create_task(self._read(self._process.stdout))

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for raw in stream:
            self.lines.append(raw.decode().rstrip())

    async def finish(self) -> int:
        """Wait for its own end."""
        assert self._process is not None
        assert self._reading is not None
        async with asyncio.timeout(WAIT_S):
            code = await self._process.wait()
            await self._reading
        return code

    async def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return await self.finish()

    async def kill(self) -> None:
        """As the power would."""
        if self.is_running:
            self.signal(signal.SIGKILL)
        await self.finish()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def tail(self) -> str:
        return "\n".join(self.lines[-30:])


async def run_command(*words: str, **variables: str) -> tuple[int, str]:
    """A short command: its exit code and all it said."""
    command = Command(words, variables=variables)
    await command.start()
    return await command.finish(), "\n".join(command.lines)


async def until(holds: Callable[[], bool], what: str, explain: Callable[[], str] = lambda: "") -> float:
    """Seconds that it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < WAIT_S, f"{what}: not within {WAIT_S} s\n{explain()}"
        await asyncio.sleep(0.05)
    return time.monotonic() - began


class Relay:
    """One `prime-node start --role relay` in a folder of its own."""

    def __init__(self, swarm: "Swarm", name: str, *flags: str) -> None:
        self.folder = swarm.folder / name
        self.node = key_of(name).node
        write_key(self.folder / "key.json", name)
        self.command = Command(
            (
                "prime-node",
                "start",
                *("--role", "relay", "--folder", str(self.folder), "--weights-allow-private"),
                *("--coordinator", swarm.coordinator.server.url, "--coordinator-id", str(swarm.coordinator.node)),
                *("--run", RUN, "--network", NETWORK, "--announce", ANY_URL),
                *flags,
            )
        )
        self.last: dict[str, Any] = {}

    async def status(self) -> dict[str, Any]:
        """What `prime-node status --json` prints, without the second that a process costs; empty if it is silent."""
        try:
            self.last = await call_node(self.folder, "GET", "/status")
        except ProgramNotRunning:
            self.last = {}
        return self.last

    async def until(self, holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Ask until the status says so."""
        began = time.monotonic()
        while True:
            assert self.command.is_running, f"the relay ended while we waited for: {what}\n{self.command.tail}"
            status = await self.status()
            if status.get("state") == "running" and holds(status):
                return status
            waited = time.monotonic() - began
            if waited > WAIT_S:
                self.command.signal(signal.SIGABRT)  # says where it stands
                await self.command.finish()
                raise AssertionError(f"{what}: not within {WAIT_S} s\n{json.dumps(status)}\n{self.command.tail}")
            await asyncio.sleep(0.05)

    async def until_held(self, root: str, kind: str | None = None) -> dict[str, Any]:
        def holds(status: dict[str, Any]) -> bool:
            rows = status["weights"]["held"]
            return any(row["is_complete"] and row["root"] == root and kind in (None, row["kind"]) for row in rows)

        return await self.until(holds, f"{kind or 'weights'} of {root}")

    def transported(self, manifest: str) -> Path:
        """Where the files of a manifest lie."""
        return self.folder / "weights" / "transport" / manifest.removeprefix("0x")

    def built(self, root: str) -> Path:
        """Where the checkpoint lies, once it is built."""
        return self.folder / "weights" / "checkpoints" / root.removeprefix("0x")

    async def until_built(self, root: str, checkpoint: Path) -> dict[str, Any]:
        """It has the checkpoint under its name, and every file is what the trainer has."""
        await self.until(lambda status: self.built(root).exists(), f"a checkpoint of {root}")
        assert digests_of(self.built(root)) == digests_of(checkpoint)
        return await self.status()


@dataclass
class Published:
    """What `prime-trainer publish` said."""

    root: str
    manifests: dict[str, str]
    """Digest by kind."""
    text: str


class Swarm:
    """A coordinator, a trainer's store, and what a test starts beside them."""

    def __init__(self, folder: Path, coordinator: CoordinatorProcess, stack: AsyncExitStack) -> None:
        self.folder = folder
        self.coordinator = coordinator
        self.store = folder / "store"
        self.key = write_key(folder / "trainer" / "key.json", "trainer")
        self._stack = stack

    @property
    def trainer_flags(self) -> tuple[str, ...]:
        return (
            *("--store", str(self.store), "--run", RUN, "--network", NETWORK, "--key", str(self.key)),
            *("--coordinator", self.coordinator.server.url, "--coordinator-id", str(self.coordinator.node)),
        )

    async def publish(self, checkpoint: Path, step: int, *flags: str) -> Published:
        code, text = await run_command(
            *("prime-trainer", "publish", str(checkpoint), "--step", str(step)),
            *("--shard-bytes", str(SHARD_BYTES), *self.trainer_flags, *flags),
        )
        assert code == 0, text
        lines = [line.split() for line in text.splitlines()]
        manifests = {words[0]: words[1] for words in lines if words[0] in ("keyframe", "delta")}
        (root,) = [words[1] for words in lines if words[0] == "root"]
        return Published(root, manifests, text)

    async def origin(self, *flags: str) -> Command:
        """Until it serves."""
        command = await self._start(Command(("prime-trainer", "origin", *self.trainer_flags, *flags)))
        await until(lambda: any("the origin of" in line for line in command.lines), "the origin", lambda: command.tail)
        return command

    async def relay(self, name: str, *flags: str, **variables: str) -> Relay:
        """Started, not yet joined."""
        relay = Relay(self, name, *flags)
        relay.command.variables.update(variables)
        await self._start(relay.command)
        return relay

    async def _start(self, command: Command) -> Command:
        await command.start()
        self._stack.push_async_callback(command.kill)
        return command


@asynccontextmanager
async def running_swarm(folder: Path, *, p2p: bool = False, **settings: Any) -> AsyncIterator[Swarm]:
    """A coordinator with one run, and a store that nothing was published to yet."""
    if p2p:
        settings["p2p"] = P2PConfig(listen=HERE)
    config = await make_folder(folder / "coordinator", books=LogWriterConfig(head_ms=100), settings=settings)
    async with running(config) as coordinator, AsyncExitStack() as stack:
        yield Swarm(folder, coordinator, stack)
