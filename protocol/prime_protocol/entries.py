"""The entries of the log: one frozen dataclass each, and who may write it.

An entry travels as the body of its author's envelope; the log's leaf is a Record. What an entry does to the books is in
ledger.py and the files it calls. Those of audits stand in audit_entries.py. Amounts are in nano: 10^-9 of a token.
"""

from dataclasses import dataclass
from typing import Annotated

from prime_protocol.audit_entries import AuditDrawn as AuditDrawn
from prime_protocol.audit_entries import Inspected as Inspected
from prime_protocol.audit_entries import PlantRevealed as PlantRevealed
from prime_protocol.audit_entries import Seen as Seen
from prime_protocol.audit_entries import Settled as Settled
from prime_protocol.audit_entries import ValidatorScored as ValidatorScored
from prime_protocol.audit_entries import VerdictGiven as VerdictGiven
from prime_protocol.codec import Range, Size
from prime_protocol.constants import (
    ADDRESS_CHARS_MAX,
    ADDRESSES_MAX,
    DIGEST_BYTES,
    LEASE_SLOTS_MAX,
    LINEAGE_MAX,
    METRICS_MAX,
)
from prime_protocol.envelope import Uint
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NodeId, RunId, Slot, Step
from prime_protocol.metrics import Metric as Metric
from prime_protocol.metrics import check_names
from prime_protocol.receipts import Delegation, SubmissionReceipt
from prime_protocol.signing import Signature
from prime_protocol.statuses import OUTCOME_NUMBER as OUTCOME_NUMBER
from prime_protocol.statuses import NodeStatus as NodeStatus
from prime_protocol.statuses import Outcome as Outcome
from prime_protocol.statuses import Reason as Reason
from prime_protocol.statuses import Role as Role
from prime_protocol.statuses import RunStatus as RunStatus
from prime_protocol.terms import RunTerms

NO_SEAL = Digest(bytes(DIGEST_BYTES))
"""Of a lease that cannot be a planted one."""


@dataclass(frozen=True, slots=True)
class Record:
    """One leaf of the log: an author's envelope and when the coordinator took it in."""

    at_ms: Uint
    frame: bytes


