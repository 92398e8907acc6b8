"""Which parent to ask next: drawn in proportion to what it is expected to deliver."""

from random import Random

from prime_node.shardcast.neighbours import Neighbour, Neighbours
from prime_node.shardcast.parents import Parents
from prime_node.shardcast.rarity import draw_bit
from prime_node.shardcast.transfers import NEVER_MS, Transfer, Transfers

FULL_WEIGHT = 0.1
"""Of a parent that last said it has no free slot: it may have one by now, but one that said so is likelier to."""
DEPTH_WEIGHT = 0.25
"""How much each level down the tree counts against a parent: near is better, but not so much that all crowd there."""


Choice = tuple[Neighbour, int, bool]
"""Parent, shard, and whether the parent is itself still receiving it."""


def choose(
    neighbours: Neighbours, transfers: Transfers, missing: int, parents: Parents, dice: Random, now_ms: int
) -> Choice | None:
    """A parent by its weight, and of the missing shards it has the rarest, ties by the dice."""
    able = list_able(neighbours, transfers, missing, parents, now_ms) if missing else []
    if not able:
        return None
    neighbour = dice.choices(able, [_weigh(each, parents, now_ms) for each in able])[0]
    useful = neighbour.held & missing
    rarest = neighbours.rarity.find_rarest(useful or neighbour.coming & missing)
    return neighbour, draw_bit(rarest, dice), not useful


def list_able(
    neighbours: Neighbours, transfers: Transfers, missing: int, parents: Parents, now_ms: int
) -> list[Neighbour]:
    """Who holds a missing shard and may be asked; only if nobody does, who is receiving one.

    Those that nothing runs with go first, so that requests are spread before they are doubled.
    """
    able = [
        each
        for each in neighbours
        if (each.held & missing or each.coming & missing)
        and each.ready_ms <= now_ms
        and (not each.running or each.running < transfers.allowed(parents.has_proved(each.id)))
    ]
    if transfers.draining:
        able = [each for each in able if each.id not in transfers.draining]
    able = [each for each in able if parents.barred_ms(each.id) <= now_ms]
    able = [each for each in able if not each.running] or able
    return [each for each in able if each.held & missing] or able


def choose_second(neighbours: Neighbours, transfers: Transfers, parents: Parents, now_ms: int) -> Choice | None:
    """Endgame: a shard that runs once, and a parent that should have it here in half the time that is left."""
    for transfer in transfers:
        if len(transfers.list_of(transfer.shard)) != 1 or transfer.is_cancelled:
            continue
        left_ms = transfer.guess_left_ms(parents.expect(transfer.parent, now_ms), now_ms)
        for each in neighbours:
            if not each.held >> transfer.shard & 1 or each.ready_ms > now_ms:
                continue
            if each.running or each.id in transfers.draining or parents.barred_ms(each.id) > now_ms:
                continue
            if transfer.length_bytes * 1000 / parents.expect(each.id, now_ms) < left_ms / 2:
                return each, transfer.shard, False
    return None


def find_ready_ms(neighbours: Neighbours, missing: int, parents: Parents, now_ms: int) -> int:
    """When a parent with a missing shard may be asked that may not be asked now."""
    able = [each for each in neighbours if (each.held | each.coming) & missing]
    pauses = [max(each.ready_ms, parents.barred_ms(each.id)) for each in able]
    return min((ready_ms for ready_ms in pauses if ready_ms > now_ms), default=NEVER_MS)


def is_elsewhere(neighbours: Neighbours, transfer: Transfer, now_ms: int) -> bool:
    """Another parent holds the shard and could be asked."""
    return any(
        each.held >> transfer.shard & 1 and each.id != transfer.parent and each.ready_ms <= now_ms
        for each in neighbours
    )


def _weigh(neighbour: Neighbour, parents: Parents, now_ms: int) -> float:
    slots = 1.0 if neighbour.slots_free else FULL_WEIGHT
    return parents.expect(neighbour.id, now_ms) * slots / (1 + DEPTH_WEIGHT * neighbour.depth)
