"""Parts for tests of the log on disk: leaves that name our key, a writer with all it showed, and a start after it."""

from dataclasses import dataclass
from pathlib import Path

from prime_coordinator.config import LogWriterConfig
from prime_coordinator.log.replay import recover_ledger
from prime_coordinator.log.store import LogStore
from prime_coordinator.log.tree import LogTree
from prime_coordinator.log.writer import LogWriter
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Role
from prime_protocol.ledger.replay import Ledger
from prime_protocol.wire.ids import NodeId
from prime_runtime.clock import SystemClock
from support.ledger_network import NETWORK, RANDOMNESS, World, log_key, verifier

LOG_KEY, VERIFIER = log_key("first"), verifier("first")


def make_leaves(count: int) -> list[bytes]:
    """A log that names our key."""
    return make_world(count).leaves


def make_world(count: int) -> World:
    """Its log has that many entries and names our key."""
    world = World()
    zeros = NodeId(bytes(20))
    world.coordinate(e.NetworkCreated(log_key=str(VERIFIER), chain_id=0, contract=zeros, unbonding_ms=0, **RANDOMNESS))
    for number in range(count - 1):
        world.register(f"node-{number}", Role.WORKER)
    return world


@dataclass
class Rig:
    """A writer, and everything it was told to show."""

    store: LogStore
    writer: LogWriter
    shown: list[tuple[bytes, int]]
    mirror: Path


def make_rig(store: LogStore, mirror: Path, tree: LogTree | None = None, **settings: int) -> Rig:
    shown: list[tuple[bytes, int]] = []
    config = LogWriterConfig(**{"batch_ms": 0, **settings})
    writer = LogWriter(
        store,
        mirror,
        LOG_KEY,
        NETWORK,
        tree or LogTree(mirror, store.read_blocking),
        clock=SystemClock(),
        config=config,
        on_head=lambda note, size: shown.append((note, size)),
    )
    return Rig(store, writer, shown, mirror)


async def recovered(rig: Rig, coordinator: NodeId | None = None) -> tuple[Ledger, LogTree]:
    name = coordinator or World().id("coordinator")
    return await recover_ledger(rig.store, rig.mirror, network=NETWORK, coordinator=name, log_key=VERIFIER)
