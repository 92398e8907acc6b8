"""One model under all attacks that take the model to see, with much honest work beside it: rates for the document."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import torch

from prime_attacks.bent_files import Honest
from prime_attacks.detection import (
    MODEL_ATTACKS,
    Rate,
    Submission,
    bend_slots,
    cheat_slots,
    rate,
    read_rows,
    split,
)
from prime_attacks.forgery_study import Passed
from prime_attacks.forgery_study import study as study_forgeries
from prime_attacks.gallery import ENGINES, Attack
from prime_attacks.pieces import OutOfTimeError, Pieces
from prime_attacks.rules import DEPLOYED, PAPER, score_rows
from prime_attacks.scene import Lease, Scene, Setting, open_scene
from prime_node.calibration import Target, collect, fit_tolerance
from prime_node.checks import weigh_rows
from prime_node.engine.measuring import RowNumbers
from prime_node.engine.torch_engine import TorchEngine
from prime_protocol.tolerance import Precision, Tolerance
from prime_protocol.toploc_plain import Bits

FLOAT32, BFLOAT16, IMITATED, ROUNDED = "float32", "bfloat16", "bfloat16-imitated", "bfloat16, rounded by hand"
"""Where the instructions for bfloat16 are missing, an engine writes in float32 and rounds by hand when it reads. One
that imitates them does not write so, and one of the last kind reads so wherever it runs."""
BATCHES = (512, 64, 256, 512)
NEAR = ("int4-weights", "fp8-weights", "int8-weights", "int8-cache", "fp8-cache", "older-checkpoint")
"""Attacks that are nearest to honest work."""
SELDOM = ("padded",)
"""Attacks that need a completion which ends by itself: where completions are short, not every slot has one."""
SCORES_KEPT = 4_000
STATES_SLOTS_MAX = 16
PIECE_SLOTS = 40
"""Submissions of an attack that are kept together: a minute or less for a tiny model."""
STATES_LEASE, CALIBRATION_LEASE, HONEST_LEASE, BENT_LEASE, ATTACK_LEASE = 1, 1_000, 10_000, 90_000, 100_000
"""Numbers from which leases are counted, so that no slot is used twice and each piece is the same in every run."""
Say = Callable[[str], None]
Scores = list[tuple[float, float]]
"""Of submissions: by our rule and by the original's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
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
        if attack.name in NEAR:
            return self.near_slots
        return max(self.slots, self.seldom_slots) if attack.name in SELDOM else self.slots


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

    subject: Subject
    tolerance: Tolerance
    honest: HonestCount
    rates: tuple[Rate, ...]
    scores: dict[str, Scores]
    """Of each attack."""
    forgeries: tuple[Passed, ...]
    is_whole: bool
    """Whether there was time for all submissions of all attacks."""


async def study(subject: Subject, folder: Path, pieces: Pieces, say: Say) -> Study:
    setting = Setting(
        checkpoint=subject.checkpoint,
        folder=folder,
        tokens_max=subject.tokens_max,
        tolerance=Tolerance(precision=subject.precision),
    )
    async with open_scene(setting) as scene:
        return run(scene, subject, pieces, say)


def run(scene: Scene, subject: Subject, pieces: Pieces, say: Say) -> Study:
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


def calibrate(scene: Scene, subject: Subject, pieces: Pieces) -> Tolerance:
    noises = []
    for place, name in enumerate(subject.readers):
        leases = work(scene, subject, pieces, f"calibration-{place}", CALIBRATION_LEASE * (1 + place), (name,))
        rows = list(take(leases, subject.calibration_chunks))
        noises.append(collect(f"{subject.writer} → {name}", rows))
    return fit_tolerance(noises, Target(), precision=subject.precision, hidden=scene.model.hidden)


