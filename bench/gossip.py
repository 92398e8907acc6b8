"""What gossip over libp2p costs a node, and how that grows with the network.

Real nodes in several processes first: each dials as many peers as by default, and what they send has the sizes of a
real run. The CPU and the bytes of a node are measured without messages, and with a known rate of them; the difference
is the cost of a message. Then the simulator, with the real sampler and budgets, says how many messages a node of a
network of 10,000 and of 100,000 receives in a second. `join_s` is the time from the start of a process that knows
nothing but the coordinator's URL until it has received gossip over libp2p.

python bench/gossip.py            60 nodes, two minutes of measuring: about five minutes
python bench/gossip.py --smoke    6 nodes for some seconds
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmark import ROOT, BenchmarkParser, print_result

from prime_lab.simulator.gossip_load import GossipLoadPlan, simulate_gossip_load

START_S = 180
SIMULATED_S = 660
WORKER = ROOT / "tests" / "support" / "processes" / "gossip_load_main.py"
ANNOUNCED_EVERY = 5
"""Of these messages one is an announcement, as WORKER sends them."""
SHOWN_SIZES = (100, 1_000)


# --- Processes of nodes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Totals:
    """All nodes together, at one moment."""

    at_s: float
    cpu_s: float
    bytes: int
    messages: int
    connected: list[int]

    def since(self, before: "Totals", nodes: int) -> tuple[float, float, float]:
        """Core share, bytes a second and messages a second of one node."""
        seconds = (self.at_s - before.at_s) * nodes
        messages = (self.messages - before.messages) / seconds
        return (self.cpu_s - before.cpu_s) / seconds, (self.bytes - before.bytes) / seconds, messages


class Workers:
    """The processes."""

    def __init__(self, processes: list[asyncio.subprocess.Process]) -> None:
        self._processes = processes

    async def ask(self, which: int, number: int = 0) -> dict[str, Any]:
        process = self._processes[which % len(self._processes)]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{number}\n".encode())
        async with asyncio.timeout(START_S):
            answer: dict[str, Any] = json.loads(await process.stdout.readline())
        assert not answer["restarts"], "libp2p crashed"
        return answer

    async def count(self) -> Totals:
        answers = [await self.ask(which) for which in range(len(self._processes))]
        return Totals(
            at_s=time.monotonic(),
            cpu_s=sum(answer["cpu_s"] for answer in answers),
            bytes=sum(answer["bytes"] for answer in answers),
            messages=sum(answer["messages"] for answer in answers),
            connected=[each for answer in answers for each in answer["connected"]],
        )


async def start_worker(stack: AsyncExitStack, first: int, count: int, bootstrap: str) -> tuple[Any, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(WORKER), str(first), str(count), bootstrap),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tests")},
    )

    async def end() -> None:
        if process.returncode is None:
            process.kill()
        await process.wait()

    stack.push_async_callback(end)
    assert process.stdout is not None
    async with asyncio.timeout(START_S):
        addresses = json.loads(await process.stdout.readline())
    return process, addresses[0]


# --- Measured ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one node."""

    idle_share: float
    """Of a core, with its connections and without messages."""
    idle_bytes_per_s: float
    message_ms: float
    """CPU of a message: to receive all its copies, validate it and pass it on."""
    message_bytes: float
    """Bytes in and out, copies and control messages included."""
    connections: float


async def measure(nodes: int, processes: int, seconds: int, per_s: float) -> Cost:
    async with AsyncExitStack() as stack:
        started: list[Any] = []
        bootstrap: list[str] = []
        share = nodes // processes
        for number in range(processes):
            count = share + (nodes % processes if number == 0 else 0)
            process, address = await start_worker(stack, 1 + 1_000 * number, count, " ".join(bootstrap))
            started.append(process)
            bootstrap.append(address)
        workers = Workers(started)
        before = await workers.count()
        wanted, began_s = min(8, nodes - 1), time.monotonic()
        while min(before.connected) < wanted:
            assert time.monotonic() - began_s < START_S, f"connections: {before.connected}"
            await asyncio.sleep(1)
            before = await workers.count()
        await asyncio.sleep(min(20, seconds))  # until those that have met have pinged and asked each other
        before = await workers.count()
        await asyncio.sleep(seconds)
        after = await workers.count()
        idle_share, idle_bytes, _ = after.since(before, nodes)
        print(f"{nodes} nodes, {sum(after.connected) / nodes:.1f} connections each, no messages:")
        print(f"  {idle_share:.4f} of a core, {idle_bytes / 1000:.2f} kB/s")
        before = await workers.count()
        for number in range(1, round(seconds * per_s) + 1):
            due_s = before.at_s + number / per_s
            await asyncio.sleep(max(0, due_s - time.monotonic()))
            # Only the first key may announce; it is in the first process.
            await workers.ask(0 if number % ANNOUNCED_EVERY == 0 else number, number)
        await asyncio.sleep(4)  # they are told to others for three heartbeats
        after = await workers.count()
        busy_share, busy_bytes, heard = after.since(before, nodes)
        print(f"  with {heard:.2f} messages/s: {busy_share:.4f} of a core, {busy_bytes / 1000:.2f} kB/s")
        return Cost(
            idle_share=idle_share,
            idle_bytes_per_s=idle_bytes,
            message_ms=1000 * (busy_share - idle_share) / heard,
            message_bytes=(busy_bytes - idle_bytes) / heard,
            connections=sum(after.connected) / nodes,
        )


