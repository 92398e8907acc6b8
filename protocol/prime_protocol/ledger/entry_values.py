"""Values inside the entries of the log that are no entries themselves."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from prime_protocol.constants import COSIGNATURE_TIME_S_MAX, ED25519_SIGNATURE_BYTES, READ_PROOF_BYTES
from prime_protocol.errors import RemoteError
from prime_protocol.wire.codec import Range, Size
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import NodeId


class Role(StrEnum):
    """What a node offers to do."""

    WORKER = "worker"
    VALIDATOR = "validator"
    RELAY = "relay"


class NodeStatus(StrEnum):
    """Whether a node may be given work."""

    ACTIVE = "active"
    DRAINED = "drained"
    BANNED = "banned"


class RunStatus(StrEnum):
    """Whether a run gives out work."""

    ACTIVE = "active"
    PAUSED = "paused"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number."""

    name: Annotated[str, Size(1, 48)]
    value: float


def check_metric_names(metrics: tuple[Metric, ...]) -> None:
    """RemoteError where a name stands twice, or out of order: there is one way to write the same numbers."""
    names = [metric.name for metric in metrics]
    if names != sorted(set(names)):
        raise RemoteError("metrics", "must be sorted by name, each once")


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedVerdict:
    """The read proof that a validator of the file must have."""

    reader: NodeId
    read_proof: Annotated[bytes, Size(READ_PROOF_BYTES, READ_PROOF_BYTES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadCosignature:
    """A validator's statement that it had seen a tree head by this time (c2sp.org/tlog-cosignature)."""

    witness: NodeId
    head_size: Uint
    """Of a noted head: the newest that waits for the round, or a later one, which covers it."""
    time_s: Annotated[int, Range(0, COSIGNATURE_TIME_S_MAX)]
    """Unix seconds, by the witness's clock."""
    signature: Annotated[bytes, Size(ED25519_SIGNATURE_BYTES, ED25519_SIGNATURE_BYTES)]
