"""What a shard server says beside shards. Unsigned: it is a hint, and every shard proves itself."""

from dataclasses import dataclass
from typing import Annotated

from prime_protocol.codec import Size
from prime_protocol.constants import CHILD_RECORD_BYTES_MAX, CHILDREN_TOLD_MAX, SHARDS_MAX
from prime_protocol.envelope import Uint
from prime_protocol.ids import NodeId

Bitmap = Annotated[bytes, Size(1, SHARDS_MAX // 8)]
"""Bit i stands for shard i, lowest bit of the first byte first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Have:
    """What a node holds of one manifest."""

    version: Uint
    """Grows with each change. Sent back in the next question, which is then answered when there is news."""
    held: Bitmap
    coming: Bitmap
    slots_free: Uint
    depth: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A node that holds or awaits the same manifest."""

    node: NodeId
    depth: Uint
    record: Annotated[bytes, Size(0, CHILD_RECORD_BYTES_MAX)]
    """Frame of its own serving record, so that it can be found by who has not heard of it; empty where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """No upload slot is free: come back, or ask one of these."""

    retry_ms: Uint
    children: Annotated[tuple[Child, ...], Size(0, CHILDREN_TOLD_MAX)]


def encode_bitmap(bits: int, shards: int) -> bytes:
    """As many bytes as the shards take, no more and no less."""
    return bits.to_bytes((shards + 7) // 8, "little")
