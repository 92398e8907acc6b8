"""One model under all attacks that only a model can detect, with much honest work: the error rates of the document.

The work is cached on disk in parts, so a run that was stopped continues with the same command. A part holds the
measurements of some completions. Bounds and rules are not cached: all parts are judged again at the end of every run.

"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import torch

from prime_lab.attacks.attack import Attack
from prime_lab.attacks.catalog import (
    ENGINE_ATTACKS,
)
from prime_lab.attacks.detection import (
    DEPLOYED,
    MODEL_ATTACKS,
    PAPER,
    DetectionRate,
    PassedChunks,
    Submission,
    cheat_slots,
    forge_slots,
    measure_rate,
    read_rows,
    score_rows,
    split_submissions,
)
from prime_lab.attacks.detection import study_forged_proofs as study_forgeries
from prime_lab.attacks.forged_files import HonestWork
from prime_lab.attacks.harness import AttackHarness, HarnessConfig, HarnessLease, open_harness
from prime_node.calibration.fit import CalibrationTarget, fit_tolerance
from prime_node.calibration.noise import collect_noise
from prime_node.engine.frames import decode_span
from prime_node.engine.measurement import RowMeasurement
from prime_node.engine.torch.engine import TorchEngine
from prime_node.jobs.file_checks import weigh_rows
from prime_protocol.proofs.evidence import ReplayedChunk
from prime_protocol.proofs.tolerance import Precision, Tolerance
from prime_protocol.proofs.toploc_numpy import Bits
from prime_protocol.proofs.toploc_verify import ChunkReport


class OutOfTimeError(Exception):
    """The time limit has passed. Finished parts stay in the cache."""


@dataclass(frozen=True, slots=True)
class ResultCache:
    """Measurements of one subject, by name."""

    folder: Path
    ends_s: float
    """No new part starts after this time, by time.monotonic."""

    def get(self, name: str, make: Callable[[], Sequence[RowMeasurement]]) -> list[RowMeasurement]:
        """A cached part, or a new one. OutOfTimeError if it is too late to start."""
        path = self.folder / f"{name}.npz"
        if not path.exists():
            if time.monotonic() >= self.ends_s:
                raise OutOfTimeError(name)
            self.folder.mkdir(parents=True, exist_ok=True)
            save_rows(path, make())
        return load_rows(path)


def save_rows(path: Path, rows: Sequence[RowMeasurement]) -> None:
    """Write atomically."""
    spans = [span for row in rows for span in row.spans]
    reports = [report for row in rows for report in row.chunks]
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.savez_compressed(
            file,
            counts=np.array([(row.row, len(row.spans), len(row.chunks)) for row in rows], np.int64),
            spans=np.array(spans, np.float64).reshape(-1, len(ReplayedChunk._fields)),
            reports=np.array(reports, np.int32).reshape(-1, len(ChunkReport._fields)),
            ends=np.array([row.eos_logprob for row in rows], np.float64),
            problems=np.array([row.proof_problem for row in rows], np.str_),
        )
    os.replace(part, path)


def load_rows(path: Path) -> list[RowMeasurement]:
    with np.load(path) as file:
        counts, ends, problems = file["counts"].tolist(), file["ends"].tolist(), file["problems"].tolist()
        spans = iter([decode_span(values) for values in file["spans"].tolist()])
        reports = map(ChunkReport._make, file["reports"].tolist())
        return [
            rebuild_row(
                number,
                [next(spans) for _ in range(span_count)],
                [next(reports) for _ in range(report_count)],
                end,
                problem,
            )
            for (number, span_count, report_count), end, problem in zip(counts, ends, problems, strict=True)
        ]


def rebuild_row(
    number: int, spans: Sequence[ReplayedChunk], reports: Sequence[ChunkReport], end: float, problem: str
) -> RowMeasurement:
    """The measurement of a row follows from those of its chunks."""
    margin = max(spans, key=lambda span: span.margin_max)
    error = max(spans, key=lambda span: span.logprob_error_max)
    return RowMeasurement(
        row=number,
        tokens=sum(span.tokens for span in spans),
        chunks=tuple(reports),
        proof_problem=problem,
        spans=tuple(spans),
        margin_max=margin.margin_max,
        margin_at=margin.margin_at,
        margin_sum=sum(span.margin_sum for span in spans),
        logprob_error_max=error.logprob_error_max,
        logprob_error_at=error.logprob_error_at,
        logprob_error_sum=sum(span.logprob_error_sum for span in spans),
        eos_logprob=end,
    )


FLOAT32, BFLOAT16, IMITATED, ROUNDED = "float32", "bfloat16", "bfloat16-imitated", "bfloat16, rounded by hand"
"""Where the instructions for bfloat16 are missing, an engine writes in float32 and rounds by hand when it reads. One
that imitates them does not write so, and one of the last kind reads so wherever it runs."""
BATCHES = (512, 64, 256, 512)
NEAR_HONEST = ("int4-weights", "fp8-weights", "int8-weights", "int8-cache", "fp8-cache", "older-checkpoint")
"""Attacks that are closest to honest work."""
NEEDS_EOS = ("padded",)
"""Attacks that need a completion with an end token: if completions are short, not every slot has one."""
SCORES_KEPT = 4_000
STATES_SLOTS_MAX = 16
CACHED_SLOTS = 40
"""Slots of one cached part: a minute or less of work for a tiny model."""
STATES_LEASE, CALIBRATION_LEASE, HONEST_LEASE, BENT_LEASE, ATTACK_LEASE = 1, 1_000, 10_000, 90_000, 100_000
"""First lease numbers, so that no slot is used twice and each part is the same in every run."""
Progress = Callable[[str], None]
Scores = list[tuple[float, float]]
"""Scores of submissions: by our rule and by the original's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySubject:
    """A model and how it is run."""

    name: str
    checkpoint: Path
    precision: Precision
    writer: str
    """Precision of the workers."""
    readers: tuple[str, ...]
    """Precisions of the validators, in turn."""
    tokens_max: int
    calibration_chunks: int
    """Honest chunks that the bounds are fitted to, for each reader."""
    honest_chunks: int
    """Other honest chunks, which are judged by these bounds."""
    slots: int
    """Submissions of each attack."""
    near_slots: int
    """Submissions of each attack that is close to honest work."""
    seldom_slots: int = 0
    """Least number of slots for attacks that not every slot allows."""
    lease_slots: int = 64
    """Slots of an honest lease."""
    batches: tuple[int, ...] = BATCHES
    """Batch sizes of honest workers, in turn."""
    attacks: tuple[Attack, ...] = MODEL_ATTACKS

    def count_slots(self, attack: Attack) -> int:
        """Slots for an attack. A slot that the attack cannot change gives no submission."""
        if attack.name in NEAR_HONEST:
            return self.near_slots
        return max(self.slots, self.seldom_slots) if attack.name in NEEDS_EOS else self.slots


