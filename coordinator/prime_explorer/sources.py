"""What pages show besides the index: live state of a coordinator, files that the log names, uptime of nodes.

A mirror of the log alone has none of it. Uptime is sampled once a minute by the explorer beside a coordinator and kept
in its own file; deleting the file restarts the count.
"""

import asyncio
import sqlite3
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from prime_explorer.config import MANIFEST_BYTES_READ, MANIFESTS_CACHED, UPTIME_SAMPLE_MS
from prime_explorer.pages.live import (
    ChainAnchor,
    LiveNodeWork,
    NodeCounts,
    NodePresence,
    PayoutView,
    RefusedFile,
    ServingNode,
    SettlementView,
    StatusView,
)
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.weights.manifest import open_manifest
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId
from prime_runtime.clock import Clock


class LiveState(Protocol):
    """State of a running coordinator. Called in the event loop, so it must not block."""

    def get_status(self) -> StatusView: ...

    def get_settlement(self) -> SettlementView: ...

    async def get_payout(self, run: RunId, epoch: int) -> PayoutView | None: ...

    def count(self) -> NodeCounts: ...

    def list_phase(self, phase: str) -> list[NodeId]:
        """The nodes that are online, late or lost."""
        ...

    def get_presence(self, nodes: Sequence[NodeId]) -> dict[str, NodePresence]:
        """By address in its printed form."""
        ...

    def get_work(self, node: NodeId) -> LiveNodeWork | None:
        """None if it is not registered."""
        ...

    def list_serving(self, run: RunId) -> list[ServingNode]: ...

    def get_sent_bytes(self, node: NodeId) -> int | None:
        """Bytes of weights that it sent in all runs since it started, by its own announcement."""
        ...

    async def list_refused(self, node: NodeId | None = None) -> list[RefusedFile]:
        """Newest first, for the last weeks; of all nodes if none is named."""
        ...

    def list_anchors(self) -> list[ChainAnchor]:
        """Newest first."""
        ...


class ObjectSource(Protocol):
    """Files that the log names: rollout files, evidence, manifests."""

    async def read(self, digest: Digest, bytes_max: int) -> bytes | None:
        """The verified file; None if it is missing or longer than `bytes_max`."""
        ...

    async def find_expired(self, digests: Sequence[Digest]) -> dict[Digest, int]:
        """When those of these files expired that are deleted, in milliseconds."""
        ...


class NoObjects:
    """The objects of an explorer that has only a mirror of the log."""

    async def read(self, digest: Digest, bytes_max: int) -> bytes | None:
        return None

    async def find_expired(self, digests: Sequence[Digest]) -> dict[Digest, int]:
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFacts:
    """What pages show of a manifest."""

    kind: str
    base: str | None
    """Root of the checkpoint that a delta applies to."""
    files: int
    shards: int
    tensors: int
    transport_bytes: int
    full_bytes: int
    """Size of all tensors, as if sent in full."""


class ManifestCache:
    """A cache of manifests. A manifest never changes."""

    def __init__(self, objects: ObjectSource) -> None:
        self._objects = objects
        self._known: OrderedDict[Digest, ManifestFacts] = OrderedDict()

    async def read(self, digest: Digest, *, network: NetworkId, run: RunId, trainer: NodeId) -> ManifestFacts | None:
        """None if the file is missing, or the trainer of the run did not sign it."""
        if digest in self._known:
            self._known.move_to_end(digest)
            return self._known[digest]
        frame = await self._objects.read(digest, MANIFEST_BYTES_READ)
        if frame is None:
            return None
        try:
            manifest = open_manifest(frame, network=network, run=run, trainer=trainer).manifest
        except RemoteError:
            return None
        facts = ManifestFacts(
            kind=str(manifest.kind),
            base=str(manifest.base) if manifest.base else None,
            files=len(manifest.files),
            shards=len(manifest.shards),
            tensors=len(manifest.tensors),
            transport_bytes=manifest.transport_bytes,
            full_bytes=sum(tensor.size for tensor in manifest.tensors),
        )
        self._known[digest] = facts
        while len(self._known) > MANIFESTS_CACHED:
            self._known.popitem(last=False)
        return facts


UPTIME_TABLES = """
CREATE TABLE IF NOT EXISTS samples (count INTEGER);
CREATE TABLE IF NOT EXISTS seen (node BLOB PRIMARY KEY, first INTEGER, samples INTEGER) WITHOUT ROWID;
INSERT INTO samples SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM samples);
"""
COUNT_ONLINE = "INSERT INTO seen VALUES (?, ?, 1) ON CONFLICT (node) DO UPDATE SET samples=samples+1"


class UptimeCounter:
    """Counts samples that found each node online, and all samples since the first one."""

    def __init__(self, path: Path, live: LiveState | None, clock: Clock) -> None:
        self._path = path
        self._live = live
        self._clock = clock

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await self._clock.sleep_ms(UPTIME_SAMPLE_MS)
            if self._live is not None:
                await asyncio.to_thread(self.record_sample, self._live.list_phase("online"))

    def record_sample(self, online: Sequence[NodeId]) -> None:
        """Record one sample."""
        try:
            connection = self._open()
            with connection:
                connection.execute("UPDATE samples SET count=count+1")
                (samples,) = connection.execute("SELECT count FROM samples").fetchone()
                connection.executemany(COUNT_ONLINE, [(node, samples) for node in online])
            connection.close()
        except (sqlite3.Error, OSError) as error:
            raise LocalError(f"cannot keep {self._path}: {error}; delete it to start again") from None

    async def get_uptime(self, nodes: Sequence[NodeId]) -> dict[str, float]:
        """Share of samples since a node was first online, by address. Nodes that were never online are absent."""
        return await asyncio.to_thread(self.read_uptime, nodes) if self._path.exists() else {}

    def read_uptime(self, nodes: Sequence[NodeId]) -> dict[str, float]:
        try:
            connection = self._open()
            (total,) = connection.execute("SELECT count FROM samples").fetchone()
            marks = ",".join("?" * len(nodes))
            found = connection.execute(f"SELECT node, first, samples FROM seen WHERE node IN ({marks})", list(nodes))
            shares = {"0x" + node.hex(): samples / (1 + total - first) for node, first, samples in found}
            connection.close()
        except sqlite3.Error:
            return {}
        return shares

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=5)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(UPTIME_TABLES)
        return connection
