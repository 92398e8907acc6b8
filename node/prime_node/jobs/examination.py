"""Checks a rollout file with the model, and replays an audit from its evidence (evidence_bundle.py).

A validator's audit, a worker's check of its own file and a replay by anyone all run this same code. A replay needs no
node, only weights whose root is the one that the submission names. What the measured numbers mean is decided in
file_checks.py.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from prime_node.engine.config import EngineConfig
from prime_node.engine.interface import EngineFacts, TokenSequence
from prime_node.engine.lifecycle import EngineSession
from prime_node.engine.machine_class import get_engine_class
from prime_node.engine.measurement import ClaimedRow, RowMeasurement
from prime_node.engine.pool import EnginePool
from prime_node.jobs.file_checks import (
    WEIGHTS_PER_DECADE,
    Flaw,
    Judgement,
    RewardSummary,
    RowWeigher,
    choose_second_reading,
    find_token_flaws,
    judge_file,
    judge_malformed,
    verify_second_reading,
)
from prime_node.jobs.step_context import StepContext
from prime_protocol.constants import EVIDENCE_FRAUDULENT
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entry_values import Metric
from prime_protocol.ledger.randomness import compute_sample_seed
from prime_protocol.ledger.run_record import BetSums, convicts
from prime_protocol.proofs.evidence import EvidenceSum
from prime_protocol.proofs.read_proofs import (
    NO_READ_PROOFS,
    ReadCoverage,
    ReadProofRequest,
    ReadProofSum,
    split_blocks,
)
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.rollouts.rollout import (
    Rollout,
    RolloutFile,
    RolloutHeader,
    RolloutLimits,
)
from prime_protocol.rollouts.verify import verify_submission
from prime_protocol.tasks.family import TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_protocol.weights.manifest_builder import build_keyframe
from prime_protocol.wire.ids import Digest, NodeId, RunId, Step
from prime_protocol.wire.messages import AuditTask, StepReply
from prime_runtime.clock import Clock
from prime_runtime.model_files import ModelFiles
from prime_runtime.shardcast.checkpoint_files import map_checkpoint


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Examination:
    """What the checks found in a file."""

    file: RolloutFile | None
    """None where it could not be read."""
    numbers: Sequence[RowMeasurement] = ()
    """Of the rows read, from the first on. Empty where the file failed before the model was needed."""
    blocks_read: int = 0
    """Blocks from the start that convict, where reading stopped there; 0: all rows were read, or none."""
    tokens_read: int = 0
    """Tokens of prompts and outputs that the model read: what the verdict cost."""
    flaws: Sequence[Flaw] = ()
    """Why it is rejected."""
    weighed: EvidenceSum | None = None
    """The evidence that its numbers add up to; None without numbers."""
    format_error: RemoteError | None = None
    read_proofs: Mapping[NodeId, bytes] = field(default_factory=dict)
    """By reader, as requested; empty where the model was not needed."""
    facts: EngineFacts | None = None
    """Of the engine that checked it."""
    software: tuple[str, ...] = ()
    tolerance: Tolerance | None = None
    """What counted as noise between the engine that generated it and the one here; None without numbers."""
    classes: tuple[int, int] | None = None
    """Numbers of the two engines' classes in the run's table; None where it has none."""
    sums: BetSums = ()
    """What the author's files came to before this one; empty for a worker that checks its own file."""

    @property
    def is_valid(self) -> bool:
        """Whether it passes, as far as its rewards do not matter."""
        if self.format_error is not None or self.flaws:
            return False
        if self.weighed is None:
            return True
        is_accumulated = bool(self.sums) and convicts(self.sums, self.weighed.bets)
        return not self.weighed.is_unlikely and not is_accumulated

    def judge(self, rewards: RewardSummary | None = None) -> Judgement:
        if self.file is None:
            assert self.format_error is not None
            return judge_malformed(self.format_error)
        return judge_file(
            self.file, self.numbers, self.flaws, rewards, self.weighed, self.tokens_read, self.sums, self.classes
        )


