"""Bounds of a download: how much at once, how long to wait, when to give up a transfer. One frozen value."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """These are one node's own choice; the network does not agree on them."""

    transfers_max: int = 6
    """Transfers at once. Few, so that each is fast and a shard can be passed on soon."""

    parent_transfers_max: int = 2
    """Transfers at once with one parent that has proved itself; one with any other, so a liar costs one shard."""

    neighbours_max: int = 10
    """Parents polled at once. Rarity is counted over them, so fewer see less and more cost the swarm."""

    candidates_max: int = 64
    """Parents remembered at once. Each holds two bitmaps of at most 2 KiB."""

    floor_bytes_per_s: int = 8 * 2**10
    """A transfer below this is stalled whatever else there is: 16 MiB would take 35 minutes."""

    stall_ms: int = 3_000
    """How long a transfer is watched before it is judged: a lost packet and a second of a busy line are normal."""

    slow_share: float = 0.125
    """A transfer below this share of the typical rate of the others is stalled if another parent has the shard."""

    first_byte_ms: int = 10_000
    """How long a parent that holds the shard may take to send its first byte."""

    wait_ms: int = 45_000
    """The same for a parent that is itself receiving it. The rim of the parent answers before that."""

    backoff_ms: int = 500
    """First pause after a failure; it doubles up to `backoff_max_ms`, and every pause is jittered."""

    backoff_max_ms: int = 30_000

    endgame_shards: int = 4
    """When no more than this many are missing, one may be asked from a second parent."""
