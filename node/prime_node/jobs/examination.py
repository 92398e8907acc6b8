"""A rollout file read again, row by row, by the public rules: the one way for a validator's audit, for a worker's look
at its own file before it is sent, and for whoever runs an audit again from its evidence.

The evidence bundle: everything that a rejection rests on, in one file, so that anyone can run the audit again.

One canonical msgpack object, bounded and strictly read: it is a validator's word against a worker's. What in it is
signed can be checked offline; terms and beacon are the log's, and are compared with it where there is a connection.

A verdict run again from its evidence bundle, on this machine, with the same code as an audit. No node is needed.

What the bundle says of itself is compared with its digests; the weights must have the root that the submission names.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from prime_node.engine import frames as values
from prime_node.engine.config import EngineConfig
from prime_node.engine.frames import MeasurementFrame, ModelLoaded
from prime_node.engine.interface import EngineFacts, TokenSequence
from prime_node.engine.manager import EngineManager, EngineSession
from prime_node.engine.measurement import ClaimedRow, RowMeasurement
from prime_node.jobs.file_checks import (
    WEIGHTS_PER_DECADE,
    Flaw,
    Judgement,
    RewardSummary,
    find_token_flaws,
    judge_file,
    judge_malformed,
    weigh_rows,
)
from prime_node.jobs.step_context import StepContext
from prime_protocol.constants import EVIDENCE_FRAUDULENT, METRICS_MAX, ROLLOUT_FILE_BYTES_MAX, ROLLOUT_ROWS_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import Metric, Outcome, ReasonText
from prime_protocol.ledger.randomness import compute_sample_seed
from prime_protocol.proofs.evidence import EvidenceSum
from prime_protocol.proofs.read_proofs import NO_READ_PROOFS, ReadProofRequest
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.rollouts.file import read_rollouts
from prime_protocol.rollouts.rollout import (
    Rollout,
    RolloutFile,
    RolloutHeader,
    RolloutLimits,
    verify_derived_values,
    verify_header,
)
from prime_protocol.tasks.family import TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_protocol.weights.manifest_builder import build_keyframe
from prime_protocol.wire.codec import Range, Size, decode, encode
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step
from prime_protocol.wire.messages import AuditTask, StepReply
from prime_protocol.wire.signing import Signature
from prime_protocol.wire.typed_data import Domain, SubmissionReceipt, compute_receipt_id, verify_document
from prime_runtime.clock import Clock
from prime_runtime.model_files import ModelFiles
from prime_runtime.shardcast.checkpoint_files import map_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Examination:
    """What is known of a file."""

    file: RolloutFile | None
    """None where it could not be read."""
    numbers: Sequence[RowMeasurement] = ()
    """Empty where the model was not needed to see that it is bad."""
    flaws: Sequence[Flaw] = ()
    """What convicts it."""
    weighed: EvidenceSum | None = None
    """What its numbers come to; None where there are none."""
    format_error: RemoteError | None = None
    read_proofs: Mapping[NodeId, bytes] = field(default_factory=dict)
    """Of everybody whose looks were asked for; empty where the model was not needed."""
    facts: EngineFacts | None = None
    """Of the engine that read it."""
    software: tuple[str, ...] = ()

    @property
    def is_valid(self) -> bool:
        return self.format_error is None and not self.flaws

    def judge(self, rewards: RewardSummary | None = None) -> Judgement:
        if self.file is None:
            assert self.format_error is not None
            return judge_malformed(self.format_error)
        return judge_file(self.file, self.numbers, self.flaws, rewards, self.weighed)


def check_format(data: bytes, context: StepContext, header: RolloutHeader, limits: RolloutLimits) -> Examination:
    """What can be said without a model. Slow for a large file: use a thread."""
    try:
        file = read_rollouts(data, limits)
        verify_header(file.header, header)
        verify_derived_values(
            file,
            context.beacon,
            tasks_total=context.family.size,
            target_lengths=(),
            temperature=context.terms.temperature,
        )
    except RemoteError as error:
        return Examination(file=None, format_error=error)
    return Examination(file=file, flaws=find_token_flaws(file, context.make_rules(file)))


async def check_with_model(
    opened: Examination,
    context: StepContext,
    session: EngineSession,
    seed: Digest,
    onlookers: ReadProofRequest = NO_READ_PROOFS,
) -> Examination:
    """The whole of it, with the engine. A file that is bad already stays as it is."""
    if opened.file is None or opened.flaws:
        return opened
    rows = opened.file.rows
    longest = max(len(row.prompt_tokens) + len(row.output_tokens) for row in rows)
    if longest > session.facts.context_max:
        raise LocalError(f"a row of {longest} tokens does not fit the engine, which reads {session.facts.context_max}")
    claims = list_claims(rows, context.beacon)
    numbers, looks = await session.process.check_with_read_proofs(claims, context.sampling, seed, onlookers)
    weighed, flaws = weigh_rows(numbers, context.terms.tolerance)
    return Examination(
        file=opened.file,
        numbers=numbers,
        flaws=flaws,
        weighed=weighed,
        read_proofs=looks,
        facts=session.facts,
        software=session.software,
    )


def list_claims(rows: Sequence[Rollout], beacon: Digest) -> list[ClaimedRow]:
    """What each row says of itself, numbered as in the file."""
    return [
        ClaimedRow(
            sequence=TokenSequence(
                number=number,
                prompt=row.prompt_tokens,
                output=row.output_tokens,
                seed=compute_sample_seed(beacon, row.slot, row.sample),
            ),
            logprobs=row.output_logprobs,
            proofs=row.proofs,
        )
        for number, row in enumerate(rows)
    ]


async def examine(
    data: bytes,
    context: StepContext,
    header: RolloutHeader,
    limits: RolloutLimits,
    engine: EngineManager,
    seed: Digest,
    onlookers: ReadProofRequest = NO_READ_PROOFS,
) -> Examination:
    """From bytes to flaws. The engine is only asked where the file is in order."""
    opened = await asyncio.to_thread(check_format, data, context, header, limits)
    if not opened.is_valid:
        return opened
    async with engine.acquire(context.root, context.folder, context.terms.tolerance.precision) as session:
        return await check_with_model(opened, context, session, seed, onlookers)


EVIDENCE_VERSION = 2
BUNDLE_BYTES_MAX = ROLLOUT_FILE_BYTES_MAX
"""As large as the largest file that a coordinator takes."""
BUNDLED_FILE_BYTES_MAX = BUNDLE_BYTES_MAX // 4 * 3
"""A larger rollout file stays out of its bundle: the coordinator has it, under the digest that the bundle names."""
FLAWS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceBundle:
    """What one validator saw of one submission."""

    version: Annotated[int, Range(EVIDENCE_VERSION, EVIDENCE_VERSION)]
    network: NetworkId
    run: RunId
    task: AuditTask
    """What it was drawn to judge, with the seed of the decoys."""
    facts: StepReply
    """Terms, beacon and checkpoint, as the coordinator told them."""
    receipt: SubmissionReceipt | None
    """The worker's signed word, where the validator could get it."""
    signature: Signature | None
    file: Annotated[bytes, Size(0, BUNDLED_FILE_BYTES_MAX)]
    """The rollout file; empty where it is larger than a bundle may be."""
    outcome: Outcome
    reason: ReasonText
    metrics: Annotated[tuple[Metric, ...], Size(0, METRICS_MAX)]
    flaws: Annotated[tuple[Flaw, ...], Size(0, FLAWS_MAX)]
    numbers: Annotated[tuple[MeasurementFrame, ...], Size(0, ROLLOUT_ROWS_MAX)]
    """Of every row that was read again."""
    engine: ModelLoaded | None
    """What read it."""
    software: Annotated[tuple[str, ...], Size(0, 32)]

    def __post_init__(self) -> None:
        if (self.receipt is None) != (self.signature is None):
            raise RemoteError("signature", "comes with its receipt or not at all")


