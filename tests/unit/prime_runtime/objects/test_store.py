"""The object store: the same claims for a folder and for a bucket on a real S3-compatible server on loopback."""

import asyncio
import errno
import os
import resource
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from unittest.mock import AsyncMock
from urllib.parse import parse_qsl

import aiohttp
import botocore.auth
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.server import ThreadedMotoServer

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import Digest
from prime_runtime.objects.folder import LEFTOVER_S
from prime_runtime.objects.s3 import BucketStore
from prime_runtime.objects.store import (
    ObjectMissing,
    ObjectStore,
    S3Config,
    check_key,
    content_key,
    make_checksum_header,
    open_object_store,
    verify_object,
)
from prime_runtime.redaction import Secret

DATA = bytes(range(256)) * 40
DIGEST = Digest(sha256(DATA).digest())
BIG = 2**30
DOTTED = [".", "..", "../a", "a/../b", "a/./b", ".tmp/x", "a/.b", "%2e%2e/a"]
BAD_KEYS = [
    *DOTTED,
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    "A",
    "a\\b",
    "a\0",
    "a\n",
    "ä",
    "a b",
    "~",
    "c:",
    "a" * 129,
    "a/" * 256,
]


@pytest.fixture(scope="module")
def s3_endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def s3_config(endpoint: str) -> S3Config:
    return S3Config(
        endpoint=endpoint,
        region="us-east-1",
        access_key_id="id",
        secret_access_key=Secret("not a secret"),
        allow_http=True,
    )


