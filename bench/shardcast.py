"""How long a checkpoint takes from the trainer to the nodes, against the public `shardcast` package in the same run.

    python bench/shardcast.py [--mib 2048] [--folder /dev/shm]

Origin, relay and clients are processes on loopback, with all folders on a tmpfs. Full: a checkpoint that no client has.
Delta: 1 % of the values changed; the public package has no deltas and sends the file. Time is from the command to
publish until the last client has verified the file: ours every tensor, theirs the file. `limit` is one hop with nothing
else: aiohttp's FileResponse, aiohttp's client, SHA-256. CPU is of all processes together. Memory is the largest sum of
anonymous memory, without file pages, which both leave to the page cache. With four clients the size is three quarters:
the public package needs eleven times the size on the tmpfs, which must fit the machine's memory. All of that memory is
used once before: pages that a virtual machine has not been given yet cost three times as much to fill, and the first
contender would pay for them.
"""

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmark import BenchmarkParser, stop_without

BENCH = Path(__file__).parent
PUBLIC = BENCH.parent / ".oracle" / "shardcast" / "bin" / "python"
PARTY = BENCH.parent / "tests" / "support" / "shard_process.py"
TENSOR_MIB = 64
CLIENTS = (1, 4)
PORTS = (18_471, 18_472)
"""The public package takes no port 0."""


@dataclass(frozen=True)
class Cost:
    seconds: float
    cpu_s: float
    memory_mib: float