@dataclass(frozen=True, slots=True)
class MetricsOnly:
    """What the evidence of an accepted submission is the digest of."""

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
    """The bundle's bytes; their SHA-256 is the verdict's evidence."""
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
            numbers=tuple(map(values.encode_measurement, examined.numbers)),
            engine=values.encode_facts(examined.facts) if examined.facts else None,
            software=examined.software,
        )
    )


def digest_metrics(metrics: tuple[Metric, ...]) -> Digest:
    """The evidence of a verdict that rests on no bundle."""
    return Digest(sha256(encode(MetricsOnly(metrics))).digest())


def decode_evidence(raw: bytes) -> EvidenceBundle:
    """RemoteError where it is no bundle, or contradicts itself."""
    found = decode(EvidenceBundle, raw, bytes_max=BUNDLE_BYTES_MAX)
    if found.file and sha256(found.file).digest() != found.task.file_digest:
        raise RemoteError("Evidence.file", "is not the file that the task names")
    if found.facts.weights.root != found.task.checkpoint_root:
        raise RemoteError("Evidence.facts.weights.root", "is not the checkpoint that the task names")
    if found.receipt is not None:
        verify_receipt(found.receipt, found.task)
    return found


def verify_receipt(receipt: SubmissionReceipt, task: AuditTask) -> None:
    """The receipt is that of the submission, and says what the task says."""
    if compute_receipt_id(receipt) != task.submission:
        raise RemoteError("receipt", f"is that of {compute_receipt_id(receipt)}, the task is about {task.submission}")
    for name in ("node", "step", "lease", "checkpoint_root", "file_digest"):
        if getattr(receipt, name) != getattr(task, name):
            raise RemoteError(f"receipt.{name}", f"is {getattr(receipt, name)}, the task says {getattr(task, name)}")