async def measure_join(times: int) -> tuple[float, float]:
    """Seconds, and seconds of CPU, from the start of `prime-node start --coordinator URL` to its first messages over
    libp2p."""
    from prime_node.cli.context import call_node
    from prime_runtime.http.control_api import ProgramNotRunning
    from support.processes.swarm import HERE, Command, running_swarm

    async def join(folder: Path, url: str) -> tuple[float, float]:
        flags = ("--role", "relay", "--folder", str(folder), "--coordinator", url, "--p2p-listen", HERE)
        command = Command(("prime-node", "start", *flags, "--page-enabled"), variables={"PRIME_PASSWORD": ""})
        began_s = time.monotonic()
        await command.start()
        try:
            while True:
                assert time.monotonic() - began_s < START_S, command.tail
                try:
                    state = await call_node(folder, "GET", "/status")
                except ProgramNotRunning:
                    state = {}
                p2p = state.get("p2p", {"messages_in": 0, "messages_ignored": 0})
                if p2p["messages_in"] + p2p["messages_ignored"]:  # the head may have come over HTTP before
                    return time.monotonic() - began_s, read_cpu_s(command.pid)
                await asyncio.sleep(0.02)
        finally:
            await command.kill()

    with tempfile.TemporaryDirectory() as folder:
        async with running_swarm(Path(folder), p2p=True) as swarm:
            url = swarm.coordinator.server.url
            joins = [await join(Path(folder) / f"node-{number}", url) for number in range(times)]
            return median(each[0] for each in joins), median(each[1] for each in joins)


def read_cpu_s(pid: int) -> float:
    """CPU that a process has used: on a busy machine its time says little."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- Simulated --------------------------------------------------------------------------------------------------------


def extrapolate(cost: Cost, nodes: int) -> tuple[float, float]:
    """Core share and kB/s of one node in a network of that size."""
    load = simulate_gossip_load(GossipLoadPlan(nodes=nodes, seconds=SIMULATED_S))
    per_s = sum(load.per_s.values())
    core = cost.idle_share + per_s * cost.message_ms / 1000
    kb_s = (cost.idle_bytes_per_s + per_s * cost.message_bytes) / 1000
    print(f"{nodes} nodes: {per_s:.2f} messages/s each, {core:.4f} of a core, {kb_s:.1f} kB/s; {load.refused} refused")
    return core, kb_s


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--nodes", 60, 6, "real nodes")
    parser.add_size("--processes", 6, 2, "processes that hold them")
    parser.add_size("--seconds", 60, 4, "of each of two measurements")
    parser.add_size("--rate", 2.0, 2.0, "messages a second in the second one")
    parser.add_size("--joins", 3, 1, "processes that join, of which the median counts")
    parser.add_size("--large", 100_000, 2_000, "nodes of the largest simulated network")
    args = parser.parse()
    cost = asyncio.run(measure(args.nodes, args.processes, args.seconds, args.rate))
    print(f"a message costs a node {cost.message_ms:.2f} ms and {cost.message_bytes / 1000:.1f} kB")
    join_s, join_cpu_s = asyncio.run(measure_join(args.joins))
    for nodes in SHOWN_SIZES:
        extrapolate(cost, nodes)
    core_10k, kb_s_10k = extrapolate(cost, args.large // 10)
    core_100k, _ = extrapolate(cost, args.large)
    print_result(
        core_share_10k=f"{core_10k:.4f}",
        kb_s_10k=f"{kb_s_10k:.1f}",
        core_share_100k=f"{core_100k:.4f}",
        join_s=f"{join_s:.1f}",
        join_cpu_s=f"{join_cpu_s:.1f}",
        nodes=args.nodes,
        connections=f"{cost.connections:.1f}",
        message_ms=f"{cost.message_ms:.2f}",
        message_kb=f"{cost.message_bytes / 1000:.2f}",
        idle_share=f"{cost.idle_share:.4f}",
    )


if __name__ == "__main__":
    main()
