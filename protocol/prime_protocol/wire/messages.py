"""Requests and replies between nodes, trainer and coordinator, except log entries.

A log entry is sent as itself: its envelope goes to the endpoint of its kind and enters the log unchanged.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from prime_protocol.constants import (
    ACCEPTED_LISTED_MAX,
    AUDITS_LISTED_MAX,
    COSIGNATURE_TIME_S_MAX,
    ED25519_SIGNATURE_BYTES,
    EVIDENCE_BETS,
    LEASES_OPEN_MAX,
    NOTE_BYTES_MAX,
    READERS_MAX,
    UPDATES_LISTED_MAX,
    UPLOAD_URL_CHARS_MAX,
)
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import (
    Appealed,
    CheckpointPublished,
    Delegated,
    DelegationRevoked,
    FindingFiled,
    Inspected,
    LeaseEnded,
    LeaseGranted,
    NodeRegistered,
    PoolReturned,
    Released,
    RulesChanged,
    RulingGiven,
    RunFunded,
    RunStatus,
    Staked,
    StepMeasured,
    SubmissionsListed,
    Submitted,
    Unbonded,
    VerdictCommitted,
    VerdictGiven,
    Withdrawn,
)
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.proofs.read_proofs import ReadCoverage
from prime_protocol.wire.codec import Range, Size
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import Digest, NodeId, Step
from prime_protocol.wire.rpc import Endpoint
from prime_protocol.wire.typed_data import SubmissionReceipt


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
class Cosigned:
    """Validator: my cosignature of the tree head that I was asked to witness."""

    head_size: Uint
    time_s: Annotated[int, Range(0, COSIGNATURE_TIME_S_MAX)]
    signature: Annotated[bytes, Size(ED25519_SIGNATURE_BYTES, ED25519_SIGNATURE_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Node: I am here, and this is what I do."""

    activity: NodeActivity
    checkpoint_step: Annotated[int, Range(-1, 2**63 - 1)]
    """Newest checkpoint it holds; -1 for none."""
    head_size: Uint
    """Size of the newest tree head it has seen; the reply carries a newer one if there is one."""
    cosigned: Cosigned | None = None
    """The head that the last reply asked it to witness."""
    updates_seen: Uint = 0
    """`number` of the last update that the node has on its disk. The coordinator forgets updates up to it."""


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
    readers: Annotated[tuple[ReadCoverage, ...], Size(0, READERS_MAX)] = ()
    """An inspection: compute the read proofs of these validators. Empty: an audit."""
    is_ruling: bool = False
    """Of an inspector: validators could not decide; the answer is a ruling, not a verdict."""
    sums: Annotated[tuple[Uint, ...], Size(0, EVIDENCE_BETS)] = ()
    """What the author's files in this run came to so far, as the log has it; empty for none."""
    commit: bool = False
    """Others judge the file in the same round: commit to the verdict first, and give it when a reply says so."""

    def __post_init__(self) -> None:
        if len(self.sums) not in (0, EVIDENCE_BETS):
            raise RemoteError("sums", f"has {len(self.sums)} numbers, allowed is 0 or {EVIDENCE_BETS}")


