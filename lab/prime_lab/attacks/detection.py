"""How often each attack of a worker is caught, by our rules and by those of the public original, and how sure that is.

Files are not written here and no process is started, so that there can be many submissions; the measurements and rules
are those of an audit. Attacks that are refused without a model are certain, and are in the small suite. The public
original compares each chunk's proof by three numbers: it knows neither replayed sampling nor decoys. Forged proofs are
tried on real final hidden states: the forger learns from half of the texts and forges proofs for the other half.

"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from prime_lab.attacks.attack import Attack, AttackVerdict
from prime_lab.attacks.catalog import (
    ENGINE_ATTACKS,
    ROW_ATTACKS,
)
from prime_lab.attacks.forged_files import FILE_FORGERS, HonestWork
from prime_lab.attacks.harness import SAMPLES, AttackHarness, HarnessLease, digest_words
from prime_lab.cheats import proof_forgery as forgery
from prime_lab.cheats.engines import Rewriter
from prime_lab.cheats.registry import open_cheat
from prime_node.engine.interface import Engine
from prime_node.engine.measurement import RowMeasurement, measure_row
from prime_node.jobs.examination import list_claims
from prime_node.jobs.file_checks import weigh_rows
from prime_protocol.constants import EVIDENCE_BEYOND_LIMIT, EVIDENCE_FRAUDULENT, TOPLOC_CHUNK_TOKENS
from prime_protocol.errors import RemoteError
from prime_protocol.proofs.evidence import (
    compute_noise_deviation,
    find_proof_deviations,
    find_replay_deviations,
    get_chunk_weight,
)
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.proofs.toploc import parse_proofs
from prime_protocol.proofs.toploc_numpy import Bits
from prime_protocol.proofs.toploc_verify import ChunkReport, verify_proofs
from prime_protocol.rollouts.file import read_rollouts
from prime_protocol.rollouts.rollout import Rollout

Points = Sequence[tuple[float, float]]
BISECTION_STEPS = 60
"""Halvings of an interval: beyond the precision of a float."""


def compute_log_binomial(n: int, k: int, chance: float) -> float:
    if chance in (0.0, 1.0):
        return 0.0 if k == n * chance else -math.inf
    choose = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return choose + k * math.log(chance) + (n - k) * math.log1p(-chance)


def compute_binomial_tail(n: int, k: int, chance: float) -> float:
    """Chance of k or more of n."""
    return math.fsum(math.exp(compute_log_binomial(n, number, chance)) for number in range(k, n + 1))


def compute_confidence_interval(n: int, k: int, confidence: float = 0.95) -> tuple[float, float]:
    """The interval of Clopper and Pearson, which is never too narrow."""
    if n == 0:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    low = 0.0 if k == 0 else bisect(lambda chance: compute_binomial_tail(n, k, chance) < tail)
    high = 1.0 if k == n else bisect(lambda chance: compute_binomial_tail(n, k + 1, chance) < 1 - tail)
    return low, high


def bisect(is_below: Callable[[float], bool]) -> float:
    """The point up to which a condition holds that holds near 0."""
    low, high = 0.0, 1.0
    for _ in range(BISECTION_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return low


def compute_roc(honest: Sequence[float], dishonest: Sequence[float]) -> list[tuple[float, float]]:
    """False and true positive rates at every threshold."""
    high, low = sorted(honest, reverse=True), sorted(dishonest, reverse=True)
    points, wrong, right = [(0.0, 0.0)], 0, 0
    for threshold in sorted({*honest, *dishonest}, reverse=True):
        while wrong < len(high) and high[wrong] >= threshold:
            wrong += 1
        while right < len(low) and low[right] >= threshold:
            right += 1
        points.append((wrong / len(high), right / len(low)))
    return points


def compute_area(points: Points) -> float:
    """Area under the curve: 1 separates perfectly, 0.5 not at all."""
    return sum((right[0] - left[0]) * (left[1] + right[1]) / 2 for left, right in pairwise(points))


Rows = Sequence[RowMeasurement]


@dataclass(frozen=True, slots=True)
class ReferenceRule:
    """Three thresholds for each chunk; a file is rejected if one chunk exceeds any of them."""

    name: str
    exponents: int
    mean: float
    median: float

    def score(self, report: ChunkReport) -> float:
        """Above 1, the chunk is rejected."""
        return max(
            report.exponent_mismatches / self.exponents,
            report.mantissa_error_mean / self.mean,
            report.mantissa_error_median / self.median,
        )

    def score_rows(self, rows: Rows) -> float:
        return max((self.score(chunk) for row in rows for chunk in row.chunks), default=0.0)

    def rejects(self, rows: Rows) -> bool:
        return self.score_rows(rows) > 1


PAPER = ReferenceRule("38/10/8", 38, 10, 8)
DEPLOYED = ReferenceRule("60/40/40", 60, 40, 40)


def score_rows(rows: Rows, tolerance: Tolerance) -> float:
    """Our score: the evidence, in powers of ten."""
    return weigh_rows(rows, tolerance)[0].evidence / 10


def find_checks(rows: Rows, tolerance: Tolerance) -> tuple[str, ...]:
    """The checks that convict, heaviest first; empty if none does."""
    return tuple(dict.fromkeys(flaw.check for flaw in weigh_rows(rows, tolerance)[1]))


def count_tokens_needed(rows: Rows, tolerance: Tolerance) -> int | None:
    """Output tokens read until the evidence sufficed; None if it never does."""
    total = noise = tokens = 0
    for row in rows:
        for size, weight in list_weights(row, tolerance):
            tokens += size
            total = max(0, total + weight)
            if total >= EVIDENCE_FRAUDULENT:
                return tokens
        mark = None if row.proof_problem else compute_noise_deviation(row.spans, row.chunks, tolerance)
        noise = max(0, noise + (mark.weight if mark is not None else 0))
        if noise >= EVIDENCE_FRAUDULENT:
            return tokens
    return None


def list_weights(row: RowMeasurement, tolerance: Tolerance) -> Iterator[tuple[int, int]]:
    """Tokens and weight of each chunk."""
    for place, span in enumerate(row.spans):
        marks = list(find_replay_deviations(span, tolerance))
        if row.proof_problem:
            yield span.tokens, EVIDENCE_FRAUDULENT
        else:
            yield (
                span.tokens,
                get_chunk_weight(
                    [*marks, *find_proof_deviations(row.chunks[place], tolerance, is_whole=span.is_whole)]
                ),
            )


CONFIDENCE = 0.95
PART_SIZES = (2, 4)
DEFAULTS = Tolerance()
COMMON_SLOTS = 8
"""Of a submission as a run has it by default, half of what a newcomer gets at most: a lease is a minute of the node's
work, of one slot at the least, and at most 16 on probation and 64 later."""
Submission = list[RowMeasurement]


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionRate:
    """How many submissions of one attack were caught."""

    attack: str
    submissions: int
    caught: int
    rows: int
    rows_caught: int
    """Completions whose chunks convict alone, without the means over the file."""
    tokens: int
    """Output tokens of a submission, on average."""
    needed: tuple[int, ...]
    """Tokens read until the evidence sufficed, for each submission that was caught by its chunks."""
    checks: tuple[str, ...]
    """The checks that convicted, most frequent first."""
    paper: int
    deployed: int
    """Submissions that the original rejects, with the paper's and with the deployed thresholds."""
    defaults: int
    """Submissions that a run's default bounds convict."""
    parts: tuple[tuple[int, int, int], ...] = ()
    """For groups of two and of four completions: size, number of groups, and groups whose chunks convict."""

    @property
    def interval(self) -> tuple[float, float]:
        return compute_confidence_interval(self.submissions, self.caught)

    def sure(self, slots: int = 1) -> float:
        """Lower bound of the detection rate of a submission of so many slots, from whole submissions and from groups.

        The evidence of some rows does not shrink in a longer file, so a submission is missed only if each part of it
        is. Rows are drawn with seeds of their own, and taken to be missed independently. The best of several bounds is
        taken, so each has its share of the doubt.
        """
        parts = ((SAMPLES, self.submissions, self.caught), (1, self.rows, self.rows_caught), *self.parts)
        doubt = (1 - CONFIDENCE) / len(parts)
        lows = [(size, compute_confidence_interval(count, caught, 1 - doubt)[0]) for size, count, caught in parts]
        return max(1 - (1 - low) ** (slots * SAMPLES // size) for size, low in lows)


def read_rows(harness: AttackHarness, engine: Engine, rows: Sequence[Rollout], name: str) -> list[RowMeasurement]:
    """Measurements of rows by an honest engine, in order."""
    claims, seed = list_claims(rows, harness.briefing.beacon), digest_words("audit", name)
    readings = engine.read([claim.sequence for claim in claims], harness.briefing.sampling)
    numbers = [measure_row(claims[reading.number], reading, seed=seed) for reading in readings]
    return sorted(numbers, key=lambda each: each.row)


def split_submissions(rows: Sequence[RowMeasurement]) -> list[Submission]:
    """One submission per slot, with its rows renumbered."""
    return [
        [replace(row, row=number) for number, row in enumerate(rows[start : start + SAMPLES])]
        for start in range(0, len(rows), SAMPLES)
    ]


# --- Attacks --------------------------------------------------------------------------------------------------------


def cheat_slots(
    harness: AttackHarness, attack: Attack, engine: Engine, lease: HarnessLease, reader: Engine
) -> list[RowMeasurement]:
    """Measurements, by an honest engine, of the slots of a lease that a cheating engine changed."""
    cheat = open_cheat(attack.name, engine)
    cheat.load(harness.config.checkpoint)
    rows = harness.make_rows(cheat, lease)
    left_alone = cheat.left_alone if isinstance(cheat, Rewriter) else set()
    touched = {number // SAMPLES for number in range(len(rows)) if number not in left_alone}
    bent = [row for number, row in enumerate(rows) if number // SAMPLES in touched]
    return read_rows(harness, reader, bent, attack.name) if bent else []


def forge_slots(
    harness: AttackHarness, attack: Attack, start: HonestWork, lease: HarnessLease, reader: Engine
) -> Iterator[RowMeasurement]:
    """The same change to the honest file of each slot of a lease."""
    for number in range(lease.slots):
        part = slice(number * SAMPLES, (number + 1) * SAMPLES)
        one = replace(start, rows=start.rows[part], other_step=start.other_step[part])
        sent = FILE_FORGERS[attack.name](one)
        try:
            file = read_rollouts(sent.data, harness.briefing.get_limits(lease.first_slot + number, 1))
        except RemoteError as error:
            raise AssertionError(f"{attack.name} is no matter of the model: {error}") from None
        yield from read_rows(harness, reader, file.rows, f"{attack.name} {number}")


MODEL_ATTACKS = tuple(
    attack
    for attack in (*ENGINE_ATTACKS, *ROW_ATTACKS)
    if attack.verdict is AttackVerdict.FRAUDULENT and not {"prompt", "termination"} & set(attack.caught_by)
)
"""Attacks that only a model can detect."""


def measure_rate(name: str, submissions: Sequence[Submission], tolerance: Tolerance) -> DetectionRate:
    found = [find_checks(rows, tolerance) for rows in submissions]
    needed = [count_tokens_needed(rows, tolerance) for rows in submissions]
    rows = [row for submission in submissions for row in submission]
    firsts = [checks[0] for checks in found if checks]
    return DetectionRate(
        attack=name,
        submissions=len(submissions),
        caught=sum(map(bool, found)),
        rows=len(rows),
        rows_caught=sum(count_tokens_needed([row], tolerance) is not None for row in rows),
        tokens=sum(row.tokens for row in rows) // max(1, len(submissions)),
        needed=tuple(tokens for tokens in needed if tokens is not None),
        checks=tuple(sorted(set(firsts), key=lambda check: -firsts.count(check))),
        paper=sum(PAPER.rejects(rows) for rows in submissions),
        deployed=sum(DEPLOYED.rejects(rows) for rows in submissions),
        defaults=sum(bool(find_checks(rows, DEFAULTS)) for rows in submissions),
        parts=tuple(count_parts(rows, size, tolerance) for size in PART_SIZES),
    )


def count_parts(rows: Sequence[RowMeasurement], size: int, tolerance: Tolerance) -> tuple[int, int, int]:
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    return size, len(parts), sum(count_tokens_needed(part, tolerance) is not None for part in parts)


PROOF_FORGERS: dict[str, forgery.ProofForger] = {
    "constant": forgery.make_constant,
    "low degree": forgery.make_low_degree,
    "dressed constant": forgery.make_full_degree_constant,
    "learned channels": forgery.make_learned,
}
UNBOUNDED_NOISE = Tolerance(
    exponent_mismatches_max=127,
    sign_mismatches_max=127,
    mantissa_error_mean_max=127.0,
    mantissa_error_median_max=127,
    exponent_mismatches_usual=127,
    mantissa_error_mean_usual=127.0,
)
"""Bounds that allow any noise: only decoys, degree and collisions are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedChunks:
    """Chunks of one forgery that each rule accepts."""

    forgery: str
    chunks: int
    paper: int
    deployed: int
    defaults: int
    """Our rule, with a run's default bounds."""
    loose: int
    """Our rule, without bounds on noise."""


def study_forged_proofs(states: Bits) -> list[PassedChunks]:
    """`states`: bf16 patterns of texts, end to end."""
    chunks = len(states) // TOPLOC_CHUNK_TOKENS
    half = chunks // 2 * TOPLOC_CHUNK_TOKENS
    known = forgery.learn_statistics(states[:half])
    rest = np.ascontiguousarray(states[half : chunks * TOPLOC_CHUNK_TOKENS])
    return [count_passed_chunks(name, make, known, rest) for name, make in PROOF_FORGERS.items()]


def count_passed_chunks(
    name: str, make: forgery.ProofForger, known: forgery.ModelStatistics, states: Bits
) -> PassedChunks:
    tokens, hidden = states.shape
    blob = forgery.forge_row(make, known, tokens=tokens, hidden=hidden)
    reports = verify_proofs(
        parse_proofs(blob, tokens=tokens, hidden=hidden), states, seed=digest_words("forgery", name)
    )
    return PassedChunks(
        forgery=name,
        chunks=len(reports),
        paper=sum(PAPER.score(report) <= 1 for report in reports),
        deployed=sum(DEPLOYED.score(report) <= 1 for report in reports),
        defaults=sum(passes_limits(report, Tolerance()) for report in reports),
        loose=sum(passes_limits(report, UNBOUNDED_NOISE) for report in reports),
    )


def passes_limits(report: ChunkReport, tolerance: Tolerance) -> bool:
    """Whether no value exceeds a limit."""
    return get_chunk_weight(find_proof_deviations(report, tolerance, is_whole=True)) < EVIDENCE_BEYOND_LIMIT
