"""What a run of the gallery found, as a table for people and a line for scripts. Pure.

The whole gallery in a small setting: every attack once, on a tiny model, with honest work beside it.

The gallery in full: the small one, then many submissions of each attack on a tiny model and on a pretrained one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from prime_lab.attacks.catalog import Attack, AttackResult, AttackVerdict
from prime_lab.attacks.coordinator_attacks import attack_draws, attack_logs
from prime_lab.attacks.detection import COMMON_SLOTS
from prime_lab.attacks.harness import (
    HarnessConfig,
    attack_with_engines,
    attack_with_files,
    calibrate,
    open_harness,
    open_honest_engines,
    submit_honest_work,
)
from prime_lab.attacks.ledger_attacks import attack_networks
from prime_lab.attacks.relay_attacks import attack_weights
from prime_lab.attacks.report import draw_study, list_catalog, list_forgeries, list_study, make_forgery_head
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
from prime_lab.devnet.tiny_models import make_tiny_checkpoint
from prime_protocol.proofs.tolerance import Precision, Tolerance

REASON_CHARS = 60


@dataclass(slots=True)
class SuiteSummary:
    """Everything that was tried."""

    tries: list[tuple[Attack, AttackResult]] = field(default_factory=list)
    honest_chunks: int = 0
    honest_rows: int = 0
    refused: list[str] = field(default_factory=list)
    """Why honest work was refused, where it was."""
    escaped: list[str] = field(default_factory=list)
    """Attacks that were caught too seldom in many submissions, with the model."""
    is_whole: bool = True
    """Whether there was time for all that was asked for."""

    @property
    def missed(self) -> list[str]:
        """Attacks that did not come to what they must come to."""
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


def describe_suite(tally: SuiteSummary) -> Iterator[str]:
    yield from list_table_rows(tally.tries)
    yield f"honest work: {tally.honest_rows} completions, {tally.honest_chunks} chunks, {len(tally.refused)} refused"
    for attack, outcome in tally.tries:
        if outcome.verdict is AttackVerdict.UNDETECTED:
            yield f"NOT CAUGHT, as docs/verification.md says first: {attack.name}: {outcome.reason}"
    for name in tally.escaped:
        yield f"  caught too seldom: {name}"
    for reason in tally.refused:
        yield f"  refused: {reason}"
    yield (
        f"RESULT attacks={len({attack.name for attack, _ in tally.tries})} missed={len(tally.missed)} "
        f"false_rejects={len(tally.refused)} honest_chunks={tally.honest_chunks}"
    )


VOCABULARY, TOKENS_MAX = 64, 128
LEASES, SLOTS = 9, 8
"""Honest work to calibrate with, and as much again to judge."""

SuiteProgress = Callable[[str], None]


async def run_small(folder: Path, say: SuiteProgress) -> SuiteSummary:
    tally = SuiteSummary()
    await run_worker_attacks(folder, tally, say)
    say("workers: programs against the sandbox")
    async for attack, outcome in attack_graders():
        add_result(tally, attack, outcome)
    say("relays: lying about weights")
    async for attack, outcome in attack_weights(folder / "relays"):
        add_result(tally, attack, outcome)
    say("books, validators and coordinators: in the simulator")
    for attack, outcome in chain(attack_networks(), attack_logs(), attack_draws()):
        add_result(tally, attack, outcome)
    return tally


async def run_worker_attacks(folder: Path, tally: SuiteSummary, say: SuiteProgress) -> None:
    checkpoint = make_tiny_checkpoint(folder / "tiny", vocabulary=VOCABULARY)
    setting = HarnessConfig(
        checkpoint=checkpoint,
        folder=folder / "workers",
        tokens_max=TOKENS_MAX,
        tolerance=Tolerance(precision=Precision.FLOAT32),
    )
    async with open_harness(setting) as scene:
        engines = open_honest_engines(scene)
        say("workers: calibrating with honest work")
        say(f"  {await calibrate(scene, engines, LEASES, SLOTS)}")
        honest = await submit_honest_work(scene, engines, LEASES, SLOTS)
        tally.honest_chunks, tally.honest_rows = honest.chunks, honest.rows
        tally.refused += honest.refused
        say(f"workers: {honest.files} honest files judged, {len(honest.refused)} refused; now the attacks")
        async for attack, outcome in attack_with_engines(scene, 1):
            add_result(tally, attack, outcome)
        async for attack, outcome in attack_with_files(scene, engines[-1], 1):
            add_result(tally, attack, outcome)


def add_result(tally: SuiteSummary, attack: Attack, outcome: AttackResult) -> None:
    tally.tries.append((attack, outcome))


LONG_VOCABULARY, LONG_TOKENS = 512, 1024
"""In bfloat16 honest noise is as large as some attacks, which then take more tokens to see: completions are as long as
a run allows by default, and an end token comes about every 512."""
CALIBRATION_SHARE = 8
"""For each part of the honest work that calibrates, so many are judged."""
PRETRAINED_CHUNKS = 1_024
"""A completion takes seconds: what a fit needs at the least, and as many again to judge. In bfloat16 twice as many
calibrate, and there are ten submissions of what is near to honest work: as many as 99.9 % of eight slots take by count.
"""
DETECTION_MIN = 0.999
ProgressCallback = Callable[[str], None]


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
    """With bounds of its own. In bfloat16 completions are longer, as what is near to honest work takes more to see."""
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
    say: ProgressCallback,
) -> SuiteSummary:
    """The pieces in `keep` are taken as they are; a subject that there is not even enough to calibrate of is left."""
    subjects = list(list_subjects(folder, pretrained, chunks=chunks, slots=slots))
    studies: dict[int, Study] = {}
    for number, subject in enumerate(subjects):
        try:
            pieces = ResultCache(keep / f"{number}-{slots}", ends_s)
            studies[number] = await run_study(subject, folder / f"study-{number}", pieces, say)
        except OutOfTimeError as piece:
            say(f"{subject.name}: no time for {piece}")
    # The small one has no pieces, so it is left for when the rest is there.
    is_whole = len(studies) == len(subjects) and all(map(is_complete, studies.values()))
    tally = await run_small(folder, say) if is_whole else SuiteSummary(is_whole=False)
    out.mkdir(parents=True, exist_ok=True)
    (out / "tables.md").write_text("\n".join(render_tables(list(studies.values()))) + "\n")
    for number, each in studies.items():
        (out / f"roc-{number}.svg").write_text(draw_study(each))
        add_study(each, tally)
    return tally


def add_study(study: Study, tally: SuiteSummary) -> None:
    name = study.subject.name
    tally.honest_chunks += study.honest.chunks
    tally.honest_rows += study.honest.rows
    tally.refused += [f"{name}: an honest submission"] * study.honest.refused
    sure = {found.attack: found.sure(COMMON_SLOTS) for found in study.rates}
    tally.escaped += [
        f"{attack.name} ({name})" for attack in study.subject.attacks if sure.get(attack.name, 0.0) < DETECTION_MIN
    ]


def is_complete(study: Study) -> bool:
    """Whether there was time for all that was asked for."""
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
