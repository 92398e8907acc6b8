"""A verdict run again from its evidence bundle, on this machine, with the same code as an audit. No node is needed.

What the bundle says of itself is compared with its digests; the weights must have the root that the submission names.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prime_node.briefing import Briefing
from prime_node.checks import WEIGHTS_PER_DECADE, Judgement
from prime_node.engine.engine_config import EngineConfig
from prime_node.engine.keeper import EngineKeeper
from prime_node.examination import Examination, examine
from prime_protocol.constants import WEIGHT_CONVICTS
from prime_protocol.entries import Metric
from prime_protocol.errors import LocalError
from prime_protocol.ids import Digest, RunId, Step
from prime_protocol.looks import Onlookers
from prime_protocol.manifest_build import build_keyframe
from prime_protocol.messages import AuditTask, StepFacts
from prime_protocol.tasks.registry import open_family
from prime_protocol.tasks.spec import TaskSetSpec
from prime_protocol.tolerance import Tolerance
from prime_runtime.clock import Clock
from prime_runtime.model_files import ModelFiles
from prime_runtime.shardcast.checkpoint import map_checkpoint

LIMITS = {
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
class CheckRow:
    """One number of a verdict: what the validator found, and what was found here."""

    name: str
    limit: float | None
    then: float | None
    here: float | None


def find_root(folder: Path) -> Digest:
    """The checkpoint root of a folder's tensors; every byte is read. Slow: use a thread."""
    files = [file.source for file in map_checkpoint(folder).files]
    return build_keyframe(RunId("any"), Step(0), files).root


def find_dataset(facts: StepFacts) -> Digest | None:
    """The problem file that grading would need; None for task sets without one."""
    return TaskSetSpec.parse(facts.terms.task_set).problem_file


async def replay(
    run: RunId,
    task: AuditTask,
    facts: StepFacts,
    *,
    file: bytes,
    weights: Path,
    dataset: bytes,
    engine: EngineConfig,
    folder: Path,
    clock: Clock,
) -> Examination:
    """What this machine finds, and the looks of the task's readers. `folder` is for the engine's caches."""
    root = await asyncio.to_thread(find_root, weights)
    if root != task.checkpoint_root:
        raise LocalError(f"{weights} holds the checkpoint {root}, the submission names {task.checkpoint_root}")
    if facts.beacon is None:
        raise LocalError("the step has no beacon, so no seed can be derived")
    briefing = Briefing(
        run=run,
        step=task.step,
        terms=facts.terms,
        beacon=facts.beacon,
        root=root,
        folder=weights.absolute(),
        family=await asyncio.to_thread(open_family, TaskSetSpec.parse(facts.terms.task_set), dataset),
        model=ModelFiles.open(weights),
    )
    keeper = EngineKeeper(engine, folder, clock)
    try:
        header, limits = briefing.header(task.lease, task.node), briefing.limits(task.first_slot, task.slots)
        onlookers = Onlookers(task.submission, task.readers)
        return await examine(file, briefing, header, limits, keeper, task.seed, onlookers)
    finally:
        await keeper.close()


def list_checks(metrics: tuple[Metric, ...], judged: Judgement, tolerance: Tolerance) -> Iterator[CheckRow]:
    """Both sides' numbers, in the order of the verdict."""
    then, here = as_table(metrics), as_table(judged.metrics)
    for name in dict.fromkeys([*then, *here]):
        limit = find_limit(name, tolerance)
        yield CheckRow(name=name, limit=limit, then=then.get(name), here=here.get(name))


def as_table(metrics: tuple[Metric, ...]) -> dict[str, float]:
    return {metric.name: metric.value for metric in metrics}


def find_limit(name: str, tolerance: Tolerance) -> float | None:
    if name == "flaws":
        return 0.0
    if name in ("evidence", "evidence_noise"):
        return WEIGHT_CONVICTS / WEIGHTS_PER_DECADE
    return float(getattr(tolerance, LIMITS[name])) if name in LIMITS else None
