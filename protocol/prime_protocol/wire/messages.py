"""What nodes, trainer and coordinator say to each other beside log entries: requests, and the replies to them.

A log entry travels as itself: its envelope is sent to the endpoint of its kind and lands in the log as it came.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from prime_protocol.constants import (
    AUDITS_LISTED_MAX,
    LEASES_OPEN_MAX,
    NOTE_BYTES_MAX,
    READERS_MAX,
    UPLOAD_URL_CHARS_MAX,
)
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import (
    Appealed,
    CheckpointPublished,
    Delegated,
    DelegationRevoked,
    Inspected,
    LeaseEnded,
    LeaseGranted,
    NodeRegistered,
    PoolReturned,
    Released,
    RunFunded,
    Staked,
    StepMeasured,
    Submitted,
    Unbonded,
    VerdictGiven,
    Withdrawn,
)
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.wire.codec import Range, Size
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import Digest, NodeId, Step
from prime_protocol.wire.rpc import Endpoint


class NodeActivity(StrEnum):
    """What a node is doing."""

    IDLE = "idle"
    LOADING = "loading"
    WORKING = "working"
    DRAINING = "draining"


class NodeCommand(StrEnum):
    """What the coordinator asks a node to do."""

    NONE = "none"
    DRAIN = "drain"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Node: I am here, and this is what I do."""

    activity: NodeActivity
    checkpoint_step: Annotated[int, Range(-1, 2**63 - 1)]
    """Newest checkpoint it holds; -1 for none."""
    head_size: Uint
    """Size of the newest tree head it has seen; the reply carries a newer one if there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRef:
    """The checkpoint a node should hold."""

    step: Step
    root: Digest
    manifest: Digest
    """Object with the manifest's signed frame."""
    beacon: Digest | None
    """None until a head was noted after it: there is nothing to lease yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditTask:
    """A submission this node was drawn to judge."""

    submission: Digest
    round: Uint
    seed: Digest
    """Of the draw; decoys come from it."""
    file_digest: Digest
    lease: Uint
    node: NodeId
    step: Step
    checkpoint_root: Digest
    first_slot: Uint
    slots: Uint
    deadline_ms: Uint
    readers: Annotated[tuple[NodeId, ...], Size(0, READERS_MAX)] = ()
    """An inspection: compute the read proofs of these validators. Empty: an audit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """Everything a node needs until its next beat."""

    now_ms: Uint
    next_heartbeat_ms: Uint
    head: Annotated[bytes, Size(0, NOTE_BYTES_MAX)]
    """The newest signed tree head, empty where the node has it."""
    weights: CheckpointRef | None
    lag_max: Uint
    leases: Annotated[tuple[LeaseGranted, ...], Size(0, LEASES_OPEN_MAX)]
    """The node's own leases that are still open, so that a restarted one can go on."""
    audits: Annotated[tuple[AuditTask, ...], Size(0, AUDITS_LISTED_MAX)]
    command: NodeCommand
    version_min: Uint
    upgrade_by_ms: Uint
    """When `version_min` rises above what this node speaks; 0 where nothing is planned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """Node or trainer: what holds for the work of this step?"""

    step: Step
    root: Digest | None
    """The checkpoint to tell of; None: the step's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReply:
    """What everybody who works on a step, or judges its work, goes by. The log says the same."""

    terms: RunTerms
    """In force for the step, as far as is known: they are settled with its first lease."""
    beacon: Digest | None
    """Of the step; None until a head was noted after its checkpoint."""
    weights: CheckpointRef
    """The checkpoint that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """Worker: give me work."""

    checkpoint_step: Uint
    """The newest checkpoint it can generate with right now."""
    tokens_per_s: Uint
    """Its own measurement, a hint until the coordinator has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReply:
    """A lease, or when to ask again and why."""

    lease: LeaseGranted | None
    retry_ms: Uint
    reason: Annotated[str, Size(0, 200)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryReply:
    """The entry stands in the log, on disk, at this place."""

    index: Uint
    at_ms: Uint


class UploadPurpose(StrEnum):
    """What a file is for, and so who may send it."""

    ROLLOUTS = "rollouts"
    """The answer to a lease, by its holder."""
    EVIDENCE = "evidence"
    """What a verdict rests on, by a validator that was drawn."""
    MANIFEST = "manifest"
    """The signed manifest of a checkpoint, by the run's trainer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadRequest:
    """Node: I want to send this file, which I am going to name in an entry."""

    digest: Digest
    size_bytes: Uint
    purpose: UploadPurpose
    lease: Uint | None
    """The lease it answers, for rollouts; else None."""
    submission: Digest | None
    """The submission it is about, for evidence; else None."""

    def __post_init__(self) -> None:
        if (self.lease is not None) != (self.purpose is UploadPurpose.ROLLOUTS):
            raise RemoteError("lease", f"is {self.lease} in an upload of {self.purpose}")
        if (self.submission is not None) != (self.purpose is UploadPurpose.EVIDENCE):
            raise RemoteError("submission", f"is {self.submission} in an upload of {self.purpose}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadReply:
    """Where to send the file, unless it is there already."""

    stored: bool
    """The coordinator has it. A bucket's copy is compared with its digest only when an entry names it."""
    url: Annotated[str, Size(0, UPLOAD_URL_CHARS_MAX)]
    """PUT it there; empty: PUT it to the coordinator itself, under `/objects/<digest>`."""


HEARTBEAT = Endpoint("heartbeat", Heartbeat, HeartbeatReply, is_idempotent=True)
LEASE = Endpoint("lease", LeaseRequest, LeaseReply)
STEP = Endpoint("step", StepRequest, StepReply, is_idempotent=True)
UPLOAD = Endpoint("upload", UploadRequest, UploadReply, is_idempotent=True)
"""Asks for a place. The same message, in a header, goes with the file when the coordinator is the place."""

AUTHORED_ENTRIES: tuple[type[Any], ...] = (
    Appealed,
    CheckpointPublished,
    Delegated,
    DelegationRevoked,
    Inspected,
    LeaseEnded,
    NodeRegistered,
    PoolReturned,
    Released,
    RunFunded,
    Staked,
    StepMeasured,
    Submitted,
    Unbonded,
    VerdictGiven,
    Withdrawn,
)
"""The entries that others than the coordinator write."""

IDEMPOTENT_ENTRIES: tuple[type[Any], ...] = (
    CheckpointPublished,
    Inspected,
    NodeRegistered,
    StepMeasured,
    Submitted,
    VerdictGiven,
)
"""Entries that may be sent again when no answer came: the same body by the same sender gets the same `Logged`."""

ENTRY_ENDPOINTS: tuple[Endpoint[Any, EntryReply], ...] = tuple(
    Endpoint(kind.__name__, kind, EntryReply, is_idempotent=kind in IDEMPOTENT_ENTRIES) for kind in AUTHORED_ENTRIES
)
