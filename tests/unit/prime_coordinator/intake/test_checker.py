"""Checking processes: each job gets a result, and a process that dies or hangs fails only its own file."""

import io
import json
import pickle
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from prime_coordinator.intake.checker import LENGTH_BYTES, CheckerPool, CheckJob, serve_jobs
from prime_coordinator.intake.checks import get_expected_submission
from prime_protocol.errors import LocalError, RemoteError
from support.ledger_network import RUN, World


def make_job(path: Path, task_set: str = "arithmetic") -> CheckJob:
    world = World.started()
    entry = world.answer(world.lease("ann"))
    expected = get_expected_submission(RUN, world.run, entry.receipt)
    return CheckJob(path, entry, replace(expected, terms=replace(expected.terms, task_set=task_set)), None)


@pytest.fixture
async def checkers() -> AsyncIterator[CheckerPool]:
    pool = CheckerPool(count=1, check_ms=20_000, memory_mb=2048)
    yield pool
    await pool.close()


@pytest.fixture
def garbage(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"not a rollout file")
    return path


async def test_a_bad_file_is_refused_and_the_error_names_the_field(checkers: CheckerPool, garbage: Path) -> None:
    for _ in range(2):  # the second time by the same process
        with pytest.raises(RemoteError) as refused:
            await checkers.check(make_job(garbage))
        assert refused.value.field == "receipt.file_digest"


async def test_a_process_that_dies_fails_only_its_file(checkers: CheckerPool, garbage: Path, tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="the checking process died on it"):
        await checkers.check(make_job(tmp_path / "missing"))
    with pytest.raises(RemoteError, match="the file has"):
        await checkers.check(make_job(garbage))


async def test_a_check_that_takes_too_long_is_killed(garbage: Path) -> None:
    impatient = CheckerPool(count=1, check_ms=1, memory_mb=2048)
    try:
        with pytest.raises(RemoteError, match="could not be checked within 1 ms"):
            await impatient.check(make_job(garbage))
    finally:
        await impatient.close()


def test_each_job_gets_one_line_of_result(garbage: Path) -> None:
    raw = pickle.dumps(make_job(garbage))
    jobs = io.BytesIO((len(raw).to_bytes(LENGTH_BYTES, "big") + raw) * 2)
    results = io.BytesIO()
    serve_jobs(jobs, results)
    lines = results.getvalue().splitlines()
    assert [json.loads(line)["field"] for line in lines] == ["receipt.file_digest"] * 2


async def test_a_task_set_that_cannot_be_opened_is_the_operators_fault(checkers: CheckerPool, garbage: Path) -> None:
    with pytest.raises(LocalError, match="the task set no-such-family cannot be opened"):
        await checkers.check(make_job(garbage, "no-such-family"))


@pytest.mark.parametrize("content", [None, b"not a problem file"])
async def test_a_problem_file_that_cannot_be_opened_is_the_operators_fault(
    checkers: CheckerPool, garbage: Path, tmp_path: Path, content: bytes | None
) -> None:
    dataset = tmp_path / "problems"
    if content is not None:
        dataset.write_bytes(content)
    job = replace(make_job(garbage, f"math:0x{'11' * 32}"), dataset=dataset)
    with pytest.raises(LocalError, match="cannot be opened"):
        await checkers.check(job)
    with pytest.raises(RemoteError, match="the file has"):
        await checkers.check(make_job(garbage))
