"""Requests and responses of a server: the bounded body, the origin of a request, refusals, signed replies."""

import asyncio
import base64
import logging
import re
import secrets
from collections.abc import AsyncIterator, Collection

from aiohttp import HttpVersion11, web
from aiohttp.helpers import rfc822_formatted_time

from prime_protocol.errors import RemoteError
from prime_protocol.wire.rpc import RefusalCode
from prime_runtime.clock import Clock

log = logging.getLogger(__name__)

ENVELOPE_TYPE = "application/x-prime-envelope"
ENVELOPE_HEADER = "Prime-Envelope"
"""Carries the envelope in base64 if the body is a file."""
EXPIRED_HEADER = "Prime-Expired-At-Ms"
"""Of an answer 410: when the file was deleted."""
EXPIRY = re.compile("[0-9]{1,13}")
"""Milliseconds until the year 2286."""
REFUSAL_TYPE = "application/x-prime-refusal"


def parse_expiry(header: str) -> int | None:
    """The time in EXPIRED_HEADER; None if the server wrote none, or another text."""
    return int(header) if EXPIRY.fullmatch(header) else None


HTTP_STATUS = {
    RefusalCode.MALFORMED: 400,
    RefusalCode.UNAUTHENTIC: 401,
    RefusalCode.CLOCK: 401,
    RefusalCode.FORBIDDEN: 403,
    RefusalCode.UNKNOWN: 404,
    RefusalCode.SLOW: 408,
    RefusalCode.CONFLICT: 409,
    RefusalCode.REPLAYED: 409,
    RefusalCode.TOO_LARGE: 413,
    RefusalCode.RATE_LIMITED: 429,
    RefusalCode.INTERNAL: 500,
    RefusalCode.OVERLOADED: 503,
    RefusalCode.RESTARTED: 503,
    RefusalCode.TIMED_OUT: 504,
}
assert HTTP_STATUS.keys() == set(RefusalCode), "every code has a status"


class RefusalError(RemoteError):
    """Raise this in or before a handler to answer with a refusal."""

    def __init__(self, code: RefusalCode, field: str, problem: str, *, retry_after_ms: int = 0) -> None:
        super().__init__(field, problem, retry_after_ms=retry_after_ms)
        self.code = code


def explain_error(error: Exception, kind: str, handle_ms: int) -> RefusalError:
    """Turn an error into a refusal. An internal error is logged and shown only as an incident number."""
    match error:
        case RefusalError():
            return error
        case RemoteError():
            code = RefusalCode.RATE_LIMITED if error.retry_after_ms else RefusalCode.MALFORMED
            return RefusalError(code, error.field, error.problem, retry_after_ms=error.retry_after_ms)
        case TimeoutError():
            return RefusalError(RefusalCode.TIMED_OUT, "", f"not finished within {handle_ms} ms")
    incident = secrets.token_hex(6)
    log.error("incident %s while handling %s", incident, kind, exc_info=error)
    return RefusalError(RefusalCode.INTERNAL, "", f"internal server error, incident {incident}")


async def read_body_chunks(request: web.Request, *, bytes_max: int, read_ms: int, clock: Clock) -> AsyncIterator[bytes]:
    """The body as it arrives, bounded in size and time whatever the sender does."""
    if (request.content_length or 0) > bytes_max:
        raise _too_large(bytes_max)
    deadline_ms, passed = clock.monotonic_ms() + read_ms, 0
    while True:
        try:
            async with asyncio.timeout((deadline_ms - clock.monotonic_ms()) / 1000):
                chunk = await request.content.readany()
        except TimeoutError:
            raise RefusalError(RefusalCode.SLOW, "body", f"did not arrive within {read_ms} ms") from None
        except (web.RequestPayloadError, ConnectionError) as error:
            raise RefusalError(RefusalCode.MALFORMED, "body", f"is incomplete: {type(error).__name__}") from None
        if not chunk:
            return
        passed += len(chunk)
        if passed > bytes_max:
            raise _too_large(bytes_max)
        yield chunk


async def read_body(request: web.Request, *, bytes_max: int, read_ms: int, clock: Clock) -> bytes:
    """The whole body. Most bodies are short and arrived with the head: those need no waiting and no deadline."""
    if request.content.is_eof() and (request.content_length or 0) <= bytes_max:
        whole = request.content.read_nowait()
        if len(whole) > bytes_max:
            raise _too_large(bytes_max)
        return whole
    return b"".join(
        [chunk async for chunk in read_body_chunks(request, bytes_max=bytes_max, read_ms=read_ms, clock=clock)]
    )


def read_envelope_header(request: web.Request) -> bytes:
    """The envelope that authenticates a body which is a file."""
    text = request.headers.get(ENVELOPE_HEADER, "")
    if not text:
        raise RefusalError(RefusalCode.MALFORMED, ENVELOPE_HEADER, "is missing")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise RefusalError(RefusalCode.MALFORMED, ENVELOPE_HEADER, "is not base64") from None


def get_client_address(request: web.Request, trusted_proxies: Collection[str]) -> str:
    """The address of the client. X-Forwarded-For counts only from a trusted proxy: anyone can send that header."""
    remote = request.remote or "unknown"
    if remote in trusted_proxies and (forwarded := request.headers.get("X-Forwarded-For", "")):
        return forwarded.rpartition(",")[2].strip()
    return remote


def _too_large(bytes_max: int) -> RefusalError:
    return RefusalError(RefusalCode.TOO_LARGE, "body", f"is longer than {bytes_max} bytes")


REPLY_HEAD = f"HTTP/1.1 200 OK\r\nContent-Type: {ENVELOPE_TYPE}\r\nContent-Length: "


class EnvelopeResponse:
    """A signed reply. It implements what aiohttp calls on a response, and writes its head in one piece.

    aiohttp builds a response from a header table, which costs as much as parsing a heartbeat. Unusual cases (HTTP/1.0,
    a closing connection) use aiohttp's own response.
    """

    __slots__ = ("_frame", "_general", "keep_alive")
    status = 200

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._general: web.Response | None = None
        self.keep_alive: bool | None = True

    async def prepare(self, request: web.BaseRequest) -> None:
        transport = request.transport
        if transport is None or request.version != HttpVersion11 or not request.keep_alive:
            self._general = web.Response(body=self._frame, headers={"Content-Type": ENVELOPE_TYPE})
            await self._general.prepare(request)
            return
        transport.write(self.render())
        # Waits while the peer does not read.
        await request.writer.drain()

    def render(self) -> bytes:
        """The whole response."""
        return f"{REPLY_HEAD}{len(self._frame)}\r\nDate: {rfc822_formatted_time()}\r\n\r\n".encode() + self._frame

    async def write_eof(self) -> None:
        if self._general is not None:
            await self._general.write_eof()
            self.keep_alive = self._general.keep_alive


def render_response(response: web.StreamResponse | EnvelopeResponse) -> bytes:
    """A reply or refusal as the bytes of a response that keeps the connection open."""
    if isinstance(response, EnvelopeResponse):
        return response.render()
    assert isinstance(response, web.Response)
    body = response.body
    assert isinstance(body, bytes)
    headers = {**response.headers, "Content-Length": str(len(body)), "Date": rfc822_formatted_time()}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {response.status} {response.reason}\r\n{head}\r\n".encode() + body
