"""The object store: a local folder or an S3 bucket behind one interface, chosen by a URL.

Here live the interface, the rule for keys, and the check of size and digest while bytes stream in. The two stores are
in objects_folder.py and objects_s3.py. What is stored under which key is decided elsewhere.
"""

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
PRESIGN_S_MAX = 7 * 24 * 3600
"""The longest life S3 allows a presigned URL."""


class ObjectMissing(LocalError):
    """There is no object under this key."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as it was written."""

    key: str
    size_bytes: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object as a listing shows it."""

    key: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class S3Config:
    """The section for a bucket. What is not given here is taken from where AWS tools look."""

    endpoint: str | None = None
    """Address of the S3 service, for others than AWS: https://s3.example.org"""
    region: str | None = None
    """Region of the bucket."""
    access_key_id: str | None = None
    """Name of the access key."""
    secret_access_key: Secret | None = None
    """The access key itself."""
    allow_http: bool = False
    """Talk to the endpoint without TLS. For a test service on this machine."""


class ObjectStore(Protocol):
    """What both stores do. Keys that are not well formed raise RemoteError, whoever made them."""

    async def put(
        self,
        key: str,
        data: bytes | AsyncIterable[bytes],
        *,
        bytes_max: int,
        size_bytes: int | None = None,
        digest: Digest | None = None,
    ) -> StoredObject:
        """Write whole or not at all. RemoteError when the data is too long, or not of the expected size or digest."""
        ...

    async def get(self, key: str, *, bytes_max: int) -> bytes: ...

    async def get_range(self, key: str, *, start: int, length: int) -> bytes:
        """Exactly `length` bytes, or RemoteError when the object ends before."""
        ...

    def stream(self, key: str, *, bytes_max: int) -> AsyncIterator[bytes]: ...

    async def size(self, key: str) -> int:
        """Bytes of an object, without reading it."""
        ...

    async def exists(self, key: str) -> bool: ...

    async def delete(self, key: str) -> None:
        """Remove it; an object that is not there is no error."""
        ...

    def list(self, prefix: str = "") -> AsyncIterator[ListedObject]:
        """Objects under a folder-like prefix (`a/b`, without the last slash), in no given order."""
        ...

    async def presign_put(self, key: str, *, expires_s: int) -> str | None:
        """A URL to which anyone can PUT until it expires; None when the store has none (a folder).

        It binds neither size nor digest: check the object with `verify_object` before it counts.
        """
        ...

    async def presign_get(self, key: str, *, expires_s: int) -> str | None: ...

    def local_path(self, key: str) -> Path | None:
        """The file behind an object, for sendfile; None when the store has no files."""
        ...


def open_object_store(url: str, s3: S3Config | None = None) -> ObjectStore:
    """A store from `s3://bucket/prefix`, `file:///folder` or a plain path."""
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


def content_key(prefix: str, digest: Digest) -> str:
    """The key of an object that is named by its own digest; two hex digits of folder keep folders small."""
    text = digest.hex()
    return check_key(f"{prefix}/{text[:2]}/{text}")


def check_expiry(expires_s: int) -> None:
    assert 1 <= expires_s <= PRESIGN_S_MAX, f"a presigned URL lives 1 to {PRESIGN_S_MAX} s, not {expires_s}"


class StreamVerifier:
    """Counts and hashes a stream, and refuses it the moment it is too long."""

    def __init__(self, key: str, *, bytes_max: int, size_bytes: int | None, digest: Digest | None) -> None:
        self._key = check_key(key)
        self._limit = min(bytes_max, size_bytes) if size_bytes is not None else bytes_max
        if size_bytes is not None and size_bytes > bytes_max:
            raise RemoteError(f"object {key}", f"is announced with {size_bytes} bytes, the limit is {bytes_max}")
        self._expected = (size_bytes, digest)
        self._hash = sha256()
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > self._limit:
            raise RemoteError(f"object {self._key}", f"is longer than {self._limit} bytes")
        self._hash.update(chunk)

    def finish(self) -> StoredObject:
        """Compare with what was announced."""
        size_bytes, expected = self._expected
        digest = Digest(self._hash.digest())
        if size_bytes is not None and self._size != size_bytes:
            raise RemoteError(f"object {self._key}", f"is {self._size} bytes, announced were {size_bytes}")
        if expected is not None and digest != expected:
            raise RemoteError(f"object {self._key}", f"has digest {digest}, expected {expected}")
        return StoredObject(self._key, self._size, digest)


async def verify_object(
    store: ObjectStore, key: str, *, bytes_max: int, size_bytes: int | None = None, digest: Digest | None = None
) -> StoredObject:
    """Read a stored object through and compare it: what an upload by presigned URL needs before it counts."""
    meter = StreamVerifier(key, bytes_max=bytes_max, size_bytes=size_bytes, digest=digest)
    async for chunk in store.stream(key, bytes_max=bytes_max):
        meter.feed(chunk)
    return meter.finish()


def check_size(key: str, size_bytes: int, bytes_max: int) -> None:
    if size_bytes > bytes_max:
        raise RemoteError(f"object {key}", f"is {size_bytes} bytes, the limit is {bytes_max}")


def make_short_error(key: str, start: int, length: int) -> RemoteError:
    return RemoteError(f"object {key}", f"ends before byte {start + length}")
