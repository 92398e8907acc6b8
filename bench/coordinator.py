"""What a coordinator costs: signed heartbeats against a bare aiohttp handler, few nodes against many, submissions.

The server is its own process on one core, the clients are on another, over loopback. The cost of a request is the
server's CPU time for it. Ratios are medians over short alternating rounds, so that a busy machine affects both sides
alike. Nodes that send no heartbeats are put into the state directly: only their number matters.

    python bench/coordinator.py [--requests 150]
"""

import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from benchmark import ROOT, BenchmarkParser, print_result
from coordinator_server import SENDERS

from prime_protocol.wire.codec import encode
from prime_protocol.wire.envelope import seal_envelope
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.messages import HEARTBEAT, Heartbeat, NodeActivity, UploadPurpose
from prime_runtime.clock import SystemClock
from prime_runtime.http.config import ServerAddress
from support.processes.coordinator import NETWORK, RUN, Party, key_of, party, publish, terms, until_beacon

FEW = 100
CONNECTIONS = 16
SUBMITTERS = 8


@dataclass
class Bench:
    """A running server."""

    process: subprocess.Popen[str]
    server: ServerAddress

    def cpu_s(self) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


@contextmanager
def serving(kind: str, nodes: int, core: int) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="prime-bench-") as name:
        script = [sys.executable, str(ROOT / "bench/coordinator_server.py"), kind, str(nodes), f"{name}/home"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen([*script, str(core)], **pipes)
        try:
            assert process.stdout is not None
            url, node = process.stdout.readline().split()
            yield Bench(process, ServerAddress(url, NodeId.parse(node)))
        finally:
            process.communicate()


def make_beats(count: int, senders: int, sequence: int) -> list[bytes]:
    """Whole HTTP requests, made before the clock starts: the clients must not be what is measured."""
    body = encode(Heartbeat(activity=NodeActivity.IDLE, checkpoint_step=0, head_size=2**40))
    keys = [key_of(f"bench-{number}") for number in range(min(senders, SENDERS))]
    now_ms, requests = SystemClock().now_ms(), []
    for number in range(count):
        frame = seal_envelope(
            keys[number % len(keys)],
            kind=HEARTBEAT.kind,
            body=body,
            network=NETWORK,
            run=RUN,
            sequence=sequence + number,
            issued_at_ms=now_ms,
            life_ms=250_000,
        )
        head = f"POST {HEARTBEAT.path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(frame)}\r\n\r\n"
        requests.append(head.encode() + frame)
    return requests


async def send(server: ServerAddress, requests: list[bytes]) -> list[float]:
    """One connection, one request after the other; the latency of each in seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
    latencies = []
    for request in requests:
        started = time.perf_counter()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        latencies.append(time.perf_counter() - started)
    writer.close()
    return latencies


@dataclass(frozen=True)
class Cost:
    """Of one request."""

    cpu_us: float
    wall_us: float
    p99_ms: float


async def beat(bench: Bench, requests: list[bytes]) -> Cost:
    started, cpu_s = time.perf_counter(), bench.cpu_s()
    parts = [requests[number::CONNECTIONS] for number in range(CONNECTIONS)]
    latencies = [each for part in await asyncio.gather(*(send(bench.server, part) for part in parts)) for each in part]
    wall_s, cpu_s = time.perf_counter() - started, bench.cpu_s() - cpu_s
    scale = 1e6 / len(requests)
    return Cost(cpu_s * scale, wall_s * scale, sorted(latencies)[int(0.99 * len(latencies))] * 1e3)


def measure_beats(benches: dict[str, tuple[Bench, int]], count: int, rounds: int) -> dict[str, list[Cost]]:
    """Short rounds in turn, so that the three of one round meet the same noise."""
    seen: dict[str, list[Cost]] = {name: [] for name in benches}
    sequence = 1
    for number in range(rounds + 2):
        for name, (bench, senders) in benches.items():
            requests = make_beats(count, senders, sequence)
            sequence += count
            cost = asyncio.run(beat(bench, requests))
            if number >= 2:  # the first rounds warm up
                seen[name].append(cost)
    return seen


def median_ratio(above: list[Cost], below: list[Cost]) -> float:
    """Of CPU times, round by round."""
    return statistics.median(a.cpu_us / b.cpu_us for a, b in zip(above, below, strict=True))


# --- Submissions ----------------------------------------------------------------------------------------------------


async def measure_submissions(bench: Bench, count: int) -> tuple[float, float]:
    """Submissions a second from upload to acknowledged entry, and the server's CPU milliseconds for each."""
    process: Any = SimpleNamespace(server=bench.server, node=bench.server.node)
    async with AsyncExitStack() as stack:
        trainer = await stack.enter_async_context(party(process, "trainer"))
        published = await publish(trainer, 0)
        workers = [await stack.enter_async_context(party(process, f"bench-{number}")) for number in range(count)]
        beacon = await until_beacon(workers[0])
        wanted = terms(stake_min_nano=0, slash_nano=0, slots_per_step=4096)
        answers = []
        for worker in workers:
            lease = await worker.lease()
            data, entry = worker.answer(lease, beacon=beacon, root=published.root, wanted=wanted)
            answers.append((worker, lease.lease, data, entry))
        await submit(*answers.pop())  # starts the checking process
        started, cpu_s = time.perf_counter(), bench.cpu_s()
        total = len(answers)

        async def work() -> None:
            while answers:
                await submit(*answers.pop())

        await asyncio.gather(*(work() for _ in range(SUBMITTERS)))
        return total / (time.perf_counter() - started), (bench.cpu_s() - cpu_s) * 1e3 / total


async def submit(worker: Party, lease: int, data: bytes, entry: Any) -> None:
    await worker.upload(data, UploadPurpose.ROLLOUTS, lease=lease)
    await worker.write(entry)


def main() -> int:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--requests", 150, 16, "heartbeats of one round")
    parser.add_size("--rounds", 40, 1)
    parser.add_size("--many", 100_000, 1_000, "nodes of the large network")
    parser.add_size("--workers", 200, 4, "workers that submit a file")
    args = parser.parse()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    random.seed(1)
    core = cores[0]
    with serving("bare", 0, core) as bare, serving("real", FEW, core) as few, serving("real", args.many, core) as many:
        costs = measure_beats(
            {"bare": (bare, FEW), "few": (few, FEW), "many": (many, args.many)}, args.requests, args.rounds
        )
    rows = {"bare": "bare handler", "few": f"heartbeat, {FEW:,} nodes", "many": f"heartbeat, {args.many:,} nodes"}
    print(f"{'':<28}{'CPU us':>10}{'per s and core':>16}{'wall us':>10}{'p99 ms':>9}")
    for name, found in costs.items():
        cpu_us = statistics.median(cost.cpu_us for cost in found)
        wall_us = statistics.median(cost.wall_us for cost in found)
        p99_ms = statistics.median(cost.p99_ms for cost in found)
        print(f"{rows[name]:<28}{cpu_us:>10.0f}{1e6 / cpu_us:>16,.0f}{wall_us:>10.0f}{p99_ms:>9.1f}")
    with serving("real", SENDERS, core) as bench:
        per_second, cpu_ms = asyncio.run(measure_submissions(bench, args.workers))
    print(f"submissions logged: {per_second:.0f} a second, {cpu_ms:.1f} ms of the server's CPU each")
    ratio, growth = median_ratio(costs["bare"], costs["few"]), median_ratio(costs["many"], costs["few"])
    print_result(heartbeat_ratio=f"{ratio:.3f}", growth=f"{growth:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