def use_memory(folder: Path, mib: int) -> None:
    """Fill this much of the tmpfs and free it again; at most what is free, less a GiB."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free_mib = next(int(line.split()[1]) // 1024 for line in lines if line.startswith("MemFree:"))
    zeros = bytes(2**20)
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(min(mib, free_mib - 1024)):
            file.write(zeros)


class Party:
    """A process that speaks JSON lines."""

    def __init__(self, *command: str | Path, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **(env or {})},
        )

    def tell(self, **order: Any) -> None:
        self.write(json.dumps(order))

    def write(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout
        for line in self.process.stdout:
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise SystemExit(f"{self.process.args} ended early")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Meter:
    """CPU and memory of processes and their children while something runs."""

    def __init__(self, parties: list[Party]) -> None:
        self._pids = [party.process.pid for party in parties]
        self._stop = threading.Event()
        self.memory_kib = 0

    def __enter__(self) -> "Meter":
        self._ticks = self._count_ticks()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.perf_counter() - self._began
        cpu_s = (self._count_ticks() - self._ticks) / os.sysconf("SC_CLK_TCK")
        self._stop.set()
        self._thread.join()
        self.cost = Cost(seconds, cpu_s, self.memory_kib / 1024)

    def _count_ticks(self) -> int:
        """Own and of children that have ended: wget, for the public package."""
        return sum(sum(map(int, _stat(pid)[13:17])) for pid in self._pids)

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            self.memory_kib = max(self.memory_kib, sum(_anonymous_kib(pid) for pid in self._family()))

    def _family(self) -> list[int]:
        children = []
        for pid in self._pids:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                children += [int(child) for child in task.read_text().split()]
        return self._pids + children


def _stat(pid: int) -> list[str]:
    text = Path(f"/proc/{pid}/stat").read_text()
    return ["", "", *text.rpartition(")")[2].split()]


def _anonymous_kib(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon")), 0)


def write_checkpoint(folder: Path, mib: int, base: Path | None) -> Path:
    """Random bf16 weights; or those of `base` with 1 % of the values moved to a neighbouring one."""
    dice = np.random.default_rng(1 if base is None else 2)
    lanes, count = TENSOR_MIB * 2**19, mib // TENSOR_MIB
    spans = {f"layers.{i}.weight": [i * lanes * 2, (i + 1) * lanes * 2] for i in range(count)}
    header = {name: {"dtype": "BF16", "shape": [lanes], "data_offsets": span} for name, span in spans.items()}
    head = json.dumps(header).encode()
    folder.mkdir()
    before = np.memmap(base / "model.safetensors", np.uint8, "r")[8 + len(head) :] if base else None
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for index in range(count):
            if before is None:
                weights = dice.standard_normal(lanes, np.float32) * 0.02
                file.write((weights.view(np.uint32) >> 16).astype(np.uint16).tobytes())
            else:
                raw = before[index * lanes * 2 : (index + 1) * lanes * 2].tobytes()
                old = np.frombuffer(raw, np.uint16).copy()
                old[dice.random(lanes, np.float32) < 0.01] += 1
                file.write(old.tobytes())
    return folder


def compare(file: Path, checkpoints: list[Path]) -> None:
    """It is one of these, to the last bit."""
    originals = [checkpoint / "model.safetensors" for checkpoint in checkpoints]
    if all(subprocess.run(["cmp", "-s", file, original]).returncode for original in originals):
        raise SystemExit(f"{file} is not what was published")


def run_ours(folder: Path, first: Path, second: Path, mib: int, clients: int) -> tuple[Cost, Cost, int]:
    """A full broadcast of the first checkpoint, then the delta to the second, which is made in between."""
    names = ["origin", "relay", *(f"client{number}" for number in range(clients))]
    parties = []
    for name in names:
        role = name.rstrip("0123456789")
        parties.append(Party(sys.executable, PARTY, role, folder / name))
        parties[-1].hear()
    try:
        full, _ = broadcast(parties, first, 0)
        delta, size = broadcast(parties, write_checkpoint(second, mib, first), 1)
        for number in range(clients):
            for place in (folder / f"client{number}" / "checkpoints").glob("*[0-9a-f]"):
                compare(place / "model.safetensors", [first, second])
    finally:
        for party in parties:
            party.end()
    return full, delta, size


def broadcast(parties: list[Party], checkpoint: Path, step: int) -> tuple[Cost, int]:
    origin, relay, *clients = parties
    with Meter(parties) as meter:
        origin.tell(publish=str(checkpoint), step=step)
        made = origin.hear()
        order = {"obtain": made["root"], "manifest": made["manifest"]}
        relay.tell(frames=made["frames"], **order)
        frames = made["frames"][:-1] + relay.hear()["frames"]
        for client in clients:
            client.tell(frames=frames, **order)
        for client in clients:
            client.hear()
        for client in clients:
            assert client.hear()["have"] == made["root"]
    assert relay.hear()["have"] == made["root"]
    origin.tell(rest=True)
    for party in parties:
        assert party.hear()["rested"]
    return meter.cost, made["transport_bytes"]


def run_public(folder: Path, checkpoint: Path, clients: int) -> Cost:
    """The same with the public package: origin, relay, clients."""
    script = BENCH / "shardcast_public.py"
    package = subprocess.run(
        [PUBLIC, "-c", "import shardcast; print(shardcast.__path__[0])"], capture_output=True, text=True, check=True
    ).stdout.strip()
    for name in ("origin", "relay"):
        (folder / name).mkdir()
        (folder / name / "data1.bin").write_bytes(os.urandom(2**20))
    parties = [Party(PUBLIC, script, "origin", folder / "origin", str(PORTS[0]), "0")]
    parties[0].hear()
    parties.append(Party(PUBLIC, script, "relay", folder / "relay", str(PORTS[1]), str(PORTS[0])))
    parties[1].hear()
    for number in range(clients):
        home = folder / f"client{number}"
        shutil.copytree(package, home / "package" / "shardcast")
        env = {"PYTHONPATH": str(home / "package")}
        parties.append(Party(PUBLIC, script, "client", home, "0", str(PORTS[1]), env=env))
        parties[-1].hear()
    try:
        with Meter(parties) as meter:
            for client in parties[2:]:
                client.write("go")
            parties[0].write(str(checkpoint / "model.safetensors"))
            parties[0].hear()
            files = [client.hear()["have"] for client in parties[2:]]
        for file in files:
            compare(Path(file), [checkpoint])
    finally:
        for party in parties:
            party.end()
    return meter.cost


LIMIT_SERVER = """
import sys
from aiohttp import web
async def get(request): return web.FileResponse(sys.argv[1])
app = web.Application(); app.router.add_get("/", get)
async def say(app): print('{"ready": true}', flush=True)
app.on_startup.append(say)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[2]), print=None)
"""
LIMIT_CLIENT = """
import asyncio, hashlib, sys, aiohttp
async def main():
    digest = hashlib.sha256()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(None)) as session:
        async with session.get(sys.argv[1]) as response:
            with open(sys.argv[2], "wb") as file:
                async for chunk in response.content.iter_chunked(2**20):
                    digest.update(chunk); file.write(chunk)
    print('{"have": "' + digest.hexdigest() + '"}', flush=True)
    sys.stdin.read()
