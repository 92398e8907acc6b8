"""Serves pages over HTTP: HTML, JSON, static files, the CSV of contributions, and the stream of updates.

Requests are limited per address. Every failure becomes an error page that says what to do.
"""

import asyncio
import csv
import io
import json
import logging
import mimetypes
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from aiohttp import web

from prime_explorer.config import (
    ADDRESSES_TRACKED_MAX,
    CONCURRENT_PAGES_MAX,
    CSV_BATCH_ROWS,
    INDEX_POLL_S,
    INDEX_WAIT_S,
    KEEP_ALIVE_MS,
    PAGE_TIMEOUT_MS,
    STREAM_CHECK_MS,
    STREAMS_MAX,
    STREAMS_PER_ADDRESS_MAX,
    UPDATE_POLL_MS,
)
from prime_explorer.handlers import NotLive, PageContext
from prime_explorer.index.store import IndexNotReady, IndexReader, ReadTransaction, format_id
from prime_explorer.params import parse_params
from prime_explorer.rendering import Renderer
from prime_explorer.routes import PageRoute
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import NodeId
from prime_runtime.clock import Clock
from prime_runtime.http.messages import get_client_address
from prime_runtime.rate_limits import ConcurrencyLimit, RateLimit, TokenBuckets, address_group

log = logging.getLogger(__name__)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

STATIC_FOLDER = Path(__file__).parent / "static"
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
CACHE_FOREVER = "public, max-age=31536000, immutable"


class PageError(Exception):
    """An error page."""

    def __init__(self, status: int, title: str, problem: str, *, field: str = "", retry_after_s: int = 0) -> None:
        super().__init__(problem)
        self.status = status
        self.title = title
        self.problem = problem
        self.field = field
        """The parameter that is wrong; empty if none is."""
        self.retry_after_s = retry_after_s


