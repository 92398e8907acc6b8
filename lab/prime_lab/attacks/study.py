"""Work of the full gallery on disk, piece by piece: who is stopped goes on there, with the same command.

A piece is what reading some completions gave, in numbers. Bounds and rules are not part of it: they may change, and all
pieces are judged anew at the end of every run.

One model under all attacks that take the model to see, with much honest work beside it: rates for the document.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import torch

from prime_lab.attacks.catalog import ENGINE_ATTACKS, Attack
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
from prime_node.calibration.fit import CalibrationTarget, collect_noise, fit_tolerance
from prime_node.engine.frames import decode_span
from prime_node.engine.measurement import RowMeasurement
from prime_node.engine.torch.engine import TorchEngine
from prime_node.jobs.file_checks import weigh_rows
from prime_protocol.proofs.evidence import ReplayedChunk
from prime_protocol.proofs.tolerance import Precision, Tolerance
from prime_protocol.proofs.toploc_numpy import Bits
from prime_protocol.proofs.toploc_verify import ChunkReport


class OutOfTimeError(Exception):
    """The minutes are over. What was made is kept."""


@dataclass(frozen=True, slots=True)
class ResultCache:
    """Of one subject."""

    folder: Path
    ends_s: float
    """When nothing new is begun any more, by time.monotonic."""

    def get(self, name: str, make: Callable[[], Sequence[RowMeasurement]]) -> list[RowMeasurement]:
        """A piece that was made before, or is made now. OutOfTimeError where it is too late to begin."""
        path = self.folder / f"{name}.npz"
        if not path.exists():
            if time.monotonic() >= self.ends_s:
                raise OutOfTimeError(name)
            self.folder.mkdir(parents=True, exist_ok=True)
            save_rows(path, make())
        return load_rows(path)


def save_rows(path: Path, rows: Sequence[RowMeasurement]) -> None:
    """Whole, or not at all."""
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
    """The numbers of a row follow from those of its chunks."""
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
"""Attacks that are nearest to honest work."""
NEEDS_EOS = ("padded",)
"""Attacks that need a completion which ends by itself: where completions are short, not every slot has one."""
SCORES_KEPT = 4_000
STATES_SLOTS_MAX = 16
CACHED_SLOTS = 40
"""Submissions of an attack that are kept together: a minute or less for a tiny model."""
STATES_LEASE, CALIBRATION_LEASE, HONEST_LEASE, BENT_LEASE, ATTACK_LEASE = 1, 1_000, 10_000, 90_000, 100_000
"""Numbers from which leases are counted, so that no slot is used twice and each piece is the same in every run."""
StudyProgress = Callable[[str], None]
Scores = list[tuple[float, float]]
"""Of submissions: by our rule and by the original's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySubject:
    """A model and how it is run."""

    name: str
    checkpoint: Path
    precision: Precision
    writer: str
    """What workers compute in."""
    readers: tuple[str, ...]
    """What validators compute in, in turn."""
    tokens_max: int
    calibration_chunks: int
    """Honest ones that the bounds are fitted to, for each reader."""
    honest_chunks: int
    """Others, that are judged by these bounds."""
    slots: int
    """Submissions of each attack."""
    near_slots: int
    """The same of those that are nearest to honest work."""
    seldom_slots: int = 0
    """The same of those that not every slot has an occasion for, at the least."""
    lease_slots: int = 64
    """Of honest leases."""
    batches: tuple[int, ...] = BATCHES
    """Completions that honest workers write at once, in turn."""
    attacks: tuple[Attack, ...] = MODEL_ATTACKS

    def count_slots(self, attack: Attack) -> int:
        """Slots that a cheat is given. Where it finds nothing to cheat in, no submission comes of it."""
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
    """Of the first submissions."""
    is_whole: bool = True
    """Whether there was time for all that was asked for."""

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
    """What came of it."""

    subject: StudySubject
    tolerance: Tolerance
    honest: HonestCount
    rates: tuple[DetectionRate, ...]
    scores: dict[str, Scores]
    """Of each attack."""
    forgeries: tuple[PassedChunks, ...]
    is_whole: bool
    """Whether there was time for all submissions of all attacks."""


async def run_study(subject: StudySubject, folder: Path, pieces: ResultCache, say: StudyProgress) -> Study:
    setting = HarnessConfig(
        checkpoint=subject.checkpoint,
        folder=folder,
        tokens_max=subject.tokens_max,
        tolerance=Tolerance(precision=subject.precision),
    )
    async with open_harness(setting) as scene:
        return study_model(scene, subject, pieces, say)


def study_model(scene: AttackHarness, subject: StudySubject, pieces: ResultCache, say: StudyProgress) -> Study:
    """What calibrates first, then the attacks, as they are fewer, then honest work."""
    tolerance = calibrate(scene, subject, pieces)
    say(f"{subject.name}: {tolerance}")
    rates, scores, is_whole = judge_attacks(scene, subject, tolerance, pieces, say)
    honest = judge_honest(scene, subject, tolerance, pieces)
    say(f"{subject.name}: {honest.chunks} honest chunks, {honest.refused} submissions refused")
    scene.go_to(STATES_LEASE)
    states = read_states(scene, subject, open_engine(subject.readers[0], subject.checkpoint))
    return Study(
        subject=subject,
        tolerance=tolerance,
        honest=honest,
        rates=rates,
        scores=scores,
        forgeries=tuple(study_forgeries(states)),
        is_whole=is_whole,
    )


