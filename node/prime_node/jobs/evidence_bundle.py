"""The evidence of a rejection: one canonical msgpack object, bounded and strictly decoded. Pure.

It is a validator's word against a worker's. Signed parts can be verified offline; terms and beacon come from the log,
and are compared with it when there is a connection.
"""

from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Annotated, Any

from prime_node.engine import frames
from prime_node.engine.frames import MeasurementFrame, ModelLoaded
from prime_node.jobs.examination import Examination
from prime_node.jobs.file_checks import Flaw, Judgement
from prime_protocol.constants import METRICS_MAX, ROLLOUT_FILE_BYTES_MAX, ROLLOUT_ROWS_MAX
from prime_protocol.errors import RemoteError, explain_version
from prime_protocol.ledger.entries import Outcome, ReasonText
from prime_protocol.ledger.entry_values import Metric
from prime_protocol.ledger.versions.upgrades import OLD_FORMS, make_old_kind
from prime_protocol.wire.codec import Range, Size, decode, encode, encode_flat
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.ids import Digest, NetworkId, RunId
from prime_protocol.wire.messages import AuditTask, StepReply
from prime_protocol.wire.signing import Signature
from prime_protocol.wire.typed_data import Domain, SubmissionReceipt, compute_receipt_id, verify_document

EVIDENCE_VERSION = 4
VERSION_END = encode_flat({"version": 0})[1:-1]
"""Before the last byte of a bundle of any version: the last field in the order of names is a small number."""
BUNDLE_BYTES_MAX = ROLLOUT_FILE_BYTES_MAX
"""As large as the largest file that a coordinator takes."""
BUNDLED_FILE_BYTES_MAX = BUNDLE_BYTES_MAX // 4 * 3
"""A larger rollout file stays out of its bundle: the coordinator has it, under the digest that the bundle names."""
FLAWS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceBundle:
    """What one validator found in one submission."""

    version: Annotated[int, Range(EVIDENCE_VERSION, EVIDENCE_VERSION)]
    network: NetworkId
    run: RunId
    task: AuditTask
    """What it was drawn to audit, with the seed of the decoys."""
    facts: StepReply
    """Terms, beacon and checkpoint, as the coordinator stated them."""
    receipt: SubmissionReceipt | None
    """The worker's signed receipt, where the validator could fetch it."""
    signature: Signature | None
    file: Annotated[bytes, Size(0, BUNDLED_FILE_BYTES_MAX)]
    """The rollout file; empty where it is too large for a bundle."""
    outcome: Outcome
    reason: ReasonText
    metrics: Annotated[tuple[Metric, ...], Size(0, METRICS_MAX)]
    flaws: Annotated[tuple[Flaw, ...], Size(0, FLAWS_MAX)]
    numbers: Annotated[tuple[MeasurementFrame, ...], Size(0, ROLLOUT_ROWS_MAX)]
    """Of every row that the model checked, from the first on."""
    blocks_read: Uint
    """As in the verdict: the read proof covers this many blocks from the start; 0: the whole file."""
    engine: ModelLoaded | None
    """The engine that checked it."""
    software: Annotated[tuple[str, ...], Size(0, 32)]

    def __post_init__(self) -> None:
        if (self.receipt is None) != (self.signature is None):
            raise RemoteError("signature", "comes with its receipt or not at all")


(STEP_REPLY_2,) = OLD_FORMS[StepReply]
ModelLoaded3 = make_old_kind(
    ModelLoaded, 3, without=frozenset({"version", "attention", "tensor_parallel", "device_model", "driver"})
)
EvidenceBundle3 = make_old_kind(
    EvidenceBundle,
    3,
    changed={"version": Annotated[int, Range(3, 3)], "facts": STEP_REPLY_2.kind, "engine": ModelLoaded3 | None},
)
"""Of release 0.1.0: terms without a table of classes, and engines that do not say theirs."""