def judge_honest(scene: Scene, subject: Subject, tolerance: Tolerance, pieces: Pieces) -> HonestCount:
    """As much as was asked for; where the time is over, what there is."""
    honest = HonestCount()
    try:
        for rows in work(scene, subject, pieces, "honest", HONEST_LEASE, subject.readers):
            for submission in split(rows):
                honest.add(submission, tolerance)
            if honest.chunks >= subject.honest_chunks:
                return honest
    except OutOfTimeError:
        honest.is_whole = False
    return honest


def judge_attacks(
    scene: Scene, subject: Subject, tolerance: Tolerance, pieces: Pieces, say: Say
) -> tuple[tuple[Rate, ...], dict[str, Scores], bool]:
    """Each in pieces of a lease; and whether there was time for all. Where it is over, those count that there are."""
    rates, scores, is_whole = [], {}, True
    starts = Starts(scene, subject)
    for attack in subject.attacks:
        submissions: list[Submission] = []
        try:
            for piece in list_pieces(scene, subject, attack, pieces, starts):
                submissions += split(piece)
        except OutOfTimeError:
            is_whole = False
        if not submissions:
            continue
        found = rate(attack.name, submissions, tolerance)
        rates.append(found)
        scores[attack.name] = [(score_rows(rows, tolerance), PAPER.score_rows(rows)) for rows in submissions]
        say(f"{subject.name}: {attack.name} {found.caught} of {found.submissions}, {', '.join(found.checks[:2])}")
    return tuple(rates), scores, is_whole


def list_pieces(
    scene: Scene, subject: Subject, attack: Attack, pieces: Pieces, starts: "Starts"
) -> Iterator[list[RowNumbers]]:
    """As many as were asked for. OutOfTimeError where the time is over."""

    def make() -> list[RowNumbers]:
        reader = open_engine(subject.readers[0], subject.checkpoint)
        if attack not in ENGINES:
            lease, honest = starts.get(start, slots)
            return list(bend_slots(scene, attack, honest, lease, reader))
        scene.go_to(ATTACK_LEASE + 1_000 * subject.attacks.index(attack) + start)
        writer = TorchEngine(device="cpu", precision=subject.writer)
        return cheat_slots(scene, attack, writer, scene.lease(slots), reader)

    wanted = subject.count_slots(attack)
    for start in range(0, wanted, PIECE_SLOTS):
        slots = min(PIECE_SLOTS, wanted - start)
        yield pieces.get(f"{attack.name}-{start}", make)


class Starts:
    """Honest work that files are bent from, the same for every attack of that kind: writing it takes longest."""

    def __init__(self, scene: Scene, subject: Subject) -> None:
        self._scene = scene
        self._subject = subject
        self._made: dict[int, tuple[Lease, Honest]] = {}

    def get(self, start: int, slots: int) -> tuple[Lease, Honest]:
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


def work(
    scene: Scene, subject: Subject, pieces: Pieces, name: str, first: int, readers: Sequence[str]
) -> Iterator[list[RowNumbers]]:
    """Honest leases without end, written in batches of every size and read by every reader."""

    def make() -> list[RowNumbers]:
        scene.go_to(first + number)
        writer = open_engine(subject.writer, subject.checkpoint, subject.batches[number % len(subject.batches)])
        reader = open_engine(readers[number % len(readers)], subject.checkpoint)
        return read_rows(scene, reader, scene.make_rows(writer, scene.lease(subject.lease_slots)), f"{name} {number}")

    for number in count():
        yield pieces.get(f"{name}-{number}", make)


def take(leases: Iterator[list[RowNumbers]], chunks: int) -> Iterator[RowNumbers]:
    for rows in leases:
        yield from rows
        chunks -= sum(len(row.chunks) for row in rows)
        if chunks <= 0:
            return


def read_states(scene: Scene, subject: Subject, reader: TorchEngine) -> Bits:
    """Hidden states of honest texts."""
    slots = min(STATES_SLOTS_MAX, subject.lease_slots)
    return scene.read_states(reader, scene.make_rows(reader, scene.lease(slots)))
