"""A coordinator's public JSON API (/api/v1), and the transfer of files to and from it.

Nothing in the JSON is signed: it is for people, and for a node that has not joined yet. A coordinator is untrusted, so
all text in an answer is escaped and truncated here, once. Files are content-addressed and verified by digest.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import Digest, RunId
from prime_protocol.wire.messages import UPLOAD, UploadRequest
from prime_protocol.wire.strict_json import Json, parse_json
from prime_runtime.http.client import (
    HttpClient,
    Unreachable,
    UploadBody,
    explain_transport_error,
    load_tls_authority,
    open_session,
    read_response,
)
from prime_runtime.http.config import ServerAddress
from prime_runtime.redaction import escape, truncate

API_ROOT = "/api/v1"
ANSWER_BYTES_MAX = 2**20
TEXT_CHARS_MAX = 2_000
DEADLINE_MS = 10_000
CONNECT_MS = 5_000
INDEX_WAIT_S = 30.0
INDEX_POLL_S = 0.2
"""How long to wait for the index of the pages, which follows the signed heads by a second or two."""


class NotFound(LocalError):
    """The coordinator has no such resource."""


class NotReady(Unreachable):
    """The coordinator is there and has no answer yet: its index is being built, or it is busy."""


class JsonClient:
    """Reads the public API of one coordinator."""

    def __init__(self, session: aiohttp.ClientSession, url: str, tls: ssl.SSLContext | bool) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._tls = tls

    async def get(self, path: str, **query: str) -> Any:
        """The answer; NotFound, Unreachable, or LocalError if the server is no coordinator."""
        try:
            async with self._session.get(
                URL(self._url + API_ROOT + path).with_query(query),
                headers={"Accept-Encoding": "identity"},
                allow_redirects=False,
                ssl=self._tls,
            ) as response:
                status, kind = response.status, response.content_type
                if kind != "application/json":
                    raise LocalError(f"{self._url} is no coordinator (HTTP {status}, {kind}); is the URL right?")
                answer = sanitize_json(parse_json(path, await read_response(response, path, ANSWER_BYTES_MAX)))
        except (aiohttp.ClientError, OSError) as error:
            raise explain_transport_error(self._url, error, is_idempotent=True).error from None
        except RemoteError as error:
            raise LocalError(f"{self._url} sends an invalid answer: {error}; is the URL right?") from None
        if status == 200:
            return answer
        problem = f"HTTP {status}"
        match answer:
            case {"error": {"problem": str(text)}}:
                problem = text
        if status == 404:
            raise NotFound(problem)
        if status == 400:
            raise LocalError(f"{self._url} refuses the request: {problem}")
        raise NotReady(f"{self._url} cannot answer now: {problem}")

    async def get_file(self, path: str, bytes_max: int) -> bytes | None:
        """A public file, not verified; None if there is none."""
        try:
            async with self._session.get(URL(self._url + path), allow_redirects=False, ssl=self._tls) as response:
                return await read_response(response, path, bytes_max) if response.status == 200 else None
        except (aiohttp.ClientError, OSError) as error:
            raise explain_transport_error(self._url, error, is_idempotent=True).error from None

    async def wait_for_index(self) -> None:
        """Wait until the pages show everything that is in the log now, for a limited time."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + INDEX_WAIT_S
        size = (await self.get("/status"))["entries"]
        while True:
            try:
                if (await self.get("/about"))["size"] >= size or loop.time() >= give_up_s:
                    return
            except NotReady:
                # The first index is built after a start.
                if loop.time() >= give_up_s:
                    raise
            await asyncio.sleep(INDEX_POLL_S)


def sanitize_json(value: Json) -> Json:
    """The same value with all text printable and bounded."""
    if isinstance(value, str):
        return truncate(escape(value), TEXT_CHARS_MAX)
    if isinstance(value, list):
        return [sanitize_json(each) for each in value]
    if isinstance(value, dict):
        return {truncate(escape(name), TEXT_CHARS_MAX): sanitize_json(each) for name, each in value.items()}
    return value


@asynccontextmanager
async def open_json_client(url: str, authority: Path | None = None) -> AsyncIterator[JsonClient]:
    """A client with its own session, closed at the end."""
    timeout = aiohttp.ClientTimeout(total=DEADLINE_MS / 1000, connect=CONNECT_MS / 1000)
    async with open_session(timeout=timeout) as session:
        yield JsonClient(session, url, load_tls_authority(authority) if authority else True)


FETCH_MS = 600_000
"""Time to download a file."""


async def fetch_file(client: HttpClient, server: ServerAddress, path: str, digest: Digest, *, bytes_max: int) -> bytes:
    """Download a file. NotFound: it does not exist. LocalError: it took too long. RemoteError: the digest differs."""
    data = await client.get(server, path, bytes_max=bytes_max, deadline_ms=FETCH_MS, redirects_max=1)
    if data is None:
        raise NotFound(f"the coordinator has no {path}")
    if await asyncio.to_thread(lambda: sha256(data).digest()) != digest:
        raise RemoteError(path, "has another digest than its name says")
    return data


async def upload_file(
    client: HttpClient,
    server: ServerAddress,
    upload: UploadRequest,
    data: bytes,
    *,
    run: RunId,
    deadline_ms: int | None = None,
) -> None:
    """Upload a file unless the coordinator has it. A large file over a slow connection needs a `deadline_ms`."""
    assert len(data) == upload.size_bytes, "the upload describes another file"
    reply = (await client.call(server, UPLOAD, upload, run=run)).message
    if reply.stored:
        return
    if reply.url:
        await client.put_presigned(reply.url, data, upload.digest, deadline_ms)
    else:
        file = UploadBody(f"/objects/{upload.digest}", data)
        await client.call(server, UPLOAD, upload, run=run, deadline_ms=deadline_ms, file=file)
