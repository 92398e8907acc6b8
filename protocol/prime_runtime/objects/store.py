"""The interface of an object store, the rule for keys, and the check of size and digest while bytes stream.

The two implementations are in folder.py and s3.py. Callers decide which object belongs under which key.
"""

import base64
import re
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import Digest
from prime_runtime.redaction import Secret

KEY_CHARS_MAX = 512
PART = r"[a-z0-9_-][a-z0-9._-]{0,127}"
"""Lower case, so that no file system folds two keys into one; no leading dot, so neither `..` nor a hidden file."""
KEY = re.compile(rf"{PART}(?:/{PART})*")
CHECKSUM_HEADER = "x-amz-checksum-sha256"
PRESIGN_S_MAX = 7 * 24 * 3600
"""S3 accepts no longer expiry."""


class ObjectMissing(LocalError):
    """The store has no object under this key."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object that was written or verified."""

    key: str
    size_bytes: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object in a listing."""

    key: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class S3Config:
    """The section [s3]: how to reach a bucket. The client library fills what is missing from the AWS environment.

    Without `secret_access_key` uploads are not presigned; they pass through the coordinator instead.
    """

    endpoint: str | None = None
    """URL of an S3 service other than AWS, for example https://s3.example.org."""
    region: str | None = None
    """Region of the bucket."""
    access_key_id: str | None = None
    """Name of the access key."""
    secret_access_key: Secret | None = None
    """The secret part of the access key."""
    allow_http: bool = False
    """Use plain HTTP. Only for a test service on this machine."""


class ObjectStore(Protocol):
    """What both stores do. A malformed key raises RemoteError."""

    async def put(
        self,
        key: str,
        data: bytes | AsyncIterable[bytes],
        *,
        bytes_max: int,
        size_bytes: int | None = None,
        digest: Digest | None = None,
    ) -> StoredObject:
        """Write all of it or nothing. RemoteError: the data is too long, or not of the expected size or digest."""
        ...

    async def get(self, key: str, *, bytes_max: int) -> bytes:
        return b"".join([chunk async for chunk in self.stream(key, bytes_max=bytes_max)])

    def stream(self, key: str, *, bytes_max: int) -> AsyncIterator[bytes]: ...

    async def size(self, key: str) -> int:
        """Bytes of an object, without reading it."""
        ...

    async def exists(self, key: str) -> bool: ...

    async def delete(self, key: str) -> None:
        """Remove an object. A missing object is no error."""
        ...

    def list(self, prefix: str = "") -> AsyncIterator[ListedObject]:
        """Objects under a folder-like prefix (`a/b`, without the last slash), in no particular order."""
        ...

    async def presign_put(self, key: str, *, digest: Digest, expires_s: int) -> str | None:
        """A URL that accepts one PUT body, the one with this SHA-256; None if the store cannot presign.

        The signature covers the header CHECKSUM_HEADER, so the holder of the URL cannot store other bytes. A service
        that ignores the header stores whatever it is sent: call `verify_object` before the object counts, and never
        presign a key that exists.
        """
        ...

    async def presign_get(self, key: str, *, expires_s: int) -> str | None: ...

    def local_path(self, key: str) -> Path | None:
        """The file behind an object, for sendfile; None if the store has no files."""
        ...


def open_object_store(url: str, s3: S3Config | None = None) -> ObjectStore:
    """Open `s3://bucket/prefix`, `file:///folder` or a plain path."""
    scheme, separator, _ = url.partition("://")
    if separator and scheme == "s3":
        from prime_runtime.objects.s3 import BucketStore

        return BucketStore.open(url, s3 or S3Config())
    if separator and scheme != "file":
        raise LocalError(
            f"the store URL {url!r} begins with {scheme}://; use s3://bucket/prefix, file:///folder or a path"
        )
    from prime_runtime.objects.folder import FolderStore

    if not separator:
        return FolderStore.open(Path(url))
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise LocalError(f"the store URL {url!r} names another machine; write file:///folder with three slashes")
    return FolderStore.open(Path(unquote(parts.path)))


def check_key(key: str) -> str:
    if len(key) > KEY_CHARS_MAX or not KEY.fullmatch(key):
        raise RemoteError(
            "key", f"must be up to {KEY_CHARS_MAX} of a-z 0-9 . _ - and inner /, no part with a leading dot"
        )
    return key


def make_checksum_header(digest: Digest) -> dict[str, str]:
    """The header that a presigned PUT must carry."""
    return {CHECKSUM_HEADER: base64.b64encode(digest).decode()}


def content_key(prefix: str, digest: Digest) -> str:
    """The key of a content-addressed object. The level of two hex digits keeps folders small."""
    text = digest.hex()
    return check_key(f"{prefix}/{text[:2]}/{text}")


def check_expiry(expires_s: int) -> None:
    assert 1 <= expires_s <= PRESIGN_S_MAX, f"a presigned URL lives 1 to {PRESIGN_S_MAX} s, not {expires_s}"


class StreamVerifier:
    """Counts and hashes a stream, and rejects it as soon as it is too long."""

    def __init__(self, key: str, *, bytes_max: int, size_bytes: int | None, digest: Digest | None) -> None:
        self._key = check_key(key)
        self._limit = min(bytes_max, size_bytes) if size_bytes is not None else bytes_max
        if size_bytes is not None and size_bytes > bytes_max:
            raise RemoteError(f"object {key}", f"is announced as {size_bytes} bytes, the limit is {bytes_max}")
        self._expected = (size_bytes, digest)
        self._hash = sha256()
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > self._limit:
            raise RemoteError(f"object {self._key}", f"is longer than {self._limit} bytes")
        self._hash.update(chunk)

    def finish(self) -> StoredObject:
        """Compare the whole stream with what was announced."""
        size_bytes, expected = self._expected
        digest = Digest(self._hash.digest())
        if size_bytes is not None and self._size != size_bytes:
            raise RemoteError(f"object {self._key}", f"is {self._size} bytes, announced as {size_bytes}")
        if expected is not None and digest != expected:
            raise RemoteError(f"object {self._key}", f"has digest {digest}, expected {expected}")
        return StoredObject(self._key, self._size, digest)


async def verify_object(
    store: ObjectStore, key: str, *, bytes_max: int, size_bytes: int | None = None, digest: Digest | None = None
) -> StoredObject:
    """Read a stored object and compare it. An object uploaded by a presigned URL counts only after this check."""
    verifier = StreamVerifier(key, bytes_max=bytes_max, size_bytes=size_bytes, digest=digest)
    async for chunk in store.stream(key, bytes_max=bytes_max):
        verifier.feed(chunk)
    return verifier.finish()


def check_size(key: str, size_bytes: int, bytes_max: int) -> None:
    if size_bytes > bytes_max:
        raise RemoteError(f"object {key}", f"is {size_bytes} bytes, the limit is {bytes_max}")
