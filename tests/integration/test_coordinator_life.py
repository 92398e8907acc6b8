"""The whole life of a node with a coordinator that is a real process, on SQLite and on PostgreSQL, over loopback."""

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from prime_coordinator.config import CoordinatorConfig
from prime_coordinator.home import CoordinatorHome
from prime_coordinator.log.verify import VerifiedLog, verify_log
from prime_protocol.ledger.entries import Outcome, Role, RunFunded
from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.messages import UPLOAD, UploadPurpose
from prime_protocol.wire.rpc import RefusalCode
from prime_protocol.wire.typed_data import compute_receipt_id
from prime_runtime.http.client import CallRefused
from prime_runtime.log_files import read_tree_head
from support.ledger_network import STAKE
from support.processes.coordinator import (
    FUND,
    GIFT,
    RUN,
    CoordinatorProcess,
    Party,
    make_folder,
    party,
    publish,
    running,
    terms,
    until_beacon,
    until_drawn,
)
from support.processes.postgres import create_database, running_postgres

VALIDATORS = 3


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture
async def config(request: pytest.FixtureRequest, tmp_path: Path) -> CoordinatorConfig:
    """On SQLite, unless the test asks for PostgreSQL too."""
    database = None
    if getattr(request, "param", "sqlite") == "postgresql":
        database = create_database(request.getfixturevalue("postgres"), "life")
    return await make_folder(tmp_path / "coordinator", database)


@pytest.fixture
async def process(config: CoordinatorConfig) -> AsyncIterator[CoordinatorProcess]:
    async with running(config) as started:
        yield started


def read_books(config: CoordinatorConfig) -> VerifiedLog:
    folder = CoordinatorHome(config.folder).mirror
    return verify_log(folder)


async def until_books(config: CoordinatorConfig, holds: Callable[[VerifiedLog], bool]) -> VerifiedLog:
    """Read the mirror until it shows what is waited for."""
    while True:
        books = read_books(config)
        if holds(books):
            return books
        await asyncio.sleep(0.1)


class Cast:
    """A trainer, a worker and validators, all joined."""

    def __init__(self, parties: dict[str, Party]) -> None:
        self.trainer, self.worker = parties["trainer"], parties["worker"]
        self.validators = [each for name, each in parties.items() if name.startswith("validator")]

    @classmethod
    async def meet(cls, process: CoordinatorProcess, stack: AsyncExitStack, *names: str) -> "Cast":
        cast = ("trainer", "worker", "sponsor", *(f"validator-{number}" for number in range(VALIDATORS)), *names)
        parties = {name: await stack.enter_async_context(party(process, name)) for name in cast}
        made = cls(parties)
        await parties["sponsor"].write(RunFunded(amount_nano=FUND))
        await made.worker.join(Role.WORKER)
        for validator in made.validators:
            await validator.join(Role.VALIDATOR)
        return made


@pytest.mark.parametrize("config", ["sqlite", "postgresql"], indirect=True)
async def test_a_node_joins_works_is_judged_and_paid(process: CoordinatorProcess) -> None:
    async with AsyncExitStack() as stack:
        cast = await Cast.meet(process, stack)
        published = await publish(cast.trainer, 0)
        beacon = await until_beacon(cast.worker)
        lease = await cast.worker.lease()
        assert [each.lease for each in (await cast.worker.beat()).leases] == [lease.lease]
        data, entry = cast.worker.answer(lease, beacon=beacon, root=published.root, wanted=terms())
        assert (await cast.worker.upload(data, UploadPurpose.ROLLOUTS, lease=lease.lease)).stored
        logged = await cast.worker.write(entry)
        assert await cast.worker.write(entry) == logged, "sent again, it is told where it stands"

        name = compute_receipt_id(entry.receipt)
        for validator, task in await until_drawn(cast.validators, name):
            assert await download(process, task.file_digest) == data
            await validator.judge(task, Outcome.ACCEPT)
        await until_books(process.config, lambda books: is_settled(books, name))
        await publish(cast.trainer, 1, name)
        books = await until_books(process.config, lambda books: is_paid(books))
        state = books.ledger.state
        assert state.funds.balances[cast.worker.node] > GIFT - STAKE, "the worker has earned something"
        assert state.funds.balances[cast.worker.node] <= GIFT - STAKE + terms().step_budget_nano
    assert await process.stop() == 0
    verify_with_command(process.config, books.keys.log_key)


async def test_a_clean_stop_spares_the_next_start_the_replay(process: CoordinatorProcess) -> None:
    async with party(process, "worker") as worker:
        await worker.join(Role.WORKER)
        assert await process.stop() == 0
        await process.start()
        # What came while the snapshot was written: the entry that notes it, and perhaps a head.
        assert any(re.search("replaying [123] of", line) for line in process.lines)
        await worker.beat()  # it knows the node


def is_settled(books: VerifiedLog, name: Digest) -> bool:
    submission = books.ledger.state.runs[RUN].submissions.get(name)
    return submission is not None and submission.credited


def is_paid(books: VerifiedLog) -> bool:
    step = books.ledger.state.runs[RUN].steps.get(Step(0))
    return step is None or step.paid


async def download(process: CoordinatorProcess, digest: Digest) -> bytes:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{process.server.url}/objects/{digest}") as response,
    ):
        assert response.status == 200
        return await response.read()


