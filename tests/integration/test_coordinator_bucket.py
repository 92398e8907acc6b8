"""A coordinator whose files are in a bucket: nodes send theirs straight to an S3 service, by URLs that it signs."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path

import aiohttp
import pytest
from moto.server import ThreadedMotoServer

from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.messages import UPLOAD, UploadPurpose, UploadReply
from prime_protocol.wire.typed_data import compute_receipt_id
from prime_runtime.http.client import CallRefused
from prime_runtime.objects.store import S3Config
from prime_runtime.redaction import Secret
from support.processes.coordinator import (
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


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
async def process(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CoordinatorProcess]:
    async with aiohttp.ClientSession() as session, session.put(f"{endpoint}/rollouts") as made:
        assert made.status == 200
    monkeypatch.setenv("PRIME_S3_SECRET_ACCESS_KEY", "not a secret")
    bucket = S3Config(
        endpoint=endpoint,
        region="us-east-1",
        access_key_id="id",
        secret_access_key=Secret("not a secret"),
        allow_http=True,
    )
    settings = {"objects": "s3://rollouts/devnet", "s3": bucket}
    async with running(await make_folder(tmp_path / "coordinator", settings=settings)) as started:
        yield started


async def ask(worker: Party, data: bytes, lease: int) -> UploadReply:
    reply = await worker.call(UPLOAD, worker.announce(data, UploadPurpose.ROLLOUTS, lease=lease))
    assert isinstance(reply, UploadReply)
    return reply


async def put(url: str, data: bytes) -> None:
    async with aiohttp.ClientSession() as session, session.put(url, data=data) as response:
        assert response.status == 200, await response.text()


async def get(process: CoordinatorProcess, digest: Digest) -> bytes:
    url = f"{process.server.url}/objects/{digest}"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert response.status == 200
        return await response.read()


async def test_a_file_goes_straight_to_the_bucket_and_counts_once_it_is_what_was_signed(
    process: CoordinatorProcess, endpoint: str
) -> None:
    async with AsyncExitStack() as stack:
        trainer, worker, validator = [
            await stack.enter_async_context(party(process, name)) for name in ("trainer", "worker", "validator")
        ]
        await worker.join(Role.WORKER)
        await validator.join(Role.VALIDATOR)
        published = await publish(trainer, 0)
        beacon = await until_beacon(worker)
        lease = await worker.lease()
        data, entry = worker.answer(lease, beacon=beacon, root=published.root, wanted=terms())

        with pytest.raises(CallRefused, match="file"):
            await worker.write(entry)  # nothing is there yet
        place = await ask(worker, data, lease.lease)
        assert not place.stored
        assert place.url.startswith(f"{endpoint}/rollouts/devnet/")
        assert "x-amz-checksum-sha256" in place.url
        await put(place.url, data[:-1] + b"?")  # this service checks neither signatures nor checksums
        place = await ask(worker, data, lease.lease)
        assert not place.stored, "the coordinator reads what the bucket holds"
        await put(place.url, data[:-1] + b"?")
        with pytest.raises(CallRefused, match="digest"):
            await worker.write(entry)  # of the right size, and another file
        await put((await ask(worker, data + b"!", lease.lease)).url, b"of no use")
        await put(place.url, data)
        assert await ask(worker, data, lease.lease) == UploadReply(stored=True, url="")
        logged = await worker.write(entry)
        assert await worker.write(entry) == logged

        ((judge, task),) = await until_drawn([validator], compute_receipt_id(entry.receipt))
        assert sha256(await get(process, task.file_digest)).digest() == task.file_digest
        await judge.judge(task, Outcome.ACCEPT)
    assert await process.stop() == 0