def check_format(data: bytes, context: StepContext, header: RolloutHeader, limits: RolloutLimits) -> Examination:
    """The checks that need no model. Slow for a large file: use a thread."""
    try:
        file = verify_submission(
            data,
            header,
            limits,
            beacon=context.beacon,
            tasks_total=context.family.size,
            temperature=context.terms.temperature,
        )
    except RemoteError as error:
        return Examination(file=None, format_error=error)
    return Examination(file=file, flaws=find_token_flaws(file, context.make_rules(file)))


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """For whom a file is read: which read proofs are wanted, and whether a conviction ends the reading."""

    submission: Digest
    readers: tuple[ReadCoverage, ...]
    is_inspection: bool
    """The readers have given their verdicts: each one's proof is computed over the blocks that it had to read."""

    def is_open(self, reader: ReadCoverage, blocks: int, evidence: EvidenceSum) -> bool:
        """Whether a reader's proof covers more than the first `blocks` blocks, in which `evidence` was found.

        A verdict that covers too few blocks to convict was not found by reading. So an inspector goes on until it has
        half of the evidence itself, and the proof of fewer blocks is refuted.
        """
        if not self.is_inspection:
            return not evidence.convicts
        return reader.blocks == 0 or blocks < reader.blocks or 2 * evidence.evidence < EVIDENCE_FRAUDULENT


NO_READERS = ReadingPlan(NO_READ_PROOFS.submission, (), is_inspection=False)


async def check_with_model(
    checked: Examination, context: StepContext, session: EngineSession, seed: Digest, plan: ReadingPlan = NO_READERS
) -> Examination:
    """Measures the rows with the engine, block by block until they convict, unless the file has failed already."""
    if checked.file is None or checked.flaws:
        return checked
    require_context(context, session.facts)
    claims, lengths = list_claims(checked.file.rows, context.beacon), get_row_lengths(checked.file)
    generating, judging = checked.file.engine_class, get_engine_class(session.facts)
    tolerance, table = context.terms.get_tolerance(generating, judging), context.terms.class_bounds
    weigher, sums = RowWeigher(tolerance), {each.reader: ReadProofSum() for each in plan.readers}
    numbers: list[RowMeasurement] = []
    blocks = split_blocks(lengths)
    for number, block in enumerate(blocks):
        evidence = weigher.sum()
        readers = tuple(each.reader for each in plan.readers if plan.is_open(each, number, evidence))
        if evidence.convicts and not readers:
            break
        wanted = ReadProofRequest(plan.submission, readers, number)
        measured, projections = await session.process.check_block(
            claims[block.start : block.stop], context.sampling, seed, wanted
        )
        numbers += measured
        weigher.add(measured)
        for reader, projected in projections.items():
            sums[reader].add(projected)
    is_whole = len(numbers) == len(claims)
    weighed, flaws = weigher.finish(is_whole=is_whole)
    return Examination(
        file=checked.file,
        numbers=numbers,
        blocks_read=0 if is_whole else number,
        tokens_read=sum(lengths[: len(numbers)]),
        flaws=flaws,
        weighed=weighed,
        read_proofs={reader: each.encode() for reader, each in sums.items()},
        facts=session.facts,
        software=session.software,
        tolerance=tolerance,
        classes=(table.get_number(generating), table.get_number(judging)) if table.classes else None,
    )


def require_context(context: StepContext, facts: EngineFacts) -> None:
    """LocalError: this machine's engine takes fewer tokens than a row of this run may have.

    Compared with the terms and not with the rows, so that a file with long rows is no harder to reject than to accept.
    """
    needed = min(context.terms.row_tokens_max, context.model.context_max)
    if needed > facts.context_max:
        raise LocalError(f"a row of this run may have {needed} tokens, the engine's limit is {facts.context_max}")


