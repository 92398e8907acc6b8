"""What only a running coordinator knows, as far as pages show it. A mirror of the log alone tells none of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from prime_protocol.ids import Digest, NodeId, RunId


@dataclass(frozen=True, slots=True, kw_only=True)
class Presence:
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
class Attendance:
    """How many nodes there are, by what was last heard of them."""

    online: int
    late: int


class Live(Protocol):
    """Asked on the event loop; it only looks things up. None: not known here."""

    def count(self) -> Attendance | None: ...

    def list_online(self) -> list[NodeId] | None: ...

    def get_presence(self, nodes: Sequence[NodeId]) -> dict[str, Presence] | None:
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


class Objects(Protocol):
    """Files that the log names: rollout files, evidence, manifests."""

    async def read(self, digest: Digest, bytes_max: int) -> bytes | None:
        """The file, checked against its digest; None where it is not here, or longer than that."""
        ...


class NothingLive:
    """What a mirror knows beside the log."""

    def count(self) -> Attendance | None:
        return None

    def list_online(self) -> list[NodeId] | None:
        return None

    def get_presence(self, nodes: Sequence[NodeId]) -> dict[str, Presence] | None:
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
