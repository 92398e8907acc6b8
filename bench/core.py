"""What a heartbeat, a lease request and a tick cost the coordinator's core, and how that grows with the nodes.

    python bench/core.py [--nodes 100000] [--rounds 20]

No sockets, no disk: only the decisions. The growth from 100 nodes is the last line; it should stay near 1.
"""

import gc
import sys
import time
from collections.abc import Callable
from hashlib import sha256

from benchmark import BenchmarkParser, print_result

from prime_coordinator.core import Core
from prime_protocol.constants import PROTOCOL_VERSION
from prime_protocol.ledger.entries import Role
from prime_protocol.ledger.state import LogPosition
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.messages import Heartbeat, LeaseRequest, NodeActivity
from support.ledger_network import DAY_MS, RUN, STAKE, World, digest

BEAT = Heartbeat(activity=NodeActivity.IDLE, checkpoint_step=0, head_size=0)
REQUEST = LeaseRequest(checkpoint_step=0, tokens_per_s=100)
SAMPLES = 2_000
LEASES = 100
"""First leases, each signed and applied; a node gets one."""


def populate(count: int) -> tuple[Core, list[NodeId], int]:
    """A run with that many staked workers. They are put into the state directly: signing would take minutes."""
    world = World.started(slots_per_step=2**20, audit_probation=0)
    nodes = [NodeId(sha256(b"bench node %d" % number).digest()[:20]) for number in range(count)]
    position = LogPosition(index=0, at_ms=world.now_ms, body=digest("bench"))
    for node in nodes:
        known = world.state.get_or_create_node(node)
        known.roles, known.version, known.registered = (Role.WORKER,), PROTOCOL_VERSION, position
        world.state.funds.stakes[(node, node)] = STAKE
    core = Core(world.key("coordinator"), world.ledger, now_ms=world.now_ms)
    for node in nodes:
        core.handle_heartbeat(node, RUN, BEAT, world.now_ms)
    return core, nodes, world.now_ms


class Crowd:
    """A core with its nodes, and the best time of each kind of call so far."""

    def __init__(self, count: int) -> None:
        self.core, nodes, now_ms = populate(count)
        step = max(1, count // SAMPLES)
        self.nodes = [nodes[number * step % count] for number in range(SAMPLES)]
        self.clock = iter(range(now_ms, now_ms + DAY_MS))
        self.best_us: dict[str, float] = {}

    def beat(self, number: int) -> None:
        self.core.handle_heartbeat(self.nodes[number], RUN, BEAT, next(self.clock))

    def tick(self, number: int) -> None:
        self.core.tick(next(self.clock))

    def lease(self, number: int) -> None:
        self.core.request_lease(self.nodes[number], RUN, REQUEST, next(self.clock))

    def time(self, name: str, work: Callable[[int], None], samples: int = SAMPLES) -> None:
        gc.disable()
        start = time.perf_counter()
        for number in range(samples):
            work(number)
        took_us = (time.perf_counter() - start) / samples * 1e6
        gc.enable()
        self.best_us[name] = min(took_us, self.best_us.get(name, took_us))


def measure(crowds: list[Crowd], rounds: int) -> None:
    """In turns, so that a busy machine slows all of them alike; the best of each counts."""
    for _ in range(rounds):
        for crowd in crowds:
            crowd.time("beat", crowd.beat)
            crowd.time("tick", crowd.tick)
    for crowd in crowds:
        crowd.time("first lease", crowd.lease, LEASES)
        crowd.core.entry_writer.drain()


def main() -> int:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--nodes", 100_000, 1_000)
    parser.add_size("--rounds", 20, 1)
    flags = parser.parse()
    few, many = crowds = [Crowd(100), Crowd(flags.nodes)]
    measure(crowds, flags.rounds)
    print(f"{'one call, us':<16}{'100 nodes':>12}{flags.nodes:>10,} nodes{'growth':>10}")
    growth = {name: many.best_us[name] / best_us for name, best_us in few.best_us.items()}
    for name, best_us in few.best_us.items():
        print(f"{name:<16}{best_us:>12.2f}{many.best_us[name]:>16.2f}{growth[name]:>9.2f}x")
    result = {"beat_us": many.best_us["beat"], "beat_growth": growth["beat"], "tick_growth": growth["tick"]}
    print_result(**{name: f"{value:.2f}" for name, value in result.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
