"""Which nodes behind routers a gateway introduces to each other, so that they connect through both routers. Pure.

Two nodes that both keep lanes to one gateway cannot connect to each other, unless both try at the same moment, each at
the address that the gateway sees of the other: then each router takes the other's packets for answers. Each node meets
only a few others, or connections would grow with the square of their number.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from random import Random

from prime_protocol.wire.ids import NodeId

PARTNERS_MAX = 4
"""Introductions of one node by one gateway. It has several gateways, and each introduces it to others."""
AGAIN_MS = 600_000
"""Two nodes are introduced again after this time: one of them may have lost the connection."""
PAIRS_AT_ONCE = 4
"""In one round, so that a gateway with many nodes spreads the work."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """These two should connect to each other."""

    first: NodeId
    second: NodeId


class Matchmaker:
    """The introductions of one gateway."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._met: dict[frozenset[NodeId], int] = {}

    def plan(self, told: Mapping[NodeId, str], now_ms: int, *, known: Collection[NodeId]) -> list[Introduction]:
        """`told`: nodes that can be told now, and the address of each. Nodes at one address share a router, which
        rarely lets them connect to each other by its outer address. `known`: all nodes, also those that are busy."""
        self._met = {
            pair: at_ms
            for pair, at_ms in self._met.items()
            if now_ms - at_ms < AGAIN_MS and all(node in known for node in pair)
        }
        counts = Counter(node for pair in self._met for node in pair)
        nodes = sorted(told)
        self._rng.shuffle(nodes)
        chosen: list[Introduction] = []
        busy: set[NodeId] = set()
        for index, first in enumerate(nodes):
            for second in nodes[index + 1 :]:
                if len(chosen) == PAIRS_AT_ONCE:
                    return chosen
                is_free = first not in busy and second not in busy and told[first] != told[second]
                is_wanted = max(counts[first], counts[second]) < PARTNERS_MAX
                if is_free and is_wanted and frozenset((first, second)) not in self._met:
                    chosen.append(Introduction(first, second))
                    busy |= {first, second}
                    self._met[frozenset((first, second))] = now_ms
        return chosen
