"""The entries of the log, one frozen dataclass each, with the enums and values that they contain.

An entry travels as the body of its author's envelope; the leaf of the log is a LogRecord. Amounts are in nano: 10^-9 of
the network's unit of value. What an entry changes is not here: accounts.py, work.py, audits.py and rewards.py have the
rules, and replay.py says who may write which entry.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from prime_protocol.constants import (
    ADDRESS_CHARS_MAX,
    ADDRESSES_MAX,
    BET_WEIGHT_MAX,
    COSIGNATURES_MAX,
    DRAW_MARGIN_MS_MAX,
    ED25519_KEY_BYTES,
    EVIDENCE_BETS,
    LEASE_SLOTS_MAX,
    LINEAGE_MAX,
    LOG_KEY_CHARS_MAX,
    METRICS_MAX,
    PROTOCOL_VERSION,
    QUORUM_MAX,
    READ_PROOF_BYTES,
    READERS_MAX,
    REASON_CHARS_MAX,
    RELEASE_CHARS_MAX,
    RULES_NOTICE_MS,
    RULES_NOTICE_MS_MAX,
    RULES_VERSION_MAX,
    RUNS_SERVED_MAX,
    SETTLED_MAX,
    SNAPSHOT_FORMAT_MAX,
)
from prime_protocol.errors import RemoteError
from prime_protocol.keys.rotation import CoordinatorKeyRotated, LogKeyRotated
from prime_protocol.ledger.entry_values import HeadCosignature, InspectedVerdict, Metric, check_metric_names
from prime_protocol.ledger.entry_values import NodeStatus as NodeStatus
from prime_protocol.ledger.entry_values import Role as Role
from prime_protocol.ledger.entry_values import RunStatus as RunStatus
from prime_protocol.ledger.randomness_chain import RandomnessChain, RoundSignature
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.wire.codec import Range, Size
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import DEFAULT_TICKER, Digest, NodeId, RunId, Slot, Step, Ticker
from prime_protocol.wire.signing import Signature
from prime_protocol.wire.typed_data import Delegation, SubmissionReceipt, VerdictReceipt

ReasonText = Annotated[str, Size(0, REASON_CHARS_MAX)]
"""Why, for people."""
RulesVersion = Annotated[int, Range(1, RULES_VERSION_MAX)]
"""Of the ledger's rules."""
RELEASE_FORM = re.compile("[0-9]+([.][0-9]+)*((a|b|rc)[0-9]+)?")
BetWeight = Annotated[int, Range(-BET_WEIGHT_MAX, BET_WEIGHT_MAX)]
"""Tenths of a power of ten."""


class Outcome(StrEnum):
    """What a validator found, or what was settled. Invalid is an honest failure, fraudulent is provable dishonesty."""

    ACCEPT = "accept"
    INVALID = "invalid"
    FRAUDULENT = "fraudulent"


