"""What breaks, where, for how long: drawn from a seed before anything runs, so that a schedule can be had again. Pure.

A deck holds every kind that the machine can do, once each, and is shuffled anew when it is used up: no kind waits for
luck. Between two faults the network is given time to show that it has recovered; that time is not the schedule's.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice


class Kind(StrEnum):
    """What can be done to a party."""

    KILL = "kill -9"
    FREEZE = "freeze"
    RESTART = "restart"
    PARTITION = "partition"
    SLOW = "slow link"
    LOSSY = "lossy link"
    CLOCK_AHEAD = "clock ahead"
    CLOCK_BEHIND = "clock behind"
    DISK_FULL = "disk full"
    DISK_READ_ONLY = "disk read-only"
    PORT_TAKEN = "port taken"
    FLIP_LOG = "bit flip: log database"
    FLIP_MIRROR = "bit flip: mirror and snapshot"
    FLIP_JOURNAL = "bit flip: node's journal and memory"
    FLIP_CACHE = "bit flip: node's weights"
    FLIP_SHARDS = "bit flip: origin's shards"
    FLIP_KEYSTORE = "bit flip: keystore"
    DATABASE_GONE = "database gone"
    OBJECTS_GONE = "object store gone"
    CHAIN_GONE = "chain gone"
    DISK_LOST = "disk-lost"


class Ability(StrEnum):
    """What the machine and the network under test allow."""

    NAMESPACES = "network namespaces"
    MOUNTS = "small disks of their own"
    CLOCKS = "clocks of their own"
    FILES = "SQLite and a folder"
    SERVICES = "PostgreSQL and a bucket"
    CHAIN = "a chain to settle on"


COORDINATOR, TRAINER, ORIGIN, RELAY = "coordinator", "trainer", "origin", "relay-1"
SERVERS = (COORDINATOR, ORIGIN, RELAY)
ONCE = frozenset({Kind.DISK_LOST})
"""Nodes follow one restore a day that loses entries."""
CLOCKED = (COORDINATOR, "worker-1")
"""Those whose clock can be set apart from the machine's."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Whom a kind can hit, for how long, and how hard."""

    parties: str
    """`all`, `nodes`, `workers`, `servers`, `clocked`, or one party's name."""
    lasts_s: tuple[float, float] = (0.0, 0.0)
    needs: Ability | None = None
    size: tuple[int, int] = (0, 0)
    """Kilobits a second, percent, seconds or bits: the kind knows."""


RULES: dict[Kind, Rule] = {
    Kind.KILL: Rule("all"),
    Kind.RESTART: Rule("all"),
    Kind.FREEZE: Rule("all", (2.0, 8.0)),
    Kind.PARTITION: Rule("all", (3.0, 10.0), Ability.NAMESPACES),
    Kind.SLOW: Rule("all", (5.0, 10.0), Ability.NAMESPACES, (64, 512)),
    Kind.LOSSY: Rule("all", (5.0, 10.0), Ability.NAMESPACES, (5, 25)),
    Kind.CLOCK_AHEAD: Rule("clocked", (4.0, 8.0), Ability.CLOCKS, (60, 600)),
    Kind.CLOCK_BEHIND: Rule("clocked", (4.0, 8.0), Ability.CLOCKS, (60, 600)),
    Kind.DISK_FULL: Rule("disks", (3.0, 8.0), Ability.MOUNTS),
    Kind.DISK_READ_ONLY: Rule("disks", (3.0, 6.0), Ability.MOUNTS),
    Kind.PORT_TAKEN: Rule("servers", (2.0, 5.0)),
    Kind.FLIP_LOG: Rule(COORDINATOR, needs=Ability.FILES, size=(4, 32)),
    Kind.FLIP_MIRROR: Rule(COORDINATOR, size=(8, 64)),
    Kind.FLIP_JOURNAL: Rule("workers", size=(4, 32)),
    Kind.FLIP_CACHE: Rule("nodes", size=(8, 64)),
    Kind.FLIP_SHARDS: Rule(ORIGIN, size=(8, 64)),
    Kind.FLIP_KEYSTORE: Rule("workers", size=(1, 4)),
    Kind.DATABASE_GONE: Rule(COORDINATOR, (2.0, 6.0), Ability.SERVICES),
    Kind.OBJECTS_GONE: Rule(COORDINATOR, (3.0, 10.0), Ability.SERVICES),
    Kind.DISK_LOST: Rule(COORDINATOR, needs=Ability.FILES),
    Kind.CHAIN_GONE: Rule(COORDINATOR, (5.0, 15.0), Ability.CHAIN),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong."""

    number: int
    kind: Kind
    party: str
    pause_s: float
    """After the one before has been recovered from."""
    lasts_s: float
    size: int
    salt: int
    """Which bits, which bytes."""

    def __str__(self) -> str:
        size = f", size {self.size}" if self.size else ""
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.number:3} {self.kind} -> {self.party}{lasts}{size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """Who can be hit, and by what."""

    workers: int
    validators: int
    abilities: frozenset[Ability]
    only: frozenset[Kind] = frozenset(Kind)

    def parties(self, which: str) -> list[str]:
        workers = [f"worker-{number}" for number in range(1, self.workers + 1)]
        staked = [*workers, *(f"validator-{number}" for number in range(1, self.validators + 1))]
        nodes = [RELAY, *staked]
        groups = {
            "all": [COORDINATOR, TRAINER, ORIGIN, *nodes],
            "nodes": nodes,
            "workers": workers,
            "staked": staked,
            "servers": list(SERVERS),
            "clocked": [name for name in CLOCKED if name in (COORDINATOR, *nodes)],
            "disks": [COORDINATOR, TRAINER, *nodes],
        }
        return groups.get(which, [which])

    @property
    def kinds(self) -> list[Kind]:
        possible = [kind for kind, rule in RULES.items() if rule.needs is None or rule.needs in self.abilities]
        return [kind for kind in possible if kind in self.only]


def draw_faults(seed: int, arena: Arena) -> Iterator[Fault]:
    """The same seed and arena give the same faults. Without end, unless only faults of `ONCE` are wanted."""
    dice, deck, number = random.Random(seed), list[Kind](), 0
    while True:
        if not deck:
            deck = [kind for kind in arena.kinds if kind not in ONCE or number == 0]
            dice.shuffle(deck)
        if not deck:
            return
        kind, number = deck.pop(), number + 1
        rule = RULES[kind]
        yield Fault(
            number=number,
            kind=kind,
            party=dice.choice(arena.parties(rule.parties)),
            pause_s=round(dice.uniform(0.2, 2.0), 1),
            lasts_s=round(dice.uniform(*rule.lasts_s), 1),
            size=dice.randint(*rule.size),
            salt=dice.getrandbits(32),
        )


def first_faults(seed: int, arena: Arena, count: int) -> list[Fault]:
    return list(islice(draw_faults(seed, arena), count))
