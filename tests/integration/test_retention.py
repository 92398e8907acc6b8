"""Retention with real processes: files go when they are due, also after kill -9, and readers are told when."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from moto.server import ThreadedMotoServer

from prime_coordinator.home import database_url
from prime_coordinator.log.store import open_log_store
from prime_coordinator.retention.file_rows import expire_due
from prime_explorer.app import HttpObjects
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.messages import UploadPurpose
from prime_protocol.wire.typed_data import compute_receipt_id
from prime_runtime.clock import SystemClock
from prime_runtime.http.client import FileExpired, open_client
from prime_runtime.http.config import ClientLimits
from prime_runtime.http.coordinator_api import fetch_file
from prime_runtime.objects.store import S3Config
from prime_runtime.redaction import Secret
from support.processes.coordinator import (
    NETWORK,
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

SHORT: dict[str, Any] = {
    "vesting_ms": 0,
    "appeal_ms": 1_000,
    "judgement_ms": 1_000,
    "long_stop_ms": 1_000,
    "rollouts_kept_ms": 3_000,
    "evidence_kept_ms": 3_000,
    "checkpoints_kept_ms": 3_000,
    "slash_evidence_kept_ms": 3_600_000,
    "lag_max": 0,
}
"""The least that the windows allow; slashes are kept for an hour."""
WAIT_S = 40.0


@dataclass
class Scene:
    """A network with one worker and one validator."""

    process: CoordinatorProcess
    trainer: Party
    worker: Party
    validator: Party
    step: int = -1

    @classmethod
    async def open(cls, process: CoordinatorProcess, stack: AsyncExitStack) -> "Scene":
        names = ("trainer", "worker", "validator")
        made = cls(process, *[await stack.enter_async_context(party(process, name)) for name in names])
        await made.worker.join(Role.WORKER)
        await made.validator.join(Role.VALIDATOR)
        return made

    async def submit(self, outcome: Outcome, wanted: RunTerms) -> tuple[Digest, Digest]:
        """A submission of a new step, judged; its name and its file."""
        self.step += 1
        published = await publish(self.trainer, self.step)
        beacon = await until_beacon(self.worker)
        lease = await self.worker.lease(self.step)
        data, entry = self.worker.answer(lease, beacon=beacon, root=published.root, wanted=wanted)
        await self.worker.upload(data, UploadPurpose.ROLLOUTS, lease=lease.lease)
        await self.worker.write(entry)
        name = compute_receipt_id(entry.receipt)
        ((judge, task),) = await until_drawn([self.validator], name)
        await judge.judge(task, outcome)
        return name, Digest(sha256(data).digest())

    async def get(self, path: str) -> tuple[int, str, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(self.process.server.url + path) as response,
        ):
            raw = await response.read()
            return response.status, raw.decode(errors="replace"), response.headers.get("Prime-Expired-At-Ms", "")

    async def until_status(self, digest: Digest, status: int) -> str:
        async with asyncio.timeout(WAIT_S):
            while (found := await self.get(f"/objects/{digest}"))[0] != status:
                await asyncio.sleep(0.1)
        return found[1] + found[2]


@pytest.fixture
async def process(tmp_path: Path) -> AsyncIterator[CoordinatorProcess]:
    async with running(await make_folder(tmp_path / "coordinator", **SHORT)) as started:
        yield started


async def fetch_digest(scene: Scene, digest: Digest) -> bytes:
    """As validators, the trainer and `prime-node audit` do."""
    async with open_client(key=scene.worker.key, network=NETWORK, clock=SystemClock(), limits=ClientLimits()) as client:
        return await fetch_file(client, scene.process.server, f"/objects/{digest}", digest, bytes_max=2**20)


def list_rollouts(folder: Path) -> list[Path]:
    return list((folder / "objects" / "rollouts").glob("*/*/*/*/*"))


async def until_gone(folder: Path) -> None:
    """The object goes a moment after its row."""
    async with asyncio.timeout(WAIT_S):
        while list_rollouts(folder):
            await asyncio.sleep(0.1)


def ask_disk(folder: Path) -> Any:
    command = [sys.executable, "-m", "prime_coordinator.cli.main", "disk", "--folder", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def find_use(report: Any, name: str) -> Any:
    return next(each for each in report["uses"] if each["name"] == name)


async def test_a_file_goes_when_it_is_due_and_everybody_is_told_when(process: CoordinatorProcess) -> None:
    folder, wanted = process.config.folder, terms(**SHORT)
    async with AsyncExitStack() as stack:
        scene = await Scene.open(process, stack)
        name, digest = await scene.submit(Outcome.ACCEPT, wanted)
        assert (await scene.get(f"/objects/{digest}"))[0] == 200
        held = find_use(await asyncio.to_thread(ask_disk, folder), "rollouts")
        assert (held["files"], held["freed_bytes"]["30"]) == (1, 0), "its step is open"
        for _ in range(2):
            scene.step += 1
            await publish(scene.trainer, scene.step)
        said = await scene.until_status(digest, 410)
        assert "this file expired on 20" in said
        assert "rollouts_kept_ms" in said
        await until_gone(folder)
        with pytest.raises(FileExpired, match=r"expired on 20\d\d-\d\d-\d\d"):
            await fetch_digest(scene, digest)
        async with AsyncExitStack() as reading:
            session = await reading.enter_async_context(aiohttp.ClientSession())
            elsewhere = HttpObjects(scene.process.server.url, session)
            assert (await elsewhere.find_expired([digest, Digest(bytes(32))])).keys() == {digest}
        async with asyncio.timeout(WAIT_S):
            while (found := await scene.get(f"/submissions/{name}"))[0] != 200:
                await asyncio.sleep(0.1)  # the index follows
        page = found[1]
        assert "expired on" in page
        assert f'href="/objects/{digest}"' not in page, "no dead link"
        _, raw, _ = await scene.get(f"/api/v1/submissions/{name}")
        shown = json.loads(raw)
        assert shown["expired"][str(digest)] > 0
        gone = find_use(await asyncio.to_thread(ask_disk, folder), "rollouts")
        assert (gone["files"], gone["size_bytes"]) == (0, 0)
        _, metrics, _ = await scene.get("/metrics")
        assert 'prime_coordinator_files_kept{reason="rollouts"} 0.0' in metrics
    assert await process.stop() == 0
    assert find_use(ask_disk(folder), "database")["size_bytes"] > 0, "a stopped coordinator is measured too"


async def test_the_file_and_the_evidence_of_a_slash_stay_when_others_have_gone(process: CoordinatorProcess) -> None:
    wanted = terms(**SHORT)
    async with AsyncExitStack() as stack:
        scene = await Scene.open(process, stack)
        _, honest = await scene.submit(Outcome.ACCEPT, wanted)
        _, forged = await scene.submit(Outcome.FRAUDULENT, wanted)
        async with asyncio.timeout(WAIT_S):
            while find_use(await asyncio.to_thread(ask_disk, process.config.folder), "slashes")["files"] == 0:
                scene.step += 1
                await publish(scene.trainer, scene.step)
        await scene.until_status(honest, 410)
        assert (await scene.get(f"/objects/{forged}"))[0] == 200


async def test_a_sweep_that_is_killed_is_finished_by_the_next_process(tmp_path: Path) -> None:
    """Rows that were moved and whose objects are still there, as kill -9 leaves them."""
    kept = SHORT | {"rollouts_kept_ms": 3_600_000}
    async with AsyncExitStack() as stack:
        process = await stack.enter_async_context(running(await make_folder(tmp_path / "coordinator", **kept)))
        scene = await Scene.open(process, stack)
        _, digest = await scene.submit(Outcome.ACCEPT, terms(**kept))
        for _ in range(2):
            scene.step += 1
            await publish(scene.trainer, scene.step)
        async with asyncio.timeout(WAIT_S):
            while not find_use(await asyncio.to_thread(ask_disk, process.config.folder), "rollouts")["freed_bytes"][
                "7"
            ]:
                await asyncio.sleep(0.1)
        await process.kill()
        store = open_log_store(database_url(process.config))
        later_ms = SystemClock().now_ms() + 2 * kept["rollouts_kept_ms"]
        await store.write(lambda connection: expire_due(connection, later_ms, 100))
        store.close()
        assert list_rollouts(process.config.folder)
        await process.start()
        await scene.until_status(digest, 410)
        await until_gone(process.config.folder)


# --- A bucket -------------------------------------------------------------------------------------------------------


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


async def test_objects_of_a_bucket_are_named_by_day_and_deleted_there(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with aiohttp.ClientSession() as session, session.put(f"{endpoint}/bucket") as made:
        assert made.status == 200
    monkeypatch.setenv("PRIME_S3_SECRET_ACCESS_KEY", "not a secret")
    bucket = S3Config(
        endpoint=endpoint,
        region="us-east-1",
        access_key_id="id",
        secret_access_key=Secret("not a secret"),
        allow_http=True,
    )
    settings = {"objects": "s3://bucket/net", "s3": bucket}
    config = await make_folder(tmp_path / "coordinator", settings=settings, **SHORT)

    async def list_keys() -> str:
        async with aiohttp.ClientSession() as session, session.get(f"{endpoint}/bucket?list-type=2") as answer:
            return await answer.text()

    async with AsyncExitStack() as stack, running(config) as process:
        scene = await Scene.open(process, stack)
        _, digest = await scene.submit(Outcome.ACCEPT, terms(**SHORT))
        assert "net/rollouts/20" in await list_keys()
        for _ in range(2):
            scene.step += 1
            await publish(scene.trainer, scene.step)
        await scene.until_status(digest, 410)
        async with asyncio.timeout(WAIT_S):
            while "net/rollouts/" in await list_keys():
                await asyncio.sleep(0.1)