# --- The network, its accounts and its nodes ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCreated:
    """Coordinator, entry 0: what this log is."""

    log_key: Annotated[str, Size(1, 200)]
    """Verifier key of the tree heads, in signed-note form."""
    chain_id: Uint
    contract: NodeId
    """EIP-712 domain of receipts and delegations; zeros for embedded settlement."""
    unbonding_ms: Uint
    """How long stake stays slashable after it was asked back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deposited:
    """Coordinator, for settlement: value came in from outside. The only entry that brings value into the books."""

    account: NodeId
    amount_nano: Uint
    reference: Digest
    """What happened outside (a transaction, a faucet request). Counts once."""
    run: RunId | None = None
    """On a chain: it is in the pool of this run, and the account is its funder, or the court that brings slashed stake.
    Then it is no balance of the account.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """Account: value goes out again."""

    amount_nano: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRegistered:
    """Node: here I am, this is what I offer. Registering again replaces the offer."""

    roles: Annotated[tuple[Role, ...], Size(1, len(Role))]
    hardware: Annotated[str, Size(0, 256)]
    """One line for people; nothing is decided by it."""
    addresses: Annotated[tuple[Annotated[str, Size(1, ADDRESS_CHARS_MAX)], ...], Size(0, ADDRESSES_MAX)] = ()
    """Where others may fetch weights from it: URLs or multiaddrs. None for a node that only calls out."""

    def __post_init__(self) -> None:
        if list(self.roles) != sorted(set(self.roles)):
            raise RemoteError("roles", "must be sorted, each once")
        for place, address in enumerate(self.addresses):
            if not address.startswith(("http://", "https://", "/")):
                raise RemoteError(f"addresses[{place}]", f"{address} is neither a URL nor a multiaddr")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatusSet:
    """Coordinator: a node is taken out of work, or back in, and why."""

    node: NodeId
    status: NodeStatus
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegated:
    """Node: my owner's signed word that this key works for it."""

    delegation: Delegation
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationRevoked:
    """Owner: no delegation I signed for this key so far counts any more. Stake stays where it is until unbonded."""

    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Staked:
    """Owner: this much of my balance stands behind that node."""

    node: NodeId
    amount_nano: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class Unbonded:
    """Owner: I want this much back. It stays slashable until the delay is over."""

    node: NodeId
    amount_nano: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Owner: the delay is over, put what has matured into my balance."""

    node: NodeId


# --- A run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCreated:
    """Coordinator: a run begins."""

    terms: RunTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUpdated:
    """Coordinator: new terms. A step keeps those in force at its first lease, until all its work is judged and paid."""

    terms: RunTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatusSet:
    """Coordinator: the run pauses, goes on, or ends for good."""

    status: RunStatus
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFunded:
    """Any account: this much of my balance is for paying the run's contributors. Not where the pool is on a chain."""

    amount_nano: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReturned:
    """Account that funded a closed run: my part of what is left of the funding, by what each account put in."""

    amount_nano: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPublished:
    """Trainer: the weights of a step, and the submissions they were trained on."""

    step: Step
    root: Digest
    """Names the weights, whatever way they travel."""
    manifest: Digest
    """SHA-256 of the signed manifest's frame."""
    trained_on: Annotated[tuple[Digest, ...], Size(0, LINEAGE_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMeasured:
    """Trainer: the numbers of a published step, once, and how it does on held-out problems. They decide nothing."""

    step: Step
    metrics: Annotated[tuple[Metric, ...], Size(1, METRICS_MAX)]

    def __post_init__(self) -> None:
        check_names(self.metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNoted:
    """Coordinator: the tree head over everything before this entry. Beacons and audit draws hang on it."""

    root: Digest


# --- Work -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGranted:
    """Coordinator: these slots of that step are this node's until the deadline."""

    lease: Uint
    node: NodeId
    step: Step
    first_slot: Slot
    slots: Annotated[int, Range(1, LEASE_SLOTS_MAX)]
    deadline_ms: Uint
    speculative: bool
    """A second chance beside a slow lease: slots may overlap, but are credited once."""
    seal: Digest = NO_SEAL
    """Every lease has one and they all look alike. That of a planted lease can be opened; see PlantRevealed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEnded:
    """Coordinator, after the deadline, or the lease's node: no submission will come."""

    lease: Uint
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """Worker: the answer to a lease."""

    receipt: SubmissionReceipt
    signature: Signature
    file_bytes: Uint
    output_tokens: Uint
    context_tokens: Uint
    """Sum over output tokens of the tokens before each. Checked at intake, like output_tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credited:
    """Coordinator: an accepted submission counts for its node, once."""

    submission: Digest
    units: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidOut:
    """Coordinator: a finished step's budget goes to those who were credited. The shares follow from the books."""

    step: Step


# --- Punishment -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashProposed:
    """Coordinator: a hard outcome puts stake into escrow. The slash is named by its submission."""

    submission: Digest
    amount_nano: Uint
    evidence: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Appealed:
    """Owner, or its node: look again. The bond is the owner's and comes back if the slash is overturned."""

    submission: Digest
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashExecuted:
    """Coordinator: the window is over, or other validators found the same."""

    submission: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashOverturned:
    """Coordinator: other validators found otherwise, or nobody judged in time. Stake and bond go back.

    What nobody judged is soft: there is no credit without an accepted verdict.
    """

    submission: Digest


Entry = (
    NetworkCreated
    | Deposited
    | Withdrawn
    | NodeRegistered
    | NodeStatusSet
    | Delegated
    | DelegationRevoked
    | Staked
    | Unbonded
    | Released
    | RunCreated
    | RunUpdated
    | RunStatusSet
    | RunFunded
    | PoolReturned
    | CheckpointPublished
    | StepMeasured
    | HeadNoted
    | LeaseGranted
    | LeaseEnded
    | Submitted
    | AuditDrawn
    | VerdictGiven
    | PlantRevealed
    | Settled
    | Credited
    | PaidOut
    | ValidatorScored
    | Inspected
    | SlashProposed
    | Appealed
    | SlashExecuted
    | SlashOverturned
)
