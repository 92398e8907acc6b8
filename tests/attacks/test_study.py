"""The full gallery on one small subject: what a calibrated validator of a run in bfloat16 sees, and going on."""

import asyncio
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from prime_lab.attacks import suite as full
from prime_lab.attacks.detection import COMMON_SLOTS, MODEL_ATTACKS
from prime_lab.attacks.study import (
    BFLOAT16,
    CACHED_SLOTS,
    FLOAT32,
    IMITATED,
    ROUNDED,
    ResultCache,
    Study,
    StudySubject,
    open_engine,
    run_study,
)
from prime_node.engine.interface import Sampling, TokenSequence
from prime_protocol.proofs.tolerance import Precision
from prime_trainer.model.tiny import make_tiny_checkpoint

ATTACKS = tuple(attack for attack in MODEL_ATTACKS if attack.name in ("int8-cache", "learned-proof"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("study")


@pytest.fixture(scope="module")
def subject(place: Path) -> StudySubject:
    return StudySubject(
        name="a model in bfloat16",
        checkpoint=make_tiny_checkpoint(place / "model", vocabulary=512, context=1024),
        precision=Precision.BFLOAT16,
        writer=IMITATED,
        readers=(BFLOAT16,),
        tokens_max=512,
        calibration_chunks=1_200,
        honest_chunks=100,
        slots=1,
        near_slots=2,
        lease_slots=4,
        attacks=ATTACKS,
    )


@pytest.fixture(scope="module")
def found(place: Path, subject: StudySubject) -> Study:
    cache = ResultCache(place / "keep" / "0-1", math.inf)
    return asyncio.run(run_study(subject, place / "work", cache, lambda text: None))


def test_an_8_bit_cache_is_seen_by_its_noise_and_only_with_bounds_of_the_models_own(found: Study) -> None:
    cache, learned = found.rates
    assert (cache.attack, cache.caught, cache.submissions, cache.checks) == ("int8-cache", 2, 2, ("noise",))
    assert (cache.defaults, cache.paper, cache.deployed) == (0, 0, 0)
    assert (learned.attack, learned.caught, learned.submissions) == ("learned-proof", 1, 1)
    assert learned.sure(COMMON_SLOTS) > learned.sure()
    assert found.honest.chunks >= 100
    assert (found.honest.refused, found.honest.is_whole) == (0, True)


async def test_what_was_made_is_judged_again_and_what_was_not_is_said_to_be_missing(
    place: Path, subject: StudySubject, found: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = replace(subject, name="a model that nobody had time for")
    more = replace(subject, honest_chunks=10**6)

    def list_subjects(*_: object, **__: object) -> Iterator[StudySubject]:
        yield from (more, never)

    monkeypatch.setattr(full, "list_subjects", list_subjects)
    said: list[str] = []
    tally = await full.run_full(
        place / "again",
        place / "out",
        None,
        keep=place / "keep",
        ends_s=-math.inf,
        chunks=1,
        slots=1,
        report_progress=said.append,
    )
    assert not tally.is_whole
    assert said[-1] == f"{never.name}: no time for calibration-0-0"
    assert tally.honest_chunks == found.honest.chunks
    tables = (place / "out" / "tables.md").read_text()
    assert "| int8-cache | 2 of 2 |" in tables
    assert never.name not in tables
    assert (place / "out" / "roc-0.svg").read_text().startswith("<svg")
    assert full.is_complete(found)
    longer = replace(subject, near_slots=CACHED_SLOTS + 1)
    late = await run_study(longer, place / "late", ResultCache(place / "keep" / "0-1", -math.inf), said.append)
    assert [(each.attack, each.submissions) for each in late.rates] == [("int8-cache", 2), ("learned-proof", 1)]
    assert not full.is_complete(late)


@pytest.mark.parametrize("precision", [BFLOAT16, IMITATED, ROUNDED])
def test_every_kind_of_validator_reads_without_rounding_and_knows_its_own_noise(
    precision: str, subject: StudySubject
) -> None:
    sampling = Sampling(temperature=1.0, eos=frozenset(), tokens_max=96)
    rng = np.random.default_rng(4)
    texts = [
        TokenSequence(number=n, prompt=row[:8], output=row[8:], seed=n)
        for n, row in enumerate(rng.integers(0, 512, (8, 104)).astype(np.int32))
    ]
    exact = list(open_engine(FLOAT32, subject.checkpoint).read(texts, sampling))
    for true, reading in zip(exact, open_engine(precision, subject.checkpoint).read(texts, sampling), strict=True):
        assert reading.bf16_logprobs is not None
        assert np.abs(reading.logprobs - true.logprobs).max() < 1e-4
        assert 1e-3 < np.abs(reading.bf16_logprobs - true.logprobs).mean() < 0.05
