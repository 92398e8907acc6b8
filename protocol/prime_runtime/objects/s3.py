"""The object store in an S3 bucket, through obstore. Retries, parts and signatures are the library's."""

from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import Digest
from prime_runtime.objects.store import (
    ListedObject,
    ObjectMissing,
    S3Config,
    StoredObject,
    StreamVerifier,
    check_expiry,
    check_key,
    check_size,
    make_short_error,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig


PART_BYTES = 8 * 2**20
"""S3 takes at most 10,000 parts, so one object reaches 80 GB."""
PARTS_AT_ONCE = 4
"""With PART_BYTES this bounds the memory of one upload to about 32 MiB."""
READ_BYTES = 2**20
CLIENT_TIMEOUTS: "ClientConfig" = {"timeout": timedelta(minutes=10), "connect_timeout": timedelta(seconds=10)}
"""The time is for a whole request: a part of 8 MiB must pass a home connection, a large object must be read through."""
RETRIES: "RetryConfig" = {"max_retries": 3, "retry_timeout": timedelta(seconds=60)}
"""The library's own three minutes of retries would look like a hang."""


class BucketStore:
    """Objects in one bucket under one prefix."""

    def __init__(self, store: S3Store, name: str) -> None:
        self._store = store
        self._name = name

    @classmethod
    def open(cls, url: str, config: S3Config) -> Self:
        """Nothing is sent yet; a wrong bucket or key shows on first use."""
        parts = urlsplit(url)
        prefix = parts.path.strip("/")
        if not parts.netloc or parts.netloc != parts.hostname or parts.query or parts.fragment:
            raise LocalError("write the store URL as s3://bucket/prefix; keys and endpoint belong in the settings")
        if prefix:
            check_key(prefix)
        options: dict[str, Any] = {
            "endpoint": config.endpoint,
            "region": config.region,
            "access_key_id": config.access_key_id,
            "secret_access_key": config.secret_access_key.reveal() if config.secret_access_key else None,
        }
        given = {name: value for name, value in options.items() if value is not None}
        try:
            store = S3Store(
                parts.netloc,
                prefix=prefix or None,
                client_options={"allow_http": config.allow_http, **CLIENT_TIMEOUTS},
                retry_config=RETRIES,
                **given,
            )
        except BaseError as error:
            raise LocalError(f"the settings for s3://{parts.netloc} do not fit: {_first_line(error)}") from None
        return cls(store, f"s3://{parts.netloc}/{prefix}")

    def local_path(self, key: str) -> Path | None:
        check_key(key)
        return None

    async def put(
        self,
        key: str,
        data: bytes | AsyncIterable[bytes],
        *,
        bytes_max: int,
        size_bytes: int | None = None,
        digest: Digest | None = None,
    ) -> StoredObject:
        meter = StreamVerifier(key, bytes_max=bytes_max, size_bytes=size_bytes, digest=digest)
        with self._explained("write", key, reads=False):
            if isinstance(data, bytes):
                meter.feed(data)
                stored = meter.finish()
                await obstore.put_async(self._store, key, data)
                return stored
            metered = _VerifiedStream(data, meter)
            await obstore.put_async(
                self._store, key, metered.chunks(), chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )
            assert metered.stored is not None, "the upload ended before its data did"
            return metered.stored

    async def get(self, key: str, *, bytes_max: int) -> bytes:
        return b"".join([chunk async for chunk in self.stream(key, bytes_max=bytes_max)])

    async def get_range(self, key: str, *, start: int, length: int) -> bytes:
        assert start >= 0
        assert length > 0
        # S3 answers a range past the end with an error of its own, so the size is asked first.
        if start + length > await self.size(key):
            raise make_short_error(key, start, length)
        with self._explained("read", key):
            data = bytes(await obstore.get_range_async(self._store, key, start=start, length=length))
        if len(data) != length:
            raise make_short_error(key, start, length)
        return data

    async def stream(self, key: str, *, bytes_max: int) -> AsyncIterator[bytes]:
        check_key(key)
        passed = 0
        with self._explained("read", key):
            result = await obstore.get_async(self._store, key)
        check_size(key, result.meta["size"], bytes_max)
        chunks = aiter(result.stream(min_chunk_size=READ_BYTES))
        while True:
            with self._explained("read", key):
                try:
                    chunk = bytes(await anext(chunks))
                except StopAsyncIteration:
                    return
            passed += len(chunk)
            check_size(key, passed, bytes_max)
            yield chunk

    async def size(self, key: str) -> int:
        check_key(key)
        with self._explained("read", key):
            return (await obstore.head_async(self._store, key))["size"]

    async def exists(self, key: str) -> bool:
        try:
            await self.size(key)
        except ObjectMissing:
            return False
        return True

    async def delete(self, key: str) -> None:
        check_key(key)
        try:
            with self._explained("delete", key):
                await obstore.delete_async(self._store, key)
        except ObjectMissing:
            return

    async def list(self, prefix: str = "") -> AsyncIterator[ListedObject]:
        batches = aiter(obstore.list(self._store, prefix=check_key(prefix) if prefix else None))
        while True:
            with self._explained("list", prefix):
                try:
                    batch = await anext(batches)
                except StopAsyncIteration:
                    return
            for item in batch:
                yield ListedObject(item["path"], item["size"])

    async def presign_put(self, key: str, *, expires_s: int) -> str | None:
        return await self._presign("PUT", key, expires_s)

    async def presign_get(self, key: str, *, expires_s: int) -> str | None:
        return await self._presign("GET", key, expires_s)

    async def _presign(self, method: Literal["PUT", "GET"], key: str, expires_s: int) -> str:
        check_key(key)
        check_expiry(expires_s)
        with self._explained("sign for", key):
            return await obstore.sign_async(self._store, method, key, timedelta(seconds=expires_s))

    @contextmanager
    def _explained(self, verb: str, key: str, *, reads: bool = True) -> Iterator[None]:
        """The service's error in words that say what to do."""
        place = f"{self._name.rstrip('/')}/{key}"
        try:
            yield
        except FileNotFoundError as error:
            if reads and "NoSuchBucket" not in str(error):
                raise ObjectMissing(f"there is no object {place}") from None
            raise LocalError(f"cannot {verb} {place}: the bucket does not exist; create it, or fix the URL") from None
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise LocalError(
                f"cannot {verb} {place}: check the access key and the rights: {_first_line(error)}"
            ) from None
        except BaseError as error:
            raise LocalError(f"cannot {verb} {place}: {_first_line(error)}") from None


class _VerifiedStream:
    """A stream that is checked as it passes. The check comes before its end, so a bad upload is never completed."""

    def __init__(self, data: AsyncIterable[bytes], meter: StreamVerifier) -> None:
        self._data = data
        self._meter = meter
        self.stored: StoredObject | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._data:
            self._meter.feed(chunk)
            yield chunk
        self.stored = self._meter.finish()


def _first_line(error: BaseException) -> str:
    """The library's texts carry a debug dump behind the first line."""
    return str(error).splitlines()[0][:300]
