"""The evidence bundle: everything that a rejection rests on, in one file, so that anyone can run the audit again.

One canonical msgpack object, bounded and strictly read: it is a validator's word against a worker's. What in it is
signed can be checked offline; terms and beacon are the log's, and are compared with it where there is a connection.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

from prime_node.checks import Flaw, Judgement
from prime_node.engine import frame_values as values
from prime_node.engine.frames import Loaded, NumbersFrame
from prime_node.examination import Examination
from prime_protocol.codec import Range, Size, decode, encode
from prime_protocol.constants import METRICS_MAX, ROLLOUT_FILE_BYTES_MAX, ROLLOUT_ROWS_MAX
from prime_protocol.entries import Metric, Outcome, Reason
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NetworkId, RunId
from prime_protocol.messages import AuditTask, StepFacts
from prime_protocol.receipts import SubmissionReceipt, receipt_id
from prime_protocol.signing import Signature
from prime_protocol.typed_data import Domain, check_document

VERSION = 2
BUNDLE_BYTES_MAX = ROLLOUT_FILE_BYTES_MAX
"""As large as the largest file that a coordinator takes."""
FILE_BYTES_MAX = BUNDLE_BYTES_MAX // 4 * 3
"""A larger rollout file stays out of its bundle: the coordinator has it, under the digest that the bundle names."""
FLAWS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one validator saw of one submission."""

    version: Annotated[int, Range(VERSION, VERSION)]
    network: NetworkId
    run: RunId
    task: AuditTask
    """What it was drawn to judge, with the seed of the decoys."""
    facts: StepFacts
    """Terms, beacon and checkpoint, as the coordinator told them."""
    receipt: SubmissionReceipt | None
    """The worker's signed word, where the validator could get it."""
    signature: Signature | None
    file: Annotated[bytes, Size(0, FILE_BYTES_MAX)]
    """The rollout file; empty where it is larger than a bundle may be."""
    outcome: Outcome
    reason: Reason
    metrics: Annotated[tuple[Metric, ...], Size(0, METRICS_MAX)]
    flaws: Annotated[tuple[Flaw, ...], Size(0, FLAWS_MAX)]
    numbers: Annotated[tuple[NumbersFrame, ...], Size(0, ROLLOUT_ROWS_MAX)]
    """Of every row that was read again."""
    engine: Loaded | None
    """What read it."""
    software: Annotated[tuple[str, ...], Size(0, 32)]

    def __post_init__(self) -> None:
        if (self.receipt is None) != (self.signature is None):
            raise RemoteError("signature", "comes with its receipt or not at all")


@dataclass(frozen=True, slots=True)
class MetricsOnly:
    """What the evidence of an accepted submission is the digest of."""

    metrics: Annotated[tuple[Metric, ...], Size(0, METRICS_MAX)]


def build_evidence(
    *,
    network: NetworkId,
    run: RunId,
    task: AuditTask,
    facts: StepFacts,
    file: bytes,
    signed: tuple[SubmissionReceipt, Signature] | None,
    examined: Examination,
    judged: Judgement,
) -> bytes:
    """The bundle's bytes; their SHA-256 is the verdict's evidence."""
    receipt, signature = signed or (None, None)
    return encode(
        Evidence(
            version=VERSION,
            network=network,
            run=run,
            task=task,
            facts=facts,
            receipt=receipt,
            signature=signature,
            file=file if len(file) <= FILE_BYTES_MAX else b"",
            outcome=judged.outcome,
            reason=judged.reason,
            metrics=judged.metrics,
            flaws=judged.flaws,
            numbers=tuple(map(values.from_numbers, examined.numbers)),
            engine=values.from_facts(examined.facts) if examined.facts else None,
            software=examined.software,
        )
    )


def digest_metrics(metrics: tuple[Metric, ...]) -> Digest:
    """The evidence of a verdict that rests on no bundle."""
    return Digest(sha256(encode(MetricsOnly(metrics))).digest())


def open_evidence(raw: bytes) -> Evidence:
    """RemoteError where it is no bundle, or contradicts itself."""
    found = decode(Evidence, raw, bytes_max=BUNDLE_BYTES_MAX)
    if found.file and sha256(found.file).digest() != found.task.file_digest:
        raise RemoteError("Evidence.file", "is not the file that the task names")
    if found.facts.weights.root != found.task.checkpoint_root:
        raise RemoteError("Evidence.facts.weights.root", "is not the checkpoint that the task names")
    if found.receipt is not None:
        check_receipt(found.receipt, found.task)
    return found


def check_receipt(receipt: SubmissionReceipt, task: AuditTask) -> None:
    """The receipt is that of the submission, and says what the task says."""
    if receipt_id(receipt) != task.submission:
        raise RemoteError("receipt", f"is that of {receipt_id(receipt)}, the task is about {task.submission}")
    for name in ("node", "step", "lease", "checkpoint_root", "file_digest"):
        if getattr(receipt, name) != getattr(task, name):
            raise RemoteError(f"receipt.{name}", f"is {getattr(receipt, name)}, the task says {getattr(task, name)}")


def check_signature(evidence: Evidence, domain: Domain) -> bool:
    """Whether the worker's own signature under the file is in the bundle. RemoteError where it is another's."""
    if evidence.receipt is None or evidence.signature is None:
        return False
    check_document(evidence.receipt, evidence.signature, signer=evidence.task.node, domain=domain)
    return True
