"""When a server of shards says what. Pure: what it has and the time in, messages that are due out.

A change that others wait for is said at once; the rest is repeated, so that who joins later hears it too.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from prime_protocol.gossip import Announced, GossipKind, Serving, repeat_ms
from prime_protocol.ids import Digest
from prime_protocol.signed_manifest import SignedManifest
from prime_runtime.shardcast.stock import Stock

SERVING_MS_MIN = 2_500
"""Between two serving records, whatever changes: a little above what one sender may say."""


@dataclass(frozen=True, slots=True)
class Stand:
    """What decides whether a serving record is worth saying again."""

    urls: tuple[str, ...]
    manifests: tuple[tuple[Digest, bool], ...]
    """Each with whether it is complete."""
    has_slots: bool

    @classmethod
    def of(cls, serving: Serving, stocks: Iterable[Stock]) -> "Stand":
        complete = {stock.digest for stock in stocks if stock.is_complete}
        manifests = tuple((digest, digest in complete) for digest in serving.manifests)
        return cls(serving.urls, manifests, serving.slots_free > 0)


def make_announced(signed: SignedManifest) -> Announced:
    manifest = signed.manifest
    return Announced(
        step=manifest.step,
        root=signed.root,
        manifest=signed.digest,
        manifest_bytes=len(signed.frame),
        kind=manifest.kind,
        base=manifest.base,
        transport_bytes=manifest.transport_bytes,
    )


class Saying:
    """Remembers what was said when, by a clock that never jumps."""

    def __init__(self) -> None:
        self._stand: Stand | None = None
        self._serving_ms = 0
        self._announced: dict[Digest, int] = {}

    @property
    def has_said(self) -> bool:
        """Others have been told of this server."""
        return self._stand is not None

    def serving_due(self, stand: Stand, now_ms: int, *, known_nodes: int) -> bool:
        if self._stand is None:
            return bool(stand.manifests)
        passed_ms = now_ms - self._serving_ms
        if stand != self._stand:
            return passed_ms >= SERVING_MS_MIN or self._is_new(stand)
        return passed_ms >= repeat_ms(GossipKind.SERVING, known_nodes)

    def serving_said(self, stand: Stand, now_ms: int) -> None:
        self._stand, self._serving_ms = stand, now_ms

    def _is_new(self, stand: Stand) -> bool:
        """Another manifest, or one that became whole: others wait for that."""
        assert self._stand is not None
        return bool(set(stand.manifests) - set(self._stand.manifests))

    def announced_due(self, signed: Iterable[SignedManifest], now_ms: int) -> list[SignedManifest]:
        """Oldest first: a node that hears them in order always knows the base."""
        known = list(signed)
        self._announced = {
            each.digest: self._announced[each.digest] for each in known if each.digest in self._announced
        }
        span_ms = repeat_ms(GossipKind.ANNOUNCED, 0)
        due = [
            each
            for each in known
            if each.digest not in self._announced or now_ms - self._announced[each.digest] >= span_ms
        ]
        return sorted(due, key=lambda each: (each.manifest.step, each.manifest.base is not None, each.digest))

    def announced_said(self, digest: Digest, now_ms: int) -> None:
        self._announced[digest] = now_ms
