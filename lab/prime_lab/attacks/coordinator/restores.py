"""A coordinator that drops entries and says that it lost its disk."""

from collections.abc import Iterator

from prime_lab.attacks.attack import Attack, AttackResult, AttackVerdict
from prime_lab.attacks.catalog import (
    FALSE_RESTORE,
)
from prime_lab.attacks.coordinator.forged_logs import find_entry, sign_head
from prime_lab.attacks.coordinator.grinding import (
    Leaves,
)
from prime_lab.attacks.coordinator.rules import seal_next
from prime_lab.simulator.coordinator_host import CoordinatorHost
from prime_lab.simulator.plan import SimulationPlan
from prime_lab.simulator.simulation import simulate_world
from prime_lab.simulator.world import NETWORK
from prime_node.log.restores import HeadHistory, Restore, open_restore
from prime_node.log.signed_heads import HeadRelation, compare_sizes, compare_with_tiles
from prime_protocol.constants import RESTORE_LOSS_MS_MAX
from prime_protocol.ledger import entries as e
from prime_protocol.ledger.replay import replay
from prime_protocol.log.merkle import MerkleTree, compute_leaf_hash
from prime_protocol.log.tiles import Tile, encode_tile

HEADS_SHOWN = 60
"""To the node, over twice the time that a restore may lose."""


def attack_restores() -> Iterator[tuple[Attack, AttackResult]]:
    _, scene = simulate_world(SimulationPlan(seed=1, nodes=16, steps=1, malicious=0.0))
    host = scene.world.host
    yield FALSE_RESTORE, drop_history(host, list(host.disk))


def drop_history(host: CoordinatorHost, leaves: Leaves) -> AttackResult:
    """The log goes on from before the first submission, with an entry that notes a restore."""
    size = find_entry(leaves, e.Submitted)
    ledger = replay(NETWORK, leaves[:size])
    forged = [*leaves[:size], seal_next(host, ledger, e.LogRestored(size=size, root=ledger.state.frontier.root()))]
    replay(NETWORK, forged, coordinator=host.key.node)  # it keeps every rule of the ledger
    history, now_ms = show_heads(len(leaves))
    objection = history.find_objection(open_claim(host, forged, size), now_ms)
    one, other = sign_head(host, leaves), sign_head(host, [*forged, *forged[: len(leaves) - len(forged)]])
    relation = compare_sizes(one, other)
    if relation is HeadRelation.UNKNOWN:
        tree = MerkleTree([compute_leaf_hash(leaf) for leaf in leaves])
        relation = compare_with_tiles(one, other, lambda tile: encode_tile(tile, tree.get_node))
    is_caught = bool(objection) and relation is HeadRelation.FORK
    return AttackResult(
        verdict=AttackVerdict.PROVEN if is_caught else None,
        checks=("consistency",) if is_caught else (),
        reason=objection or "the node follows the restored log",
    )


def show_heads(size: int) -> tuple[HeadHistory, int]:
    """What a node has seen of a log that grew evenly."""
    history, span_ms = HeadHistory(), 2 * RESTORE_LOSS_MS_MAX // HEADS_SHOWN
    for number in range(1, HEADS_SHOWN + 1):
        history = history.add(size * number // HEADS_SHOWN, b"", number * span_ms)
    return history, HEADS_SHOWN * span_ms


def open_claim(host: CoordinatorHost, forged: Leaves, size: int) -> Restore:
    """The entry, proven to be in the forged log."""
    tree = MerkleTree([compute_leaf_hash(leaf) for leaf in forged])
    head = sign_head(host, forged).head
    leaf = forged[size]

    def get_tile(tile: Tile) -> bytes:
        return encode_tile(tile, tree.get_node)

    return open_restore(leaf, size, head, get_tile, network=NETWORK, coordinator=host.key.node)
