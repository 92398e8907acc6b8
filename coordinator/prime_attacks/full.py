"""The gallery in full: the small one, then many submissions of each attack on a tiny model and on a pretrained one."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from prime_attacks.detection import COMMON_SLOTS
from prime_attacks.pieces import OutOfTimeError, Pieces
from prime_attacks.report import draw, head_forgeries, list_forgeries, list_gallery, list_study
from prime_attacks.small import TOKENS_MAX, VOCABULARY, run_small
from prime_attacks.study import BFLOAT16, FLOAT32, IMITATED, ROUNDED, Study, Subject, study
from prime_attacks.table import Tally
from prime_devnet.tiny_model import make_checkpoint
from prime_protocol.tolerance import Precision

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
Say = Callable[[str], None]


def list_subjects(folder: Path, pretrained: Path | None, *, chunks: int, slots: int) -> Iterator[Subject]:
    tiny = make_checkpoint(folder / "tiny", vocabulary=VOCABULARY)
    long = make_checkpoint(folder / "long", vocabulary=LONG_VOCABULARY, context=2 * LONG_TOKENS)
    yield Subject(
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
    yield Subject(
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


def list_pretrained(checkpoint: Path) -> Iterator[Subject]:
    """With bounds of its own. In bfloat16 completions are longer, as what is near to honest work takes more to see."""
    exact = Subject(
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
    folder: Path, out: Path, pretrained: Path | None, *, keep: Path, ends_s: float, chunks: int, slots: int, say: Say
) -> Tally:
    """The pieces in `keep` are taken as they are; a subject that there is not even enough to calibrate of is left."""
    subjects = list(list_subjects(folder, pretrained, chunks=chunks, slots=slots))
    studies: dict[int, Study] = {}
    for number, subject in enumerate(subjects):
        try:
            pieces = Pieces(keep / f"{number}-{slots}", ends_s)
            studies[number] = await study(subject, folder / f"study-{number}", pieces, say)
        except OutOfTimeError as piece:
            say(f"{subject.name}: no time for {piece}")
    # The small one has no pieces, so it is left for when the rest is there.
    is_whole = len(studies) == len(subjects) and all(map(is_done, studies.values()))
    tally = await run_small(folder, say) if is_whole else Tally(is_whole=False)
    out.mkdir(parents=True, exist_ok=True)
    (out / "tables.md").write_text("\n".join(render(list(studies.values()))) + "\n")
    for number, each in studies.items():
        (out / f"roc-{number}.svg").write_text(draw(each))
        count(each, tally)
    return tally


def count(study: Study, tally: Tally) -> None:
    name = study.subject.name
    tally.honest_chunks += study.honest.chunks
    tally.honest_rows += study.honest.rows
    tally.refused += [f"{name}: an honest submission"] * study.honest.refused
    sure = {found.attack: found.sure(COMMON_SLOTS) for found in study.rates}
    tally.escaped += [
        f"{attack.name} ({name})" for attack in study.subject.attacks if sure.get(attack.name, 0.0) < DETECTION_MIN
    ]


def is_done(study: Study) -> bool:
    """Whether there was time for all that was asked for."""
    return study.honest.is_whole and study.is_whole


def render(studies: list[Study]) -> Iterator[str]:
    for each in studies:
        yield from list_study(each)
    yield "### Proofs made without the model, on real final hidden states: chunks that pass"
    yield ""
    yield head_forgeries()
    for each in studies:
        yield from list_forgeries(each.subject.name, each.forgeries)
    yield ""
    yield "### The gallery"
    yield ""
    yield from list_gallery()