OUTCOME_NUMBER = {Outcome.ACCEPT: 0, Outcome.INVALID: 1, Outcome.FRAUDULENT: 2}
"""How a VerdictReceipt writes an outcome, for contracts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditDrawn:
    """Coordinator: by whom a submission is checked. Drawn from a round published after it was logged."""

    submission: Digest
    round: Annotated[int, Range(0, 64)]
    randomness_round: Uint
    """Of the network's randomness chain."""
    validators: Annotated[tuple[NodeId, ...], Size(1, QUORUM_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedUnaudited:
    """Coordinator: the draw spares these submissions, so each is accepted and credited."""

    randomness_round: Uint
    """Of the network's randomness chain. The draw of each comes from it."""
    submissions: Annotated[tuple[Digest, ...], Size(1, SETTLED_MAX)]
    """As they stand in the log."""
    uncredited: Annotated[tuple[Digest, ...], Size(0, SETTLED_MAX)] = ()
    """Those of them that are accepted only: an earlier answer to one of their slots is credited."""

    def list_credited(self) -> list[Digest]:
        """The ones that count for their nodes."""
        uncredited = set(self.uncredited)
        return [name for name in self.submissions if name not in uncredited]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictCommitted:
    """Validator: I have my verdict, and here is its digest. The other validators of the round cannot read it yet."""

    submission: Digest
    commitment: Digest
    """SHA-256 of the body of the VerdictGiven that follows. Its signature makes it impossible to guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictGiven:
    """Validator: what I found, with the numbers. In a round of several validators each has committed to it before."""

    receipt: VerdictReceipt
    signature: Signature
    outcome: Outcome
    reason: ReasonText
    metrics: Annotated[tuple[Metric, ...], Size(0, METRICS_MAX)]
    read_proof: Annotated[bytes, Size(0, READ_PROOF_BYTES)] = b""
    """Proof that I ran the model on the file, see proofs/read_proofs.py; empty where the model was not needed."""
    blocks_read: Uint = 0
    """Blocks from the start that the read proof covers, where I stopped because they convict; 0: the whole file."""
    bets: Annotated[tuple[BetWeight, ...], Size(0, EVIDENCE_BETS)] = ()
    """What the file weighs under each bet, see run_record.py; empty where the model was not needed."""

    def __post_init__(self) -> None:
        if self.receipt.outcome != OUTCOME_NUMBER[self.outcome]:
            raise RemoteError("outcome", f"is {self.outcome}, but the receipt says {self.receipt.outcome}")
        if len(self.read_proof) not in (0, READ_PROOF_BYTES):
            raise RemoteError("read_proof", f"has {len(self.read_proof)} bytes, allowed is 0 or {READ_PROOF_BYTES}")
        if self.blocks_read and self.outcome is not Outcome.FRAUDULENT:
            raise RemoteError("blocks_read", f"is {self.blocks_read}, only a fraudulent file need not be read whole")
        if len(self.bets) not in (0, EVIDENCE_BETS):
            raise RemoteError("bets", f"has {len(self.bets)} numbers, allowed is 0 or {EVIDENCE_BETS}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionOutcome:
    """One submission, and what its verdicts add up to."""

    submission: Digest
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Coordinator: what the verdicts on these submissions add up to. Those that are accepted are credited."""

    settled: Annotated[tuple[SubmissionOutcome, ...], Size(1, SETTLED_MAX)]
    """As the submissions stand in the log."""
    uncredited: Annotated[tuple[Digest, ...], Size(0, SETTLED_MAX)] = ()
    """Those of them that are accepted only: an earlier answer to one of their slots is credited."""

    def list_credited(self) -> list[Digest]:
        """The accepted ones that count for their nodes."""
        uncredited = set(self.uncredited)
        accepted = [each.submission for each in self.settled if each.outcome is Outcome.ACCEPT]
        return [name for name in accepted if name not in uncredited]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorScored:
    """Coordinator: a validator's verdict was not what was settled in the end, or an inspector refuted it.

    The second only on a chain, where the court takes the stake by this entry alone.
    """

    validator: NodeId
    submission: Digest
    penalty_nano: Uint = 0
    """Stake that it loses: see compute_penalty_nano in slashes.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulingGiven:
    """Inspector: validators could not decide this file; I read it, and this is the outcome."""

    submission: Digest
    outcome: Outcome
    evidence: Digest
    """Of the bundle that shows it, as in a verdict."""
    reason: ReasonText


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """Inspector: I ran the model on this file, and its validators must have these read proofs. Anyone can check.

    A validator with another read proof did not read what it judged.
    """

    submission: Digest
    seen: Annotated[tuple[InspectedVerdict, ...], Size(0, READERS_MAX)]
    """Sorted by reader. Empty where the file is seen to be bad without the model."""

    def __post_init__(self) -> None:
        readers = [each.reader for each in self.seen]
        if readers != sorted(set(readers)):
            raise RemoteError("seen", "must be sorted by reader, each once")


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One leaf of the log: an author's envelope and when the coordinator took it in."""

    at_ms: Uint
    frame: bytes


# --- The network, its accounts and its nodes ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkCreated:
    """Coordinator, entry 0: what this log is."""

    log_key: Annotated[str, Size(1, LOG_KEY_CHARS_MAX)]
    """Verifier key of the tree heads, in signed-note form."""
    chain_id: Uint
    contract: NodeId
    """EIP-712 domain of receipts and delegations; zeros for embedded settlement."""
    unbonding_ms: Uint
    """How long stake stays slashable after its owner asked it back."""
    randomness: RandomnessChain
    """Where beacons and audit draws come from."""
    draw_margin_ms: Annotated[int, Range(0, DRAW_MARGIN_MS_MAX)]
    """Least time between a noted head and the round that is drawn from."""
    ticker: Ticker = DEFAULT_TICKER
    """The name of the network's unit of value, for people. Amounts are in nano: 10^-9 of it."""
    rules: RulesVersion = PROTOCOL_VERSION
    """The rules that the log begins with."""
    rules_notice_ms: Annotated[int, Range(0, RULES_NOTICE_MS_MAX)] = RULES_NOTICE_MS
    """Least time between the announcement of other rules and their start. No later entry can change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesChanged:
    """Coordinator: from this time on the log follows the next rules."""

    rules: RulesVersion
    from_ms: Uint
    """The first entry of this time or later is the first one under these rules."""
    release: Annotated[str, Size(1, RELEASE_CHARS_MAX)]
    """First release of prime-swarm that knows them, for those who have to upgrade."""

    def __post_init__(self) -> None:
        # Programs print it inside a command that people copy.
        if not RELEASE_FORM.fullmatch(self.release):
            raise RemoteError("release", f"is {self.release!r}, expected a release such as 1.2.0 or 1.2.0rc1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deposited:
    """Coordinator, for settlement: value came in from outside. The only entry that brings value into the books."""

    account: NodeId
    amount_nano: Uint
    reference: Digest
    """What happened outside (a transaction, a faucet request). Counts once."""
    run: RunId | None = None
    """On a chain: it is in the pool of this run, and the account is its funder, or the court that brings slashed stake.
    Then it is no balance of the account."""


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
    runs: Annotated[tuple[RunId, ...], Size(0, RUNS_SERVED_MAX)] = ()
    """Runs whose audits it takes as a validator; sorted."""
    witness_key: Annotated[bytes, Size(0, ED25519_KEY_BYTES)] = b""
    """Ed25519 key with which it cosigns tree heads as a validator; empty for a node that does not."""

    def __post_init__(self) -> None:
        if list(self.runs) != sorted(set(self.runs)):
            raise RemoteError("runs", "must be sorted, each once")
        if len(self.witness_key) not in (0, ED25519_KEY_BYTES):
            raise RemoteError("witness_key", f"has {len(self.witness_key)} bytes, allowed is 0 or {ED25519_KEY_BYTES}")
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
    reason: ReasonText
    run: RunId | None = None
    """Only in this run: its work and draws in other runs go on. None: in all."""

    def __post_init__(self) -> None:
        if self.run is not None and self.status is NodeStatus.BANNED:
            raise RemoteError("run", "is given, but a ban is for all runs")


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
    reason: ReasonText


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFunded:
    """Any account: this much of my balance is for paying the run's contributors. Not where the pool is on a chain."""

    amount_nano: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReturned:
    """Account that funded a closed run: my part of what is left of the funding, by what each account put in."""

    amount_nano: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionsListed:
    """Trainer: submissions that the next checkpoint is trained on, where its own entry has no room for all of them."""

    step: Step
    """Of the checkpoint."""
    first: Uint
    """How many are listed before these; 0 begins the list of the step, and drops one that was begun before."""
    submissions: Annotated[tuple[Digest, ...], Size(1, LINEAGE_MAX)]
    """In rising order, also from one part to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPublished:
    """Trainer: the weights of a step, and the submissions they were trained on."""

    step: Step
    root: Digest
    """Names the weights, whatever way they travel."""
    manifest: Digest
    """SHA-256 of the signed manifest's frame."""
    trained_on: Annotated[tuple[Digest, ...], Size(0, LINEAGE_MAX)]
    """The last part of the list of submissions, after what SubmissionsListed has listed for this step."""
    trained_on_root: Digest
    """Merkle root over the whole list, in rising order: see versions/lineage.py."""
    trained_on_count: Uint
    """Length of the whole list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMeasured:
    """Trainer: the numbers of a published step, once, and how it does on held-out problems. They decide nothing."""

    step: Step
    metrics: Annotated[tuple[Metric, ...], Size(1, METRICS_MAX)]

    def __post_init__(self) -> None:
        check_metric_names(self.metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadNoted:
    """Coordinator: the tree head over everything before this entry.

    It fixes the round of the randomness chain that the beacons and draws of those entries come from. Validators cosign
    this head.
    """

    root: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotNoted:
    """Coordinator: SHA-256 of the state after `size` entries, see snapshot.py. Auditors can begin there."""

    size: Uint
    digest: Digest
    format: Annotated[int, Range(1, SNAPSHOT_FORMAT_MAX)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRestored:
    """Coordinator: this log was rebuilt from a copy of its first `size` entries. What came after them is lost."""

    size: Uint
    """Also the index of this entry."""
    root: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecorded:
    """Coordinator: a round of the randomness chain, and the validators that cosigned the heads before it was out."""

    round: Uint
    signature: RoundSignature
    cosignatures: Annotated[tuple[HeadCosignature, ...], Size(0, COSIGNATURES_MAX)]
    """Sorted by witness."""

    def __post_init__(self) -> None:
        witnesses = [each.witness for each in self.cosignatures]
        if witnesses != sorted(set(witnesses)):
            raise RemoteError("cosignatures", "must be sorted by witness, each once")


# --- Work -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGranted:
    """Coordinator: these slots of that step are this node's until the deadline."""

    lease: Uint
    node: NodeId
    step: Step
    checkpoint_step: Step
    """The checkpoint to generate with. It is fixed here, so that a slot has one honest answer."""
    first_slot: Slot
    slots: Annotated[int, Range(1, LEASE_SLOTS_MAX)]
    deadline_ms: Uint
    speculative: bool
    """A second chance beside a slow lease: slots may overlap, but are credited once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEnded:
    """Coordinator, after the deadline, or the lease's node: no submission will come."""

    lease: Uint
    reason: ReasonText


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
    """Coordinator: a submission counts for its node that was not credited when it was settled.

    Its slots were credited to another then, or it was accepted on appeal.
    """

    submission: Digest
    units: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidOut:
    """Coordinator: a finished step's budget goes to those who were credited. The shares follow from the books."""

    step: Step


# --- Punishment -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashProposed:
    """Coordinator: a fraudulent outcome puts stake into escrow. The slash is named by its submission."""

    submission: Digest
    amount_nano: Uint
    evidence: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Appealed:
    """Owner, or its node: look again. The bond is the owner's and comes back if the slash is overturned."""

    submission: Digest
    reason: ReasonText


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashExecuted:
    """Coordinator: the window is over, or other validators found the same."""

    submission: Digest
    bounty_to: NodeId | None = None
    """Owner of the finder, where the slash follows a finding. A court on a chain pays the bounty by this entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlashOverturned:
    """Coordinator: the appeal was decided for the node, or its long stop has passed. Stake and bond go back.

    What could not be judged is invalid: there is no credit without an accepted verdict.
    """

    submission: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingFiled:
    """Anyone: this accepted submission is fraudulent. The bond is the author's and is lost if judges find otherwise."""

    submission: Digest
    evidence: Digest
    """Of the evidence bundle, in the format of a verdict's, uploaded before. Judges decide by the file, not by it."""
    reason: ReasonText


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingUpheld:
    """Coordinator: drawn judges found the submission fraudulent. Its credit is taken back, and a slash follows."""

    submission: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingDismissed:
    """Coordinator: judges found otherwise and the bond is lost, or nobody decided in time and it goes back."""

    submission: Digest


Entry = (
    NetworkCreated
    | RulesChanged
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
    | SubmissionsListed
    | CheckpointPublished
    | StepMeasured
    | HeadNoted
    | SnapshotNoted
    | LogRestored
    | RoundRecorded
    | LeaseGranted
    | LeaseEnded
    | Submitted
    | AuditDrawn
    | AcceptedUnaudited
    | VerdictCommitted
    | VerdictGiven
    | Settled
    | Credited
    | PaidOut
    | ValidatorScored
    | Inspected
    | RulingGiven
    | SlashProposed
    | Appealed
    | SlashExecuted
    | SlashOverturned
    | FindingFiled
    | FindingUpheld
    | FindingDismissed
    | LogKeyRotated
    | CoordinatorKeyRotated
)
