"""A request's body read within its size and deadline, where it came from, and the refusal that a handler can raise."""

import asyncio
import base64
import logging
import secrets
from collections.abc import AsyncIterator, Collection

from aiohttp import web

from prime_protocol.errors import RemoteError
from prime_protocol.exchange import RefusalCode
from prime_runtime.clock import Clock

log = logging.getLogger(__name__)

ENVELOPE_TYPE = "application/x-prime-envelope"
ENVELOPE_HEADER = "Prime-Envelope"
"""Carries an envelope in base64 where the body is a file."""
REFUSAL_TYPE = "application/x-prime-refusal"

STATUS = {
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
assert STATUS.keys() == set(RefusalCode), "every code has a status"


class RefuseRequest(RemoteError):
    """Raised by a handler (or before it) to answer with a refusal of this code."""

    def __init__(self, code: RefusalCode, field: str, problem: str, *, retry_after_ms: int = 0) -> None:
        super().__init__(field, problem)
        self.code = code
        self.retry_after_ms = retry_after_ms


def explain(error: Exception, kind: str, handle_ms: int) -> RefuseRequest:
    """Whose fault it is, and no more of our insides than an incident's number."""
    match error:
        case RefuseRequest():
            return error
        case RemoteError():
            return RefuseRequest(RefusalCode.MALFORMED, error.field, error.problem)
        case TimeoutError():
            return RefuseRequest(RefusalCode.TIMED_OUT, "", f"was not done within {handle_ms} ms")
    incident = secrets.token_hex(6)
    log.error("incident %s while handling %s", incident, kind, exc_info=error)
    return RefuseRequest(RefusalCode.INTERNAL, "", f"an error on the server's side, incident {incident}")


async def body_chunks(request: web.Request, *, bytes_max: int, read_ms: int, clock: Clock) -> AsyncIterator[bytes]:
    """The body as it comes, at most so long and in at most so much time, whatever the sender does."""
    if (request.content_length or 0) > bytes_max:
        raise _too_large(bytes_max)
    deadline_ms, passed = clock.monotonic_ms() + read_ms, 0
    while True:
        try:
            async with asyncio.timeout((deadline_ms - clock.monotonic_ms()) / 1000):
                chunk = await request.content.readany()
        except TimeoutError:
            raise RefuseRequest(RefusalCode.SLOW, "body", f"did not arrive within {read_ms} ms") from None
        except (web.RequestPayloadError, ConnectionError) as error:
            raise RefuseRequest(RefusalCode.MALFORMED, "body", f"broke off: {type(error).__name__}") from None
        if not chunk:
            return
        passed += len(chunk)
        if passed > bytes_max:
            raise _too_large(bytes_max)
        yield chunk


async def read_body(request: web.Request, *, bytes_max: int, read_ms: int, clock: Clock) -> bytes:
    """The whole body. Most are short and came with their head: those need no waiting and no deadline."""
    if request.content.is_eof() and (request.content_length or 0) <= bytes_max:
        whole = request.content.read_nowait()
        if len(whole) > bytes_max:
            raise _too_large(bytes_max)
        return whole
    return b"".join([chunk async for chunk in body_chunks(request, bytes_max=bytes_max, read_ms=read_ms, clock=clock)])


def read_envelope_header(request: web.Request) -> bytes:
    """The envelope that answers for a body which is not one itself."""
    text = request.headers.get(ENVELOPE_HEADER, "")
    if not text:
        raise RefuseRequest(RefusalCode.MALFORMED, ENVELOPE_HEADER, "is missing")
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise RefuseRequest(RefusalCode.MALFORMED, ENVELOPE_HEADER, "is not base64") from None


def get_address(request: web.Request, trusted_proxies: Collection[str]) -> str:
    """Where a request came from. The header of a stranger is believed only from a proxy of our own."""
    remote = request.remote or "unknown"
    if remote in trusted_proxies and (forwarded := request.headers.get("X-Forwarded-For", "")):
        return forwarded.rpartition(",")[2].strip()
    return remote


def _too_large(bytes_max: int) -> RefuseRequest:
    return RefuseRequest(RefusalCode.TOO_LARGE, "body", f"is longer than {bytes_max} bytes")
