"""What a role asks of a machine, from the size of the run's model. Pure.

The factors are generous on purpose: a machine that is told it can work must not run out of memory an hour later.
"""

from dataclasses import dataclass

GB = 10**9

RUNTIME_BYTES = 2 * GB
"""Torch, its kernels and the node itself, before any weights."""
CACHE_SHARE = 0.25
"""Keys and values of a small batch, beside the weights; the engine makes its batch smaller when there is less."""
WIDE_FACTOR = 2
"""On a CPU without bf16 instructions the weights are computed in float32: twice their published size."""
COPIES_ON_DISK = 3
"""The shards as they came, the checkpoint made of them, and the next one while it is built."""
RELAY_BYTES = GB // 2
"""Memory of a relay: shards go from disk to socket without passing through it."""
RATE_BYTES_PER_S_MIN = 1_000_000
"""Below this a checkpoint of a few gigabytes takes an hour, and the work made with it comes too late."""


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes that a role takes."""

    memory_bytes: int
    """Of the machine, or of the GPU where the engine works on one."""
    disk_bytes: int


def compute_need(role: str, model_bytes: int | None, *, is_wide: bool) -> Need:
    """`is_wide`: the engine computes in float32."""
    model = model_bytes or 0
    if role == "relay":
        return Need(RELAY_BYTES, COPIES_ON_DISK * model)
    weights = model * (WIDE_FACTOR if is_wide else 1)
    return Need(RUNTIME_BYTES + int(weights * (1 + CACHE_SHARE)), COPIES_ON_DISK * model)
