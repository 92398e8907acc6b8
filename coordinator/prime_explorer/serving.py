"""Pages over HTTP: bounds per address, templates, JSON twins, static files, and every failure as a page that helps."""

import asyncio
import json
import logging
import mimetypes
import secrets
from collections.abc import Awaitable, Callable, Collection
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from aiohttp import web

from prime_explorer.asking import Ask
from prime_explorer.constants import (
    PAGE_BURST,
    PAGE_MS,
    PAGE_RATE,
    PAGES_AT_ONCE_MAX,
    READERS_KNOWN_MAX,
    STREAMS_MAX,
    STREAMS_PER_ADDRESS_MAX,
)
from prime_explorer.contents import Page
from prime_explorer.reading import NotYet
from prime_explorer.rendering import Renderer
from prime_explorer.site import Site
from prime_protocol.errors import LocalError, RemoteError
from prime_runtime.http_body import get_address
from prime_runtime.rates import Gate, Rate, TokenBuckets, address_group

log = logging.getLogger(__name__)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

STATIC = Path(__file__).parent / "static"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
FOREVER = "public, max-age=31536000, immutable"


class Failure(Exception):
    """What a reader is told instead of a page."""

    def __init__(self, status: int, title: str, problem: str, *, retry_after_s: int = 0) -> None:
        super().__init__(problem)
        self.status = status
        self.title = title
        self.problem = problem
        self.retry_after_s = retry_after_s


class Server:
    """Answers anybody, within bounds."""

    def __init__(self, site: Site, renderer: Renderer, *, wake: Callable[[], None], proxies: Collection[str]) -> None:
        self._site = site
        self._renderer = renderer
        self._wake = wake
        self._proxies = proxies
        self._rates = TokenBuckets(Rate(per_second=PAGE_RATE, burst=PAGE_BURST), keys_max=READERS_KNOWN_MAX)
        self._gate = Gate(total_max=PAGES_AT_ONCE_MAX, key_max=PAGES_AT_ONCE_MAX // 4)
        self._streams = Gate(total_max=STREAMS_MAX, key_max=STREAMS_PER_ADDRESS_MAX)

    def page(self, page: Page) -> Handler:
        return self.guard(partial(self._show_page, page))

    def data(self, page: Page) -> Handler:
        """The same as JSON."""
        return self.guard(partial(self._show_data, page), is_json=True)

    def file(self, name: str) -> Handler:
        data = (STATIC / name).read_bytes()
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        charset = "utf-8" if kind.startswith("text/") or kind.endswith("javascript") else None

        async def send(request: web.Request) -> web.StreamResponse:
            caching = FOREVER if request.query_string else "no-cache"
            response = web.Response(
                body=data, content_type=kind, charset=charset, headers={"Cache-Control": caching, **HEADERS}
            )
            response.enable_compression()
            return response

        return self.guard(send)

    def stream(self, handler: Handler) -> Handler:
        """For what stays open: counted apart, and not timed."""
        return self.guard(handler, gate=self._streams, is_timed=False)

    def guard(
        self, handler: Handler, *, is_json: bool = False, gate: Gate | None = None, is_timed: bool = True
    ) -> Handler:
        """Bounds before, and every failure as a page after."""
        door = self._gate if gate is None else gate

        async def guarded(request: web.Request) -> web.StreamResponse:
            self._wake()
            origin = address_group(get_address(request, self._proxies))
            try:
                self._admit(origin, door)
                try:
                    async with asyncio.timeout(PAGE_MS / 1000 if is_timed else None):
                        return await handler(request)
                finally:
                    door.leave(origin)
            except Exception as error:  # boundary: one page's bug must not stop the server, nor show its insides
                return await self._fail(request, explain(error, request), is_json=is_json)

        return guarded

    def _admit(self, origin: str, door: Gate) -> None:
        if wait_ms := self._rates.take(origin, int(asyncio.get_running_loop().time() * 1000)):
            raise Failure(
                429, "Too fast", "Many pages were asked for from your address.", retry_after_s=1 + wait_ms // 1000
            )
        if not door.enter(origin):
            raise Failure(503, "Busy", "Too many pages are being made at once.", retry_after_s=2)

    async def _show_page(self, page: Page, request: web.Request) -> web.StreamResponse:
        view = await self._make(page, request)
        if target := getattr(view, "only", None):
            raise web.HTTPSeeOther(target)
        template = getattr(view, "TEMPLATE", page.template)
        body = await self._renderer.render(self._site.reader, template, view, request)
        return _reply(request, body, "text/html")

    async def _show_data(self, page: Page, request: web.Request) -> web.StreamResponse:
        view = await self._make(page, request)
        return _reply(request, to_json(view), "application/json")

    async def _make(self, page: Page, request: web.Request) -> Any:
        view = await page.show(self._site, Ask({**request.query, **request.match_info}))
        if view is None:
            raise Failure(404, "Not found", page.missing)
        return view

    async def _fail(self, request: web.Request, failure: Failure | web.HTTPException, *, is_json: bool) -> web.Response:
        if isinstance(failure, web.HTTPException):
            return web.Response(status=failure.status, headers={**failure.headers, **HEADERS})
        headers = {"Cache-Control": "no-store", **HEADERS}
        if failure.retry_after_s:
            headers["Retry-After"] = str(failure.retry_after_s)
        if is_json:
            body = {"error": {"title": failure.title, "problem": failure.problem}}
            return web.json_response(body, status=failure.status, headers=headers)
        text = await self._renderer.render_failure(self._site.reader, failure, request)
        return web.Response(status=failure.status, text=text, content_type="text/html", headers=headers)


def explain(error: Exception, request: web.Request) -> Failure | web.HTTPException:
    """Whose fault it is, and what to do."""
    match error:
        case Failure() | web.HTTPException():
            return error
        case RemoteError():
            return Failure(400, "That address is not right", f"{error.field} {error.problem}.")
        case NotYet():
            return Failure(
                503,
                "The index is being made",
                "The log is being read and checked for the first time here, about 3,000 entries a second.",
                retry_after_s=2,
            )
        case TimeoutError():
            return Failure(504, "Too slow", "This page could not be made in time.", retry_after_s=5)
        case LocalError():
            log.exception("cannot show %s", request.path)
            return Failure(503, "Not possible just now", "Something that this page needs cannot be read here.")
    incident = secrets.token_hex(6)
    log.error("incident %s while showing %s", incident, request.path, exc_info=error)
    return Failure(500, "An error of ours", f"It is noted here as incident {incident}.")


def _reply(request: web.Request, body: bytes, kind: str) -> web.Response:
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", **HEADERS}
    if tag in [each.strip().removeprefix("W/") for each in request.headers.get("If-None-Match", "").split(",")]:
        return web.Response(status=304, headers=headers)
    response = web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)
    response.enable_compression()
    return response


def to_json(view: Any) -> bytes:
    return json.dumps(
        asdict(view), allow_nan=False, separators=(",", ":"), default=lambda item: "0x" + bytes(item).hex()
    ).encode()