@pytest.fixture(params=["folder", "s3"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "folder":
        return open_object_store(f"file://{tmp_path}/a%20b")
    endpoint = request.getfixturevalue("s3_endpoint")
    bucket = f"bucket-{sha256(bytes(tmp_path)).hexdigest()[:20]}"
    async with aiohttp.ClientSession() as session, session.put(f"{endpoint}/{bucket}") as made:
        assert made.status == 200
    return open_object_store(f"s3://{bucket}/deep/er", s3_config(endpoint))


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return sorted([item.key async for item in store.list(prefix)])


async def test_what_is_put_is_what_is_got(store: ObjectStore) -> None:
    stored = await store.put("a/b.bin", DATA, bytes_max=BIG, size_bytes=len(DATA), digest=DIGEST)
    assert (stored.key, stored.size_bytes, stored.digest) == ("a/b.bin", len(DATA), DIGEST)
    assert await store.get("a/b.bin", bytes_max=len(DATA)) == DATA
    assert await store.size("a/b.bin") == len(DATA)
    assert await store.exists("a/b.bin")


async def test_a_stream_is_stored_as_the_same_bytes(store: ObjectStore) -> None:
    parts = [os.urandom(700_000) for _ in range(18)]
    whole = b"".join(parts)
    stored = await store.put("s", chunks(*parts), bytes_max=BIG, digest=Digest(sha256(whole).digest()))
    assert stored.size_bytes == len(whole)
    assert b"".join([chunk async for chunk in store.stream("s", bytes_max=BIG)]) == whole


async def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    await store.put("empty", b"", bytes_max=0)
    await store.put("empty-stream", chunks(), bytes_max=0)
    assert await store.get("empty", bytes_max=0) == b""
    assert await store.get("empty-stream", bytes_max=0) == b""


async def test_a_second_put_replaces_the_first(store: ObjectStore) -> None:
    await store.put("k", b"one", bytes_max=9)
    await store.put("k", b"second", bytes_max=9)
    assert await store.get("k", bytes_max=9) == b"second"


@pytest.mark.parametrize("streamed", [False, True])
async def test_data_that_is_not_as_announced_leaves_nothing_behind(store: ObjectStore, streamed: bool) -> None:
    def data() -> bytes | AsyncIterator[bytes]:
        return chunks(DATA[:100], DATA[100:]) if streamed else DATA

    size = len(DATA)
    with pytest.raises(RemoteError, match="longer than 99 bytes"):
        await store.put("k", data(), bytes_max=99)
    with pytest.raises(RemoteError, match=f"is {size} bytes, announced as {size + 1}"):
        await store.put("k", data(), bytes_max=BIG, size_bytes=size + 1)
    with pytest.raises(RemoteError, match="is longer than 5 bytes"):
        await store.put("k", data(), bytes_max=BIG, size_bytes=5)
    with pytest.raises(RemoteError, match="is announced as 11 bytes, the limit is 10"):
        await store.put("k", data(), bytes_max=10, size_bytes=11)
    with pytest.raises(RemoteError, match="has digest"):
        await store.put("k", data(), bytes_max=BIG, digest=Digest(bytes(32)))
    assert await keys(store) == []


async def test_a_sender_that_breaks_off_leaves_nothing_behind(store: ObjectStore) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield os.urandom(9_000_000)
        raise ConnectionResetError("the peer is gone")

    with pytest.raises(ConnectionResetError, match="the peer is gone"):
        await store.put("k", broken(), bytes_max=BIG)
    assert await keys(store) == []


async def test_a_missing_object_is_told_apart_from_trouble(store: ObjectStore) -> None:
    assert not await store.exists("no")
    await store.delete("no")
    await store.delete("no/deeper")
    for read in (store.get("no", bytes_max=1), store.size("no")):
        with pytest.raises(ObjectMissing):
            await read


async def test_a_deleted_object_is_gone(store: ObjectStore) -> None:
    await store.put("k", b"x", bytes_max=9)
    await store.delete("k")
    assert not await store.exists("k")


async def test_listing_follows_the_prefix_by_whole_parts(store: ObjectStore) -> None:
    for key in ["a/1", "a/b/2", "ab/3", "c"]:
        await store.put(key, b"x", bytes_max=9)
    assert await keys(store) == ["a/1", "a/b/2", "ab/3", "c"]
    assert await keys(store, "a") == ["a/1", "a/b/2"]
    assert await keys(store, "zzz") == []


async def test_reading_is_bounded(store: ObjectStore) -> None:
    await store.put("k", DATA, bytes_max=BIG)
    with pytest.raises(RemoteError, match=f"is {len(DATA)} bytes, the limit is 10"):
        await store.get("k", bytes_max=10)


async def test_a_stored_object_can_be_verified(store: ObjectStore) -> None:
    key = content_key("rollouts", DIGEST)
    await store.put(key, DATA, bytes_max=BIG, digest=DIGEST)
    assert (await verify_object(store, key, bytes_max=BIG, digest=DIGEST)).size_bytes == len(DATA)
    with pytest.raises(RemoteError, match="has digest"):
        await verify_object(store, key, bytes_max=BIG, digest=Digest(bytes(32)))


@pytest.mark.parametrize(
    "key",
    BAD_KEYS,
)
async def test_no_key_leaves_the_store(store: ObjectStore, key: str) -> None:
    with pytest.raises(RemoteError, match="key"):
        await store.put(key, b"x", bytes_max=9)
    for read in (store.get(key, bytes_max=9), store.size(key), store.exists(key), store.delete(key)):
        with pytest.raises(RemoteError, match="key"):
            await read
    for signing in (store.presign_put(key, digest=DIGEST, expires_s=60), store.presign_get(key, expires_s=60)):
        with pytest.raises(RemoteError, match="key"):
            await signing
    with pytest.raises(RemoteError, match="key"):
        store.local_path(key)
    if key:
        with pytest.raises(RemoteError, match="key"):
            await keys(store, key)


def test_the_names_of_tiles_and_shards_are_keys() -> None:
    for key in ["tile/0/x001/067.p/8", "checkpoint", "model-00001-of-00002.safetensors", "_internal/x-"]:
        assert check_key(key) == key


async def test_a_presigned_url_takes_an_upload_and_gives_it_back(s3_endpoint: str, tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as session:
        await session.put(f"{s3_endpoint}/direct")
        store = open_object_store("s3://direct", s3_config(s3_endpoint))
        put_url = await store.presign_put("up/x", digest=DIGEST, expires_s=60)
        get_url = await store.presign_get("up/x", expires_s=60)
        assert put_url is not None
        assert get_url is not None
        assert "X-Amz-Expires=60" in put_url
        assert "not a secret" not in put_url
        async with session.put(put_url, data=DATA, headers=make_checksum_header(DIGEST)) as response:
            assert response.status == 200
        await verify_object(store, "up/x", bytes_max=BIG, size_bytes=len(DATA), digest=DIGEST)
        async with session.get(get_url) as response:
            assert await response.read() == DATA
    assert store.local_path("up/x") is None
    folder = open_object_store(str(tmp_path / "f"))
    assert await folder.presign_put("up/x", digest=DIGEST, expires_s=60) is None
    assert await folder.presign_get("up/x", expires_s=60) is None
    with pytest.raises(AssertionError, match="lives 1 to"):
        await folder.presign_put("up/x", digest=DIGEST, expires_s=10**9)


@pytest.mark.parametrize("endpoint", [None, "http://127.0.0.1:9000", "https://s3.example.org"])
async def test_the_signature_of_a_presigned_upload_covers_the_checksum(
    endpoint: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(s3_config("http://127.0.0.1"), endpoint=endpoint)
    url = await open_object_store("s3://bucket/deep", config).presign_put("up/x", digest=DIGEST, expires_s=60)
    assert url is not None
    bare, _, query = url.partition("?")
    signed_at = datetime.strptime(dict(parse_qsl(query))["X-Amz-Date"], "%Y%m%dT%H%M%SZ")
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda *args: signed_at)
    oracle = AWSRequest("PUT", bare, headers=make_checksum_header(DIGEST))
    botocore.auth.S3SigV4QueryAuth(Credentials("id", "not a secret"), "s3", "us-east-1", 60).add_auth(oracle)
    assert dict(parse_qsl(query)) == dict(parse_qsl(oracle.url.partition("?")[2]))
    other = await open_object_store("s3://bucket/deep", config).presign_put(
        "up/x", digest=Digest(bytes(32)), expires_s=60
    )
    assert other != url


async def test_without_a_secret_key_of_its_own_a_bucket_presigns_no_upload() -> None:
    store = open_object_store("s3://bucket", S3Config(region="us-east-1"))
    assert isinstance(store, BucketStore)
    store._presign = AsyncMock(return_value="https://signed.example.org")  # type: ignore[method-assign]
    assert await store.presign_put("up/x", digest=DIGEST, expires_s=60) is None


async def test_a_wrong_bucket_or_endpoint_is_explained(s3_endpoint: str) -> None:
    store = open_object_store("s3://no-such-bucket", s3_config(s3_endpoint))
    with pytest.raises(LocalError, match="the bucket does not exist"):
        await store.put("k", b"x", bytes_max=9)
    with pytest.raises(LocalError, match="the bucket does not exist"):
        await store.get("k", bytes_max=9)
    with pytest.raises(LocalError, match="cannot list s3://no-such-bucket"):
        await keys(store)
    with pytest.raises(LocalError, match=r"settings for s3://b do not fit: .* Missing SecretAccessKey"):
        open_object_store("s3://b", S3Config(access_key_id="a"))


async def test_a_service_that_forbids_or_is_down_is_explained() -> None:
    async def forbid(request: web.BaseRequest) -> web.Response:
        return web.Response(status=403, text="<Error><Code>AccessDenied</Code></Error>")

    async with RawTestServer(forbid) as server:
        store = open_object_store("s3://bucket", s3_config(f"http://127.0.0.1:{server.port}"))
        with pytest.raises(LocalError, match="check the access key"):
            await store.put("k", b"x", bytes_max=9)
    with pytest.raises(LocalError, match="cannot write s3://bucket/k: Generic S3 error") as caught:
        await store.put("k", b"x", bytes_max=9)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["s3://", "s3://user:pass@bucket", "s3://bucket?x=1", "gs://bucket", "file://host/x", "file://"]
)
def test_a_url_that_cannot_be_a_store_is_refused(url: str) -> None:
    with pytest.raises(LocalError, match=r"store URL"):
        open_object_store(url)


async def test_a_folder_survives_being_opened_again(tmp_path: Path) -> None:
    await open_object_store(str(tmp_path)).put("k", b"x", bytes_max=9)
    again = open_object_store(f"file://localhost{tmp_path}")
    assert await again.get("k", bytes_max=9) == b"x"
    path = again.local_path("k")
    assert path is not None
    assert path.read_bytes() == b"x"


async def test_what_a_crash_left_is_cleared_and_never_listed(tmp_path: Path) -> None:
    store = open_object_store(str(tmp_path))
    old, young = tmp_path / ".tmp" / "old", tmp_path / ".tmp" / "young"
    old.write_bytes(b"x")
    young.write_bytes(b"x")
    os.utime(old, (0, old.stat().st_mtime - LEFTOVER_S - 60))
    (tmp_path / ".hidden").write_bytes(b"x")
    open_object_store(str(tmp_path))
    assert not old.exists()
    assert young.exists()
    assert await keys(store) == []


async def test_a_full_disk_is_explained_and_leaves_nothing_behind(tmp_path: Path) -> None:
    store = open_object_store(str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(LocalError, match="larger than this file system or a ulimit allows"):
            await store.put("k", chunks(DATA, DATA), bytes_max=BIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert await keys(store) == []
    assert list((tmp_path / ".tmp").iterdir()) == []


def test_a_folder_that_cannot_be_used_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(LocalError, match="a part of the path is a file"):
        open_object_store(str(tmp_path / "file" / "store"))
    with pytest.raises(LocalError, match=r"cannot use /proc/prime-store: "):
        open_object_store("/proc/prime-store")


async def test_an_object_below_an_object_is_explained(tmp_path: Path) -> None:
    store = open_object_store(str(tmp_path))
    await store.put("a", b"x", bytes_max=9)
    with pytest.raises(LocalError, match="cannot write"):
        await store.put("a/b", b"x", bytes_max=9)
    await store.put("d/e", b"x", bytes_max=9)
    with pytest.raises(LocalError, match="there is a folder of that name"):
        await store.put("d", b"x", bytes_max=9)
    with pytest.raises(ObjectMissing):
        await store.get("d", bytes_max=9)


def test_every_disk_error_says_what_to_do() -> None:
    from prime_runtime.objects.folder import _explained

    for number, words in [(errno.ENOSPC, "free some space"), (errno.EROFS, "read-only"), (errno.EIO, "output error")]:
        with pytest.raises(LocalError, match=words), _explained("write", Path("x")):
            raise OSError(number, os.strerror(number))


async def test_a_cancelled_put_waits_for_its_thread_and_cleans_up(tmp_path: Path) -> None:
    store = open_object_store(str(tmp_path))
    waiting = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"x" * 2**20
        waiting.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(store.put("k", endless(), bytes_max=BIG))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert list((tmp_path / ".tmp").iterdir()) == []


async def test_readers_see_the_old_or_the_new_object_and_nothing_between(tmp_path: Path) -> None:
    store = open_object_store(str(tmp_path))
    old, new = b"a" * 3_000_000, b"b" * 3_000_000
    await store.put("k", old, bytes_max=BIG)
    write = asyncio.create_task(store.put("k", chunks(new[:1_500_000], new[1_500_000:]), bytes_max=BIG))
    seen = set()
    while not write.done():
        seen.add(await store.get("k", bytes_max=BIG))
    seen.add(await store.get("k", bytes_max=BIG))
    assert seen <= {old, new}
    assert new in seen
