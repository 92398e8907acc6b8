"""The engine's process and its keeper: real processes, a small engine behind the real pipe."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from prime_node.engine.config import EngineConfig
from prime_node.engine.frames import (
    HEADER_BYTES,
    PIPE_BYTES_MAX,
    JobDone,
    decode_frame_body,
    decode_frame_header,
    encode_frame,
)
from prime_node.engine.interface import (
    Completion,
    EngineCapacity,
    EngineQueue,
    GenerateRequest,
    Sampling,
    TokenSequence,
)
from prime_node.engine.lifecycle import DEATHS_MAX, EngineBroken, EngineManager, EngineSession, EngineState
from prime_node.engine.measurement import ClaimedRow
from prime_node.engine.process import EngineDied, EngineProcess, build_environment
from prime_node.engine.shared_lock import SharedLock
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.proofs.tolerance import Precision
from prime_protocol.wire.ids import Digest
from prime_runtime.clock import SystemClock
from prime_runtime.settings.schema import ConfigError
from prime_trainer.model.tiny import EOS_TOKEN, make_tiny_checkpoint

DOUBLE = str(Path(__file__).parents[3] / "support/fake_engine.py")
ROOT, OTHER = Digest(sha256(b"a checkpoint").digest()), Digest(sha256(b"another").digest())
SAMPLING = Sampling(temperature=1.0, eos=frozenset({EOS_TOKEN}), tokens_max=40)
SEED = Digest(sha256(b"an audit").digest())


def command(config: EngineConfig, precision: Precision) -> Sequence[str]:
    return [sys.executable, DOUBLE, "--precision", precision]


def requests(count: int = 3) -> list[GenerateRequest]:
    return [
        GenerateRequest(number=n, prompt=np.array([1, 2, 3 + n], np.int32), seed=2**64 - 1 - n) for n in range(count)
    ]


class Fixture:
    """A keeper, and a checkpoint folder whose behaviour can be set."""

    def __init__(self, folder: Path, **settings: int) -> None:
        self.checkpoint = make_tiny_checkpoint(folder / "checkpoint", hidden=32)
        self.changes: list[tuple[Digest, Digest]] = []
        config = EngineConfig(**{"start_ms": 30_000, "stall_ms": 20_000, **settings})
        self.keeper = EngineManager(
            config, folder / "engine", SystemClock(), changes=self._note_change, command=command
        )

    def _note_change(self, old: Digest, new: Digest) -> None:
        self.changes.append((old, new))

    def behave(self, how: str) -> None:
        (self.checkpoint / "behaviour").write_text(how)

    @asynccontextmanager
    async def turn(self, root: Digest = ROOT) -> AsyncIterator[EngineSession]:
        async with self.keeper.acquire(root, self.checkpoint, Precision.FLOAT32) as session:
            yield session


@pytest.fixture
async def fixture(tmp_path: Path) -> AsyncIterator[Fixture]:
    made = Fixture(tmp_path)
    yield made
    await made.keeper.close()


async def test_what_an_engine_generates_passes_its_own_check_and_what_was_altered_does_not(fixture: Fixture) -> None:
    async with fixture.turn() as session:
        assert (session.facts.hidden, session.facts.vocabulary) == (32, 32)
        steps: list[int] = []
        made = await session.process.generate(requests(), SAMPLING, steps.append)
        assert [each.number for each in made] == [0, 1, 2]
        assert steps, "progress is told"
        claims = [
            ClaimedRow(
                sequence=TokenSequence(
                    number=request.number, prompt=request.prompt, output=each.tokens, seed=request.seed
                ),
                logprobs=each.logprobs,
                proofs=each.proofs,
            )
            for request, each in zip(requests(), made, strict=True)
        ]
        numbers = await session.process.check(claims, SAMPLING, SEED)
        assert [row.row for row in numbers] == [0, 1, 2]
        assert max(row.margin_max for row in numbers) == 0.0
        assert max(row.logprob_error_max for row in numbers) < 1e-5
        assert all(report.exponent_mismatches == 0 for row in numbers for report in row.chunks)
        wrong = ClaimedRow(
            sequence=claims[0].sequence, logprobs=claims[0].logprobs, proofs=b"\xff" * len(claims[0].proofs)
        )
        mixed = ClaimedRow(
            sequence=TokenSequence(
                number=1, prompt=requests()[1].prompt, output=made[1].tokens[::-1].copy(), seed=requests()[1].seed
            ),
            logprobs=made[1].logprobs,
            proofs=made[1].proofs,
        )
        numbers = await session.process.check([wrong, mixed], SAMPLING, SEED)
        assert "modulus" in numbers[0].proof_problem
        assert numbers[0].chunks == ()
        assert numbers[1].margin_max > 0.5
        assert numbers[1].chunks[0].exponent_mismatches > 30


async def test_a_checkpoint_is_loaded_once_and_the_next_one_told_as_a_change(fixture: Fixture) -> None:
    async with fixture.turn() as first:
        pid = first.process.pid
    async with fixture.turn() as again:
        assert again.process.pid == pid
    assert fixture.changes == []
    async with fixture.turn(OTHER) as other:
        assert other.process.pid == pid
    assert fixture.changes == [(ROOT, OTHER)]
    assert fixture.keeper.get_status()["loaded"] == str(OTHER)


async def test_a_killed_engine_fails_its_job_alone_and_is_started_again(fixture: Fixture) -> None:
    with pytest.raises(EngineDied, match="signal 9"):
        async with fixture.turn() as session:
            pid = session.process.pid
            os.kill(pid, signal.SIGKILL)
            await session.process.generate(requests(), SAMPLING)
    assert fixture.keeper.state is EngineState.OFF
    assert "signal 9" in fixture.keeper.get_status()["last_error"]
    async with fixture.turn() as session:
        assert session.process.pid != pid
        assert len(await session.process.generate(requests(), SAMPLING)) == 3
    assert fixture.keeper.restarts == 1


async def test_an_engine_that_keeps_dying_is_left_alone_and_its_last_words_are_kept(fixture: Fixture) -> None:
    fixture.behave("die")
    for _ in range(DEATHS_MAX):
        with pytest.raises(EngineDied, match="out of memory, says the device"):
            async with fixture.turn() as session:
                await session.process.generate(requests(), SAMPLING)
    with pytest.raises(EngineBroken, match=r"3 times in a row.*exit code 7.*says the device"):
        async with fixture.turn():
            pass
    report = fixture.keeper.get_status()
    assert (report["state"], report["pid"]) == ("broken", None)
    assert 0 < report["retry_ms"] <= 2_000


async def test_an_engine_without_progress_is_ended(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path, stall_ms=300)
    fixture.behave("hang")
    with pytest.raises(EngineDied, match="no progress for 300 ms"):
        async with fixture.turn() as session:
            await session.process.generate(requests(), SAMPLING)
    assert not session.process.is_alive


async def test_a_refused_job_leaves_the_engine_alive_and_an_unexpected_error_does_not(fixture: Fixture) -> None:
    fixture.behave("refuse")
    async with fixture.turn() as session:
        with pytest.raises(LocalError, match="not enough memory for one row"):
            await session.process.generate(requests(), SAMPLING)
        assert session.process.is_alive
    fixture.behave("raise")
    async with fixture.turn(OTHER) as session:
        with pytest.raises(LocalError, match="RuntimeError: nobody foresaw this"):
            await session.process.generate(requests(), SAMPLING)
        with pytest.raises(EngineDied):
            await session.process.generate(requests(), SAMPLING)


async def test_a_cancelled_caller_leaves_an_engine_that_can_be_asked_again(fixture: Fixture) -> None:
    long = Sampling(temperature=1.0, eos=frozenset(), tokens_max=100_000)
    began = asyncio.Event()

    async def work() -> None:
        async with fixture.turn() as session:
            await session.process.generate(requests(), long, lambda rows: began.set())

    task = asyncio.create_task(work())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with fixture.turn() as session:
        assert len(await session.process.generate(requests(), SAMPLING)) == 3
    assert fixture.keeper.restarts == 0, "it was not ended for that"


ENDLESS = Sampling(temperature=1.0, eos=frozenset(), tokens_max=100_000)


async def test_a_short_job_joins_a_long_one_and_is_done_first_and_rows_are_checked_meanwhile(fixture: Fixture) -> None:
    """Three callers of one checkpoint share the engine: one has the same row numbers, one reads."""
    fixture.behave("slow")
    joined = asyncio.Event()
    queues: list[EngineQueue] = []
    fixture.keeper.on_queue = queues.append
    long = Sampling(temperature=1.0, eos=frozenset(), tokens_max=150)

    async def generate_long() -> list[Completion]:
        async with fixture.turn() as session:
            return await session.process.generate(requests(2), long, lambda rows: joined.set())

    task = asyncio.create_task(generate_long())
    await joined.wait()
    async with fixture.turn() as session:
        assert session.capacity == EngineCapacity(sequences_max=4, kv_tokens=4096)
        short = await session.process.generate(requests(3), replace(long, tokens_max=150))
        assert not task.done() or len(task.result()[0].tokens) == 150
        text = TokenSequence(number=0, prompt=requests()[0].prompt, output=short[0].tokens, seed=requests()[0].seed)
        claim = ClaimedRow(sequence=text, logprobs=short[0].logprobs, proofs=short[0].proofs)
        assert (await session.process.check([claim], SAMPLING, SEED))[0].margin_max == 0.0
    assert [each.tokens.tolist() for each in await task] == [each.tokens.tolist() for each in short[:2]]
    assert max(queue.running for queue in queues) == 4, "rows of both jobs run together"
    assert any(queue.waiting for queue in queues)


async def test_another_checkpoint_waits_until_the_rows_of_the_first_are_done_and_is_not_overtaken(
    fixture: Fixture,
) -> None:
    fixture.behave("slow")
    order: list[str] = []
    started = asyncio.Event()

    async def work(name: str, root: Digest) -> None:
        async with fixture.turn(root) as session:
            order.append(f"{name} begins")
            await session.process.generate(requests(1), SAMPLING, lambda rows: started.set())
            order.append(f"{name} ends")

    first = asyncio.create_task(work("old", ROOT))
    await started.wait()
    second = asyncio.create_task(work("new", OTHER))
    await asyncio.sleep(0)
    third = asyncio.create_task(work("late", ROOT))
    await asyncio.gather(first, second, third)
    assert order == ["old begins", "old ends", "new begins", "new ends", "late begins", "late ends"]


async def test_a_dead_engine_fails_every_job_once_and_counts_as_one_death(fixture: Fixture) -> None:
    began = [asyncio.Event(), asyncio.Event()]

    async def work(number: int) -> None:
        async with fixture.turn() as session:
            await session.process.generate(requests(), ENDLESS, lambda rows: began[number].set())

    tasks = [asyncio.create_task(work(number)) for number in range(2)]
    for event in began:
        await event.wait()
    pid = fixture.keeper.get_status()["pid"]
    os.kill(pid, signal.SIGKILL)
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, EngineDied)
    assert (fixture.keeper.restarts, fixture.keeper.is_broken()) == (1, False)
    async with fixture.turn() as session:
        assert len(await session.process.generate(requests(), SAMPLING)) == 3


async def test_cancelling_one_job_leaves_the_rows_of_the_other(fixture: Fixture) -> None:
    fixture.behave("slow")
    began = asyncio.Event()

    async def endless() -> None:
        async with fixture.turn() as session:
            await session.process.generate(requests(2), ENDLESS, lambda rows: began.set())

    dropped = asyncio.create_task(endless())
    await began.wait()
    kept = asyncio.create_task(endless())
    await asyncio.sleep(0.3)
    for task in (dropped, kept):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert fixture.keeper.restarts == 0


async def test_samplings_take_turns(fixture: Fixture) -> None:
    """The rows of one step have one sampling; a run may change its terms between two steps."""
    colder = Sampling(temperature=0.5, eos=SAMPLING.eos, tokens_max=40)
    async with fixture.turn() as session:
        both = await asyncio.gather(
            session.process.generate(requests(), SAMPLING), session.process.generate(requests(), colder)
        )
        again = await session.process.generate(requests(), colder)
    assert [each.tokens.tolist() for each in both[1]] == [each.tokens.tolist() for each in again]


async def test_an_engine_ends_with_its_node(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path)
    async with fixture.turn() as session:
        session.process._input.close()
        await session.process._process.wait()
        assert session.process._process.returncode == 0
    await fixture.keeper.close()


async def test_holders_of_one_key_share_a_lock_and_a_cancelled_waiter_leaves_the_queue() -> None:
    lock: SharedLock[str] = SharedLock()
    order: list[str] = []
    leave = asyncio.Event()

    async def hold(key: str | None) -> None:
        async with lock.hold(key):
            order.append(str(key))
            await leave.wait()

    tasks = [asyncio.create_task(hold(key)) for key in ("a", "a", None, "a", "b")]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert order == ["a", "a"]
    tasks[2].cancel()
    await asyncio.wait([tasks[2]])
    await asyncio.sleep(0)
    assert order == ["a", "a", "a"], "the next of the same key need not wait for it any more"
    leave.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["a", "a", "a", "b"]


async def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="cannot start the engine with /nowhere/python"):
        await EngineProcess.start(["/nowhere/python"], {}, tmp_path, start_ms=1000, stall_ms=1000)


def test_the_engine_sees_nothing_of_the_nodes_environment(tmp_path: Path) -> None:
    found = build_environment(EngineConfig(threads=3, variables=("CUDA_VISIBLE_DEVICES=1", "X=a=b")), tmp_path)
    assert {
        "HOME": str(tmp_path),
        "OMP_NUM_THREADS": "3",
        "CUDA_VISIBLE_DEVICES": "1",
        "X": "a=b",
    }.items() <= found.items()
    assert "PRIME_PASSWORD" not in found
    assert sorted(path.name for path in Path(found["PYTHONPATH"]).iterdir()) == [
        "prime_node",
        "prime_protocol",
        "prime_runtime",
    ]


@pytest.mark.parametrize("bad", [{"device": "gpu one"}, {"variables": ("NAME",)}])
def test_a_setting_that_makes_no_sense_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        EngineConfig(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("head", [bytes([99, 0, 0, 0, 1]), bytes([0]) + (PIPE_BYTES_MAX + 1).to_bytes(4, "big")])
def test_a_frame_of_no_kind_or_beyond_the_limit_is_refused_before_it_is_read(head: bytes) -> None:
    with pytest.raises(RemoteError):
        decode_frame_header(head)


def test_a_frame_comes_back_as_it_went() -> None:
    frame = encode_frame(JobDone(job=3))
    kind, length = decode_frame_header(frame[:HEADER_BYTES])
    assert (length, decode_frame_body(kind, frame[HEADER_BYTES:])) == (len(frame) - HEADER_BYTES, JobDone(job=3))
