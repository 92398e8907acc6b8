"""What a node can be told, and what it can want done: the values between agent.py and the shell around it.

An event says what happened; an effect says what to do next, in the order of the list. The shell seals, sends, loads,
generates and writes to disk, and reports each end as an event. Nothing here decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prime_protocol.ledger.entries import LeaseGranted, Metric, NodeRegistered, Outcome
from prime_protocol.wire.ids import Digest, NodeId, RunId, Step
from prime_protocol.wire.messages import AuditTask, CheckpointRef
from prime_protocol.wire.rpc import Refusal


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """A log entry on its way to the coordinator."""

    entry: Any
    run: RunId | None
    until_ms: int
    """By the coordinator's clock: after this it is no use any more."""
    file: Digest | None = None
    """The file that has to be with the coordinator before the entry is: rollouts, or evidence."""


@dataclass(frozen=True, slots=True)
class LeaseAnswer:
    """What this node has said to a lease: it will never say anything else."""

    lease: int
    submission: Digest
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class SavedState:
    """What must survive a crash."""

    pending: tuple[PendingEntry, ...] = ()
    answers: tuple[LeaseAnswer, ...] = ()
    is_staked: bool = False
    registered: NodeRegistered | None = None
    """What the node last told the log of itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedFile:
    """A finished rollout file, as its receipt will name it."""

    checkpoint_root: Digest
    file_digest: Digest
    rollout_root: Digest
    file_bytes: int
    output_tokens: int
    context_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """What an audit came to."""

    outcome: Outcome
    reason: str
    metrics: tuple[Metric, ...]
    evidence: Digest
    has_bundle: bool = False
    """`evidence` is a file on this disk, which has to be with the coordinator before the verdict is."""
    read_proofs: Mapping[NodeId, bytes] = field(default_factory=dict)
    """This node's own, or those of whom an inspection is about; empty where the model was not needed."""


# --- Events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The process runs; this was on its disk."""

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
    """No answer came. It may have been done."""

    request: int


@dataclass(frozen=True, slots=True)
class WeightsReady:
    """A checkpoint is on this disk and can be generated with."""

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
    """So many rows of a lease are done."""

    lease: int
    rows_done: int
    rows: int


@dataclass(frozen=True, slots=True)
class AuditDone:
    submission: Digest
    finding: AuditFinding


@dataclass(frozen=True, slots=True)
class AuditFailed:
    """The audit itself broke. That says nothing about the file, so nothing is said."""

    submission: Digest


@dataclass(frozen=True, slots=True)
class SlashReported:
    """The public log proposes to slash this node."""

    submission: Digest
    appeal_until_ms: int
    is_own: bool = False
    """The journal has the work; the memory of answers is shorter than a judgement may take."""


@dataclass(frozen=True, slots=True)
class StakeMissing:
    """The run asks for so much more stake than the public log has behind this node; 0: for no more."""

    amount_nano: int


@dataclass(frozen=True, slots=True)
class HoldChanged:
    """The owner, or the machine, wants no more work for now; empty: that is over. What is in hand is finished."""

    reason: str


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """The owner wants the node to finish what is in hand, and then to stop."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The owner wants the node to stop now: what is in hand is given back."""


@dataclass(frozen=True, slots=True)
class Tick:
    """`Agent.wake_ms` has come."""


Event = (
    Started
    | ReplyReceived
    | SendRefused
    | SendTimedOut
    | WeightsReady
    | WeightsFailed
    | Generated
    | GenerationFailed
    | GenerationProgressed
    | AuditDone
    | AuditFailed
    | SlashReported
    | StakeMissing
    | HoldChanged
    | DrainRequested
    | StopRequested
    | Tick
)

# --- Effects --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Seal it with a fresh sequence number and send it; answer with one event that names the request."""

    request: int
    message: Any
    run: RunId | None
    file: Digest | None = None
    """To be uploaded first."""


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
    """Stop generating for this lease; what is made is of no use."""

    lease: int


@dataclass(frozen=True, slots=True)
class Audit:
    task: AuditTask


@dataclass(frozen=True, slots=True)
class SaveState:
    """Whole, and on disk before the next effect is begun."""

    state: SavedState


@dataclass(frozen=True, slots=True)
class CheckTreeHead:
    """A newer tree head was shown: keep it, and ask for proof that it continues the one before."""

    head: bytes


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing is left to do; the process may end."""

    reason: str
    """Empty where its owner asked for it."""


Effect = Send | LoadWeights | Generate | CancelGeneration | Audit | SaveState | CheckTreeHead | Stop