class PageServer:
    """Serves pages and JSON, with limits per address."""

    def __init__(
        self,
        context: PageContext,
        renderer: Renderer,
        *,
        wake: Callable[[], None],
        proxies: Collection[str],
        rate: RateLimit,
    ) -> None:
        self._context = context
        self._renderer = renderer
        self._wake = wake
        self._proxies = proxies
        self._rates = TokenBuckets(rate, keys_max=ADDRESSES_TRACKED_MAX)
        self._gate = ConcurrencyLimit(total_max=CONCURRENT_PAGES_MAX, key_max=CONCURRENT_PAGES_MAX // 4)
        self._streams = ConcurrencyLimit(total_max=STREAMS_MAX, key_max=STREAMS_PER_ADDRESS_MAX)

    def page(self, page: PageRoute) -> Handler:
        return self.guard(partial(self._show_page, page))

    def data(self, page: PageRoute) -> Handler:
        """The view as JSON."""
        return self.guard(partial(self._show_data, page), is_json=True)

    def file(self, name: str) -> Handler:
        data = (STATIC_FOLDER / name).read_bytes()
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        charset = "utf-8" if kind.startswith("text/") or kind.endswith("javascript") else None

        async def send(request: web.Request) -> web.StreamResponse:
            caching = CACHE_FOREVER if request.query_string else "no-cache"
            response = web.Response(
                body=data, content_type=kind, charset=charset, headers={"Cache-Control": caching, **HEADERS}
            )
            response.enable_compression()
            return response

        return self.guard(send)

    def stream(self, handler: Handler) -> Handler:
        """For responses that stay open: counted separately, without a timeout."""
        return self.guard(handler, gate=self._streams, is_timed=False)

    def guard(
        self, handler: Handler, *, is_json: bool = False, gate: ConcurrencyLimit | None = None, is_timed: bool = True
    ) -> Handler:
        """Apply the limits, and turn every failure into an error page."""
        limit = self._gate if gate is None else gate

        async def guarded(request: web.Request) -> web.StreamResponse:
            self._wake()
            origin = address_group(get_client_address(request, self._proxies))
            try:
                self._check_limits(origin, limit)
                try:
                    async with asyncio.timeout(PAGE_TIMEOUT_MS / 1000 if is_timed else None):
                        return await handler(request)
                finally:
                    limit.leave(origin)
            except Exception as error:  # boundary: a bug in one page must not stop the server or leak details
                return await self._send_error(request, to_page_error(error, request), is_json=is_json)

        return guarded

    def _check_limits(self, origin: str, limit: ConcurrencyLimit) -> None:
        if wait_ms := self._rates.take(origin, int(asyncio.get_running_loop().time() * 1000)):
            raise PageError(
                429,
                "Too many requests",
                "Your address requested too many pages.",
                retry_after_s=1 + wait_ms // 1000,
            )
        if not limit.enter(origin):
            raise PageError(503, "Busy", "The server is rendering too many pages.", retry_after_s=2)

    async def _show_page(self, page: PageRoute, request: web.Request) -> web.StreamResponse:
        # HTML forms send empty parameters, and the page of heads one that only its script reads.
        given = {name: text.strip() for name, text in request.query.items() if text.strip() and name in page.in_query}
        view = await self._make_view(page, {**given, **request.match_info})
        if target := getattr(view, "only", None):
            raise web.HTTPSeeOther(target)
        template = getattr(view, "TEMPLATE", page.template)
        body = await self._renderer.render(self._context.reader, template, view, request, given)
        return _reply(request, body, "text/html")

    async def _show_data(self, page: PageRoute, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        if len(query) != len(request.query):
            raise RemoteError("query", "names a parameter twice")
        given = {**query, **request.match_info}
        if len(given) != len(query) + len(request.match_info):
            raise RemoteError("query", "names a parameter of the path")
        body = encode_view(await self._wait_for_index(page, given))
        is_immutable = page.is_immutable and given.keys() >= set(page.in_query)
        return _reply(request, body, "application/json", CACHE_FOREVER if is_immutable else "no-cache")

    async def _wait_for_index(self, page: PageRoute, given: Mapping[str, str]) -> Any:
        """A program that asks right after a start waits for the first index; a person gets a page that says so."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + INDEX_WAIT_S
        while True:
            try:
                return await self._make_view(page, given)
            except IndexNotReady:
                if loop.time() >= give_up_s:
                    raise
            await asyncio.sleep(INDEX_POLL_S)

    async def _make_view(self, page: PageRoute, given: Mapping[str, str]) -> Any:
        params = parse_params((*page.in_path, *page.in_query), (*page.in_path, *page.required), given)
        view = await page.handler(self._context, params)
        if view is None:
            raise PageError(404, "Not found", page.not_found, field=page.in_path[-1] if page.in_path else "")
        return view

    async def _send_error(
        self, request: web.Request, failure: PageError | web.HTTPException, *, is_json: bool
    ) -> web.Response:
        if isinstance(failure, web.HTTPException):
            return web.Response(status=failure.status, headers={**failure.headers, **HEADERS})
        headers = {"Cache-Control": "no-store", **HEADERS}
        if failure.retry_after_s:
            headers["Retry-After"] = str(failure.retry_after_s)
        if failure.status == 405:
            headers["Allow"] = "GET, HEAD"
        if is_json:
            body = {"error": {"title": failure.title, "field": failure.field, "problem": failure.problem}}
            return web.json_response(body, status=failure.status, headers=headers)
        text = await self._renderer.render_failure(self._context.reader, failure, request)
        return web.Response(status=failure.status, text=text, content_type="text/html", headers=headers)


def to_page_error(error: Exception, request: web.Request) -> PageError | web.HTTPException:
    """Map an exception to the page that says whose fault it is and what to do."""
    match error:
        case PageError() | web.HTTPException():
            return error
        case RemoteError():
            return PageError(400, "Invalid parameter", f"{error.field} {error.problem}.", field=error.field)
        case NotLive():
            return PageError(404, "Not known here", "This explorer has only a copy of the log. Ask its coordinator.")
        case IndexNotReady():
            return PageError(
                503,
                "The index is being built",
                "The log is being read and verified for the first time, about 3,000 entries per second.",
                retry_after_s=2,
            )
        case TimeoutError():
            return PageError(504, "Timeout", "This page could not be rendered in time.", retry_after_s=5)
        case LocalError():
            log.exception("cannot show %s", request.path)
            return PageError(503, "Unavailable", "A file that this page needs cannot be read.")
    incident = secrets.token_hex(6)
    log.error("incident %s while showing %s", incident, request.path, exc_info=error)
    return PageError(500, "Internal error", f"The server logged it as incident {incident}.")


def _reply(request: web.Request, body: bytes, kind: str, caching: str = "no-cache") -> web.Response:
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": caching, **HEADERS}
    if tag in [each.strip().removeprefix("W/") for each in request.headers.get("If-None-Match", "").split(",")]:
        return web.Response(status=304, headers=headers)
    response = web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)
    response.enable_compression()
    return response


def encode_view(view: Any) -> bytes:
    return json.dumps(
        asdict(view), allow_nan=False, separators=(",", ":"), default=lambda item: "0x" + bytes(item).hex()
    ).encode()


class UpdateStream:
    """Tells open pages that the log has grown. One poll of the index serves all streams."""

    def __init__(self, reader: IndexReader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._event = asyncio.Event()
        self._listeners = 0
        self._now: dict[str, Any] = {}
        self._is_closed = False

    async def run(self) -> None:
        """Poll until cancelled, while there are streams."""
        while True:
            await self._clock.sleep_ms(UPDATE_POLL_MS)
            if self._listeners:
                await self._poll()

    def close(self) -> None:
        self._is_closed = True
        self._notify()

    async def _poll(self) -> None:
        try:
            now = await self._reader.query(read_update)
        except IndexNotReady:
            return
        if now != self._now:
            self._now = now
            self._notify()

    def _notify(self) -> None:
        self._event.set()
        self._event = asyncio.Event()

    async def _wait(self) -> bool:
        """Wait for an update; False after STREAM_CHECK_MS without one."""
        try:
            async with asyncio.timeout(STREAM_CHECK_MS / 1000):
                await self._event.wait()
        except TimeoutError:
            return False
        return True

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Send an event for each change, until the client disconnects."""
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        )
        await response.prepare(request)
        self._listeners += 1
        try:
            await response.write(b"retry: 5000\n\n")
            told, quiet = self._now, 0
            while not self._is_closed and not _is_gone(request):
                if told is not self._now:
                    told, quiet = self._now, 0
                    await response.write(f"event: news\ndata: {json.dumps(told)}\n\n".encode())
                elif not await self._wait():
                    quiet += 1
                    if quiet * STREAM_CHECK_MS >= KEEP_ALIVE_MS:
                        quiet = 0
                        await response.write(b": keep-alive\n\n")
        except ConnectionError:
            pass  # the client has disconnected
        finally:
            self._listeners -= 1
        return response


def _is_gone(request: web.Request) -> bool:
    """aiohttp does not cancel a waiting handler, and closed pages must not occupy stream slots."""
    return request.transport is None or request.transport.is_closing()


def read_update(db: ReadTransaction) -> dict[str, Any]:
    """What an open page needs to see whether it is out of date."""
    facts = db.read_meta()
    steps = {row["run"]: row["latest_step"] for row in db.rows("SELECT run, latest_step FROM runs LIMIT 100")}
    return {"size": facts.get("size", 0), "head_size": facts.get("head_size", 0), "steps": steps}


NODE_COLUMNS = (
    "node", "owner", "name", "status", "accepted", "invalid", "fraudulent", "rollouts", "tokens", "units",
    "earned_nano", "stake_nano", "verdicts", "upheld", "faults",
)  # fmt: skip
STEP_COLUMNS = (
    "run", "step", "submissions", "accepted", "invalid", "fraudulent", "rollouts", "tokens", "units", "paid_nano",
)  # fmt: skip


async def send_contributions_csv(request: web.Request, reader: IndexReader) -> web.StreamResponse:
    """Stream the CSV of all nodes, or with `node` the steps of one node."""
    node = parse_params(("node",), (), {name: text for name, text in request.query.items() if text.strip()}).node
    columns = STEP_COLUMNS if node else NODE_COLUMNS
    name = f"contributions-{node}.csv" if node else "contributions.csv"
    rows = await reader.query(partial(_read_contributions, node, (b"",) if node is None else ("", -1)))
    response = web.StreamResponse(
        headers={
            "Content-Type": "text/csv; charset=utf-8",
            "Content-Disposition": f'attachment; filename="{name}"',
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-cache",
        }
    )
    await response.prepare(request)
    await response.write(encode_csv([columns]))
    while rows:
        await response.write(encode_csv([[format_id(row[column]) for column in columns] for row in rows]))
        last = (rows[-1]["node"],) if node is None else (rows[-1]["run"], rows[-1]["step"])
        rows = await reader.query(partial(_read_contributions, node, last))
    return response


def _read_contributions(node: NodeId | None, last: tuple[Any, ...], db: ReadTransaction) -> list[Any]:
    if node is None:
        return db.rows("SELECT * FROM nodes WHERE node>? ORDER BY node LIMIT ?", *last, CSV_BATCH_ROWS)
    query = "SELECT * FROM contributions WHERE node=? AND (run, step)>(?, ?) ORDER BY run, step LIMIT ?"
    return db.rows(query, node, *last, CSV_BATCH_ROWS)


def encode_csv(rows: Sequence[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
