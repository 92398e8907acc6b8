"""How cost grows with the log: restart after a kill, a node's heartbeat, `log verify`, and what a submission writes.

    python bench/growth.py [--entries 10000,100000,1000000] [--large] [--workers 1000] [--nodes 10000]

The real core runs in virtual time and writes signed entries to SQLite and a mirror, with snapshots, as the coordinator
does. One submission in twenty is audited by three validators, more of a worker's first ones. What an unaudited
submission writes is its own entries, its part of the entry that it shares, and its share of everything but the audits:
heads, rounds, checkpoints, payouts, snapshots. Each larger size is measured half a snapshot interval
after its round number, so that a restart has entries to replay. A restart opens the coordinator in a new process, on
the files of one that did not stop; it is measured in CPU seconds, imports included. `--large` adds 10^7 entries.
With `--folder` the log stays there, and a later run continues it: it measures the sizes that are not measured yet.
"""

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmark import BenchmarkParser, print_result

from prime_coordinator.app import CoordinatorServer
from prime_coordinator.config import CoordinatorConfig, LogWriterConfig
from prime_coordinator.home import CoordinatorHome, database_url
from prime_coordinator.log.replay import recover_ledger
from prime_coordinator.log.snapshots import SnapshotWriter
from prime_coordinator.log.store import LogStore, open_log_store
from prime_coordinator.log.tree import ENTRIES_PER_READ, LogTree
from prime_coordinator.log.verify import VerifyOptions, verify_log
from prime_coordinator.log.writer import LogWriter
from prime_protocol.constants import PROTOCOL_VERSION
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.ledger.entry_index import decode_leaf
from prime_protocol.ledger.state import LogPosition
from prime_protocol.ledger.terms import VESTING_MS
from prime_protocol.wire.codec import decode
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.messages import Heartbeat, NodeActivity
from prime_runtime.clock import SystemClock
from prime_runtime.files import write_atomic
from support.core_network import SECOND_MS, Scene
from support.ledger_network import CHAIN_SECRET, DAY_MS, NETWORK, RANDOMNESS, RUN, STAKE, TOKEN, World, digest
from support.log_store import LOG_KEY, VERIFIER

SMALL_NODES = 100
"""Workers of the small network that a heartbeat is compared with."""
VALIDATORS = 9
TERMS = {
    "samples_per_slot": 8,
    "output_tokens_max": 1_024,
    "audit_probation": 0,
    "audit_floor": 500,
    "vesting_ms": VESTING_MS,
}
"""Slots that take long, so that a worker is leased one; one submission in twenty is audited; pay vests in a day, so
that the state holds the submissions of a day."""
LEASE_MS = 240_000
"""What a worker takes for it. 1,000 workers write 10^6 entries in a day."""
WORKERS_PER_GROUP = 32
"""From one range of addresses; the coordinator admits 64 an hour."""
SAMPLES = 1_000
ROUNDS = 5
AUDIT_KINDS = ("AuditDrawn", "VerdictCommitted", "VerdictGiven", "Settled", "ValidatorScored")
"""Entries that only an audited submission makes."""
LARGE = 10**7


@dataclass
class Written:
    """What a network has written since it was populated."""

    entries: Counter[str] = field(default_factory=Counter)
    """By kind."""
    bytes: Counter[str] = field(default_factory=Counter)
    size: int = 0
    """Entries of the log, those that populated it included."""
    submissions: int = 0
    unaudited: int = 0

    @classmethod
    def load(cls, path: Path) -> "Written":
        counts = json.loads(path.read_text())
        entries, sizes = Counter(counts.pop("entries")), Counter(counts.pop("bytes"))
        return cls(entries, sizes, **counts)

    def save(self, path: Path) -> None:
        write_atomic(path, json.dumps(vars(self)).encode())

    def read(self, leaf: bytes) -> None:
        _, payload = decode_leaf(leaf)
        self.size += 1
        self.entries[payload.kind] += 1
        self.bytes[payload.kind] += len(leaf)
        self.submissions += payload.kind == e.Submitted.__name__
        if payload.kind == e.AcceptedUnaudited.__name__:
            self.unaudited += len(decode(e.AcceptedUnaudited, payload.body).submissions)

    def count_per_unaudited(self, counts: Counter[str]) -> float:
        """Of entries or bytes: what only unaudited submissions make, and a share of what all make."""
        shared = e.AcceptedUnaudited.__name__
        common = sum(count for kind, count in counts.items() if kind not in (shared, *AUDIT_KINDS))
        return counts[shared] / self.unaudited + common / self.submissions


