"""The values between the agent and the code that runs it: events say what happened, effects say what to do. Pure.

Effects are carried out in the order of the list. The runner sends, loads, generates and writes to disk, and reports
the end of each as an event. Nothing here decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prime_protocol.ledger.entries import LeaseGranted, NodeRegistered, Outcome
from prime_protocol.ledger.entry_values import Metric
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step
from prime_protocol.wire.messages import AuditTask, CheckpointRef, Cosigned
from prime_protocol.wire.rpc import Refusal
from prime_protocol.wire.typed_data import SubmissionReceipt


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """A log entry that the coordinator has not answered yet."""

    entry: Any
    run: RunId | None
    until_ms: int
    """By the coordinator's clock; it is dropped after that."""
    file: Digest | None = None
    """Rollouts or evidence, to be uploaded before the entry is sent."""


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """This node's answer to a lease. It never gives another."""

    lease: Uint
    submission: Digest
    deadline_ms: Uint


@dataclass(frozen=True, slots=True)
class SavedState:
    """What must survive a crash."""

    pending: tuple[PendingEntry, ...] = ()
    answers: tuple[LeaseAnswer, ...] = ()
    is_staked: bool = False
    registered: NodeRegistered | None = None
    """The registration that the log has taken last."""
    committed: tuple[PendingEntry, ...] = ()
    """Verdicts that are committed and may not be given yet."""

    def list_files(self) -> set[Digest]:
        """The files that entries wait to upload."""
        return {entry.file for entry in self.pending if entry.file is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedFile:
    """A finished rollout file, as its receipt will name it."""

    checkpoint_root: Digest
    file_digest: Digest
    rollout_root: Digest
    file_bytes: int
    output_tokens: int
    context_tokens: int

    def make_receipt(self, network: NetworkId, run: RunId, lease: LeaseGranted) -> SubmissionReceipt:
        return SubmissionReceipt(
            network=network,
            run=run,
            step=lease.step,
            lease=lease.lease,
            node=lease.node,
            checkpoint_root=self.checkpoint_root,
            file_digest=self.file_digest,
            rollout_root=self.rollout_root,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """The result of an audit."""

    outcome: Outcome
    reason: str
    metrics: tuple[Metric, ...]
    evidence: Digest
    has_bundle: bool = False
    """`evidence` is a file on this disk, to be uploaded before the verdict is sent."""
    read_proofs: Mapping[NodeId, bytes] = field(default_factory=dict)
    """This node's own, or those of the readers that an inspection is about; empty where the model was not needed."""
    blocks_read: int = 0
    """Blocks from the start that convict, where reading stopped there; 0: the whole file, or no model was needed."""
    bets: tuple[int, ...] = ()
    """What the file weighs under each bet."""


# --- Events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The agent starts, from this state on disk."""

    state: SavedState


@dataclass(frozen=True, slots=True)
class ReplyReceived:
    request: int
    reply: Any


@dataclass(frozen=True, slots=True)
class SendRefused:
    request: int
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class SendTimedOut:
    """No answer came. The request may have been carried out."""

    request: int


@dataclass(frozen=True, slots=True)
class LogRolledBack:
    """The coordinator restored its log, and entries are lost."""

    head_size: int
    """Of the restored log."""
    resent: tuple[PendingEntry, ...]
    """Submissions that may be lost, to be sent again."""


@dataclass(frozen=True, slots=True)
class WeightsReady:
    """A checkpoint is on this disk."""

    step: Step
    root: Digest


@dataclass(frozen=True, slots=True)
class WeightsFailed:
    step: Step


@dataclass(frozen=True, slots=True)
class Generated:
    lease: int
    file: FinishedFile


@dataclass(frozen=True, slots=True)
class GenerationFailed:
    lease: int
    reason: str


@dataclass(frozen=True, slots=True)
class GenerationProgressed:
    """The engine has finished some rows of a lease, or none yet: it has begun."""

    lease: int
    rows_done: int
    rows: int


@dataclass(frozen=True, slots=True)
class EngineReported:
    """What the engine is doing, and how much it can hold: of all its replicas together."""

    running: int
    """Rows that are generated at each step, of all leases."""
    waiting: int
    """Rows that wait for a place in the running batch."""
    sequences_max: int
    kv_tokens: int
    """0: unknown."""


@dataclass(frozen=True, slots=True)
class AuditDone:
    submission: Digest
    finding: AuditFinding


@dataclass(frozen=True, slots=True)
class AuditFailed:
    """The audit failed on this machine. That says nothing about the file, so there is no verdict."""

    submission: Digest


@dataclass(frozen=True, slots=True)
class SlashReported:
    """The public log proposes to slash this node."""

    submission: Digest
    appeal_until_ms: int
    is_own: bool = False
    """The journal has this submission. Answers are kept for a shorter time than a slash may take."""


@dataclass(frozen=True, slots=True)
class HeadCosigned:
    """This node has verified a head that it was asked to witness, and cosigned it."""

    cosigned: Cosigned


@dataclass(frozen=True, slots=True)
class StakeMissing:
    """The run requires this much more stake than the log shows for this node; 0: no more."""

    amount_nano: int


@dataclass(frozen=True, slots=True)
class HoldChanged:
    """The owner or the machine wants no more work; an empty reason ends that. Current jobs are finished."""

    reason: str


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """The owner wants the node to finish its jobs, then stop."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The owner wants the node to stop now and return its leases."""


@dataclass(frozen=True, slots=True)
class Tick:
    """`Agent.wake_ms` has come."""


Event = (
    Started
    | ReplyReceived
    | SendRefused
    | SendTimedOut
    | LogRolledBack
    | WeightsReady
    | WeightsFailed
    | Generated
    | GenerationFailed
    | GenerationProgressed
    | EngineReported
    | AuditDone
    | AuditFailed
    | SlashReported
    | StakeMissing
    | HeadCosigned
    | HoldChanged
    | DrainRequested
    | StopRequested
    | Tick
)

# --- Effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send the message in a new envelope; report one event that names the request."""

    request: int
    message: Any
    run: RunId | None
    file: Digest | None = None
    """Upload it first."""


@dataclass(frozen=True, slots=True)
class LoadWeights:
    weights: CheckpointRef


@dataclass(frozen=True, slots=True)
class Generate:
    lease: LeaseGranted
    checkpoint_step: Step
    checkpoint_root: Digest
    beacon: Digest


@dataclass(frozen=True, slots=True)
class CancelGeneration:
    """Stop generating this lease and drop the result."""

    lease: int


@dataclass(frozen=True, slots=True)
class Audit:
    task: AuditTask


@dataclass(frozen=True, slots=True)
class SaveState:
    """Write it to disk, atomically, before the next effect is carried out."""

    state: SavedState


@dataclass(frozen=True, slots=True)
class CheckTreeHead:
    """The coordinator sent a newer tree head: verify that it continues the last one."""

    head: bytes
    restored_size: int = 0
    """Where the coordinator says that its log was restored last; 0: nowhere."""


@dataclass(frozen=True, slots=True)
class CosignTreeHead:
    """The coordinator asks this validator to witness a head: verify it as any other, then cosign it."""

    head: bytes


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing is left to do: end the process."""

    reason: str
    """Empty where the owner asked for it."""


Effect = Send | LoadWeights | Generate | CancelGeneration | Audit | SaveState | CheckTreeHead | CosignTreeHead | Stop
