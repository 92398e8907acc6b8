"""The gallery in full: the small one, then many submissions of each attack on a tiny model and on a pretrained one."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from prime_attacks.gallery import ENGINES
from prime_attacks.pieces import Pieces
from prime_attacks.report import draw, head_forgeries, list_forgeries, list_gallery, list_study
from prime_attacks.small import TOKENS_MAX, VOCABULARY, run_small
from prime_attacks.study import Study, Subject, study
from prime_attacks.table import Tally
from prime_devnet import recipe
from prime_devnet.tiny_model import make_checkpoint
from prime_protocol.tolerance import Precision, Tolerance

FLOAT32, BFLOAT16, IMITATED = "float32", "bfloat16", "bfloat16-imitated"
"""Where the instructions for it are missing, an engine in bfloat16 writes in float32; one that imitates it does not."""
LONG_VOCABULARY, LONG_TOKENS, LONG_SHARE = 512, 1024, 5
"""In bfloat16 honest noise is as large as some attacks, which then take more tokens to see: completions are as long as
a run allows by default, an end token comes about every 512, and an attack has a fifth as many submissions."""
PRETRAINED_SLOTS = 1
DETECTION_MIN = 0.999
NEAR = tuple(
    attack
    for attack in ENGINES
    if attack.name in ("int8-weights", "int4-weights", "fp8-weights", "int8-cache", "fp8-cache", "older-checkpoint")
)
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
        honest_chunks=chunks,
        slots=slots,
    )
    yield Subject(
        name="tiny model, run in bfloat16",
        checkpoint=long,
        precision=Precision.BFLOAT16,
        writer=IMITATED,
        readers=(BFLOAT16, IMITATED),
        tokens_max=LONG_TOKENS,
        honest_chunks=chunks,
        slots=slots // LONG_SHARE,
    )
    if pretrained is not None:
        yield from list_pretrained(pretrained)


def list_pretrained(checkpoint: Path) -> Iterator[Subject]:
    """Few completions, as each takes seconds: bounds are not calibrated but those of a devnet, and the defaults."""
    exact = Subject(
        name="SmolLM2-135M, run in float32",
        checkpoint=checkpoint,
        precision=Precision.FLOAT32,
        writer=FLOAT32,
        readers=(FLOAT32,),
        tokens_max=64,
        honest_chunks=16,
        slots=PRETRAINED_SLOTS,
        tolerance=Tolerance(precision=Precision.FLOAT32, **recipe.TOLERANCE),  # type: ignore[arg-type]
    )
    yield exact
    yield replace(
        exact,
        name="SmolLM2-135M, run in bfloat16 with default bounds",
        precision=Precision.BFLOAT16,
        writer=IMITATED,
        readers=(BFLOAT16,),
        tolerance=Tolerance(),
        attacks=NEAR,
    )


async def run_full(
    folder: Path, out: Path, pretrained: Path | None, *, keep: Path, ends_s: float, chunks: int, slots: int, say: Say
) -> Tally:
    """The pieces in `keep` are taken as they are. OutOfTimeError where there is not even enough to calibrate by."""
    studies = [
        await study(subject, folder / f"study-{number}", Pieces(keep / f"{number}-{slots}", ends_s), say)
        for number, subject in enumerate(list_subjects(folder, pretrained, chunks=chunks, slots=slots))
    ]
    # The small one has no pieces, so it is left for when the rest is there.
    tally = await run_small(folder, say) if all(map(is_done, studies)) else Tally(is_whole=False)
    out.mkdir(parents=True, exist_ok=True)
    (out / "tables.md").write_text("\n".join(render(studies)) + "\n")
    for number, each in enumerate(studies):
        (out / f"roc-{number}.svg").write_text(draw(each))
        tally.honest_chunks += each.honest.chunks
        tally.honest_rows += each.honest.rows
        tally.refused += [f"{each.subject.name}: an honest submission"] * each.honest.refused
        # A pretrained model gives too few submissions for a bound: there each must be caught.
        tally.escaped += [
            f"{found.attack} ({each.subject.name})"
            for found in each.rates
            if (found.sure < DETECTION_MIN if each.subject.tolerance is None else found.caught < found.submissions)
        ]
    return tally


def is_done(study: Study) -> bool:
    """Whether there was time for all that was asked for."""
    is_each = len(study.rates) == len(study.subject.attacks)
    return study.honest.is_whole and is_each and all(rate.submissions == study.subject.slots for rate in study.rates)


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
