"""Turns the measurements of a rollout file into an outcome, by the run's terms. Pure.

A malformed file is invalid, without fault, and so is one whose numbers are unlikely but prove no fraud. Tokens, proofs
or log-probs that the run's model cannot have produced are fraudulent. Numbers that noise might explain are added up
over the whole file (prime_protocol.proofs.evidence), so that one unlucky chunk never costs an honest worker its stake.
Every worker runs the same checks on its own file before it sends it. The measurements come from engine/measurement.py;
examination.py gets them from the engine.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from prime_node.engine.measurement import RowMeasurement
from prime_protocol.constants import (
    BET_WEIGHT_MAX,
    EVIDENCE_FRAUDULENT,
    EVIDENCE_UNLIKELY,
    EVIDENCE_UNUSUAL,
    EVIDENCE_USUAL,
    METRICS_MAX,
    REASON_CHARS_MAX,
    SUSPICION_CONVICTED,
)
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.entry_values import Metric
from prime_protocol.ledger.run_record import BetSums, add_evidence, convicts
from prime_protocol.proofs.evidence import (
    Deviation,
    EvidenceCounter,
    EvidenceSum,
    compute_noise_deviation,
    compute_weight,
    find_proof_deviations,
    find_replay_deviations,
    get_chunk_weight,
)
from prime_protocol.proofs.margin_noise import MarginCounter
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.proofs.toploc_verify import ChunkReport
from prime_protocol.rollouts.rollout import FinishReason, Rollout, RolloutFile
from prime_protocol.wire.codec import UNPRINTABLE

WEIGHTS_PER_DECADE = 10
"""Evidence is counted in tenths of a decade; verdicts state decades."""
FLAWS_KEPT = 64
"""A forged file has thousands; the heaviest ones are enough to say what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """One deviation that an honest file does not have."""

    check: str
    row: int
    place: int
    """Which output token, or which chunk of 32, of the row; 0 where it is about the whole row."""
    value: float
    limit: float
    text: str
    """The same for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSummary:
    """The rewards of a file's answers, as graded on this machine."""

    mean: float
    right: int
    """Rows with the full reward."""
    machine_dependent: int
    """Rows whose program crashed or timed out, which may differ on another machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The result of checking a file."""

    outcome: Outcome
    reason: str
    metrics: tuple[Metric, ...]
    flaws: tuple[Flaw, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRules:
    """What the rows of a file are compared with."""

    prompts: Mapping[int, NDArray[np.int32]]
    """Tokens of each task's prompt."""
    eos: frozenset[int]
    tokens_max: int
    context_max: int
    """Most tokens of prompt and output together that the model can have generated."""
    vocabulary: int
    """Number of tokens of the model."""


# --- Flaws ----------------------------------------------------------------------------------------------------------


def find_token_flaws(file: RolloutFile, rules: FileRules) -> list[Flaw]:
    """The checks that need no model. A file that fails them never reaches the engine, which might not survive it."""
    found = [flaw for number, row in enumerate(file.rows) for flaw in _row_flaws(number, row, rules)]
    return found[:FLAWS_KEPT]


def _row_flaws(number: int, row: Rollout, rules: FileRules) -> Iterator[Flaw]:
    wanted = rules.prompts[row.task]
    if not np.array_equal(row.prompt_tokens, wanted):
        at = _first_difference(row.prompt_tokens, wanted)
        text = f"the prompt of row {number} is not that of task {row.task}, from token {at} on"
        yield Flaw(check="prompt", row=number, place=at, value=1.0, limit=0.0, text=text)
    highest = int(row.output_tokens.max())
    if highest >= rules.vocabulary:
        text = f"row {number} has token {highest}, the model has {rules.vocabulary}"
        at = int(row.output_tokens.argmax())
        yield Flaw(
            check="vocabulary", row=number, place=at, value=float(highest), limit=float(rules.vocabulary - 1), text=text
        )
    total = len(row.prompt_tokens) + len(row.output_tokens)
    if total > rules.context_max:
        text = f"row {number} has {total} tokens, the model's context is {rules.context_max}"
        yield Flaw(check="context", row=number, place=0, value=float(total), limit=float(rules.context_max), text=text)
    problem = _termination_problem(row, rules)
    if problem:
        length = len(row.output_tokens)
        text = f"row {number} {problem}"
        yield Flaw(
            check="termination",
            row=number,
            place=length - 1,
            value=float(length),
            limit=float(rules.tokens_max),
            text=text,
        )


def _first_difference(given: NDArray[np.int32], wanted: NDArray[np.int32]) -> int:
    shorter = min(len(given), len(wanted))
    differs = np.flatnonzero(given[:shorter] != wanted[:shorter])
    return int(differs[0]) if len(differs) else shorter


def _termination_problem(row: Rollout, rules: FileRules) -> str:
    """A completion ends with its first end token, or is as long as it may be."""
    ends = np.flatnonzero(np.isin(row.output_tokens, list(rules.eos)))
    length = len(row.output_tokens)
    if len(ends) and ends[0] != length - 1:
        return f"continues after the end token at {ends[0]}"
    if row.finish is FinishReason.EOS and not len(ends):
        return "claims to end with an end token, and does not"
    if row.finish is FinishReason.LENGTH and length != rules.tokens_max:
        return f"claims to end at the length limit with {length} tokens, the limit is {rules.tokens_max}"
    return ""


def weigh_rows(numbers: Sequence[RowMeasurement], tolerance: Tolerance) -> tuple[EvidenceSum, list[Flaw]]:
    """The evidence of fraud in a file whose rows were all read, and the flaws that it rests on."""
    weigher = RowWeigher(tolerance)
    weigher.add(numbers)
    return weigher.finish(is_whole=True)


class RowWeigher:
    """The evidence of fraud in a file, while its rows are read in order.

    Three tests: the first adds up unusual chunks and, once all rows are read, the file's means; the second adds up the
    noise of whole completions; the third their margins, each by itself and, once all rows are read, all together.
    Without enough evidence there are no flaws, so that one unlucky chunk never costs an honest worker its stake.
    Further rows never lower what any test has reached: a file that convicts at some row convicts as a whole, so
    reading can stop there.
    """

    def __init__(self, tolerance: Tolerance) -> None:
        self._tolerance = tolerance
        self._numbers: list[RowMeasurement] = []
        self._found: list[tuple[int, Flaw]] = []
        self._chunks = EvidenceCounter()
        self._noise = EvidenceCounter()
        self._noise_total = 0
        self._margins = MarginCounter(tolerance)
        self._margin_marks: list[tuple[int, Deviation]] = []

    def add(self, rows: Sequence[RowMeasurement]) -> None:
        """The next rows of the file."""
        self._numbers += rows
        for row in rows:
            for place, marks in _mark_row(row, self._tolerance):
                self._chunks.add(get_chunk_weight(marks))
                self._found += [(mark.weight, _mark_flaw(row.row, place, mark)) for mark in marks]
            self._margin_marks.append((row.row, self._margins.add(row.spans)))
        for number, mark in _mark_noises(rows, self._tolerance):
            self._noise.add(mark.weight)
            self._noise_total += mark.weight
            if mark.weight > 0:
                self._found.append((mark.weight, _noise_flaw(number, mark)))

    def sum(self) -> EvidenceSum:
        """The evidence so far, without what only whole files are weighed by. More rows never lower it.

        The bets are no part of it, because honest rows lower them.
        """
        return replace(
            self._chunks.sum(),
            noise=self._noise.sum().most,
            margin=self._margins.sum_edits(),
            bets=tuple(map(clamp_bet, (*self._margins.sum_bets(), self._noise_total))),
        )

    def finish(self, *, is_whole: bool) -> tuple[EvidenceSum, list[Flaw]]:
        """The evidence and the flaws, heaviest first. Means, and the margins of all rows together, count only of a
        file that was read whole.
        """
        for mark in _mark_means(self._numbers, self._tolerance) if is_whole else ():
            self._chunks.add(mark.weight)
            self._found.append((mark.weight, _mark_flaw(0, 0, mark, where="over all tokens")))
        weighed = self.sum()
        if is_whole:
            weighed = replace(weighed, margin=self._margins.sum_file())
        if not weighed.convicts:
            return weighed, []
        if weighed.margin >= EVIDENCE_FRAUDULENT:
            self._found += [
                (mark.weight, _margin_flaw(row, mark)) for row, mark in self._margin_marks if mark.value > mark.bound
            ]
        # The sort is stable: equal ones stay in file order.
        self._found.sort(key=lambda pair: -pair[0])
        return weighed, [flaw for _, flaw in self._found[:FLAWS_KEPT]]


def choose_second_reading(
    numbers: Sequence[RowMeasurement], lengths: Sequence[int], tolerance: Tolerance, *, is_rejected: bool
) -> list[int]:
    """The rows to read again before a verdict; `lengths` are the tokens of all rows of the file, `numbers` those read.

    Of a rejected file, its heaviest rows until their evidence would convict, as long as both readings together cost
    no more than an accept. An accept reads all rows, and then the longest again: so the heaviest row always fits.
    """
    if not is_rejected:
        return [max(range(len(lengths)), key=lambda row: lengths[row])]
    left = sum(lengths) + max(lengths) - sum(lengths[row.row] for row in numbers)
    evidence = {row.row: weigh_rows([row], tolerance)[0].evidence for row in numbers}
    chosen: list[int] = []
    weight = 0
    for row in sorted(evidence, key=lambda row: -evidence[row]):
        if weight < EVIDENCE_FRAUDULENT and lengths[row] <= left:
            chosen.append(row)
            weight += evidence[row]
            left -= lengths[row]
    return sorted(chosen)


def verify_second_reading(
    first: Sequence[RowMeasurement], second: Sequence[RowMeasurement], tolerance: Tolerance, *, is_rejected: bool
) -> None:
    """LocalError: this machine does not find again what it found, so its findings are worth nothing.

    An honest row that was rejected by a fault of this machine weighs next to nothing the second time. A forged one
    weighs about as much again: half, because rounding differs between batches and may move a chunk across a bound.
    """
    before, after = (weigh_rows(rows, tolerance)[0] for rows in (first, second))
    if 2 * after.evidence < before.evidence if is_rejected else after.convicts:
        rows = ", ".join(str(row.row) for row in first)
        raise LocalError(
            f"rows {rows} have evidence {before.evidence / WEIGHTS_PER_DECADE} at the first reading and "
            f"{after.evidence / WEIGHTS_PER_DECADE} at the second: this machine's memory or engine is faulty"
        )


def clamp_bet(weight: int) -> int:
    """As a verdict may state it."""
    return max(-BET_WEIGHT_MAX, min(weight, BET_WEIGHT_MAX))


def _mark_row(row: RowMeasurement, tolerance: Tolerance) -> Iterator[tuple[int, list[Deviation]]]:
    """The number of each chunk, and what is unusual about it."""
    for place, span in enumerate(row.spans):
        marks = list(find_replay_deviations(span, tolerance))
        if row.proof_problem:
            marks.append(Deviation("proofs", 1.0, 0.0, EVIDENCE_FRAUDULENT))
        else:
            marks += find_proof_deviations(row.chunks[place], tolerance, is_whole=span.is_whole)
        yield place, marks


def _mark_means(numbers: Sequence[RowMeasurement], tolerance: Tolerance) -> Iterator[Deviation]:
    """Means over all tokens of the file. Within their limits they are no evidence either way."""
    tokens = sum(row.tokens for row in numbers)
    for check, total, limit in (
        ("margin_mean", sum(row.margin_sum for row in numbers), tolerance.margin_mean_max),
        ("logprob_error_mean", sum(row.logprob_error_sum for row in numbers), tolerance.logprob_error_mean_max),
    ):
        weight, bound = compute_weight(total / tokens, usual=limit, limit=limit)
        if weight != EVIDENCE_USUAL:
            yield Deviation(check, total / tokens, bound, weight)


def _mark_noises(numbers: Sequence[RowMeasurement], tolerance: Tolerance) -> Iterator[tuple[int, Deviation]]:
    """The noise of each completion. One whose proofs cannot be parsed has no numbers, and is evidence without them."""
    for row in numbers:
        mark = None if row.proof_problem else compute_noise_deviation(row.spans, row.chunks, tolerance)
        if mark is not None:
            yield row.row, mark


def _noise_flaw(row: int, mark: Deviation) -> Flaw:
    text = f"{mark.check} of row {row} is {mark.value:.4g} times this machine's own, the limit is {mark.bound:.4g}"
    return Flaw(check=mark.check, row=row, place=0, value=mark.value, limit=mark.bound, text=text)


def _accumulated_flaw(sums: BetSums) -> Flaw:
    """No file of the author convicts by itself; all of them together do."""
    found, limit = max(sums) / WEIGHTS_PER_DECADE, SUSPICION_CONVICTED / WEIGHTS_PER_DECADE
    text = f"the author's files in this run come to evidence of {found:g} with this one, the limit is {limit:g}"
    return Flaw(check="accumulated", row=0, place=sums.index(max(sums)), value=found, limit=limit, text=text)


def _margin_flaw(row: int, mark: Deviation) -> Flaw:
    text = (
        f"the tokens of row {row} lose by margins that honest noise makes with a chance of 1e-{mark.value:.0f}, "
        f"typical is 1e-{mark.bound:.1f}"
    )
    return Flaw(check=mark.check, row=row, place=0, value=mark.value, limit=mark.bound, text=text)


def _mark_flaw(row: int, place: int, mark: Deviation, where: str = "") -> Flaw:
    if mark.at is not None:
        place, where = mark.at, f"of row {row}, token {mark.at}"
    bound = "usual is at most" if mark.weight == EVIDENCE_UNUSUAL else "the limit is"
    text = f"{mark.check} {where or f'of row {row}, chunk {place}'} is {mark.value:.4g}, {bound} {mark.bound:g}"
    return Flaw(check=mark.check, row=row, place=place, value=float(mark.value), limit=float(mark.bound), text=text)


# --- The outcome ----------------------------------------------------------------------------------------------------


def judge_malformed(error: RemoteError) -> Judgement:
    """A file that cannot be parsed, or does not match its lease. The intake should have refused it."""
    return Judgement(
        outcome=Outcome.INVALID, reason=sanitize_reason(f"the file is not in order: {error}"), metrics=(), flaws=()
    )


def judge_file(
    file: RolloutFile,
    numbers: Sequence[RowMeasurement],
    flaws: Sequence[Flaw],
    rewards: RewardSummary | None,
    weighed: EvidenceSum | None = None,
    tokens_read: int = 0,
    sums: BetSums = (),
    classes: tuple[int, int] | None = None,
) -> Judgement:
    """`numbers` is empty where the tokens alone decide; `rewards` are given for files that pass.

    `tokens_read` counts the tokens that the model read, those of a second reading twice; `sums` are what the author's
    files came to before; `classes` are the numbers of the generating and the judging class in the run's table.
    """
    if not flaws and weighed is not None and sums and convicts(sums, weighed.bets):
        flaws = [_accumulated_flaw(add_evidence(sums, weighed.bets))]
    metrics = [("rows", float(len(file.rows))), ("tokens", float(sum(len(row.output_tokens) for row in file.rows)))]
    if numbers:
        metrics += [("rows_read", float(len(numbers))), ("tokens_read", float(tokens_read)), *_number_metrics(numbers)]
    metrics += zip(("generating_class", "judging_class"), map(float, classes or ()), strict=False)
    if weighed is not None:
        metrics += [
            ("evidence", weighed.evidence / WEIGHTS_PER_DECADE),
            ("evidence_noise", weighed.noise / WEIGHTS_PER_DECADE),
            ("evidence_margin", weighed.margin / WEIGHTS_PER_DECADE),
            ("chunks_unusual", float(weighed.unusual)),
            ("chunks_beyond", float(weighed.beyond)),
        ]
    if rewards is not None:
        metrics += [
            ("reward_mean", rewards.mean),
            ("rewards_right", float(rewards.right)),
            ("rewards_machine_dependent", float(rewards.machine_dependent)),
        ]
    metrics.append(("flaws", float(len(flaws))))
    if flaws:
        metrics += [("flaw_row", float(flaws[0].row)), ("flaw_place", float(flaws[0].place))]
    assert len(metrics) <= METRICS_MAX
    outcome, reason = Outcome.ACCEPT, ""
    if flaws:
        outcome, reason = Outcome.FRAUDULENT, flaws[0].text + (f"; {len(flaws) - 1} more" if len(flaws) > 1 else "")
    elif weighed is not None and weighed.is_unlikely:
        outcome, reason = Outcome.INVALID, describe_unlikely(weighed)
    return Judgement(
        outcome=outcome,
        reason=sanitize_reason(reason),
        metrics=tuple(Metric(name=name, value=value) for name, value in metrics),
        flaws=tuple(flaws),
    )


def describe_unlikely(weighed: EvidenceSum) -> str:
    """Why a file that does not prove fraud is not paid."""
    found, allowed = weighed.evidence / WEIGHTS_PER_DECADE, EVIDENCE_UNLIKELY / WEIGHTS_PER_DECADE
    return f"honest noise makes such numbers with a chance of 1e-{found:g}, a file is paid below 1e-{allowed:g}"


def _number_metrics(numbers: Sequence[RowMeasurement]) -> Iterator[tuple[str, float]]:
    """The largest of each number, since the limits apply to that."""
    tokens = sum(row.tokens for row in numbers)
    yield "margin_max", max(row.margin_max for row in numbers)
    yield "margin_mean", sum(row.margin_sum for row in numbers) / tokens
    yield "logprob_error_max", max(row.logprob_error_max for row in numbers)
    yield "logprob_error_mean", sum(row.logprob_error_sum for row in numbers) / tokens
    yield "eos_logprob_min", min(row.eos_logprob for row in numbers)
    reports = [report for row in numbers for report in row.chunks]
    yield "chunks", float(len(reports))
    if reports:
        for name in ChunkReport._fields:
            if name not in ("k", "mantissa_error_sum", "exponents_seen"):
                yield f"{name}_max", float(max(getattr(report, name) for report in reports))
        yield "mantissa_error_mean_max", max(report.mantissa_error_mean for report in reports)


def sanitize_reason(text: str) -> str:
    """As the reason of a verdict has to be."""
    return UNPRINTABLE.sub("?", text)[:REASON_CHARS_MAX]