print('{"ready": true}', flush=True); sys.stdin.readline(); asyncio.run(main())
"""


def run_limit(folder: Path, checkpoint: Path) -> Cost:
    """Plain aiohttp and SHA-256."""
    file = checkpoint / "model.safetensors"
    server = Party(sys.executable, "-c", LIMIT_SERVER, file, str(PORTS[0]))
    server.hear()
    client = Party(sys.executable, "-c", LIMIT_CLIENT, f"http://127.0.0.1:{PORTS[0]}/", folder / "limit.bin")
    client.hear()
    try:
        with Meter([server, client]) as meter:
            client.write("go")
            have = client.hear()["have"]
        assert have == hashlib.file_digest(file.open("rb"), "sha256").hexdigest()
    finally:
        client.end()
        server.end()
    return meter.cost


def run_hop(folder: Path, checkpoint: Path) -> Cost:
    """Ours, one hop: what was published before goes from origin to client, and is verified."""
    parties = [Party(sys.executable, PARTY, role, folder / role) for role in ("origin", "client")]
    for party in parties:
        party.hear()
    try:
        parties[0].tell(publish=str(checkpoint), step=0)
        made = parties[0].hear()
        with Meter(parties) as meter:
            parties[1].tell(frames=made["frames"], obtain=made["root"], manifest=made["manifest"])
            parties[1].hear()
            assert parties[1].hear()["have"] == made["root"]
    finally:
        for party in parties:
            party.end()
    return meter.cost


def row(name: str, cost: Cost, ratio: str) -> None:
    print(f"{name:34} {cost.seconds:9.2f} {cost.cpu_s:9.2f} {cost.memory_mib:11.0f} {ratio:>10}")


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--mib", 2048, 128, "size of the checkpoint")
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"), help="a tmpfs with ten times that much room")
    args = parser.parse()
    if not PUBLIC.exists():
        stop_without("the public package is missing: run `make oracle`", smoke=args.smoke)
    ours: dict[int, tuple[Cost, Cost]] = {}
    public: dict[int, Cost] = {}
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="shardcast-bench-") as name:
        home = Path(name)
        use_memory(home, 10 * args.mib)
        print(f"loopback, {args.folder}; {os.cpu_count()} cores")
        print(f"{'':34} {'seconds':>9} {'CPU s':>9} {'memory MiB':>11} {'ratio':>10}")
        for clients in reversed(CLIENTS):
            mib = args.mib if clients == 1 else args.mib * 3 // 4
            for step in range(2):
                shutil.rmtree(home / f"step{step}", ignore_errors=True)
            first = write_checkpoint(home / "step0", mib, None)
            print(f"{mib} MiB")
            with tempfile.TemporaryDirectory(dir=home) as place:
                public[clients] = run_public(Path(place), first, clients)
            row(f"public shardcast, {clients} client(s)", public[clients], "1")
            with tempfile.TemporaryDirectory(dir=home) as place:
                full, delta, size = run_ours(Path(place), first, home / "step1", mib, clients)
            ours[clients] = (full, delta)
            row(f"ours, full, {clients} client(s)", full, f"{public[clients].seconds / full.seconds:.1f}x")
            share = f"delta {size / 2**20:.1f} MiB"
            row(f"ours, {share}, {clients} client(s)", delta, f"{public[clients].seconds / delta.seconds:.1f}x")
        with tempfile.TemporaryDirectory(dir=home) as place:
            limit = run_limit(Path(place), first)
        row("limit: aiohttp + SHA-256, one hop", limit, "1")
        with tempfile.TemporaryDirectory(dir=home) as place:
            hop = run_hop(Path(place), first)
        row("ours, one hop", hop, f"{hop.seconds / limit.seconds:.2f}")
    print(
        f"RESULT full_1_ratio={public[1].seconds / ours[1][0].seconds:.2f}"
        f" full_4_ratio={public[4].seconds / ours[4][0].seconds:.2f}"
        f" delta_ratio={public[1].seconds / ours[1][1].seconds:.1f}"
        f" hop_vs_limit={hop.seconds / limit.seconds:.2f}"
    )


if __name__ == "__main__":
    main()