def upgrade_bundle_3(old: Any) -> EvidenceBundle:
    values = {each.name: getattr(old, each.name) for each in fields(old)}
    if old.engine is not None:
        engine: dict[str, Any] = {
            "version": "",
            "attention": "",
            "tensor_parallel": 1,
            "device_model": "",
            "driver": "",
        }
        engine |= {each.name: getattr(old.engine, each.name) for each in fields(old.engine)}
        values["engine"] = ModelLoaded(**engine)
    return EvidenceBundle(**{**values, "version": EVIDENCE_VERSION, "facts": STEP_REPLY_2.upgrade(old.facts)})


@dataclass(frozen=True, slots=True)
class MetricsOnly:
    """The evidence of an accepted submission is the digest of this."""

    metrics: Annotated[tuple[Metric, ...], Size(0, METRICS_MAX)]


def encode_evidence(
    *,
    network: NetworkId,
    run: RunId,
    task: AuditTask,
    facts: StepReply,
    file: bytes,
    signed: tuple[SubmissionReceipt, Signature] | None,
    examined: Examination,
    judged: Judgement,
) -> bytes:
    """The bundle's bytes; the verdict names their SHA-256."""
    receipt, signature = signed or (None, None)
    return encode(
        EvidenceBundle(
            version=EVIDENCE_VERSION,
            network=network,
            run=run,
            task=task,
            facts=facts,
            receipt=receipt,
            signature=signature,
            file=file if len(file) <= BUNDLED_FILE_BYTES_MAX else b"",
            outcome=judged.outcome,
            reason=judged.reason,
            metrics=judged.metrics,
            flaws=judged.flaws,
            numbers=tuple(map(frames.encode_measurement, examined.numbers)),
            blocks_read=examined.blocks_read,
            engine=frames.encode_facts(examined.facts) if examined.facts else None,
            software=examined.software,
        )
    )


def digest_metrics(metrics: tuple[Metric, ...]) -> Digest:
    """The evidence digest of a verdict without a bundle."""
    return Digest(sha256(encode(MetricsOnly(metrics))).digest())


def decode_evidence(raw: bytes) -> EvidenceBundle:
    """RemoteError: it is not a bundle, contradicts itself, or is of a newer version."""
    if raw[-len(VERSION_END) - 1 : -1] == VERSION_END and EVIDENCE_VERSION < raw[-1] < 128:
        raise RemoteError("Evidence.version", explain_version(raw[-1], EVIDENCE_VERSION))
    if raw[-len(VERSION_END) - 1 :] == VERSION_END + b"\x03":
        found = upgrade_bundle_3(decode(EvidenceBundle3, raw, bytes_max=BUNDLE_BYTES_MAX))
    else:
        found = decode(EvidenceBundle, raw, bytes_max=BUNDLE_BYTES_MAX)
    if found.file and sha256(found.file).digest() != found.task.file_digest:
        raise RemoteError("Evidence.file", "is not the file that the task names")
    if found.facts.weights.root != found.task.checkpoint_root:
        raise RemoteError("Evidence.facts.weights.root", "is not the checkpoint that the task names")
    if found.receipt is not None:
        verify_receipt(found.receipt, found.task)
    return found


def verify_receipt(receipt: SubmissionReceipt, task: AuditTask) -> None:
    """RemoteError: it is the receipt of another submission, or differs from the task."""
    if compute_receipt_id(receipt) != task.submission:
        raise RemoteError("receipt", f"is that of {compute_receipt_id(receipt)}, the task is about {task.submission}")
    for name in ("node", "step", "lease", "checkpoint_root", "file_digest"):
        if getattr(receipt, name) != getattr(task, name):
            raise RemoteError(f"receipt.{name}", f"is {getattr(receipt, name)}, the task says {getattr(task, name)}")


def verify_evidence_signature(evidence: EvidenceBundle, domain: Domain) -> bool:
    """Whether the bundle contains the worker's own signature. RemoteError: the signature is someone else's."""
    if evidence.receipt is None or evidence.signature is None:
        return False
    verify_document(evidence.receipt, evidence.signature, signer=evidence.task.node, domain=domain)
    return True
