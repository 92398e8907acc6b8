"""The checking processes: they answer, and when one dies or hangs its file is refused and the next one is checked."""

import io
import json
import pickle
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from prime_coordinator.intake.checker import LENGTH_BYTES, CheckerPool, CheckJob, run_check, serve_jobs
from prime_coordinator.intake.checks import get_expected_submission
from prime_protocol.errors import RemoteError
from support.ledger_network import RUN, World


def make_job(path: Path, task_set: str = "arithmetic") -> CheckJob:
    world = World.started()
    entry = world.answer(world.lease("ann"))
    expected = get_expected_submission(RUN, world.run, entry.receipt)
    return CheckJob(path, entry, replace(expected, terms=replace(expected.terms, task_set=task_set)), None)


@pytest.fixture
async def checkers() -> AsyncIterator[CheckerPool]:
    made = CheckerPool(count=1, check_ms=20_000, memory_mb=2048)
    yield made
    await made.close()


@pytest.fixture
def garbage(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"not a rollout file")
    return path


async def test_a_bad_file_is_refused_by_the_name_of_what_is_wrong(checkers: CheckerPool, garbage: Path) -> None:
    for _ in range(2):  # the second time by the same process
        with pytest.raises(RemoteError) as refused:
            await checkers.check(make_job(garbage))
        assert refused.value.field == "receipt.file_digest"


async def test_a_process_that_dies_fails_its_file_only(checkers: CheckerPool, garbage: Path, tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="the checking process died over it"):
        await checkers.check(make_job(tmp_path / "missing"))
    with pytest.raises(RemoteError, match="the file has"):
        await checkers.check(make_job(garbage))


async def test_a_check_that_takes_too_long_is_ended(garbage: Path) -> None:
    hasty = CheckerPool(count=1, check_ms=1, memory_mb=2048)
    try:
        with pytest.raises(RemoteError, match="could not be checked within 1 ms"):
            await hasty.check(make_job(garbage))
    finally:
        await hasty.close()


def test_the_process_answers_each_job_with_one_line(garbage: Path) -> None:
    raw = pickle.dumps(make_job(garbage))
    jobs = io.BytesIO((len(raw).to_bytes(LENGTH_BYTES, "big") + raw) * 2)
    answers = io.BytesIO()
    serve_jobs(jobs, answers)
    lines = answers.getvalue().splitlines()
    assert [json.loads(line)["field"] for line in lines] == ["receipt.file_digest"] * 2


def test_a_task_set_that_cannot_be_opened_is_told(garbage: Path) -> None:
    assert run_check(make_job(garbage, "no-such-family"))["field"] == "task_set.family"
