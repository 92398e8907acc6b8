"""Which parent to ask next: drawn in proportion to what it is expected to deliver."""

from random import Random

from prime_node.shardcast.neighbours import Neighbour, Neighbours
from prime_node.shardcast.parents import Parents
from prime_node.shardcast.transfers import Transfer, Transfers

FULL_WEIGHT = 0.1
"""Of a parent that last said it has no free slot: it may have one by now, but one that said so is likelier to."""
DEPTH_WEIGHT = 0.25
"""How much each level down the tree counts against a parent: near is better, but not so much that all crowd there."""


def choose_parent(
    neighbours: Neighbours, transfers: Transfers, missing: int, parents: Parents, dice: Random, now_ms: int
) -> Neighbour | None:
    """One that holds a missing shard and may be asked; only if there is none, one that is receiving such a shard."""
    if not missing:
        return None
    able = [
        each
        for each in neighbours
        if (each.held & missing or each.coming & missing)
        and each.ready_ms <= now_ms
        and (not each.running or each.running < transfers.allowed(parents.has_proved(each.id)))
    ]
    if transfers.draining:
        able = [each for each in able if each.id not in transfers.draining]
    able = [each for each in able if not each.running] or able
    able = [each for each in able if each.held & missing] or able
    if not able:
        return None
    return dice.choices(able, [_weigh(each, parents, now_ms) for each in able])[0]


def choose_second(
    neighbours: Neighbours, transfers: Transfers, parents: Parents, now_ms: int
) -> tuple[Transfer, Neighbour] | None:
    """A shard that runs once, and a parent that should have it here in half the time that is left."""
    for transfer in transfers:
        if len(transfers.list_of(transfer.shard)) != 1 or transfer.is_cancelled:
            continue
        left_ms = transfer.guess_left_ms(parents.expect(transfer.parent, now_ms), now_ms)
        for each in neighbours:
            if not each.held >> transfer.shard & 1 or each.ready_ms > now_ms:
                continue
            if each.running or each.id in transfers.draining:
                continue
            if transfer.length_bytes * 1000 / parents.expect(each.id, now_ms) < left_ms / 2:
                return transfer, each
    return None


def _weigh(neighbour: Neighbour, parents: Parents, now_ms: int) -> float:
    slots = 1.0 if neighbour.slots_free else FULL_WEIGHT
    return parents.expect(neighbour.id, now_ms) * slots / (1 + DEPTH_WEIGHT * neighbour.depth)