class SubmissionStage(StrEnum):
    """How far a submission has come."""

    RECEIVED = "received"
    CHECKED = "checked"
    """A validator has given a verdict."""
    ACCEPTED = "accepted"
    CREDITED = "credited"
    PAID = "paid"
    INVALID = "invalid"
    FRAUDULENT = "fraudulent"
    """Found dishonest; the slash has not ended."""
    SLASHED = "slashed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionUpdate:
    """A submission of this node reached another stage."""

    number: Uint
    """Increases with each update, also over restarts of the coordinator."""
    submission: Digest
    stage: SubmissionStage
    reason: Annotated[str, Size(0, 400)]
    """Why it was rejected; empty if it was not, or if the coordinator has restarted since the verdict."""
    appeal_until_ms: Uint
    """When the time to appeal ends; 0 where there is no slash that can be appealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountStatus:
    """What the ledger says about a node, and whether the node gets work in the run."""

    eligibility: Annotated[str, Size(0, 40)]
    is_eligible: bool
    remedy: Annotated[str, Size(0, 400)]
    """What would change the eligibility."""
    stake_nano: Uint
    stake_min_nano: Uint
    """The stake that the run requires."""
    balance_nano: Uint
    """The owner's balance; the node is its own owner unless another one has delegated to it."""
    earned_nano: Uint
    fraudulent: Uint
    """Submissions that were found dishonest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """Everything a node needs until its next heartbeat."""

    now_ms: Uint
    next_heartbeat_ms: Uint
    head: Annotated[bytes, Size(0, NOTE_BYTES_MAX)]
    """The newest signed tree head, empty where the node has it."""
    restored_size: Uint = 0
    """Index of the newest LogRestored entry; 0: the log was never restored. A hint: the node fetches the entry."""
    witness: Annotated[bytes, Size(0, NOTE_BYTES_MAX)] = b""
    """A signed tree head that this validator is asked to cosign before its round is out; empty: none."""
    weights: CheckpointRef | None
    lag_max: Uint
    leases: Annotated[tuple[LeaseGranted, ...], Size(0, LEASES_OPEN_MAX)]
    """The node's own open leases, so that a restarted node can continue."""
    audits: Annotated[tuple[AuditTask, ...], Size(0, AUDITS_LISTED_MAX)]
    reveals: Annotated[tuple[Digest, ...], Size(0, AUDITS_LISTED_MAX)] = ()
    """Submissions whose committed verdict this node may give now."""
    run_status: RunStatus = RunStatus.ACTIVE
    """A run that pauses or has ended gives no work; a node with several runs goes on with the others."""
    command: NodeCommand
    version_min: Uint
    upgrade_by_ms: Uint
    """When `version_min` rises above what this node spoke when it registered; 0 where nothing is planned."""
    rules_change: RulesChanged | None = None
    """Announced in the log, and not in force yet."""
    account: AccountStatus
    updates: Annotated[tuple[SubmissionUpdate, ...], Size(0, UPDATES_LISTED_MAX)]
    """About the node's own submissions, after the heartbeat's `updates_seen`, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """Node or trainer: which terms and checkpoint hold for this step?"""

    step: Step
    root: Digest | None
    """Root of the checkpoint to describe; None: the step's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReply:
    """What holds for all work on a step and for its audits. The log says the same."""

    terms: RunTerms
    """In force for the step, as far as is known: they are settled with its first lease."""
    beacon: Digest | None
    """Of the step; None until a head was noted after its checkpoint."""
    weights: CheckpointRef
    """The checkpoint that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """Trainer: how does the run stand, and what was accepted after this?"""

    after: Uint
    """`number` of the last accepted submission that the sender knows; 0: from the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedSubmission:
    """A submission that is accepted and credited, and that no checkpoint was trained on yet."""

    number: Uint
    """Increases with each acceptance, also over restarts of the coordinator."""
    receipt: SubmissionReceipt
    """Its id is the submission's name."""
    first_slot: Uint
    slots: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReply:
    """The run as the coordinator's ledger has it."""

    status: RunStatus
    terms: RunTerms
    """In force for the next step that is leased."""
    rules: Uint
    """Of the log, in force at the time of the reply."""
    latest_step: Annotated[int, Range(-1, 2**63 - 1)]
    """Newest published step; -1 before the first."""
    is_exhausted: bool
    """Every slot of the newest step is credited, so the step yields no more work."""
    accepted: Annotated[tuple[AcceptedSubmission, ...], Size(0, ACCEPTED_LISTED_MAX)]
    """After the request's `after`, oldest first; a full list may have a continuation."""
    restored_size: Uint = 0
    """Index of the newest LogRestored entry; 0: the log was never restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """Worker: give me work."""

    checkpoint_step: Uint
    """The newest checkpoint it can generate with right now."""
    tokens_per_s: Uint
    """Its own measurement, a hint until the coordinator has one."""
    rows_at_once: Uint = 0
    """Rollouts that its engine generates at once; 0: it does not say. A claim: what the node delivers bounds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseReply:
    """A lease, or when to ask again and why."""

    lease: LeaseGranted | None
    retry_ms: Uint
    reason: Annotated[str, Size(0, 200)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryReply:
    """The entry is in the log, on disk, at this index."""

    index: Uint
    at_ms: Uint
    can_reveal: bool = False
    """After a commitment: it was the last of its round, so the verdict may follow at once."""


class UploadPurpose(StrEnum):
    """The purpose of a file, which decides who may send it."""

    ROLLOUTS = "rollouts"
    """The answer to a lease, by its holder."""
    EVIDENCE = "evidence"
    """The evidence of a verdict, by a validator that was drawn; or of a finding, by an account that can file it."""
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
    """Where to send the file, if the coordinator does not have it yet."""

    stored: bool
    """The coordinator has it. A bucket's copy is compared with its digest only when an entry names it."""
    url: Annotated[str, Size(0, UPLOAD_URL_CHARS_MAX)]
    """PUT it there; empty: PUT it to the coordinator itself, under `/objects/<digest>`."""


HEARTBEAT = Endpoint("heartbeat", Heartbeat, HeartbeatReply, is_idempotent=True)
LEASE = Endpoint("lease", LeaseRequest, LeaseReply)
STEP = Endpoint("step", StepRequest, StepReply, is_idempotent=True)
RUN = Endpoint("run", RunRequest, RunReply, is_idempotent=True)
UPLOAD = Endpoint("upload", UploadRequest, UploadReply, is_idempotent=True)
"""Asks where to upload. If the answer is the coordinator itself, the same message goes with the file, in a header."""

AUTHORED_ENTRIES: tuple[type[Any], ...] = (
    Appealed,
    CheckpointPublished,
    Delegated,
    DelegationRevoked,
    FindingFiled,
    Inspected,
    LeaseEnded,
    NodeRegistered,
    PoolReturned,
    Released,
    RulingGiven,
    RunFunded,
    Staked,
    StepMeasured,
    SubmissionsListed,
    Submitted,
    Unbonded,
    VerdictCommitted,
    VerdictGiven,
    Withdrawn,
)
"""The entries that others than the coordinator write."""

IDEMPOTENT_ENTRIES: tuple[type[Any], ...] = (
    CheckpointPublished,
    Delegated,
    Inspected,
    NodeRegistered,
    RulingGiven,
    StepMeasured,
    SubmissionsListed,
    Submitted,
    VerdictCommitted,
    VerdictGiven,
)
"""Entries that may be sent again when no answer came: the same body by the same sender gets the same `Logged`."""

ENTRY_ENDPOINTS: tuple[Endpoint[Any, EntryReply], ...] = tuple(
    Endpoint(kind.__name__, kind, EntryReply, is_idempotent=kind in IDEMPOTENT_ENTRIES) for kind in AUTHORED_ENTRIES
)
