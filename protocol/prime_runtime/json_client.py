"""Reads a coordinator's public JSON, /api/v1. Nothing in it is signed: it is for people, and for a first acquaintance.

Text in an answer is made fit for a terminal here, once: a coordinator may be anybody.
"""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from yarl import URL

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.json_text import Json, parse_json
from prime_runtime.http_client import trust_authority
from prime_runtime.http_errors import Unreachable, explain_transport
from prime_runtime.redaction import cut, escape

ROOT = "/api/v1"
ANSWER_BYTES_MAX = 2**20
TEXT_CHARS_MAX = 2_000
DEADLINE_MS = 10_000
CONNECT_MS = 5_000


class NotKnown(LocalError):
    """The coordinator answers that there is no such thing."""


class JsonClient:
    """Questions to one coordinator."""

    def __init__(self, session: aiohttp.ClientSession, url: str, tls: ssl.SSLContext | bool) -> None:
        self._session = session
        self._url = url.rstrip("/")
        self._tls = tls

    async def get(self, path: str, **query: str) -> Any:
        """The answer; NotKnown, Unreachable, or LocalError where it is no coordinator that answers."""
        try:
            async with self._session.get(
                URL(self._url + ROOT + path).with_query(query), allow_redirects=False, ssl=self._tls
            ) as response:
                raw = await self._read(response)
                status, kind = response.status, response.content_type
        except (aiohttp.ClientError, OSError) as error:
            raise explain_transport(self._url, error, is_idempotent=True).error from None
        if kind != "application/json":
            raise LocalError(f"{self._url} answers, but not as a coordinator does (HTTP {status}); is the URL right?")
        return self._judge(path, status, raw)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        raw = bytearray()
        async for chunk in response.content.iter_any():
            raw += chunk
            if len(raw) > ANSWER_BYTES_MAX:
                raise LocalError(f"{self._url} answers more than {ANSWER_BYTES_MAX} bytes; is the URL right?")
        return bytes(raw)

    def _judge(self, path: str, status: int, raw: bytes) -> Any:
        try:
            answer = clean(parse_json(path, raw))
        except RemoteError as error:
            raise LocalError(f"{self._url} answers {error}; is the URL right?") from None
        if status == 200:
            return answer
        problem = f"HTTP {status}"
        match answer:
            case {"error": {"problem": str(text)}}:
                problem = text
        if status == 404:
            raise NotKnown(problem)
        raise Unreachable(f"{self._url} does not answer just now: {problem}")


def clean(value: Json) -> Json:
    """The same with all text printable and bounded."""
    if isinstance(value, str):
        return cut(escape(value), TEXT_CHARS_MAX)
    if isinstance(value, list):
        return [clean(each) for each in value]
    if isinstance(value, dict):
        return {cut(escape(name), TEXT_CHARS_MAX): clean(each) for name, each in value.items()}
    return value


@asynccontextmanager
async def open_json_client(url: str, authority: Path | None = None) -> AsyncIterator[JsonClient]:
    """With a session of its own, closed at the end."""
    timeout = aiohttp.ClientTimeout(total=DEADLINE_MS / 1000, connect=CONNECT_MS / 1000)
    async with aiohttp.ClientSession(
        timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False, auto_decompress=False
    ) as session:
        yield JsonClient(session, url, trust_authority(authority) if authority else True)
