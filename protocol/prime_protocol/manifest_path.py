"""Which manifests lead from the weights a node holds to the weights it wants.

Pure choice: links in, links out. Fetching and applying them is the node's business.
"""

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from prime_protocol.ids import Digest
from prime_protocol.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What a manifest does: makes `root` out of `base`, or out of nothing if it is a keyframe, for so many bytes."""

    root: Digest
    base: Digest | None
    transport_bytes: int


def make_link(manifest: Manifest) -> Link:
    return Link(root=manifest.root, base=manifest.base, transport_bytes=manifest.transport_bytes)


def plan_path(wanted: Digest, held: Collection[Digest], links: Iterable[Link]) -> tuple[Link, ...] | None:
    """The links to apply, in order, with the fewest bytes to fetch; None if none lead there.

    A held base makes one delta enough; otherwise a chain of deltas, from a held base or from a keyframe. Among equals
    the shorter chain wins, then the smaller bases, so that every node with the same links plans the same.
    """
    into = group_links(links)
    # Backwards from what is wanted, cheapest first. A keyframe's base is None: nothing, which everybody holds.
    queue: list[tuple[int, int, tuple[bytes, ...], tuple[Link, ...]]] = [(0, 0, (), ())]
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


def group_links(links: Iterable[Link]) -> dict[Digest, list[Link]]:
    """By root, only the cheapest from each base: then the bases along a path tell it from every other path."""
    cheapest: dict[tuple[Digest, Digest | None], Link] = {}
    for link in links:
        known = cheapest.setdefault((link.root, link.base), link)
        if link.transport_bytes < known.transport_bytes:
            cheapest[link.root, link.base] = link
    into: dict[Digest, list[Link]] = {}
    for link in cheapest.values():
        into.setdefault(link.root, []).append(link)
    return into