@dataclass(slots=True)
class HonestCount:
    """Honest work that was judged."""

    submissions: int = 0
    rows: int = 0
    chunks: int = 0
    refused: int = 0
    evidence_max: float = 0.0
    unusual: int = 0
    beyond: int = 0
    paper: int = 0
    deployed: int = 0
    """Refused by the original's rules."""
    scores: Scores = field(default_factory=list)
    """Scores of the first submissions."""
    is_whole: bool = True
    """Whether there was time for all of it."""

    def add(self, rows: Submission, tolerance: Tolerance) -> None:
        weighed, _ = weigh_rows(rows, tolerance)
        self.submissions += 1
        self.rows += len(rows)
        self.chunks += sum(len(row.chunks) for row in rows)
        self.refused += weighed.convicts
        self.evidence_max = max(self.evidence_max, weighed.evidence / 10)
        self.unusual += weighed.unusual
        self.beyond += weighed.beyond
        self.paper += PAPER.rejects(rows)
        self.deployed += DEPLOYED.rejects(rows)
        if len(self.scores) < SCORES_KEPT:
            self.scores.append((weighed.evidence / 10, PAPER.score_rows(rows)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The results for one subject."""

    subject: StudySubject
    tolerance: Tolerance
    honest: HonestCount
    rates: tuple[DetectionRate, ...]
    scores: dict[str, Scores]
    """Scores by attack."""
    forgeries: tuple[PassedChunks, ...]
    is_whole: bool
    """Whether there was time for all submissions of all attacks."""


async def run_study(subject: StudySubject, folder: Path, cache: ResultCache, report_progress: Progress) -> Study:
    config = HarnessConfig(
        checkpoint=subject.checkpoint,
        folder=folder,
        tokens_max=subject.tokens_max,
        tolerance=Tolerance(precision=subject.precision),
    )
    async with open_harness(config) as harness:
        return study_model(harness, subject, cache, report_progress)


def study_model(harness: AttackHarness, subject: StudySubject, cache: ResultCache, report_progress: Progress) -> Study:
    """Calibrate, then judge the attacks, which are fewer, then honest work."""
    tolerance = calibrate(harness, subject, cache)
    report_progress(f"{subject.name}: {tolerance}")
    rates, scores, is_whole = judge_attacks(harness, subject, tolerance, cache, report_progress)
    honest = judge_honest(harness, subject, tolerance, cache)
    report_progress(f"{subject.name}: {honest.chunks} honest chunks, {honest.refused} submissions refused")
    harness.go_to(STATES_LEASE)
    states = read_states(harness, subject, open_engine(subject.readers[0], subject.checkpoint))
    return Study(
        subject=subject,
        tolerance=tolerance,
        honest=honest,
        rates=rates,
        scores=scores,
        forgeries=tuple(study_forgeries(states)),
        is_whole=is_whole,
    )


def calibrate(harness: AttackHarness, subject: StudySubject, cache: ResultCache) -> Tolerance:
    noises = []
    for place, name in enumerate(subject.readers):
        leases = make_honest_leases(
            harness, subject, cache, f"calibration-{place}", CALIBRATION_LEASE * (1 + place), (name,)
        )
        rows = list(take_chunks(leases, subject.calibration_chunks))
        noises.append(collect_noise(f"{subject.writer} → {name}", rows))
    return fit_tolerance(noises, CalibrationTarget(), precision=subject.precision, hidden=harness.model.hidden)


def judge_honest(
    harness: AttackHarness, subject: StudySubject, tolerance: Tolerance, cache: ResultCache
) -> HonestCount:
    """Judge honest work, as much as the time allows."""
    honest = HonestCount()
    try:
        for rows in make_honest_leases(harness, subject, cache, "honest", HONEST_LEASE, subject.readers):
            for submission in split_submissions(rows):
                honest.add(submission, tolerance)
            if honest.chunks >= subject.honest_chunks:
                return honest
    except OutOfTimeError:
        honest.is_whole = False
    return honest


def judge_attacks(
    harness: AttackHarness, subject: StudySubject, tolerance: Tolerance, cache: ResultCache, report_progress: Progress
) -> tuple[tuple[DetectionRate, ...], dict[str, Scores], bool]:
    """Judge the submissions of each attack, and say whether there was time for all of them."""
    rates, scores, is_whole = [], {}, True
    starts = HonestWorkCache(harness, subject)
    for attack in subject.attacks:
        submissions: list[Submission] = []
        try:
            for piece in list_attack_rows(harness, subject, attack, cache, starts):
                submissions += split_submissions(piece)
        except OutOfTimeError:
            is_whole = False
        if not submissions:
            continue
        found = measure_rate(attack.name, submissions, tolerance)
        rates.append(found)
        scores[attack.name] = [(score_rows(rows, tolerance), PAPER.score_rows(rows)) for rows in submissions]
        report_progress(
            f"{subject.name}: {attack.name} {found.caught} of {found.submissions}, {', '.join(found.checks[:2])}"
        )
    return tuple(rates), scores, is_whole


def list_attack_rows(
    harness: AttackHarness, subject: StudySubject, attack: Attack, cache: ResultCache, starts: "HonestWorkCache"
) -> Iterator[list[RowMeasurement]]:
    """Measurements of an attack, part by part. OutOfTimeError if the time is over."""

    def make() -> list[RowMeasurement]:
        reader = open_engine(subject.readers[0], subject.checkpoint)
        if attack not in ENGINE_ATTACKS:
            lease, honest = starts.get(start, slots)
            return list(forge_slots(harness, attack, honest, lease, reader))
        harness.go_to(ATTACK_LEASE + 1_000 * subject.attacks.index(attack) + start)
        writer = TorchEngine(device="cpu", precision=subject.writer)
        return cheat_slots(harness, attack, writer, harness.lease(slots), reader)

    wanted = subject.count_slots(attack)
    for start in range(0, wanted, CACHED_SLOTS):
        slots = min(CACHED_SLOTS, wanted - start)
        yield cache.get(f"{attack.name}-{start}", make)


class HonestWorkCache:
    """Honest work that forged files start from. Attacks share it, as generating it takes longest."""

    def __init__(self, harness: AttackHarness, subject: StudySubject) -> None:
        self._scene = harness
        self._subject = subject
        self._made: dict[int, tuple[HarnessLease, HonestWork]] = {}

    def get(self, start: int, slots: int) -> tuple[HarnessLease, HonestWork]:
        if start not in self._made:
            self._scene.go_to(BENT_LEASE + start)
            writer = open_engine(self._subject.writer, self._subject.checkpoint)
            lease = self._scene.lease(slots)
            self._made[start] = lease, self._scene.gather(writer, lease)
        return self._made[start]


def open_engine(precision: str, checkpoint: Path, batch: int | None = None) -> TorchEngine:
    is_rounded = precision == ROUNDED
    engine = TorchEngine(device="cpu", precision=BFLOAT16 if is_rounded else precision, batch_max=batch)
    if is_rounded:
        engine._dtype = torch.float32
    engine.load(checkpoint)
    return engine


def make_honest_leases(
    harness: AttackHarness, subject: StudySubject, cache: ResultCache, name: str, first: int, readers: Sequence[str]
) -> Iterator[list[RowMeasurement]]:
    """Endless honest leases, generated in every batch size and read in every precision."""

    def make() -> list[RowMeasurement]:
        harness.go_to(first + number)
        writer = open_engine(subject.writer, subject.checkpoint, subject.batches[number % len(subject.batches)])
        reader = open_engine(readers[number % len(readers)], subject.checkpoint)
        return read_rows(
            harness, reader, harness.make_rows(writer, harness.lease(subject.lease_slots)), f"{name} {number}"
        )

    for number in count():
        yield cache.get(f"{name}-{number}", make)


def take_chunks(leases: Iterator[list[RowMeasurement]], chunks: int) -> Iterator[RowMeasurement]:
    for rows in leases:
        yield from rows
        chunks -= sum(len(row.chunks) for row in rows)
        if chunks <= 0:
            return


def read_states(harness: AttackHarness, subject: StudySubject, reader: TorchEngine) -> Bits:
    """Hidden states of honest texts."""
    slots = min(STATES_SLOTS_MAX, subject.lease_slots)
    return harness.read_states(reader, harness.make_rows(reader, harness.lease(slots)))
