"""The object store in an S3 bucket. The library obstore does retries, multipart uploads and signatures.

Only the checksum in presigned uploads is signed here: obstore cannot sign extra headers.
"""

import hmac
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import Digest
from prime_runtime.objects.store import (
    ListedObject,
    ObjectMissing,
    ObjectStore,
    S3Config,
    StoredObject,
    StreamVerifier,
    check_expiry,
    check_key,
    check_size,
    make_checksum_header,
)
from prime_runtime.redaction import Secret

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig


PART_BYTES = 8 * 2**20
"""S3 accepts at most 10,000 parts, so an object can have 80 GB."""
PARTS_AT_ONCE = 4
"""With PART_BYTES this bounds the memory of an upload to about 32 MiB."""
READ_BYTES = 2**20
CLIENT_TIMEOUTS: "ClientConfig" = {"timeout": timedelta(minutes=10), "connect_timeout": timedelta(seconds=10)}
"""The timeout covers a whole request: a part of 8 MiB over a home connection, or the download of a large object."""
RETRIES: "RetryConfig" = {"max_retries": 3, "retry_timeout": timedelta(seconds=60)}
"""The library's default of three minutes of retries would look like a hang."""


class BucketStore(ObjectStore):
    """Objects in one bucket under one prefix."""

    def __init__(self, store: S3Store, name: str, secret: Secret | None) -> None:
        self._store = store
        self._name = name
        self._secret = secret

    @classmethod
    def open(cls, url: str, config: S3Config) -> Self:
        """Send nothing yet: a wrong bucket or key shows on first use."""
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
        return cls(store, f"s3://{parts.netloc}/{prefix}", config.secret_access_key)

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
        verifier = StreamVerifier(key, bytes_max=bytes_max, size_bytes=size_bytes, digest=digest)
        with self._explained("write", key, reads=False):
            if isinstance(data, bytes):
                verifier.feed(data)
                stored = verifier.finish()
                await obstore.put_async(self._store, key, data)
                return stored
            verified = _VerifiedStream(data, verifier)
            await obstore.put_async(
                self._store, key, verified.chunks(), chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
            )
            assert verified.stored is not None, "the upload ended before its data did"
            return verified.stored

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

    async def presign_put(self, key: str, *, digest: Digest, expires_s: int) -> str | None:
        """None without a secret key of our own: a URL that does not bind the content is never handed out."""
        url = await self._presign("PUT", key, expires_s)
        return bind_checksum(url, digest, self._secret) if self._secret else None

    async def presign_get(self, key: str, *, expires_s: int) -> str | None:
        return await self._presign("GET", key, expires_s)

    async def _presign(self, method: Literal["PUT", "GET"], key: str, expires_s: int) -> str:
        check_key(key)
        check_expiry(expires_s)
        with self._explained("sign for", key):
            return await obstore.sign_async(self._store, method, key, timedelta(seconds=expires_s))

    @contextmanager
    def _explained(self, verb: str, key: str, *, reads: bool = True) -> Iterator[None]:
        """Turn an error of the service into a LocalError that says what to do."""
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
    """Verifies a stream as it passes. The check precedes the end of the stream, so a bad upload never completes."""

    def __init__(self, data: AsyncIterable[bytes], verifier: StreamVerifier) -> None:
        self._data = data
        self._verifier = verifier
        self.stored: StoredObject | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._data:
            self._verifier.feed(chunk)
            yield chunk
        self.stored = self._verifier.finish()


def bind_checksum(url: str, digest: Digest, secret: Secret) -> str:
    """Sign a presigned PUT URL again so that it requires the header with this SHA-256 (AWS Signature Version 4).

    Host, path and credential scope come from obstore's URL; only the signed headers and the signature change.
    """
    parts, (header,) = urlsplit(url), make_checksum_header(digest).items()
    query = {name: value for name, value in parse_qsl(parts.query) if name != "X-Amz-Signature"}
    signed_headers = query["X-Amz-SignedHeaders"] = f"host;{header[0]}"
    canonical_query = urlencode(sorted(query.items()), quote_via=quote, safe="-_.~")
    headers = [f"host:{parts.netloc}", ":".join(header), "", signed_headers]
    request = "\n".join(["PUT", parts.path, canonical_query, *headers, "UNSIGNED-PAYLOAD"])
    scope = query["X-Amz-Credential"].partition("/")[2]
    request_hash = sha256(request.encode()).hexdigest()
    message = "\n".join(["AWS4-HMAC-SHA256", query["X-Amz-Date"], scope, request_hash])
    key = b"AWS4" + secret.reveal().encode()
    for part in (*scope.split("/"), message):
        key = hmac.digest(key, part.encode(), "sha256")
    return urlunsplit(parts._replace(query=f"{canonical_query}&X-Amz-Signature={key.hex()}"))


def _first_line(error: BaseException) -> str:
    """The library's error texts carry a debug dump after the first line."""
    return str(error).splitlines()[0][:300]