class Network:
    """A core, its nodes and its log on disk."""

    def __init__(self, folder: Path, workers: int, snapshot_entries: int) -> None:
        home = CoordinatorHome(folder)
        self.config = CoordinatorConfig(folder=folder, network=str(NETWORK))
        self.workers = [f"worker-{number}" for number in range(workers)]
        self.seen: dict[str, int] = {}
        self.open: dict[Digest, None] = {}
        self.counts = folder / "written.json"
        self.snapshots = SnapshotWriter(home.mirror, NETWORK, entries=snapshot_entries)
        if self.counts.exists():
            self._continue(home)
        else:
            self._start(home)

    def _start(self, home: CoordinatorHome) -> None:
        self.config.folder.mkdir(parents=True)
        home.randomness_key.write_text(CHAIN_SECRET.hex())
        self._open_log(home, LogTree(home.mirror, self._open_store().read_blocking))
        self.written = Written()
        self.scene = Scene(self._make_world())
        for number, name in enumerate(self.workers):
            self._join(name, f"10.0.{number // WORKERS_PER_GROUP}")
        asyncio.run(self._flush())
        self.written = Written(size=self.size)
        self.written.save(self.counts)

    def _continue(self, home: CoordinatorHome) -> None:
        """From what an earlier run has left on disk."""
        world, store = World(), self._open_store()
        parties = {"network": NETWORK, "coordinator": world.id("coordinator"), "log_key": VERIFIER}
        world.ledger, tree = asyncio.run(recover_ledger(store, home.mirror, **parties))
        world.now_ms = world.state.at_ms
        for name in ("trainer", "sponsor", *self.workers, *(f"val-{number}" for number in range(VALIDATORS))):
            world.key(name)
        self._open_log(home, tree)
        asyncio.run(self.log.open_mirror())
        self.scene = Scene(world)
        self.open = {name: None for name, known in self.scene.run.submissions.items() if known.outcome is None}
        self.written = Written.load(self.counts)
        for start in range(self.written.size, self.size, ENTRIES_PER_READ):
            for leaf in store.read_blocking(start, min(self.size, start + ENTRIES_PER_READ)):
                self.written.read(leaf)

    def _open_store(self) -> LogStore:
        self.store = open_log_store(database_url(self.config))
        return self.store

    def _open_log(self, home: CoordinatorHome, tree: LogTree) -> None:
        self.log = LogWriter(
            self.store,
            home.mirror,
            LOG_KEY,
            NETWORK,
            tree,
            clock=SystemClock(),
            config=LogWriterConfig(batch_ms=0),
            on_head=lambda note, size: None,
        )

    def _make_world(self) -> World:
        world, zeros = World(), NodeId(bytes(20))
        world.coordinate(
            e.NetworkCreated(log_key=str(VERIFIER), chain_id=0, contract=zeros, unbonding_ms=7 * DAY_MS, **RANDOMNESS)
        )
        for number in range(VALIDATORS):
            world.join(f"val-{number}", Role.VALIDATOR)
        world.create_run(**TERMS, slots_per_step=4 * len(self.workers))
        world.fund("sponsor", 10**6 * TOKEN)
        world.publish()
        return world

    def _join(self, name: str, group: str) -> None:
        scene, node = self.scene, self.scene.node(name)
        reference = digest(f"deposit for {name}")
        scene.order(e.Deposited(account=node, amount_nano=2 * STAKE, reference=reference), None)
        scene.send(name, scene.world.registration(name, Role.WORKER), group)
        scene.send(name, e.Staked(node=node, amount_nano=STAKE), group)

    @property
    def size(self) -> int:
        return self.scene.state.size

    async def grow(self, entries: int) -> None:
        """Work, step after step, until the log has this many entries."""
        while self.size < entries:
            leases = [lease for name in self.workers if (lease := self._ask(name)) is not None]
            self.scene.world.wait(LEASE_MS)
            for lease in leases:
                self.open[self.scene.submit(lease)] = None
            self._settle()
            if not leases:
                self.scene.publish()
            await self._flush()

    def _ask(self, name: str) -> e.LeaseGranted | None:
        """A heartbeat with the outcomes so far, and a request for a lease."""
        for update in self.scene.beat(name, updates_seen=self.seen.get(name, 0)).updates:
            self.seen[name] = update.number
        return self.scene.ask(name, tokens_per_s=1).lease

    def _settle(self) -> None:
        """Rounds come out, validators that were drawn accept, and the core acts on it."""
        scene = self.scene
        scene.tick(2 * SECOND_MS)
        while True:
            known = scene.run.submissions
            self.open = {name: None for name in self.open if name in known and known[name].outcome is None}
            said = {name: self._list_silent(name) for name in self.open}
            said = {name: silent for name, silent in said.items() if silent}
            for name, silent in said.items():
                scene.give(*(scene.world.opinion(validator, name, Outcome.ACCEPT) for validator in silent))
            scene.tick(SECOND_MS)
            if not said:
                return

    def _list_silent(self, name: Digest) -> list[str]:
        """Validators of the last round that have not given their verdict."""
        scene, rounds = self.scene, self.scene.submission(name).rounds
        return [each for each in scene.drawn(name) if scene.node(each) not in rounds[-1].verdicts]

    async def _flush(self) -> None:
        """To disk, with a head and a snapshot where one is due."""
        if self.snapshots.is_due(self.scene.state):
            noted = await self.snapshots.write(self.scene.state)
            self.scene.core.entry_writer.append_own(noted, None, self.scene.world.now_ms)
            self.snapshots.publish(noted)
        self.scene.drain()
        leaves = self.scene.world.leaves
        for leaf in leaves:
            self.written.read(leaf)
        self.log.enqueue(leaves)
        await self.log.flush()
        await self.log.sign_head()
        leaves.clear()
        self.written.save(self.counts)

    def add_nodes(self, count: int) -> None:
        """Put idle workers into the state, but not into the log: signing them would take minutes."""
        state = self.scene.state
        position = LogPosition(index=0, at_ms=state.at_ms, body=digest("bench"))
        for number in range(count):
            node = NodeId(digest(f"idle node {number}")[:20])
            known = state.get_or_create_node(node)
            known.roles, known.version, known.registered = (Role.WORKER,), PROTOCOL_VERSION, position
            state.funds.stakes[(node, node)] = STAKE
            self.scene.core.handle_heartbeat(node, RUN, make_beat(0), self.scene.world.now_ms)

    def time_heartbeat(self) -> float:
        """Microseconds of a heartbeat of a node that has outcomes to hear of; the best of several rounds."""
        core, now_ms, best_us = self.scene.core, self.scene.world.now_ms, float("inf")
        nodes = [self.scene.node(name) for name in self.workers]
        told = [node for node in nodes if core.handle_heartbeat(node, RUN, make_beat(0), now_ms).updates]
        asked = [told[number % len(told)] for number in range(SAMPLES)]
        for _ in range(ROUNDS):
            started = time.process_time()
            for node in asked:
                core.handle_heartbeat(node, RUN, make_beat(0), now_ms)
            best_us = min(best_us, (time.process_time() - started) / SAMPLES * 1e6)
        return best_us


