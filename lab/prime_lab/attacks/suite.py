"""The attack suite: every attack once on a tiny model (small), or many times on several models (full), and its summary.

The summary is a table for people and a RESULT line for scripts.

"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from prime_lab.attacks.answer_attacks import attack_answers
from prime_lab.attacks.attack import Attack, AttackResult, AttackVerdict
from prime_lab.attacks.class_attacks import attack_with_classes
from prime_lab.attacks.coordinator.draws import attack_draws
from prime_lab.attacks.coordinator.forged_logs import attack_logs
from prime_lab.attacks.coordinator.keys import attack_keys
from prime_lab.attacks.coordinator.restores import attack_restores
from prime_lab.attacks.coordinator.rules import attack_rules
from prime_lab.attacks.detection import COMMON_SLOTS
from prime_lab.attacks.flood_attacks import attack_gossip, attack_intake
from prime_lab.attacks.harness import (
    HarnessConfig,
    attack_with_engines,
    attack_with_files,
    calibrate,
    open_harness,
    open_honest_engines,
    submit_honest_work,
)
from prime_lab.attacks.judgement_attacks import attack_judgement
from prime_lab.attacks.ledger_attacks import attack_networks, attack_reputation
from prime_lab.attacks.relay_attacks import attack_weights
from prime_lab.attacks.report import draw_study, list_catalog, list_forgeries, list_study, make_forgery_head
from prime_lab.attacks.retention_attacks import attack_retention
from prime_lab.attacks.sandbox_attacks import attack_graders
from prime_lab.attacks.study import (
    BFLOAT16,
    FLOAT32,
    IMITATED,
    ROUNDED,
    OutOfTimeError,
    ResultCache,
    Study,
    StudySubject,
    run_study,
)
from prime_lab.attacks.tokenizer_attacks import attack_tokenizers
from prime_protocol.proofs.tolerance import Precision, Tolerance
from prime_trainer.model.tiny import make_tiny_checkpoint

REASON_CHARS = 60


@dataclass(slots=True)
class SuiteSummary:
    """The result of every attempt, and of honest work."""

    tries: list[tuple[Attack, AttackResult]] = field(default_factory=list)
    honest_chunks: int = 0
    honest_rows: int = 0
    refused: list[str] = field(default_factory=list)
    """Reasons why honest work was refused."""
    escaped: list[str] = field(default_factory=list)
    """Attacks whose detection rate is too low."""
    is_whole: bool = True
    """Whether there was time for all of it."""

    @property
    def missed(self) -> list[str]:
        """Attacks whose result is not the listed one."""
        missed = [attack.name for attack, outcome in self.tries if not outcome.is_as_listed(attack)]
        return list(dict.fromkeys([*missed, *self.escaped]))

    @property
    def is_good(self) -> bool:
        return not self.missed and not self.refused


def list_table_rows(tries: Sequence[tuple[Attack, AttackResult]]) -> Iterator[str]:
    yield f"{'attack':<24}{'by':<13}{'came to':<10}{'named by':<24}reason"
    for attack, outcome in tries:
        named = next((check for check in outcome.checks if check in attack.caught_by), "-")
        mark = "" if outcome.is_as_listed(attack) else f"   MISSED: must be {attack.verdict}"
        came_to = outcome.verdict or "nothing"
        yield f"{attack.name:<24}{attack.party:<13}{came_to:<10}{named:<24}{outcome.reason[:REASON_CHARS]}{mark}"


def describe_suite(summary: SuiteSummary) -> Iterator[str]:
    yield from list_table_rows(summary.tries)
    honest = f"{summary.honest_rows} completions, {summary.honest_chunks} chunks"
    yield f"honest work: {honest}, {len(summary.refused)} refused"
    for attack, outcome in summary.tries:
        if outcome.verdict is AttackVerdict.UNDETECTED:
            yield f"NOT CAUGHT, as docs/verification.md says first: {attack.name}: {outcome.reason}"
    for name in summary.escaped:
        yield f"  caught too seldom: {name}"
    for reason in summary.refused:
        yield f"  refused: {reason}"
    yield (
        f"RESULT attacks={len({attack.name for attack, _ in summary.tries})} missed={len(summary.missed)} "
        f"false_rejects={len(summary.refused)} honest_chunks={summary.honest_chunks}"
    )


VOCABULARY, TOKENS_MAX = 64, 128
LEASES, SLOTS = 9, 8
"""Honest work to calibrate with; as much again is judged."""

Progress = Callable[[str], None]


async def run_small(folder: Path, report_progress: Progress) -> SuiteSummary:
    summary = SuiteSummary()
    await run_worker_attacks(folder, summary, report_progress)
    report_progress("workers: right answers where honest noise might have written them")
    async for attack, outcome in attack_answers(folder / "answers"):
        add_result(summary, attack, outcome)
    report_progress("workers: programs against the sandbox")
    async for attack, outcome in attack_graders():
        add_result(summary, attack, outcome)
    report_progress("relays: lying about weights")
    async for attack, outcome in attack_weights(folder / "relays"):
        add_result(summary, attack, outcome)
    report_progress("trainers: hostile tokenizers")
    async for attack, outcome in attack_tokenizers(folder / "trainers"):
        add_result(summary, attack, outcome)
    report_progress("books, validators and coordinators: in the simulator")
    honest_logs = chain(attack_networks(), attack_judgement(), attack_reputation())
    forged_logs = chain(attack_logs(), attack_draws(), attack_rules(), attack_restores(), attack_keys())
    for attack, outcome in chain(honest_logs, forged_logs):
        add_result(summary, attack, outcome)
    report_progress("strangers: filling the log and gossip, in virtual time; validators: files that go too early")
    for attack, outcome in chain(attack_intake(), attack_gossip(), attack_retention(folder / "retention")):
        add_result(summary, attack, outcome)
    return summary


async def run_worker_attacks(folder: Path, summary: SuiteSummary, report_progress: Progress) -> None:
    checkpoint = make_tiny_checkpoint(folder / "tiny", vocabulary=VOCABULARY)
    config = HarnessConfig(
        checkpoint=checkpoint,
        folder=folder / "workers",
        tokens_max=TOKENS_MAX,
        tolerance=Tolerance(precision=Precision.FLOAT32),
    )
    async with open_harness(config) as harness:
        engines = open_honest_engines(harness)
        report_progress("workers: calibrating with honest work")
        report_progress(f"  {await calibrate(harness, engines, LEASES, SLOTS)}")
        honest = await submit_honest_work(harness, engines, LEASES, SLOTS)
        summary.honest_chunks, summary.honest_rows = honest.chunks, honest.rows
        summary.refused += honest.refused
        report_progress(f"workers: {honest.files} honest files judged, {len(honest.refused)} refused; now the attacks")
        async for attack, outcome in attack_with_engines(harness, 1):
            add_result(summary, attack, outcome)
        async for attack, outcome in attack_with_files(harness, engines[-1], 1):
            add_result(summary, attack, outcome)
        report_progress("workers: a class of engines that is not theirs")
        async for attack, outcome in attack_with_classes(harness, engines, LEASES, SLOTS):
            add_result(summary, attack, outcome)


def add_result(summary: SuiteSummary, attack: Attack, outcome: AttackResult) -> None:
    summary.tries.append((attack, outcome))


LONG_VOCABULARY, LONG_TOKENS = 512, 1024
"""In bfloat16 honest noise is as large as some attacks, which then take more tokens to see: completions are as long as
a run allows by default, and an end token comes about every 512."""
CALIBRATION_SHARE = 8
"""Chunks judged for each chunk that calibrates."""
PRETRAINED_CHUNKS = 1_024
"""A completion takes seconds: what a fit needs at the least, and as many again to judge. In bfloat16 twice as many
calibrate, and there are ten submissions of what is near to honest work: as many as 99.9 % of eight slots take by count.
"""
DETECTION_MIN = 0.999


def list_subjects(folder: Path, pretrained: Path | None, *, chunks: int, slots: int) -> Iterator[StudySubject]:
    tiny = make_tiny_checkpoint(folder / "tiny", vocabulary=VOCABULARY)
    long = make_tiny_checkpoint(folder / "long", vocabulary=LONG_VOCABULARY, context=2 * LONG_TOKENS)
    yield StudySubject(
        name="tiny model, run in float32",
        checkpoint=tiny,
        precision=Precision.FLOAT32,
        writer=FLOAT32,
        readers=(FLOAT32,),
        tokens_max=TOKENS_MAX,
        calibration_chunks=chunks // CALIBRATION_SHARE,
        honest_chunks=chunks,
        slots=slots,
        near_slots=slots,
    )
    yield StudySubject(
        name="tiny model, run in bfloat16",
        checkpoint=long,
        precision=Precision.BFLOAT16,
        writer=IMITATED,
        readers=(BFLOAT16, ROUNDED),
        tokens_max=LONG_TOKENS,
        calibration_chunks=chunks // CALIBRATION_SHARE,
        honest_chunks=chunks,
        slots=slots,
        near_slots=slots,
    )
    if pretrained is not None:
        yield from list_pretrained(pretrained)


def list_pretrained(checkpoint: Path) -> Iterator[StudySubject]:
    """With bounds of their own. In bfloat16, attacks close to honest work need longer completions to be detected."""
    exact = StudySubject(
        name="SmolLM2-135M, run in float32",
        checkpoint=checkpoint,
        precision=Precision.FLOAT32,
        writer=FLOAT32,
        readers=(FLOAT32,),
        tokens_max=64,
        calibration_chunks=PRETRAINED_CHUNKS,
        honest_chunks=PRETRAINED_CHUNKS,
        slots=3,
        near_slots=3,
        seldom_slots=40,
        lease_slots=4,
        batches=(32, 16, 32, 8),
    )
    yield exact
    yield replace(
        exact,
        name="SmolLM2-135M, run in bfloat16",
        precision=Precision.BFLOAT16,
        writer=IMITATED,
        readers=(BFLOAT16,),
        tokens_max=256,
        calibration_chunks=2 * PRETRAINED_CHUNKS,
        near_slots=10,
        seldom_slots=24,
    )


async def run_full(
    folder: Path,
    out: Path,
    pretrained: Path | None,
    *,
    keep: Path,
    ends_s: float,
    chunks: int,
    slots: int,
    report_progress: Progress,
) -> SuiteSummary:
    """Cached parts in `keep` are reused. A subject without enough time to calibrate is left out."""
    subjects = list(list_subjects(folder, pretrained, chunks=chunks, slots=slots))
    studies: dict[int, Study] = {}
    for number, subject in enumerate(subjects):
        try:
            cache = ResultCache(keep / f"{number}-{slots}", ends_s)
            studies[number] = await run_study(subject, folder / f"study-{number}", cache, report_progress)
        except OutOfTimeError as piece:
            report_progress(f"{subject.name}: no time for {piece}")
    # The small suite has no cache, so it runs once the rest is complete.
    is_whole = len(studies) == len(subjects) and all(map(is_complete, studies.values()))
    summary = await run_small(folder, report_progress) if is_whole else SuiteSummary(is_whole=False)
    out.mkdir(parents=True, exist_ok=True)
    (out / "tables.md").write_text("\n".join(render_tables(list(studies.values()))) + "\n")
    for number, each in studies.items():
        (out / f"roc-{number}.svg").write_text(draw_study(each))
        add_study(each, summary)
    return summary


def add_study(study: Study, summary: SuiteSummary) -> None:
    name = study.subject.name
    summary.honest_chunks += study.honest.chunks
    summary.honest_rows += study.honest.rows
    summary.refused += [f"{name}: an honest submission"] * study.honest.refused
    sure = {found.attack: found.sure(COMMON_SLOTS) for found in study.rates}
    summary.escaped += [
        f"{attack.name} ({name})" for attack in study.subject.attacks if sure.get(attack.name, 0.0) < DETECTION_MIN
    ]


def is_complete(study: Study) -> bool:
    """Whether there was time for all of it."""
    return study.honest.is_whole and study.is_whole


def render_tables(studies: list[Study]) -> Iterator[str]:
    for each in studies:
        yield from list_study(each)
    yield "### Proofs made without the model, on real final hidden states: chunks that pass"
    yield ""
    yield make_forgery_head()
    for each in studies:
        yield from list_forgeries(each.subject.name, each.forgeries)
    yield ""
    yield "### The gallery"
    yield ""
    yield from list_catalog()