async def read_again(examined: Examination, context: StepContext, session: EngineSession, seed: Digest) -> Examination:
    """The second reading of the rows that the outcome rests on. LocalError: it differs from the first."""
    assert examined.file is not None
    assert examined.tolerance is not None, "what is read again was read before"
    tolerance, is_rejected = examined.tolerance, not examined.is_valid
    lengths = get_row_lengths(examined.file)
    rows = choose_second_reading(examined.numbers, lengths, tolerance, is_rejected=is_rejected)
    claims = list_claims(examined.file.rows, context.beacon)
    second = await session.process.check([claims[row] for row in rows], context.sampling, seed)
    first = [examined.numbers[row] for row in rows]
    verify_second_reading(first, second, tolerance, is_rejected=is_rejected)
    return replace(examined, tokens_read=examined.tokens_read + sum(lengths[row] for row in rows))


def get_row_lengths(file: RolloutFile) -> list[int]:
    """Tokens of prompt and output of each row: what the model reads of it."""
    return [len(row.prompt_tokens) + len(row.output_tokens) for row in file.rows]


def list_claims(rows: Sequence[Rollout], beacon: Digest) -> list[ClaimedRow]:
    """The rows as the engine checks them, numbered as in the file."""
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
    engine: EnginePool,
    seed: Digest,
    plan: ReadingPlan = NO_READERS,
) -> Examination:
    """From bytes to flaws. Uses the engine only where the checks without a model pass."""
    checked = await asyncio.to_thread(check_format, data, context, header, limits)
    if not checked.is_valid:
        return checked
    async with context.lend(engine) as session:
        return await check_with_model(checked, context, session, seed, plan)


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
"""The field of Tolerance that bounds a metric. TOPLOC's decoys, collisions and zeros have fixed limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedMetric:
    """One metric: the validator's value and the value measured here."""

    name: str
    limit: float | None
    in_verdict: float | None
    here: float | None


def compute_checkpoint_root(folder: Path) -> Digest:
    """The checkpoint root of a folder's tensors. It reads every byte: use a thread."""
    files = [file.source for file in map_checkpoint(folder).files]
    return build_keyframe(RunId("any"), Step(0), files).root


def get_dataset_digest(facts: StepReply) -> Digest | None:
    """The problem file that grading needs; None for task sets without one."""
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
    """What this machine finds, and the read proofs of the task's readers. `folder` is for the engine's caches."""
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
        model=await asyncio.to_thread(ModelFiles.open, weights),
    )
    engine = EnginePool(engine_config, folder, clock)
    try:
        header, limits = context.make_header(task.lease, task.node), context.get_limits(task.first_slot, task.slots)
        plan = ReadingPlan(task.submission, task.readers, is_inspection=True)
        examined = await examine(file, context, header, limits, engine, task.seed, plan)
        return replace(examined, sums=task.sums)
    finally:
        await engine.close()


def compare_metrics(metrics: tuple[Metric, ...], judged: Judgement, tolerance: Tolerance) -> Iterator[ComparedMetric]:
    """The metrics of both sides, in the order of the verdict."""
    then, here = index_metrics(metrics), index_metrics(judged.metrics)
    for name in dict.fromkeys([*then, *here]):
        limit = get_limit(name, tolerance)
        yield ComparedMetric(name=name, limit=limit, in_verdict=then.get(name), here=here.get(name))


def index_metrics(metrics: tuple[Metric, ...]) -> dict[str, float]:
    return {metric.name: metric.value for metric in metrics}


def get_limit(name: str, tolerance: Tolerance) -> float | None:
    if name == "flaws":
        return 0.0
    if name in ("evidence", "evidence_noise", "evidence_margin"):
        return EVIDENCE_FRAUDULENT / WEIGHTS_PER_DECADE
    return float(getattr(tolerance, METRIC_LIMITS[name])) if name in METRIC_LIMITS else None
