"""What only a running coordinator knows, as far as pages show it. A mirror of the log alone tells none of it.

What manifests of checkpoints say, as far as pages show it; each is read once, since a manifest never changes.

How much of the time nodes were there, as the coordinator beside this explorer saw it: one look a minute, counted.

The log does not say it, so a copy of the log cannot know it. The counts are kept in a file of their own; who deletes it
begins to count anew.
"""

import asyncio
import sqlite3
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from prime_explorer.config import MANIFEST_BYTES_READ, MANIFESTS_CACHED, UPTIME_SAMPLE_MS
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.weights.manifest import open_manifest
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId
from prime_runtime.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePresence:
    """The last that was heard of a node."""

    phase: str
    activity: str | None
    checkpoint_step: int | None
    last_beat_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingNode:
    """A node that passes weights on, by its own word."""

    node: str
    depth: int
    slots_free: int
    urls: int
    """Addresses it can be reached at."""
    manifests: tuple[str, ...]
    """What it serves, newest first."""
    parents: tuple[str, ...]
    """Who gave it most of the newest."""
    sent_bytes: int
    """Passed on since it was started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedFile:
    """A rollout file that intake refused, so that no entry of the log speaks of it."""

    at_ms: int
    run: str
    lease: int
    field: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainAnchor:
    """A head of the log that a contract holds."""

    run: str
    size: int
    root: str
    block: int
    transaction: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineCounts:
    """How many nodes there are, by what was last heard of them."""

    online: int
    late: int


class LiveState(Protocol):
    """Asked on the event loop; it only looks things up. None: not known here."""

    def count(self) -> OnlineCounts | None: ...

    def list_online(self) -> list[NodeId] | None: ...

    def get_presence(self, nodes: Sequence[NodeId]) -> dict[str, NodePresence] | None:
        """By address as it prints."""
        ...

    def list_serving(self, run: RunId) -> list[ServingNode] | None: ...

    def get_sent_bytes(self, node: NodeId) -> int | None:
        """Weights that it passed on since it was started, by its own word, whatever the run."""
        ...

    async def list_refused(self, node: NodeId) -> list[RefusedFile] | None:
        """Newest first, of the last weeks."""
        ...

    def list_anchors(self) -> list[ChainAnchor] | None:
        """Newest first."""
        ...


class ObjectSource(Protocol):
    """Files that the log names: rollout files, evidence, manifests."""

    async def read(self, digest: Digest, bytes_max: int) -> bytes | None:
        """The file, checked against its digest; None where it is not here, or longer than that."""
        ...


class NoLiveState:
    """What a mirror knows beside the log."""

    def count(self) -> OnlineCounts | None:
        return None

    def list_online(self) -> list[NodeId] | None:
        return None

    def get_presence(self, nodes: Sequence[NodeId]) -> dict[str, NodePresence] | None:
        return None

    def list_serving(self, run: RunId) -> list[ServingNode] | None:
        return None

    def get_sent_bytes(self, node: NodeId) -> int | None:
        return None

    async def list_refused(self, node: NodeId) -> list[RefusedFile] | None:
        return None

    def list_anchors(self) -> list[ChainAnchor] | None:
        return None


class NoObjects:
    """Where only the log was copied."""

    async def read(self, digest: Digest, bytes_max: int) -> bytes | None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFacts:
    """How a checkpoint travels."""

    kind: str
    base: str | None
    """Root of the checkpoint that a delta is applied to."""
    files: int
    shards: int
    tensors: int
    transport_bytes: int
    full_bytes: int
    """Of all tensors, whichever way they travel."""


class ManifestCache:
    """Those that were read, the last used ones kept."""

    def __init__(self, objects: ObjectSource) -> None:
        self._objects = objects
        self._known: OrderedDict[Digest, ManifestFacts] = OrderedDict()

    async def read(self, digest: Digest, *, network: NetworkId, run: RunId, trainer: NodeId) -> ManifestFacts | None:
        """None where the file is not here, or is not what the trainer of the run signed."""
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
CREATE TABLE IF NOT EXISTS looks (count INTEGER);
CREATE TABLE IF NOT EXISTS seen (node BLOB PRIMARY KEY, first INTEGER, looks INTEGER) WITHOUT ROWID;
INSERT INTO looks SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM looks);
"""
COUNT_ONLINE = "INSERT INTO seen VALUES (?, ?, 1) ON CONFLICT (node) DO UPDATE SET looks=looks+1"


class UptimeCounter:
    """Looks that found each node online, and all looks since it was first found."""

    def __init__(self, path: Path, live: LiveState, clock: Clock) -> None:
        self._path = path
        self._live = live
        self._clock = clock

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._clock.sleep_ms(UPTIME_SAMPLE_MS)
            online = self._live.list_online()
            if online is not None:
                await asyncio.to_thread(self.record_sample, online)

    def record_sample(self, online: Sequence[NodeId]) -> None:
        """One look."""
        try:
            connection = self._open()
            with connection:
                connection.execute("UPDATE looks SET count=count+1")
                (looks,) = connection.execute("SELECT count FROM looks").fetchone()
                connection.executemany(COUNT_ONLINE, [(node, looks) for node in online])
            connection.close()
        except (sqlite3.Error, OSError) as error:
            raise LocalError(f"cannot keep {self._path}: {error}; delete it to count anew") from None

    async def get_uptime(self, nodes: Sequence[NodeId]) -> dict[str, float]:
        """The share of looks since the first one that found it, by address; none for a node that was never found."""
        return await asyncio.to_thread(self.read_uptime, nodes) if self._path.exists() else {}

    def read_uptime(self, nodes: Sequence[NodeId]) -> dict[str, float]:
        try:
            connection = self._open()
            (total,) = connection.execute("SELECT count FROM looks").fetchone()
            places = ",".join("?" * len(nodes))
            found = connection.execute(f"SELECT node, first, looks FROM seen WHERE node IN ({places})", list(nodes))
            shares = {"0x" + node.hex(): looks / (1 + total - first) for node, first, looks in found}
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
