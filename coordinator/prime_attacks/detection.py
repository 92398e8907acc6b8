"""How often each attack of a worker is caught, and how much of it has to be read: many submissions of one model.

Files are not written here and no process is started, so that there can be many; numbers and rules are those of an
audit. What is refused without a model is certain, and is in the small gallery.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from prime_attacks.bent_files import MAKERS, Honest
from prime_attacks.chances import confidence_interval
from prime_attacks.gallery import ENGINES, ROWS, Attack, Verdict
from prime_attacks.rules import DEPLOYED, PAPER, find_checks, tokens_needed
from prime_attacks.scene import SAMPLES, Lease, Scene, digest
from prime_devnet.cheats import Rewriter, open_cheat
from prime_node.engine.measuring import RowNumbers, measure
from prime_node.engine.seam import Engine
from prime_node.examination import list_claims
from prime_protocol.errors import RemoteError
from prime_protocol.rollout_file import read_rollouts
from prime_protocol.rollouts import Rollout
from prime_protocol.tolerance import Tolerance

CONFIDENCE = 0.95
PART_SIZES = (2, 4)
DEFAULTS = Tolerance()
COMMON_SLOTS = 8
"""Of a submission as a run has it by default, half of what a newcomer gets at most: a lease is a minute of the node's
work, of one slot at the least, and at most 16 on probation and 64 later."""
Submission = list[RowNumbers]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """What became of one attack in many submissions."""

    attack: str
    submissions: int
    caught: int
    rows: int
    rows_caught: int
    """Completions whose chunks convict by themselves, without the means over the file."""
    tokens: int
    """Output tokens of a submission, on average."""
    needed: tuple[int, ...]
    """Tokens that were read when the evidence sufficed, of each that was caught by its chunks."""
    checks: tuple[str, ...]
    """What convicted, the commonest first."""
    paper: int
    deployed: int
    """Submissions that the original's rules reject, with the paper's and with the deployed thresholds."""
    defaults: int
    """Submissions that a run's default bounds convict."""
    parts: tuple[tuple[int, int, int], ...] = ()
    """Of two and of four completions at a time: how many that are, parts, and those whose chunks convict."""

    @property
    def interval(self) -> tuple[float, float]:
        return confidence_interval(self.submissions, self.caught)

    def sure(self, slots: int = 1) -> float:
        """Lower bound of the detection of a submission of so many slots: what was counted, or what parts of it say.

        The evidence of some rows does not shrink in a longer file, so a submission is missed only if each part of it
        is. Rows are drawn with seeds of their own, and taken to be missed independently. The best of several bounds is
        taken, so each has its share of the doubt.
        """
        parts = ((SAMPLES, self.submissions, self.caught), (1, self.rows, self.rows_caught), *self.parts)
        doubt = (1 - CONFIDENCE) / len(parts)
        lows = [(size, confidence_interval(count, caught, 1 - doubt)[0]) for size, count, caught in parts]
        return max(1 - (1 - low) ** (slots * SAMPLES // size) for size, low in lows)


def read_rows(scene: Scene, engine: Engine, rows: Sequence[Rollout], name: str) -> list[RowNumbers]:
    """What an honest engine makes of rows, in their order."""
    claims, seed = list_claims(rows, scene.briefing.beacon), digest("audit", name)
    readings = engine.read([claim.text for claim in claims], scene.briefing.sampling)
    numbers = [measure(claims[reading.number], reading, seed=seed) for reading in readings]
    return sorted(numbers, key=lambda each: each.row)


def split(rows: Sequence[RowNumbers]) -> list[Submission]:
    """A slot each, with its rows numbered anew."""
    return [
        [replace(row, row=number) for number, row in enumerate(rows[start : start + SAMPLES])]
        for start in range(0, len(rows), SAMPLES)
    ]


# --- Attacks --------------------------------------------------------------------------------------------------------


def cheat_slots(scene: Scene, attack: Attack, engine: Engine, lease: Lease, reader: Engine) -> list[RowNumbers]:
    """An engine that cheats, in every slot of a lease where it finds what to cheat in, as an honest engine reads it."""
    cheat = open_cheat(attack.name, engine)
    cheat.load(scene.setting.checkpoint)
    rows = scene.make_rows(cheat, lease)
    left_alone = cheat.left_alone if isinstance(cheat, Rewriter) else set()
    touched = {number // SAMPLES for number in range(len(rows)) if number not in left_alone}
    bent = [row for number, row in enumerate(rows) if number // SAMPLES in touched]
    return read_rows(scene, reader, bent, attack.name) if bent else []


def bend_slots(scene: Scene, attack: Attack, start: Honest, lease: Lease, reader: Engine) -> Iterator[RowNumbers]:
    """The same change to the honest file of each slot of a lease."""
    for number in range(lease.slots):
        part = slice(number * SAMPLES, (number + 1) * SAMPLES)
        one = replace(start, rows=start.rows[part], other_step=start.other_step[part])
        sent = MAKERS[attack.name](one)
        try:
            file = read_rollouts(sent.data, scene.briefing.limits(lease.first_slot + number, 1))
        except RemoteError as error:
            raise AssertionError(f"{attack.name} is no matter of the model: {error}") from None
        yield from read_rows(scene, reader, file.rows, f"{attack.name} {number}")


MODEL_ATTACKS = tuple(
    attack
    for attack in (*ENGINES, *ROWS)
    if attack.verdict is Verdict.HARD and not {"prompt", "termination"} & set(attack.caught_by)
)
"""Those that take the model to see."""


def rate(name: str, submissions: Sequence[Submission], tolerance: Tolerance) -> Rate:
    found = [find_checks(rows, tolerance) for rows in submissions]
    needed = [tokens_needed(rows, tolerance) for rows in submissions]
    rows = [row for submission in submissions for row in submission]
    firsts = [checks[0] for checks in found if checks]
    return Rate(
        attack=name,
        submissions=len(submissions),
        caught=sum(map(bool, found)),
        rows=len(rows),
        rows_caught=sum(tokens_needed([row], tolerance) is not None for row in rows),
        tokens=sum(row.tokens for row in rows) // max(1, len(submissions)),
        needed=tuple(tokens for tokens in needed if tokens is not None),
        checks=tuple(sorted(set(firsts), key=lambda check: -firsts.count(check))),
        paper=sum(PAPER.rejects(rows) for rows in submissions),
        deployed=sum(DEPLOYED.rejects(rows) for rows in submissions),
        defaults=sum(bool(find_checks(rows, DEFAULTS)) for rows in submissions),
        parts=tuple(count_parts(rows, size, tolerance) for size in PART_SIZES),
    )


def count_parts(rows: Sequence[RowNumbers], size: int, tolerance: Tolerance) -> tuple[int, int, int]:
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    return size, len(parts), sum(tokens_needed(part, tolerance) is not None for part in parts)
