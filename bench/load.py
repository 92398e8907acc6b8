"""The capacity of a coordinator: thousands of registered nodes that send at once, and twice the load it can take.

The coordinator is its own process with its own limits. Each node has its own key, connection and loopback address, so
that limits per address apply as on the internet. Only the number of open connections is raised to that of the nodes, as
docs/operating/run-a-coordinator.md says. Client and server share the machine's cores.

    python bench/load.py [--nodes 2000]
"""

import argparse
import asyncio
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmark import BenchmarkParser

from prime_coordinator.config import CoordinatorConfig, LogWriterConfig
from prime_coordinator.entry_writer import EntryWriter
from prime_coordinator.home import database_url, load_key
from prime_coordinator.log.store import open_log_store
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Role
from prime_protocol.ledger.entry_index import compute_entry_keys
from prime_protocol.ledger.replay import replay
from prime_protocol.wire.codec import encode
from prime_protocol.wire.envelope import seal_envelope
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.messages import HEARTBEAT, LEASE, Heartbeat, LeaseRequest, NodeActivity, UploadPurpose
from prime_protocol.wire.rpc import Endpoint
from prime_runtime.clock import SystemClock
from prime_runtime.http.config import ServerLimits
from prime_runtime.keys import SequenceCounter as Numbers
from support.ledger_network import STAKE
from support.processes.coordinator import (
    NETWORK,
    RUN,
    CoordinatorProcess,
    key_of,
    make_folder,
    party,
    publish,
    running,
    terms,
    until_beacon,
)

OVERLOAD_TIMES = 1.5
"""Duration of an overload, as a multiple of the measurement of capacity."""
PATIENCE_S = 120.0
ATTEMPT_S = 20.0


@dataclass(slots=True)
class Tally:
    """What a crowd was answered."""

    waits_s: list[float] = field(default_factory=list)
    """Of the good answers, from the first attempt on."""
    statuses: Counter[int] = field(default_factory=Counter)
    unspecified: int = 0
    """Refusals that do not say when to come back."""

    def quantile_ms(self, share: float) -> float:
        ordered = sorted(self.waits_s)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")

    @property
    def refused(self) -> int:
        return sum(count for status, count in self.statuses.items() if status != 200)

    def __str__(self) -> str:
        refused = ", ".join(f"{count} × {status or 'dropped'}" for status, count in sorted(self.statuses.items()))
        return f"p50 {self.quantile_ms(0.5):,.0f} ms, p99 {self.quantile_ms(0.99):,.0f} ms; answers: {refused}"


class Node:
    """A light client: its own key, address and connection."""

    def __init__(self, number: int) -> None:
        self.key = key_of(f"load-{number}")
        self._address = f"127.{1 + number // 62_500}.{number // 250 % 250}.{1 + number % 250}"
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._sequence = Numbers()

    async def ask(self, url: str, endpoint: Endpoint[Any, Any], message: Any) -> tuple[int, int | None]:
        """Status, 0 where there was none, and when to come back."""
        host, _, port = url.removeprefix("http://").partition(":")
        try:
            async with asyncio.timeout(ATTEMPT_S):
                if self._writer is None:
                    where = {"local_addr": (self._address, 0)}
                    self._reader, self._writer = await asyncio.open_connection(host, int(port), **where)
                self._writer.write(self._request(endpoint, message))
                return await self._read()
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            self.close()
            return 0, None

    def _request(self, endpoint: Endpoint[Any, Any], message: Any) -> bytes:
        now_ms = SystemClock().now_ms()
        run = RUN if endpoint in (HEARTBEAT, LEASE) else None
        frame = seal_envelope(
            self.key,
            kind=endpoint.kind,
            body=encode(message),
            network=NETWORK,
            run=run,
            sequence=self._sequence.next(now_ms),
            issued_at_ms=now_ms,
            life_ms=60_000,
        )
        return f"POST {endpoint.path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(frame)}\r\n\r\n".encode() + frame

    async def _read(self) -> tuple[int, int | None]:
        assert self._reader is not None
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        await self._reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            self.close()
        after = headers.get("retry-after")
        return int(head.split()[1]), int(after) if after else None

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


async def insist(node: Node, url: Callable[[], str], endpoint: Endpoint[Any, Any], message: Any, tally: Tally) -> None:
    """Repeat until there is a good answer, at the time that the server asks for."""
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < PATIENCE_S:
        status, after_s = await node.ask(url(), endpoint, message)
        tally.statuses[status] += 1
        if status == 200:
            tally.waits_s.append(time.perf_counter() - began_s)
            return
        tally.unspecified += status in (429, 503) and after_s is None
        # A little apart, as the programs do.
        await asyncio.sleep((after_s or 1) * (0.5 + int.from_bytes(node.key.node[:2]) / 65_536))


