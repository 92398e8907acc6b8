"""One model under all attacks that take the model to see, with much honest work beside it: rates for the document."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from prime_attacks.detection import MODEL_ATTACKS, Rate, Submission, make_submissions, rate, read_rows, split
from prime_attacks.forgery_study import Passed
from prime_attacks.forgery_study import study as study_forgeries
from prime_attacks.gallery import Attack
from prime_attacks.pieces import OutOfTimeError, Pieces
from prime_attacks.rules import DEPLOYED, PAPER, score_rows
from prime_attacks.scene import Scene, Setting, open_scene
from prime_node.calibration import Target, collect, fit_tolerance
from prime_node.checks import weigh_rows
from prime_node.engine.measuring import RowNumbers
from prime_node.engine.torch_engine import TorchEngine
from prime_protocol.tolerance import Precision, Tolerance
from prime_protocol.toploc_plain import Bits

BATCHES = (512, 64, 256, 512)
LEASE_SLOTS = 64
CALIBRATION_SHARE = 8
"""Of the honest work, one part in so many calibrates, and the rest is judged."""
SCORES_KEPT = 4_000
PIECE_SLOTS = 40
"""Submissions of an attack that are kept together: a minute or less for a tiny model."""
STATES_LEASE, CALIBRATION_LEASE, HONEST_LEASE, ATTACK_LEASE = 1, 1_000, 10_000, 100_000
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
    honest_chunks: int
    slots: int
    """Submissions of each attack."""
    tolerance: Tolerance | None = None
    """Bounds where there is too little honest work to calibrate; None: calibrated."""
    attacks: tuple[Attack, ...] = MODEL_ATTACKS


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


async def study(subject: Subject, folder: Path, pieces: Pieces, say: Say) -> Study:
    setting = Setting(
        checkpoint=subject.checkpoint,
        folder=folder,
        tokens_max=subject.tokens_max,
        tolerance=subject.tolerance or Tolerance(precision=subject.precision),
    )
    async with open_scene(setting) as scene:
        return run(scene, subject, pieces, say)


def run(scene: Scene, subject: Subject, pieces: Pieces, say: Say) -> Study:
    """What calibrates first, then the attacks, as they are fewer, then honest work."""
    tolerance = subject.tolerance or calibrate(scene, subject, pieces)
    say(f"{subject.name}: {tolerance}")
    rates, scores = judge_attacks(scene, subject, tolerance, pieces, say)
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
    )


def calibrate(scene: Scene, subject: Subject, pieces: Pieces) -> Tolerance:
    noises = []
    for place, name in enumerate(subject.readers):
        leases = work(scene, subject, pieces, f"calibration-{place}", CALIBRATION_LEASE * (1 + place), (name,))
        rows = list(take(leases, subject.honest_chunks // CALIBRATION_SHARE))
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
) -> tuple[tuple[Rate, ...], dict[str, Scores]]:
    """Each in pieces of a lease."""
    rates, scores = [], {}
    for attack in subject.attacks:
        submissions = list(list_submissions(scene, subject, attack, pieces))
        if not submissions:
            continue
        found = rate(attack.name, submissions, tolerance)
        rates.append(found)
        scores[attack.name] = [(score_rows(rows, tolerance), PAPER.score_rows(rows)) for rows in submissions]
        say(f"{subject.name}: {attack.name} {found.caught} of {found.submissions}, {', '.join(found.checks[:2])}")
    return tuple(rates), scores


def list_submissions(scene: Scene, subject: Subject, attack: Attack, pieces: Pieces) -> Iterator[Submission]:
    """As many as were asked for; where the time is over, those that there are."""
    for start in range(0, subject.slots, PIECE_SLOTS):
        first = ATTACK_LEASE + 1_000 * subject.attacks.index(attack) + start

        def make(first: int = first, slots: int = min(PIECE_SLOTS, subject.slots - start)) -> list[RowNumbers]:
            scene.go_to(first)
            reader = open_engine(subject.readers[0], subject.checkpoint)
            made = make_submissions(
                scene, attack, lambda: TorchEngine(device="cpu", precision=subject.writer), reader, slots
            )
            return [row for submission in made for row in submission]

        try:
            yield from split(pieces.get(f"{attack.name}-{start}", make))
        except OutOfTimeError:
            return


def open_engine(precision: str, checkpoint: Path, batch: int | None = None) -> TorchEngine:
    engine = TorchEngine(device="cpu", precision=precision, batch_max=batch)
    engine.load(checkpoint)
    return engine


def work(
    scene: Scene, subject: Subject, pieces: Pieces, name: str, first: int, readers: Sequence[str]
) -> Iterator[list[RowNumbers]]:
    """Honest leases without end, written in batches of every size and read by every reader."""
    slots = min(LEASE_SLOTS, max(1, subject.slots))

    def make() -> list[RowNumbers]:
        scene.go_to(first + number)
        writer = open_engine(subject.writer, subject.checkpoint, BATCHES[number % len(BATCHES)])
        reader = open_engine(readers[number % len(readers)], subject.checkpoint)
        return read_rows(scene, reader, scene.make_rows(writer, scene.lease(slots)), f"{name} {number}")

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
    slots = min(16, max(2, subject.slots))
    return scene.read_states(reader, scene.make_rows(reader, scene.lease(slots)))
