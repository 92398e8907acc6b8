"""What this node has heard of the network: which weights are out, and who serves them. Pure and bounded.

Only what passed the gossip guard comes in. A serving record counts while its envelope lives. An announcement counts on:
a trainer does not take back what it published, and the links must hold when it is away.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from prime_protocol.gossip.messages import CheckpointAnnounced, ReceivedGossip, ServingRecord
from prime_protocol.weights.transfer import ManifestLink
from prime_protocol.wire.ids import Digest, NodeId

SERVERS_MAX = 4_096
"""Servers remembered. Each download looks at a few dozen of them."""
ANNOUNCED_MAX = 256
"""Announcements remembered, the newest steps: several times what is kept on disk."""


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """A node's newest serving record."""

    node: NodeId
    serving: ServingRecord
    expires_at_ms: int
    frame: bytes
    """The signed record itself, to be passed on."""


class ServerDirectory:
    """Told by whatever brings records; asked by whoever fetches."""

    def __init__(self) -> None:
        self._servers: dict[NodeId, ServerRecord] = {}
        self._announced: dict[Digest, CheckpointAnnounced] = {}

    def learn(self, gossip: ReceivedGossip) -> None:
        """An accepted message; other kinds are none of our business."""
        match gossip.message:
            case CheckpointAnnounced() as announced:
                self._announced[announced.manifest] = announced
                if len(self._announced) > ANNOUNCED_MAX:
                    oldest = min(self._announced.values(), key=lambda each: (each.step, each.manifest))
                    del self._announced[oldest.manifest]
            case ServingRecord() as serving:
                # Newest last, so that the first is the one to forget.
                self._servers.pop(gossip.payload.sender, None)
                letter = gossip.payload
                self._servers[letter.sender] = ServerRecord(letter.sender, serving, letter.expires_at_ms, gossip.frame)
                if len(self._servers) > SERVERS_MAX:
                    del self._servers[next(iter(self._servers))]
            case _:
                pass

    def expire(self, now_ms: int) -> list[NodeId]:
        """Servers that have not been heard of for too long."""
        gone = [node for node, server in self._servers.items() if server.expires_at_ms <= now_ms]
        for node in gone:
            del self._servers[node]
        return gone

    def drop(self, node: NodeId) -> None:
        """It sent wrong bytes. Its next record brings it back; the download's own memory of it lasts longer."""
        self._servers.pop(node, None)

    def servers(self, manifest: Digest) -> Iterator[ServerRecord]:
        """Who says that it serves this, where it can be reached."""
        return (each for each in self._servers.values() if manifest in each.serving.manifests and each.serving.urls)

    def served(self) -> list[Digest]:
        """Every manifest that somebody says it serves, those of many servers first."""
        counts = Counter(
            digest for each in self._servers.values() if each.serving.urls for digest in each.serving.manifests
        )
        return [digest for digest, _ in counts.most_common()]

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