def resident_mb(process: CoordinatorProcess) -> float:
    assert process._process is not None
    pages = int(Path(f"/proc/{process._process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


BEAT = Heartbeat(activity=NodeActivity.IDLE, checkpoint_step=0, head_size=2**40)
WANT = LeaseRequest(checkpoint_step=0, tokens_per_s=100)


class Bench:
    """One coordinator and its crowd."""

    def __init__(self, process: CoordinatorProcess, nodes: list[Node], *, submitters: int, capacity_s: float) -> None:
        self.process = process
        self.nodes = nodes
        self.submitters = submitters
        self.capacity_s = capacity_s
        self.held: dict[str, float] = {}
        self.unspecified = 0
        self.recovered = True
        self._waiting = set[NodeId]()
        """Nodes that wait for an answer."""
        self._uploads = asyncio.Semaphore(ServerLimits.transfers_per_address_max)

    def url(self) -> str:
        return self.process.server.url

    async def all_at_once(self, endpoint: Endpoint[Any, Any], make: Callable[[Node], Any]) -> tuple[float, Tally]:
        """All nodes ask at the same moment and retry; seconds until the last is answered."""
        tally, began_s = Tally(), time.perf_counter()
        await asyncio.gather(*(insist(node, self.url, endpoint, make(node), tally) for node in self.nodes))
        return time.perf_counter() - began_s, tally

    async def weigh(self, empty_mb: float) -> None:
        """After every node has sent one heartbeat."""
        took_s, tally = await self.all_at_once(HEARTBEAT, lambda node: BEAT)
        grown_kb = 1024 * (resident_mb(self.process) - empty_mb) / len(self.nodes)
        show("all beat for the first time, at once", f"{took_s:.1f} s until the last", str(tally))
        show("memory of the coordinator", f"{grown_kb:.1f} kB a node", f"{resident_mb(self.process):.0f} MB in all")

    async def hold(self, what: str, endpoint: Endpoint[Any, Any], message: Any) -> float:
        """What it can take: 64 nodes ask at once, each time one was answered another one's turn comes."""
        tally, stop_s = Tally(), time.perf_counter() + self.capacity_s

        async def turns(nodes: Sequence[Node]) -> None:
            while time.perf_counter() < stop_s:
                for node in nodes:
                    began_s = time.perf_counter()
                    status, _ = await node.ask(self.url(), endpoint, message)
                    tally.statuses[status] += 1
                    tally.waits_s.append(time.perf_counter() - began_s)

        await asyncio.gather(*(turns(self.nodes[number::64]) for number in range(64)))
        held = tally.statuses[200] / self.capacity_s
        show(f"{what} held, 64 at once", f"{held:,.0f}/s", str(tally))
        return held

    async def push(self, what: str, endpoint: Endpoint[Any, Any], message: Any) -> None:
        """What it can take, twice that, and how it is right afterwards."""
        held = await self.hold(what, endpoint, message)
        self.held[what] = held
        await self.overload(what, endpoint, message, 2 * held)
        await self.recover()

    async def storm(self) -> None:
        """kill -9, start, and all nodes return at once."""
        await self.process.kill()
        for node in self.nodes:
            node.close()
        storm = asyncio.create_task(self.all_at_once(HEARTBEAT, lambda node: BEAT))
        began_s = time.perf_counter()
        await self.process.start()
        up_s = time.perf_counter() - began_s
        took_s, tally = await storm
        show(
            "all beat after a kill -9 and a restart",
            f"{took_s:.1f} s until the last, {up_s:.1f} s of them down",
            str(tally),
        )

    async def herd(self) -> None:
        """A new checkpoint: all nodes ask for a lease."""
        async with party(self.process, "trainer") as trainer, party(self.process, "watcher") as watcher:
            await watcher.join(Role.WORKER)
            await publish(trainer, 0)
            await until_beacon(watcher)
        took_s, tally = await self.all_at_once(LEASE, lambda node: WANT)
        show("all ask for a lease on a new checkpoint", f"{took_s:.1f} s until the last", str(tally))

    async def burst(self) -> None:
        """Uploads and submissions, as many at once as there are workers with a lease."""
        tally, began_s = Tally(), time.perf_counter()
        await asyncio.gather(*(self._submit(number, tally) for number in range(self.submitters)))
        took_s = time.perf_counter() - began_s
        show("files uploaded, checked and logged, all at once", f"{self.submitters / took_s:.1f}/s", str(tally))

    async def _submit(self, number: int, tally: Tally) -> None:
        async with party(self.process, f"submitter-{number}") as worker:
            await worker.join(Role.WORKER)
            beacon = await until_beacon(worker)
            lease = await worker.lease()
            root = sha256(b"weights 0").digest()
            data, entry = worker.answer(lease, beacon=beacon, root=type(beacon)(root), wanted=terms(**TERMS))
            # All of them have one address here, and the concurrent uploads of one address are limited.
            await self._uploads.acquire()
            began_s = time.perf_counter()
            await worker.upload(data, UploadPurpose.ROLLOUTS, lease=lease.lease)
            await worker.write(entry)
            self._uploads.release()
            tally.waits_s.append(time.perf_counter() - began_s)
            tally.statuses[200] += 1

    async def overload(self, what: str, endpoint: Endpoint[Any, Any], message: Any, rate: float) -> None:
        """For a while requests come whether or not earlier ones were answered."""
        tally, open_ = Tally(), set[asyncio.Task[None]]()

        async def one(node: Node) -> None:
            began_s = time.perf_counter()
            status, after_s = await node.ask(self.url(), endpoint, message)
            tally.statuses[status] += 1
            tally.unspecified += status in (429, 503) and after_s is None
            if status == 200:
                tally.waits_s.append(time.perf_counter() - began_s)

        overload_s = OVERLOAD_TIMES * self.capacity_s
        began_s, sent, busy = time.perf_counter(), 0, 0
        while (now_s := time.perf_counter() - began_s) < overload_s:
            while sent < rate * now_s:
                node, sent = self.nodes[sent % len(self.nodes)], sent + 1
                # One connection a node: who still waits for an answer sends no second request on it.
                if node.key.node in self._waiting:
                    busy += 1
                    continue
                self._waiting.add(node.key.node)
                task = asyncio.create_task(one(node))
                task.add_done_callback(lambda _, name=node.key.node: self._waiting.discard(name))
                open_.add(task)
                task.add_done_callback(open_.discard)
            await asyncio.sleep(0.001)
        await asyncio.gather(*open_)
        answered = tally.statuses[200] / overload_s
        detail = f"{tally}; {busy} were not sent, as their node still waited; {resident_mb(self.process):.0f} MB"
        show(f"{rate:,.0f} {what}/s offered", f"{answered:,.0f}/s answered well", detail)
        self.unspecified += tally.unspecified

    async def recover(self) -> None:
        tally = Tally()
        for node in self.nodes[:200]:
            began_s = time.perf_counter()
            status, _ = await node.ask(self.url(), HEARTBEAT, BEAT)
            tally.statuses[status] += 1
            tally.waits_s.append(time.perf_counter() - began_s)
        show("heartbeats one by one right after it", f"p99 {tally.quantile_ms(0.99):.1f} ms", str(tally))
        self.recovered = self.recovered and tally.statuses == {200: 200}


async def register(config: CoordinatorConfig, nodes: Sequence[Node]) -> None:
    """Into the log before it starts: an hour's newcomers from one network are bounded, and these all come from one."""
    store = open_log_store(database_url(config))
    try:
        size = await store.size()
        scribe = EntryWriter(load_key(config), replay(NETWORK, await store.read(0, size)))
        now_ms = SystemClock().now_ms()
        for number, node in enumerate(nodes):
            reference = Digest(sha256(f"load {number}".encode()).digest())
            scribe.append_own(e.NodeRegistered(roles=(Role.WORKER,), hardware="a laptop"), None, now_ms, key=node.key)
            scribe.append_own(e.Deposited(account=node.key.node, amount_nano=STAKE, reference=reference), None, now_ms)
            scribe.append_own(e.Staked(node=node.key.node, amount_nano=STAKE), None, now_ms, key=node.key)
        leaves = scribe.drain()
        await store.append(size, leaves, [compute_entry_keys(leaf) for leaf in leaves])
    finally:
        store.close()


TERMS: dict[str, Any] = {"slots_per_step": 4096, "stake_min_nano": STAKE}


def show(what: str, figure: str, detail: str) -> None:
    print(f"| {what} | {figure} | {detail} |", flush=True)


async def run(args: argparse.Namespace) -> int:
    count = args.nodes
    with tempfile.TemporaryDirectory(prefix="prime-load-") as name:
        limits = ServerLimits(connections_max=count + 500)
        config = await make_folder(
            Path(name) / "coordinator", books=LogWriterConfig(), settings={"limits": limits}, **TERMS
        )
        async with running(config) as process:
            empty_mb = resident_mb(process)
        nodes = [Node(number) for number in range(count)]
        await register(config, nodes)
        began_s = time.perf_counter()
        async with running(config) as process:
            bench = Bench(process, nodes, submitters=args.submitters, capacity_s=args.seconds)
            print(f"| {count} nodes | result | detail |\n|---|---|---|")
            show(
                "start with them in the log", f"{time.perf_counter() - began_s:.1f} s", f"{3 * count} entries replayed"
            )
            await bench.weigh(empty_mb)
            for step in (bench.storm, bench.herd, bench.burst):
                await step()
            await bench.push("heartbeats", HEARTBEAT, BEAT)
            await bench.push("requests for a lease", LEASE, WANT)
            memory_mb = resident_mb(process)
            good = bench.recovered and bench.unspecified == 0
            print(
                f"RESULT nodes={count} beats_per_s={bench.held['heartbeats']:.0f}"
                f" unspecified_refusals={bench.unspecified} recovered={int(good)} memory_mb={memory_mb:.0f}"
            )
            for node in bench.nodes:
                node.close()
    return 0 if good else 1


def main() -> int:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--nodes", 2_000, 200)
    parser.add_size("--submitters", 40, 2)
    parser.add_size("--seconds", 4.0, 0.5, "how long the capacity is measured")
    args = parser.parse()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, args.nodes * 2 + 1_000)), hard))
    return asyncio.run(run(args))


if __name__ == "__main__":
    sys.exit(main())
