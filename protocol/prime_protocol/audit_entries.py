"""The entries of an audit: who checks a submission, what they found, what it adds up to, and whose word was wrong.

Part of entries.py, which has the others.
"""

from dataclasses import dataclass
from typing import Annotated

from prime_protocol.codec import Range, Size
from prime_protocol.constants import LOOKS_BYTES, METRICS_MAX, QUORUM_MAX, READERS_TOLD_MAX
from prime_protocol.envelope import Uint
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NodeId
from prime_protocol.metrics import Metric
from prime_protocol.receipts import VerdictReceipt
from prime_protocol.signing import Signature
from prime_protocol.statuses import OUTCOME_NUMBER, Outcome, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditDrawn:
    """Coordinator: whether, and by whom, a submission is checked. Drawn from a head noted after it was logged."""

    submission: Digest
    round: Annotated[int, Range(0, 64)]
    head_size: Uint
    validators: Annotated[tuple[NodeId, ...], Size(0, QUORUM_MAX)]
    """Empty in round 0: not drawn for audit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictGiven:
    """Validator: what I found, with the numbers."""

    receipt: VerdictReceipt
    signature: Signature
    outcome: Outcome
    reason: Reason
    metrics: Annotated[tuple[Metric, ...], Size(0, METRICS_MAX)]
    looks: Annotated[bytes, Size(0, LOOKS_BYTES)] = b""
    """What the file's hidden states are in directions of my own, see looks.py; empty where the model was not needed."""

    def __post_init__(self) -> None:
        if self.receipt.outcome != OUTCOME_NUMBER[self.outcome]:
            raise RemoteError("outcome", f"is {self.outcome}, but the receipt says {self.receipt.outcome}")
        if len(self.looks) not in (0, LOOKS_BYTES):
            raise RemoteError("looks", f"has {len(self.looks)} bytes, allowed is 0 or {LOOKS_BYTES}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantRevealed:
    """Planted worker, when the validators have spoken: the truth about my file, sealed in my lease before I made it.

    The coordinator sealed it and the worker opens it, so neither can void work that the other did in good faith.
    """

    submission: Digest
    outcome: Outcome
    """What an honest validator finds."""
    salt: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Coordinator: what the verdicts add up to."""

    submission: Digest
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatorScored:
    """Coordinator: a validator's verdict was not what was settled in the end."""

    validator: NodeId
    submission: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a reader of a file sees in it."""

    reader: NodeId
    looks: Annotated[bytes, Size(LOOKS_BYTES, LOOKS_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """Inspector: I have read this file again, and these are the looks that who judged it must have. Anybody can check.

    Whose own are others has not read what it judged.
    """

    submission: Digest
    seen: Annotated[tuple[Seen, ...], Size(0, READERS_TOLD_MAX)]
    """Sorted by reader. Nobody where the model is not needed to see that the file is bad."""

    def __post_init__(self) -> None:
        readers = [each.reader for each in self.seen]
        if readers != sorted(set(readers)):
            raise RemoteError("seen", "must be sorted by reader, each once")
