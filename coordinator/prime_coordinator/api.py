"""Read-only JSON for people and the explorer, under /api/v1. There is no route that changes anything.

What can be asked is in questions.py. Here: reading the query strictly, bounds per address, errors in one form, caching.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from aiohttp import web

from prime_coordinator.asking import Ask, Question, read_ask
from prime_coordinator.constants import READERS_KNOWN_MAX, READERS_MAX, STATUS_MS
from prime_coordinator.desk import Desk
from prime_coordinator.openapi import ROOT, describe_api
from prime_coordinator.questions import QUESTIONS
from prime_coordinator.rows import to_plain
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.exchange import RefusalCode
from prime_runtime.http_body import STATUS, RefuseRequest, get_address
from prime_runtime.rates import Gate, Rate, TokenBuckets, address_group

log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LIVE = "no-cache"
"""Ask each time; an unchanged answer comes back as 304."""
SETTLED = "public, max-age=31536000, immutable"


def add_json_routes(app: web.Application, desk: Desk) -> None:
    reader = Reader(desk)
    for name, question in QUESTIONS.items():
        app.router.add_get(ROOT + question.path, reader.serve(question), name=f"api-{name}")
    app.router.add_get(ROOT + "/openapi.json", reader.guard(_describe))
    app.router.add_route("*", ROOT + "/{tail:.*}", reader.guard(_refuse_path))


class Reader:
    """Answers questions for anybody, within bounds."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        reading = desk.config.reading
        self._rates = TokenBuckets(Rate(per_second=reading.per_second, burst=reading.burst), keys_max=READERS_KNOWN_MAX)
        self._gate = Gate(total_max=READERS_MAX, key_max=READERS_MAX // 4)
        self._status: tuple[int, bytes] | None = None

    def serve(self, question: Question) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            ask = read_ask(question, {**_read_query(request), **request.match_info})
            body = await self._answer(question, ask)
            is_settled = question.is_settled and all(getattr(ask, name) is not None for name in question.in_query)
            return _reply(request, body, SETTLED if is_settled else LIVE)

        return self.guard(answer)

    async def _answer(self, question: Question, ask: Ask) -> bytes:
        if question is not QUESTIONS["status"]:
            return _to_json(await question.answer(self._desk, ask))
        now_ms = self._desk.now_ms()
        # A clock that was set back makes the kept answer look as if it came from the future.
        if self._status is None or not 0 <= now_ms - self._status[0] < STATUS_MS:
            self._status = (now_ms, _to_json(await question.answer(self._desk, ask)))
        return self._status[1]

    def guard(self, handler: Handler) -> Handler:
        """Bounds before, and every failure as JSON after."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            origin = address_group(get_address(request, self._desk.config.limits.trusted_proxies))
            now_ms = int(asyncio.get_running_loop().time() * 1000)
            if wait_ms := self._rates.take(origin, now_ms):
                return _error(RefuseRequest(RefusalCode.RATE_LIMITED, "", "too many questions", retry_after_ms=wait_ms))
            if not self._gate.enter(origin):
                return _error(RefuseRequest(RefusalCode.OVERLOADED, "", "too many at once", retry_after_ms=1000))
            try:
                async with asyncio.timeout(self._desk.config.limits.handle_ms / 1000):
                    return await handler(request)
            except RefuseRequest as refuse:
                return _error(refuse)
            except RemoteError as error:
                return _error(RefuseRequest(RefusalCode.MALFORMED, error.field, error.problem))
            except TimeoutError:
                return _error(RefuseRequest(RefusalCode.TIMED_OUT, "", "took too long"))
            except LocalError:
                log.exception("cannot answer %s", request.path)
                return _error(RefuseRequest(RefusalCode.OVERLOADED, "", "not possible right now", retry_after_ms=5000))
            except Exception:  # boundary: one question's bug must not stop the server, nor show its insides
                incident = secrets.token_hex(6)
                log.exception("incident %s while answering %s", incident, request.path)
                return _error(RefuseRequest(RefusalCode.INTERNAL, "", f"an error here, incident {incident}"))
            finally:
                self._gate.leave(origin)

        return guarded


def _read_query(request: web.Request) -> dict[str, str]:
    given = dict(request.query)
    if len(given) != len(request.query):
        raise RemoteError("query", "names a parameter twice")
    for name in given:
        if name in request.match_info:
            raise RemoteError(name[:40], "stands in the path already")
    return given


async def _describe(request: web.Request) -> web.StreamResponse:
    return _reply(request, _to_json(describe_api(_program_version())), LIVE)


async def _refuse_path(request: web.Request) -> web.StreamResponse:
    if request.method not in ("GET", "HEAD"):
        body = {"error": {"field": "method", "problem": "there is nothing to change here; GET only"}}
        return web.json_response(body, status=405, headers={"Allow": "GET, HEAD"})
    raise RefuseRequest(RefusalCode.UNKNOWN, "path", f"see {ROOT}/openapi.json for what can be asked")


def _reply(request: web.Request, body: bytes, caching: str) -> web.Response:
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": caching, "X-Content-Type-Options": "nosniff"}
    if tag in [each.strip().removeprefix("W/") for each in request.headers.get("If-None-Match", "").split(",")]:
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, content_type="application/json", charset="utf-8", headers=headers)


def _error(refuse: RefuseRequest) -> web.Response:
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    if refuse.retry_after_ms:
        headers["Retry-After"] = str(-(-refuse.retry_after_ms // 1000))
    body = {"error": {"field": refuse.field, "problem": refuse.problem}}
    return web.json_response(body, status=STATUS[refuse.code], headers=headers)


def _to_json(value: Any) -> bytes:
    return json.dumps(to_plain(value), allow_nan=False, separators=(",", ":")).encode()


def _program_version() -> str:
    try:
        return version("prime-swarm")
    except PackageNotFoundError:
        return "0"