async def status_of(process: CoordinatorProcess, path: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(process.server.url + path) as response:
        return response.status


def verify_with_command(config: CoordinatorConfig, key: Any) -> None:
    folder = str(CoordinatorHome(config.folder).mirror)
    command = [sys.executable, "-m", "prime_coordinator.cli.main", "log", "verify", folder, "--key", str(key)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


async def test_files_are_taken_only_from_those_they_are_due_from(process: CoordinatorProcess) -> None:
    async with AsyncExitStack() as stack:
        cast = await Cast.meet(process, stack)
        published = await publish(cast.trainer, 0)
        beacon = await until_beacon(cast.worker)
        lease = await cast.worker.lease()
        data, entry = cast.worker.answer(lease, beacon=beacon, root=published.root, wanted=terms())
        digest = Digest(sha256(data).digest())

        stranger = cast.validators[0]
        with pytest.raises(CallRefused) as refused:
            await stranger.upload(data, UploadPurpose.ROLLOUTS, lease=lease.lease)
        assert refused.value.refusal.code is RefusalCode.FORBIDDEN
        with pytest.raises(CallRefused) as refused:
            await stranger.upload(data, UploadPurpose.MANIFEST)
        assert refused.value.refusal.code is RefusalCode.FORBIDDEN

        with pytest.raises(CallRefused) as refused:
            await cast.worker.write(entry)
        assert refused.value.refusal.field == "receipt.file_digest", "the file comes first"

        announced = cast.worker.announce(data, UploadPurpose.ROLLOUTS, lease=lease.lease)
        reply = await cast.worker.call(UPLOAD, announced)
        assert (reply.stored, reply.url) == (False, "")
        with pytest.raises(CallRefused, match="has digest"):
            await cast.worker.put(announced, bytes(len(data)), digest)
        with pytest.raises(CallRefused, match="announced as"):
            await cast.worker.put(announced, data[:-1], digest)
        await cast.worker.put(announced, data, digest)
        assert (await cast.worker.call(UPLOAD, announced)).stored
        assert await status_of(process, f"/objects/{digest}") == 404, "no entry names it yet"
        await cast.worker.write(entry)
        assert await download(process, digest) == data


async def test_a_bad_file_goes_into_quarantine_and_the_next_one_is_taken(process: CoordinatorProcess) -> None:
    async with AsyncExitStack() as stack:
        cast = await Cast.meet(process, stack)
        published = await publish(cast.trainer, 0)
        beacon = await until_beacon(cast.worker)
        lease = await cast.worker.lease()
        wrong = Digest(bytes(32))
        bad, bad_entry = cast.worker.answer(lease, beacon=wrong, root=published.root, wanted=terms())
        await cast.worker.upload(bad, UploadPurpose.ROLLOUTS, lease=lease.lease)
        with pytest.raises(CallRefused) as refused:
            await cast.worker.write(bad_entry)
        assert refused.value.refusal.field == "rows[0].task"

        good, entry = cast.worker.answer(lease, beacon=beacon, root=published.root, wanted=terms())
        await cast.worker.upload(good, UploadPurpose.ROLLOUTS, lease=lease.lease)
        await cast.worker.write(entry)
    objects = CoordinatorHome(process.config.folder).objects
    bad_digest = sha256(bad).hexdigest()
    assert (objects / "quarantine" / bad_digest[:2] / bad_digest).read_bytes() == bad
    (kept,) = (path for path in objects.glob("rollouts/*/*/*/*/*") if path.is_file())
    assert kept.name == sha256(good).hexdigest()


async def test_a_second_coordinator_in_one_folder_is_refused_by_name(process: CoordinatorProcess) -> None:
    second = CoordinatorProcess(process.config)
    with pytest.raises(AssertionError, match=r"another coordinator runs in .*, process [0-9]+"):
        await second.start()


async def test_the_log_is_served_as_static_files_and_health_and_metrics_are_told(process: CoordinatorProcess) -> None:
    async with party(process, "worker") as worker:
        await worker.join(Role.WORKER)
    await until_books(process.config, lambda books: books.head.size >= 5)
    mirror = CoordinatorHome(process.config.folder).mirror
    async with aiohttp.ClientSession(process.server.url) as session:
        async with session.get("/log/checkpoint") as response:
            assert (response.status, await response.read()) == (200, read_tree_head(mirror))
        bundle = next(path for path in (mirror / "tile/entries").rglob("*") if path.is_file())
        async with session.get(f"/log/{bundle.relative_to(mirror)}") as response:
            assert (response.status, await response.read()) == (200, bundle.read_bytes())
        for path in (
            "/log/tile/0/999",
            "/log/tile/0/..%2f..%2f..%2fkey.json",
            "/log/tile/x",
            "/objects/../key.json",
            "/datasets/x",
            f"/datasets/0x{'00' * 32}",
        ):
            assert await status_of(process, path) == 404, path
        async with session.get("/healthz") as response:
            assert (response.status, (await response.json())["ok"]) == (200, True)
        async with session.get("/metrics") as response:
            text = await response.text()
    assert 'prime_coordinator_nodes{phase="lost"}' in text
    assert 'prime_coordinator_requests_total{kind="NodeRegistered",status="200"} 1.0' in text