def verify_evidence_signature(evidence: EvidenceBundle, domain: Domain) -> bool:
    """Whether the worker's own signature under the file is in the bundle. RemoteError where it is another's."""
    if evidence.receipt is None or evidence.signature is None:
        return False
    verify_document(evidence.receipt, evidence.signature, signer=evidence.task.node, domain=domain)
    return True


METRIC_LIMITS = {
    "margin_max": "margin_max",
    "margin_mean": "margin_mean_max",
    "logprob_error_max": "logprob_error_max",
    "logprob_error_mean": "logprob_error_mean_max",
    "exponent_mismatches_max": "exponent_mismatches_max",
    "sign_mismatches_max": "sign_mismatches_max",
    "mantissa_error_mean_max": "mantissa_error_mean_max",
    "mantissa_error_median_max": "mantissa_error_median_max",
}
"""Which of the run's limits a number is held to. TOPLOC's decoys, collisions and zeros have limits of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedMetric:
    """One number of a verdict: what the validator found, and what was found here."""

    name: str
    limit: float | None
    in_verdict: float | None
    here: float | None


def compute_checkpoint_root(folder: Path) -> Digest:
    """The checkpoint root of a folder's tensors; every byte is read. Slow: use a thread."""
    files = [file.source for file in map_checkpoint(folder).files]
    return build_keyframe(RunId("any"), Step(0), files).root


def get_dataset_digest(facts: StepReply) -> Digest | None:
    """The problem file that grading would need; None for task sets without one."""
    return TaskSetSpec.parse(facts.terms.task_set).problem_file


async def replay_audit(
    run: RunId,
    task: AuditTask,
    facts: StepReply,
    *,
    file: bytes,
    weights: Path,
    dataset: bytes,
    engine_config: EngineConfig,
    folder: Path,
    clock: Clock,
) -> Examination:
    """What this machine finds, and the looks of the task's readers. `folder` is for the engine's caches."""
    root = await asyncio.to_thread(compute_checkpoint_root, weights)
    if root != task.checkpoint_root:
        raise LocalError(f"{weights} holds the checkpoint {root}, the submission names {task.checkpoint_root}")
    if facts.beacon is None:
        raise LocalError("the step has no beacon, so no seed can be derived")
    context = StepContext(
        run=run,
        step=task.step,
        terms=facts.terms,
        beacon=facts.beacon,
        root=root,
        folder=weights.absolute(),
        family=await asyncio.to_thread(open_family, TaskSetSpec.parse(facts.terms.task_set), dataset),
        model=ModelFiles.open(weights),
    )
    engine = EngineManager(engine_config, folder, clock)
    try:
        header, limits = context.make_header(task.lease, task.node), context.get_limits(task.first_slot, task.slots)
        onlookers = ReadProofRequest(task.submission, task.readers)
        return await examine(file, context, header, limits, engine, task.seed, onlookers)
    finally:
        await engine.close()


def compare_metrics(metrics: tuple[Metric, ...], judged: Judgement, tolerance: Tolerance) -> Iterator[ComparedMetric]:
    """Both sides' numbers, in the order of the verdict."""
    then, here = index_metrics(metrics), index_metrics(judged.metrics)
    for name in dict.fromkeys([*then, *here]):
        limit = get_limit(name, tolerance)
        yield ComparedMetric(name=name, limit=limit, in_verdict=then.get(name), here=here.get(name))


def index_metrics(metrics: tuple[Metric, ...]) -> dict[str, float]:
    return {metric.name: metric.value for metric in metrics}


def get_limit(name: str, tolerance: Tolerance) -> float | None:
    if name == "flaws":
        return 0.0
    if name in ("evidence", "evidence_noise"):
        return EVIDENCE_FRAUDULENT / WEIGHTS_PER_DECADE
    return float(getattr(tolerance, METRIC_LIMITS[name])) if name in METRIC_LIMITS else None