def make_beat(seen: int) -> Heartbeat:
    return Heartbeat(activity=NodeActivity.IDLE, checkpoint_step=0, head_size=0, updates_seen=seen)


# --- In processes of their own ----------------------------------------------------------------------------------------


async def open_coordinator(folder: Path) -> None:
    config = CoordinatorConfig(folder=folder, network=str(NETWORK))
    store = open_log_store(database_url(config))
    key = World().key("coordinator")
    server = await CoordinatorServer.open(config, key, LOG_KEY, store, SystemClock())
    print(server.core.state.size, sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
    store.close()


def verify_copy(mirror: Path, processes: int) -> None:
    started = time.perf_counter()
    found = verify_log(mirror, VerifyOptions(key=VERIFIER, processes=processes))
    seconds = time.perf_counter() - started
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kilobytes += processes * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss if processes > 1 else 0
    print(found.head.size, found.head.size / seconds, kilobytes / 1024)


def call(*words: object) -> list[float]:
    done = subprocess.run([sys.executable, __file__, *map(str, words)], stdout=subprocess.PIPE, text=True, check=True)
    return [float(word) for word in done.stdout.split()[-3:]]


def time_restart(folder: Path, size: int) -> float:
    """CPU seconds; the best of three."""
    runs = [call("--restart", folder) for _ in range(3)]
    assert all(run[0] == size for run in runs), f"{runs} for a log of {size} entries"
    return min(run[1] for run in runs)


# --- Everything -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What was measured at one size."""

    entries: int
    restart_s: float
    verify_mb: float
    verified_per_s: float
    database_mb: float


def measure_size(network: Network, processes: int) -> Measured:
    home = CoordinatorHome(network.config.folder)
    restart_s = time_restart(home.folder, network.size)
    _, rate, verify_mb = call("--verify", home.mirror, "--processes", processes)
    return Measured(network.size, restart_s, verify_mb, rate, home.database.stat().st_size / 1e6)


def measure(root: Path, sizes: list[int], workers: int, nodes: int, snapshot_entries: int, processes: int) -> None:
    network = Network(root / "large", workers, snapshot_entries)
    results = root / "measured.json"
    known = {each["entries"]: Measured(**each) for each in json.loads(results.read_text())} if results.exists() else {}
    print(f"{'entries':>12}{'restart, CPU s':>16}{'verify RSS, MB':>16}{'verified/s':>12}{'log.db, MB':>12}")
    for size in sizes:
        if network.size < size or not known:
            asyncio.run(network.grow(size + (snapshot_entries // 2 if size >= snapshot_entries else 0)))
            known[network.size] = measure_size(network, processes)
            write_atomic(results, json.dumps([asdict(each) for each in known.values()]).encode())
    for each in known.values():
        print(
            f"{each.entries:>12,}{each.restart_s:>16.2f}{each.verify_mb:>16.0f}{each.verified_per_s:>12,.0f}"
            f"{each.database_mb:>12.0f}",
            flush=True,
        )
    small = Network(root / f"small {time.time_ns()}", min(SMALL_NODES, workers), snapshot_entries)
    asyncio.run(small.grow(sizes[0]))
    beats_us = [small.time_heartbeat()]
    network.add_nodes(nodes - workers)
    beats_us.append(network.time_heartbeat())
    print(f"heartbeat with outcomes: {beats_us[0]:.1f} us at {sizes[0]:,} entries and {len(small.workers)} nodes,")
    print(f"  {beats_us[1]:.1f} us at {network.size:,} entries and {nodes:,} nodes")
    written, first, last = network.written, known[min(known)], known[max(known)]
    each, all_ = written.entries.total() / written.submissions, written.bytes.total() / written.submissions
    print(f"{written.submissions:,} submissions, {1 - written.unaudited / written.submissions:.1%} audited:")
    print(f"  {all_:.0f} bytes and {each:.2f} entries each, audits included")
    print_result(
        restart_growth=f"{last.restart_s / first.restart_s:.2f}",
        poll_growth=f"{beats_us[1] / beats_us[0]:.2f}",
        verify_rss_mb=f"{last.verify_mb:.0f}",
        bytes_per_submission=f"{written.count_per_unaudited(written.bytes):.0f}",
        entries_per_submission=f"{written.count_per_unaudited(written.entries):.2f}",
        sync_entries_per_s=f"{last.verified_per_s:.0f}",
    )


def main() -> int:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--entries", "10000,100000,1000000", "300,1500", "sizes of the log")
    parser.add_size("--workers", 1_000, 10, "workers that do the work")
    parser.add_size("--nodes", 10_000, 100, "nodes at the largest size, for the heartbeat")
    parser.add_size("--snapshot-entries", 50_000, 500, "entries between two snapshots")
    parser.add_size("--processes", 2, 1, "that verify signatures")
    parser.add_argument("--large", action="store_true", help="also 10^7 entries: hours, and 20 GB of disk")
    parser.add_argument(
        "--folder", type=Path, help="where the log is kept, and continued; a temporary folder if not given"
    )
    parser.add_argument("--restart", type=Path, help="only open the coordinator in this folder")
    parser.add_argument("--verify", type=Path, help="only verify this mirror")
    flags = parser.parse()
    if flags.restart:
        asyncio.run(open_coordinator(flags.restart))
        return 0
    if flags.verify:
        verify_copy(flags.verify, flags.processes)
        return 0
    sizes = [int(size) for size in flags.entries.split(",")] + ([LARGE] if flags.large else [])
    with tempfile.TemporaryDirectory() as temporary:
        root = flags.folder or Path(temporary)
        measure(root, sizes, flags.workers, flags.nodes, flags.snapshot_entries, flags.processes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
