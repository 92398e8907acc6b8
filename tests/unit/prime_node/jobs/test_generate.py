"""From a lease to a file that passes the public checks, with a real engine process; and every way it can fail."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from prime_node.agent.events import FinishedFile, Generated, GenerationFailed, GenerationProgressed
from prime_node.engine.interface import EngineCapacity, EngineQueue
from prime_node.engine.lifecycle import EngineState
from prime_node.storage.journal import JobState
from prime_protocol.errors import LocalError
from prime_protocol.rollouts.file import read_rollouts
from prime_protocol.rollouts.rollout import compute_rollout_root
from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.messages import StepReply
from prime_runtime.http.client import Unreachable
from prime_runtime.model_files import ModelFiles
from prime_trainer.model.tiny import make_tokenizer
from support.job_setup import KEY, RUN, SETUP_TERMS, JobSetup, digest, grant, wanted


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[JobSetup]:
    made = JobSetup(tmp_path)
    yield made
    await made.engine.close()


def ignore(progress: GenerationProgressed) -> None:
    pass


async def test_a_lease_becomes_a_checked_file_on_disk_and_in_the_journal(setup: JobSetup) -> None:
    seen: list[GenerationProgressed] = []
    event = await setup.generator.generate(wanted(7, slots=2), seen.append)
    assert isinstance(event, Generated)
    work = event.file
    data = setup.spool.get(work.file_digest)
    assert data is not None
    file = read_rollouts(data, setup.context.get_limits(2, 2))
    assert file.header == setup.context.make_header(7, KEY.node)
    assert [(row.slot, row.sample) for row in file.rows] == [(2, 0), (2, 1), (3, 0), (3, 1)]
    assert work.rollout_root == compute_rollout_root(file)
    assert work.output_tokens == sum(len(row.output_tokens) for row in file.rows)
    assert seen[-1].rows == 4
    record = setup.journal.get_by_lease(RUN, 7)
    assert record is not None
    assert (record.state, record.file, record.rows, record.is_open) == (JobState.PRODUCED, work.file_digest, 4, True)


async def test_rows_of_two_leases_are_generated_together_and_are_the_same_as_alone(setup: JobSetup) -> None:
    """The engine takes four rows at once: those of the second lease enter as rows of the first are finished."""
    queues: list[EngineQueue] = []
    setup.engine.on_queue = queues.append
    setup.behave("slow")

    async def make(lease: int, slots: int) -> FinishedFile:
        event = await setup.generator.generate(wanted(lease, slots), ignore)
        assert isinstance(event, Generated)
        return event.file

    files = await asyncio.gather(make(0, 4), make(1, 1))
    assert max(queue.running + queue.waiting for queue in queues) > 8, "both are in the engine"
    assert setup.engine.capacity == EngineCapacity(sequences_max=4, kv_tokens=4096)
    alone = await setup.generator.generate(wanted(2, 1), ignore)
    assert isinstance(alone, Generated)
    assert alone.file.output_tokens == files[1].output_tokens, "the same rows, whatever they were generated with"


async def test_the_same_lease_gives_the_same_file_since_the_beacon_fixes_everything(
    setup: JobSetup, tmp_path: Path
) -> None:
    other = JobSetup(tmp_path / "other")
    first, second = await setup.generator.generate(wanted(), ignore), await other.generator.generate(wanted(), ignore)
    await other.engine.close()
    assert first == second


async def test_what_was_made_before_a_restart_is_not_made_again(setup: JobSetup) -> None:
    first = await setup.generator.generate(wanted(), ignore)
    await setup.engine.close()
    setup.behave("die")
    assert await setup.generator.generate(wanted(), ignore) == first
    assert setup.engine.get_status()["state"] == EngineState.OFF, "no engine was needed"


@pytest.mark.parametrize("loss", ["file", "checkpoint"])
async def test_what_was_made_before_is_made_again_if_it_is_damaged_or_too_old(setup: JobSetup, loss: str) -> None:
    first = await setup.generator.generate(wanted(), ignore)
    assert isinstance(first, Generated)
    path = setup.folder / "files" / first.file.file_digest.hex()
    if loss == "file":
        path.write_bytes(b"damaged")
    else:
        record = setup.journal.get_by_lease(RUN, 0)
        assert record is not None
        setup.journal.add(replace(record, checkpoint_root=digest("an older one")), 0)
    assert await setup.generator.generate(wanted(), ignore) == first
    assert Digest(sha256(path.read_bytes()).digest()) == first.file.file_digest


async def test_a_file_that_fails_its_own_check_is_not_sent_and_the_journal_says_why(setup: JobSetup) -> None:
    setup.behave("wrong")
    event = await setup.generator.generate(wanted(), ignore)
    assert isinstance(event, GenerationFailed)
    assert "the file fails its self-check: logprob_error of row 0" in event.reason
    record = setup.journal.get_by_lease(RUN, 0)
    assert record is not None
    assert (record.state, record.file, record.is_open, record.reason) == (JobState.RETURNED, None, False, event.reason)
    assert not (setup.folder / "files").exists()


async def test_an_engine_that_dies_once_costs_time_and_not_the_lease(setup: JobSetup) -> None:
    setup.behave("die once")
    assert isinstance(await setup.generator.generate(wanted(), ignore), Generated)
    assert setup.engine.get_status()["restarts"] == 1


async def test_rows_that_were_done_when_the_engine_died_are_not_made_again(setup: JobSetup) -> None:
    """Two leases at once; the engine is killed when the first rows are done."""
    setup.behave("slow")
    seen: dict[int, list[int]] = {0: [], 1: []}

    def kill_once(progress: GenerationProgressed) -> None:
        seen[progress.lease].append(progress.rows_done)
        if progress.rows_done == 1 and setup.engine.get_status()["restarts"] == 0 and progress.lease == 0:
            setup.behave("")
            os.kill(setup.engine.get_status()["pid"], signal.SIGKILL)

    events = await asyncio.gather(
        setup.generator.generate(wanted(0, slots=2), kill_once), setup.generator.generate(wanted(1, slots=2), kill_once)
    )
    assert all(isinstance(event, Generated) for event in events)
    assert setup.engine.get_status()["restarts"] == 1
    assert seen[0] == sorted(seen[0]), "the count of finished rows never falls"


async def test_an_engine_that_keeps_dying_costs_the_lease_and_is_then_held(setup: JobSetup) -> None:
    setup.behave("die")
    event = await setup.generator.generate(wanted(0), ignore)
    assert isinstance(event, GenerationFailed)
    assert "exit code 7" in event.reason
    assert setup.engine.is_broken(RUN)
    assert not setup.engine.is_broken("another-run"), "another run may use the engine meanwhile"
    again = await setup.generator.generate(wanted(1), ignore)
    assert isinstance(again, GenerationFailed)
    assert "3 times in a row" in again.reason


async def test_a_hostile_tokenizer_costs_the_lease_and_neither_the_node_nor_the_engine(setup: JobSetup) -> None:
    hostile = make_tokenizer(64) | {"pre_tokenizer": {"type": "FixedLength", "length": 0}}
    (setup.checkpoint / "tokenizer.json").write_text(json.dumps(hostile))
    honest, setup.context = setup.context, replace(setup.context, model=ModelFiles.open(setup.checkpoint))
    event = await setup.generator.generate(wanted(0), ignore)
    assert isinstance(event, GenerationFailed)
    assert "fails: PanicException: chunk size must be non-zero" in event.reason
    again = await setup.generator.generate(wanted(1), ignore)
    assert isinstance(again, GenerationFailed)
    assert setup.context.model.tokenizer.pid is None, "it is not tried again at once"
    assert not setup.engine.is_broken(RUN)
    setup.context = honest
    assert isinstance(await setup.generator.generate(wanted(2), ignore), Generated)


async def test_an_abandoned_lease_leaves_nothing_behind(setup: JobSetup) -> None:
    setup.behave("slow")
    began = asyncio.Event()
    task = asyncio.create_task(setup.generator.generate(wanted(slots=4), lambda progress: began.set()))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert setup.journal.list_newest() == []
    setup.generator.record_returned(grant(), "it was late")
    assert [record.reason for record in setup.journal.list_newest()] == ["it was late"]


def test_a_model_that_is_not_the_runs_is_refused(tmp_path: Path) -> None:
    setup = JobSetup(tmp_path)
    with pytest.raises(LocalError, match="not those that the run names"):
        replace(setup.context, terms=replace(SETUP_TERMS, model_files=digest("other files")))
    with pytest.raises(LocalError, match="the model has 64 tokens, the run says 32"):
        replace(setup.context, terms=replace(SETUP_TERMS, vocabulary=32))


async def test_a_coordinator_that_is_away_for_a_moment_costs_no_lease_and_one_that_stays_away_does(
    setup: JobSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, tell = 3, setup.get_facts

    async def facts(step: Step, root: Digest) -> StepReply:
        nonlocal away
        away -= 1
        if away >= 0:
            raise Unreachable("cannot reach http://c:1: connection refused")
        return await tell(step, root)

    monkeypatch.setattr(setup, "get_facts", facts)
    monkeypatch.setattr("prime_node.jobs.generate.STEP_RETRY_MS", 1)
    assert isinstance(await setup.generator.generate(wanted(), ignore), Generated)
    away, late = 2**30, replace(wanted(1), lease=replace(grant(1), deadline_ms=setup.clock.now_ms() + 50))
    event = await setup.generator.generate(late, ignore)
    assert isinstance(event, GenerationFailed)
    assert "cannot reach" in event.reason
