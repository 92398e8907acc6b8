"""Claims about the check of a worker's own file: in full on a new engine, else a sample drawn when the file is done."""

import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from prime_node.agent.events import Generated, GenerationFailed, GenerationProgressed
from prime_node.engine.process import EngineProcess
from prime_node.jobs import self_check
from prime_node.jobs.self_check import (
    CLASSES_KEPT,
    SAMPLE_SHARE,
    WHOLE_CHECKS,
    WHOLE_EVERY,
    PassedChecks,
    count_sample,
    draw_rows,
    name_engine_kind,
)
from support.job_setup import JobSetup, wanted

DOCS = Path(__file__).parents[4] / "docs" / "operating" / "engines.md"
SLOTS, ROWS = 20, 40
NEVER_WHOLE = bytes([1]) * 32


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[JobSetup]:
    made = JobSetup(tmp_path)
    yield made
    await made.engine.close()


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each job that the engine was given to read."""
    seen: list[int] = []
    check = EngineProcess.check_block

    async def counted(process: EngineProcess, claims, *given):  # type: ignore[no-untyped-def]
        seen.append(len(claims))
        return await check(process, claims, *given)

    monkeypatch.setattr(EngineProcess, "check_block", counted)
    return seen


def find_chance(rows: int, faulty: int) -> float:
    """The chance that the check of one file reads at least one of its faulty rows."""
    missed = math.comb(rows - faulty, count_sample(rows)) / math.comb(rows, count_sample(rows))
    return 1 - missed * (1 - 1 / WHOLE_EVERY)


def ignore(progress: GenerationProgressed) -> None:
    pass


async def test_a_new_engine_is_checked_in_full_and_then_by_samples_also_after_a_restart(
    setup: JobSetup, readings: list[int]
) -> None:
    for lease in range(WHOLE_CHECKS + 1):
        assert isinstance(await setup.generator.generate(wanted(lease, SLOTS), ignore), Generated)
    assert sum(readings) == WHOLE_CHECKS * ROWS + ROWS // SAMPLE_SHARE
    kept = PassedChecks(setup.folder / "self_checks.json")
    async with setup.context.lend(setup.engine) as session:
        assert kept.is_known(name_engine_kind(session.facts, session.software))
        assert not kept.is_known(name_engine_kind(session.facts, ("another version",)))


async def test_a_fault_in_the_sample_is_found_and_the_engine_is_then_checked_in_full_again(
    setup: JobSetup, readings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check, "WHOLE_CHECKS", 0)
    drawn = draw_rows(ROWS, NEVER_WHOLE)
    setup.behave(f"wrong row {drawn[2] + 1}")
    event = await setup.generator.generate(wanted(0, SLOTS), ignore)
    assert isinstance(event, GenerationFailed)
    assert f"the file fails its self-check: logprob_error of row {drawn[2]}" in event.reason
    assert readings[0] == len(drawn), "first the sample; its evidence is no verdict"
    assert sum(readings[1:]) > 0, "then the whole file, block by block until it convicts"
    monkeypatch.setattr(self_check, "WHOLE_CHECKS", 1)
    readings.clear()
    assert isinstance(await setup.generator.generate(wanted(1, SLOTS), ignore), Generated)
    assert sum(readings) == ROWS


async def test_a_fault_outside_of_the_sample_is_found_with_the_stated_chance_only(
    setup: JobSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check, "WHOLE_CHECKS", 0)
    missed = min(set(range(ROWS)) - set(draw_rows(ROWS, NEVER_WHOLE)))
    setup.behave(f"wrong row {missed + 1}")
    assert isinstance(await setup.generator.generate(wanted(0, SLOTS), ignore), Generated)
    await setup.engine.close()
    setup.drawn = bytes(32)
    assert isinstance(await setup.generator.generate(wanted(1, SLOTS), ignore), GenerationFailed)


def test_every_row_is_drawn_as_often_as_any_other_and_nobody_knows_the_draw_before() -> None:
    draws = [draw_rows(ROWS, bytes([1, *number.to_bytes(4, "big")])) for number in range(4000)]
    expected = len(draws) * count_sample(ROWS) / ROWS
    counts = [sum(row in drawn for drawn in draws) for row in range(ROWS)]
    assert all(abs(count - expected) < 6 * math.sqrt(expected) for count in counts)
    assert all(len(drawn) == count_sample(ROWS) and drawn == sorted(set(drawn)) for drawn in draws)
    whole = [len(draw_rows(ROWS, bytes([first]))) == ROWS for first in range(256)]
    assert sum(whole) == 256 // WHOLE_EVERY
    assert draw_rows(3, NEVER_WHOLE) == [0, 1, 2], "small files are read whole"


def test_the_stated_chances_are_those_of_the_documentation() -> None:
    for faulty, files in ((1, 1), (1, 20), (8, 1), (13, 1), (26, 1), (256, 1)):
        missed = (1 - find_chance(256, faulty)) ** files
        assert f"{1 - missed:.1%}" in DOCS.read_text(), (faulty, files, f"{1 - missed:.1%}")


@pytest.mark.parametrize("damage", ["{", "[]", '{"a": "b"}', "\0"])
def test_a_damaged_record_means_full_checks(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "self_checks.json"
    path.write_text(damage)
    assert not PassedChecks(path).is_known("a")


def test_the_record_forgets_the_oldest_kinds(tmp_path: Path) -> None:
    passed = PassedChecks(tmp_path / "self_checks.json")
    for kind in range(CLASSES_KEPT + 1):
        for _ in range(WHOLE_CHECKS):
            passed.record(str(kind), is_valid=True)
    assert not passed.is_known("0")
    assert passed.is_known("1")
    passed.record("1", is_valid=False)
    assert not PassedChecks(tmp_path / "self_checks.json").is_known("1")
