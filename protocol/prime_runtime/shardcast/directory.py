"""What this node knows from gossip about weights: which versions are announced, and which nodes serve them. Pure.

Only messages that passed the gossip guard come in. A serving record counts until its envelope expires. An announcement
counts without end: a trainer does not withdraw what it published, and links must hold while it is offline.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from prime_protocol.gossip.messages import CheckpointAnnounced, ReceivedGossip, ServingRecord
from prime_protocol.weights.transfer import ManifestLink
from prime_protocol.wire.ids import Digest, NodeId

SERVERS_MAX = 4_096
"""Servers remembered. Each download uses a few dozen of them."""
ANNOUNCED_MAX = 256
"""Announcements remembered, of the newest steps: several times what is kept on disk."""


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """A node's newest serving record."""

    node: NodeId
    serving: ServingRecord
    expires_at_ms: int
    frame: bytes
    """The signed frame, to forward."""


class ServerDirectory:
    """Learns from gossip; answers the fetcher."""

    def __init__(self) -> None:
        self._servers: dict[NodeId, ServerRecord] = {}
        self._announced: dict[Digest, CheckpointAnnounced] = {}

    def learn(self, gossip: ReceivedGossip) -> None:
        """Store an accepted announcement or serving record; ignore other kinds."""
        match gossip.message:
            case CheckpointAnnounced() as announced:
                self._announced[announced.manifest] = announced
                if len(self._announced) > ANNOUNCED_MAX:
                    oldest = min(self._announced.values(), key=lambda each: (each.step, each.manifest))
                    del self._announced[oldest.manifest]
            case ServingRecord() as serving:
                # Newest last: the first is evicted.
                self._servers.pop(gossip.payload.sender, None)
                payload = gossip.payload
                self._servers[payload.sender] = ServerRecord(
                    payload.sender, serving, payload.expires_at_ms, gossip.frame
                )
                if len(self._servers) > SERVERS_MAX:
                    del self._servers[next(iter(self._servers))]
            case _:
                pass

    def expire(self, now_ms: int) -> list[NodeId]:
        """Remove and return servers whose record has expired."""
        gone = [node for node, server in self._servers.items() if server.expires_at_ms <= now_ms]
        for node in gone:
            del self._servers[node]
        return gone

    def drop(self, node: NodeId) -> None:
        """Forget a server that sent wrong bytes. Its next record adds it again; the download remembers it longer."""
        self._servers.pop(node, None)

    def servers(self, manifest: Digest) -> Iterator[ServerRecord]:
        """Reachable servers that claim to serve this manifest."""
        return (each for each in self._servers.values() if manifest in each.serving.manifests and each.serving.urls)

    def served(self) -> list[Digest]:
        """All manifests that servers claim to serve, most widely served first."""
        counts = Counter(
            digest for each in self._servers.values() if each.serving.urls for digest in each.serving.manifests
        )
        return [digest for digest, _ in counts.most_common()]

    def list_urls(self) -> dict[NodeId, tuple[str, ...]]:
        """The URLs of all reachable servers."""
        return {each.node: each.serving.urls for each in self._servers.values() if each.serving.urls}

    def get(self, node: NodeId) -> ServerRecord | None:
        return self._servers.get(node)

    def __len__(self) -> int:
        return len(self._servers)

    def announced(self) -> list[CheckpointAnnounced]:
        """Newest step first."""
        return sorted(self._announced.values(), key=lambda each: (-each.step, each.manifest))

    def links(self) -> Iterator[ManifestLink]:
        for each in self._announced.values():
            yield ManifestLink(root=each.root, base=each.base, transport_bytes=each.transport_bytes)

    def find_announcement(self, link: ManifestLink) -> CheckpointAnnounced | None:
        """The announcement behind a link."""
        for each in self.announced():
            if (each.root, each.base, each.transport_bytes) == (link.root, link.base, link.transport_bytes):
                return each
        return None