def calibrate(scene: AttackHarness, subject: StudySubject, pieces: ResultCache) -> Tolerance:
    noises = []
    for place, name in enumerate(subject.readers):
        leases = make_honest_leases(
            scene, subject, pieces, f"calibration-{place}", CALIBRATION_LEASE * (1 + place), (name,)
        )
        rows = list(take_chunks(leases, subject.calibration_chunks))
        noises.append(collect_noise(f"{subject.writer} → {name}", rows))
    return fit_tolerance(noises, CalibrationTarget(), precision=subject.precision, hidden=scene.model.hidden)


def judge_honest(scene: AttackHarness, subject: StudySubject, tolerance: Tolerance, pieces: ResultCache) -> HonestCount:
    """As much as was asked for; where the time is over, what there is."""
    honest = HonestCount()
    try:
        for rows in make_honest_leases(scene, subject, pieces, "honest", HONEST_LEASE, subject.readers):
            for submission in split_submissions(rows):
                honest.add(submission, tolerance)
            if honest.chunks >= subject.honest_chunks:
                return honest
    except OutOfTimeError:
        honest.is_whole = False
    return honest


def judge_attacks(
    scene: AttackHarness, subject: StudySubject, tolerance: Tolerance, pieces: ResultCache, say: StudyProgress
) -> tuple[tuple[DetectionRate, ...], dict[str, Scores], bool]:
    """Each in pieces of a lease; and whether there was time for all. Where it is over, those count that there are."""
    rates, scores, is_whole = [], {}, True
    starts = HonestWorkCache(scene, subject)
    for attack in subject.attacks:
        submissions: list[Submission] = []
        try:
            for piece in list_attack_rows(scene, subject, attack, pieces, starts):
                submissions += split_submissions(piece)
        except OutOfTimeError:
            is_whole = False
        if not submissions:
            continue
        found = measure_rate(attack.name, submissions, tolerance)
        rates.append(found)
        scores[attack.name] = [(score_rows(rows, tolerance), PAPER.score_rows(rows)) for rows in submissions]
        say(f"{subject.name}: {attack.name} {found.caught} of {found.submissions}, {', '.join(found.checks[:2])}")
    return tuple(rates), scores, is_whole


def list_attack_rows(
    scene: AttackHarness, subject: StudySubject, attack: Attack, pieces: ResultCache, starts: "HonestWorkCache"
) -> Iterator[list[RowMeasurement]]:
    """As many as were asked for. OutOfTimeError where the time is over."""

    def make() -> list[RowMeasurement]:
        reader = open_engine(subject.readers[0], subject.checkpoint)
        if attack not in ENGINE_ATTACKS:
            lease, honest = starts.get(start, slots)
            return list(forge_slots(scene, attack, honest, lease, reader))
        scene.go_to(ATTACK_LEASE + 1_000 * subject.attacks.index(attack) + start)
        writer = TorchEngine(device="cpu", precision=subject.writer)
        return cheat_slots(scene, attack, writer, scene.lease(slots), reader)

    wanted = subject.count_slots(attack)
    for start in range(0, wanted, CACHED_SLOTS):
        slots = min(CACHED_SLOTS, wanted - start)
        yield pieces.get(f"{attack.name}-{start}", make)


class HonestWorkCache:
    """Honest work that files are bent from, the same for every attack of that kind: writing it takes longest."""

    def __init__(self, scene: AttackHarness, subject: StudySubject) -> None:
        self._scene = scene
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
    scene: AttackHarness, subject: StudySubject, pieces: ResultCache, name: str, first: int, readers: Sequence[str]
) -> Iterator[list[RowMeasurement]]:
    """Honest leases without end, written in batches of every size and read by every reader."""

    def make() -> list[RowMeasurement]:
        scene.go_to(first + number)
        writer = open_engine(subject.writer, subject.checkpoint, subject.batches[number % len(subject.batches)])
        reader = open_engine(readers[number % len(readers)], subject.checkpoint)
        return read_rows(scene, reader, scene.make_rows(writer, scene.lease(subject.lease_slots)), f"{name} {number}")

    for number in count():
        yield pieces.get(f"{name}-{number}", make)


def take_chunks(leases: Iterator[list[RowMeasurement]], chunks: int) -> Iterator[RowMeasurement]:
    for rows in leases:
        yield from rows
        chunks -= sum(len(row.chunks) for row in rows)
        if chunks <= 0:
            return


def read_states(scene: AttackHarness, subject: StudySubject, reader: TorchEngine) -> Bits:
    """Hidden states of honest texts."""
    slots = min(STATES_SLOTS_MAX, subject.lease_slots)
    return scene.read_states(reader, scene.make_rows(reader, scene.lease(slots)))
