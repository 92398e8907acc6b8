"""Which manifests lead from the weights that a node holds to those that it wants, and what a shard server reports.

Pure choice: links in, links out. Fetching and applying them is in prime_node.weights. Reports of a shard server are not
signed: they are hints, and every shard is verified by its digest.
"""

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Annotated

from prime_protocol.constants import ADDRESS_CHARS_MAX, CHILD_RECORD_BYTES_MAX, CHILDREN_LISTED_MAX, SHARDS_MAX
from prime_protocol.weights.manifest import Manifest
from prime_protocol.wire.codec import Size
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.rpc import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLink:
    """What a manifest does: it builds `root` from `base`, or from nothing if it is a keyframe, for this many bytes."""

    root: Digest
    base: Digest | None
    transport_bytes: int


def make_manifest_link(manifest: Manifest) -> ManifestLink:
    return ManifestLink(root=manifest.root, base=manifest.base, transport_bytes=manifest.transport_bytes)


def plan_manifest_path(
    wanted: Digest, held: Collection[Digest], links: Iterable[ManifestLink]
) -> tuple[ManifestLink, ...] | None:
    """The links to apply, in order, with the fewest bytes to fetch; None if none lead there.

    A held base makes one delta enough; otherwise a chain of deltas, from a held base or from a keyframe. Among equals
    the shorter chain wins, then the smaller bases, so that every node with the same links plans the same.
    """
    into = group_links(links)
    # Backwards from the wanted root, cheapest first. A keyframe's base is None, which every node has.
    queue: list[tuple[int, int, tuple[bytes, ...], tuple[ManifestLink, ...]]] = [(0, 0, (), ())]
    settled: set[Digest] = set()
    while queue:
        fetched, length, bases, path = heapq.heappop(queue)
        needed = path[0].base if path else wanted
        if needed is None or needed in held:
            return path
        if needed in settled:
            continue
        settled.add(needed)
        for link in into.get(needed, ()):
            cost = fetched + link.transport_bytes
            heapq.heappush(queue, (cost, length + 1, (*bases, link.base or b""), (link, *path)))
    return None


def group_links(links: Iterable[ManifestLink]) -> dict[Digest, list[ManifestLink]]:
    """By root, only the cheapest from each base: then the bases along a path tell it from every other path."""
    cheapest: dict[tuple[Digest, Digest | None], ManifestLink] = {}
    for link in links:
        known = cheapest.setdefault((link.root, link.base), link)
        if link.transport_bytes < known.transport_bytes:
            cheapest[link.root, link.base] = link
    into: dict[Digest, list[ManifestLink]] = {}
    for link in cheapest.values():
        into.setdefault(link.root, []).append(link)
    return into


Bitmap = Annotated[bytes, Size(1, SHARDS_MAX // 8)]
"""Bit i stands for shard i, lowest bit of the first byte first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardAvailability:
    """What a node holds of one manifest."""

    version: Uint
    """Grows with each change. Sent back in the next question, which is then answered when there is news."""
    held: Bitmap
    coming: Bitmap
    slots_free: Uint
    depth: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardServerHint:
    """A node that holds or awaits the same manifest."""

    node: NodeId
    depth: Uint
    record: Annotated[bytes, Size(0, CHILD_RECORD_BYTES_MAX)]
    """Frame of its own serving record, for nodes that have not received it; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardServerFull:
    """No upload slot is free: come back, or ask one of these."""

    retry_ms: Uint
    children: Annotated[tuple[ShardServerHint, ...], Size(0, CHILDREN_LISTED_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReverseOffer:
    """Node: you cannot connect to me, so ask me for shards on this connection, which I opened."""

    gateway: NodeId
    """The server it is meant for: at any other one the offer is worth nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReverseAccepted:
    """Gateway: from here on I send requests, and you answer."""

    address: Annotated[str, Size(1, ADDRESS_CHARS_MAX)]
    """`ip:port` from which the connection came, as the gateway sees it."""


REVERSE = Endpoint("reverse", ReverseOffer, ReverseAccepted)


def encode_bitmap(bits: int, shards: int) -> bytes:
    """As many bytes as the shards take, no more and no less."""
    return bits.to_bytes((shards + 7) // 8, "little")
