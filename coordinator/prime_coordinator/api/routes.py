"""The read-only JSON API under /api/v1: the table of its routes, their OpenAPI description, and how they are served.

Anyone may read, within limits per address; no route changes anything. The operator's endpoint and the commands use the
same table. Parsing is in queries.py, the handlers are in handlers.py.
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

from prime_coordinator.api import handlers, schemas
from prime_coordinator.api.queries import PARAMS, QueryHandler, QueryParams, Route, parse_query
from prime_coordinator.app_context import AppContext
from prime_coordinator.constants import READERS_KNOWN_MAX, READERS_MAX, STATUS_MS
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.rpc import RefusalCode
from prime_runtime.http.json_schema import build_row_schema, list_row_types
from prime_runtime.http.messages import HTTP_STATUS, RefusalError, get_client_address
from prime_runtime.rate_limits import ConcurrencyLimit, RateLimit, TokenBuckets, address_group

log = logging.getLogger(__name__)

API_ROOT = "/api/v1"


def _list(path: str, row: type, handler: QueryHandler, text: str, filters: str = "") -> Route:
    """A route with pages; `filters` are the names of its optional parameters."""
    return Route(path, row, handler, text, tuple(filters.split()), is_paged=True)


ROUTES: dict[str, Route] = {
    "status": Route("/status", schemas.StatusRow, handlers.get_status, "The coordinator at a glance."),
    "settlement": Route(
        "/settlement", schemas.SettlementRow, handlers.get_settlement, "Where value is held, and how far the chain is."
    ),
    "payout": Route(
        "/payouts/{run}/{epoch}", schemas.PayoutRow, handlers.get_payout, "The table behind a payout root on the chain."
    ),
    "runs": _list("/runs", schemas.RunRow, handlers.list_runs, "All runs."),
    "run": Route("/runs/{run}", schemas.RunDetail, handlers.get_run, "A run, its terms and its steps."),
    "nodes": _list("/nodes", schemas.NodeRow, handlers.list_nodes, "Nodes, oldest first.", "status phase role owner"),
    "node": Route("/nodes/{node}", schemas.NodeDetail, handlers.get_node, "Everything known about a node."),
    "leases": _list("/leases", schemas.LeaseRow, handlers.list_leases, "Open leases.", "run node"),
    "submissions": _list(
        "/submissions",
        schemas.SubmissionRow,
        handlers.list_submissions,
        "Submissions, newest first.",
        "run node step progress",
    ),
    "submission": Route(
        "/submissions/{submission}", schemas.SubmissionDetail, handlers.get_submission, "A submission and its verdicts."
    ),
    "verdicts": _list(
        "/verdicts",
        schemas.VerdictRow,
        handlers.list_verdicts,
        "Verdicts, newest first; `node` is the validator.",
        "run submission node",
    ),
    "slashes": _list("/slashes", schemas.SlashRow, handlers.list_slashes, "Slashes, newest first.", "run"),
    "slash": Route("/slashes/{submission}", schemas.SlashRow, handlers.get_slash, "The slash of a submission."),
    "appeals": _list("/appeals", schemas.AppealRow, handlers.list_appeals, "Appeals, newest first.", "run"),
    "checkpoints": _list(
        "/checkpoints", schemas.CheckpointRow, handlers.list_checkpoints, "Published checkpoints, newest first.", "run"
    ),
    "refused": _list(
        "/refused",
        schemas.RefusedRow,
        handlers.list_refused,
        "Rollout files that intake refused in the last 30 days, newest first; one page.",
    ),
    "entries": _list(
        "/log/entries",
        schemas.EntryRow,
        handlers.list_entries,
        "Entries of the log, newest first.",
        "kind author run subject",
    ),
    "entry": Route(
        "/log/entries/{index}", schemas.EntryDetail, handlers.get_entry, "An entry, with its inclusion proof."
    ),
    "head": Route("/log/head", schemas.HeadRow, handlers.get_head, "The newest signed tree head."),
    "consistency": Route(
        "/log/consistency",
        schemas.ConsistencyRow,
        handlers.get_consistency,
        "Proof that an older tree is the beginning of a newer one.",
        ("new",),
        required=("old",),
        is_immutable=True,
    ),
}


# --- Description ------------------------------------------------------------------------------------------------------

ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["field", "problem"],
            "properties": {"field": {"type": "string"}, "problem": {"type": "string"}},
        }
    },
}


def describe_api(version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document, made from the table of routes and the schemas."""
    types = {kind.__name__: kind for route in ROUTES.values() for kind in list_row_types(route.row)}
    text = (
        "Read-only. Ids are 0x and hex, times are Unix milliseconds, amounts are 10^-9 of the network's unit of value."
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "prime-coordinator", "version": version, "description": text},
        "paths": {API_ROOT + route.path: {"get": _operation(name, route)} for name, route in ROUTES.items()},
        "components": {
            "schemas": {**{name: build_row_schema(kind) for name, kind in types.items()}, "Error": ERROR_SCHEMA}
        },
    }


def _operation(name: str, route: Route) -> dict[str, Any]:
    row = {"$ref": f"#/components/schemas/{route.row.__name__}"}
    responses = {"200": _response("The result.", _page_schema(row) if route.is_paged else row)}
    for status, text in (("400", "A parameter is wrong."), ("404", "Not known here."), ("429", "Too many requests.")):
        responses[status] = _response(text, {"$ref": "#/components/schemas/Error"})
    names = [*((each, "path") for each in route.in_path), *((each, "query") for each in route.in_query)]
    return {
        "operationId": name,
        "summary": route.help,
        "parameters": [_parameter(each, where, route) for each, where in names],
        "responses": responses,
    }


def _parameter(name: str, where: str, route: Route) -> dict[str, Any]:
    return {
        "name": name,
        "in": where,
        "required": where == "path" or name in route.required,
        "description": PARAMS[name].help,
        "schema": dict(PARAMS[name].schema),
    }


def _response(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _page_schema(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["rows", "next"],
        "additionalProperties": False,
        "properties": {
            "rows": {"type": "array", "items": row},
            "next": {"type": ["string", "null"], "description": "`cursor` of the next page; null after the last."},
        },
    }


# --- Serving ----------------------------------------------------------------------------------------------------------

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REVALIDATE = "no-cache"
"""The client asks each time; an unchanged result comes back as 304."""
IMMUTABLE = "public, max-age=31536000, immutable"


def add_json_routes(app: web.Application, context: AppContext) -> None:
    api = JsonApi(context)
    for name, route in ROUTES.items():
        app.router.add_get(API_ROOT + route.path, api.serve(route), name=f"api-{name}")
    app.router.add_get(API_ROOT + "/openapi.json", api.guard(_describe))
    app.router.add_route("*", API_ROOT + "/{tail:.*}", api.guard(_refuse_path))


class JsonApi:
    """Serves routes to anyone, within limits per address."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        rate = RateLimit(per_second=context.config.read_api.per_second, burst=context.config.read_api.burst)
        self._rates = TokenBuckets(rate, keys_max=READERS_KNOWN_MAX)
        self._gate = ConcurrencyLimit(total_max=READERS_MAX, key_max=READERS_MAX // 4)
        self._status: tuple[int, bytes] | None = None

    def serve(self, route: Route) -> Handler:
        async def respond(request: web.Request) -> web.StreamResponse:
            params = parse_query(route, {**_read_query(request), **request.match_info})
            body = await self._compute(route, params)
            is_immutable = route.is_immutable and all(getattr(params, name) is not None for name in route.in_query)
            return _reply(request, body, IMMUTABLE if is_immutable else REVALIDATE)

        return self.guard(respond)

    async def _compute(self, route: Route, params: QueryParams) -> bytes:
        if route is not ROUTES["status"]:
            return _to_json(await route.handler(self._context, params))
        now_ms = self._context.now_ms()
        # A clock that was set back would make the cached status look as if it came from the future.
        if self._status is None or not 0 <= now_ms - self._status[0] < STATUS_MS:
            self._status = (now_ms, _to_json(await route.handler(self._context, params)))
        return self._status[1]

    def guard(self, handler: Handler) -> Handler:
        """Check the limits first; return every failure as JSON."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            origin = address_group(get_client_address(request, self._context.config.limits.trusted_proxies))
            now_ms = int(asyncio.get_running_loop().time() * 1000)
            if wait_ms := self._rates.take(origin, now_ms):
                return _error(RefusalCode.RATE_LIMITED, "too many requests", retry_after_ms=wait_ms)
            if not self._gate.enter(origin):
                return _error(RefusalCode.OVERLOADED, "too many requests at once", retry_after_ms=1000)
            try:
                async with asyncio.timeout(self._context.config.limits.handle_ms / 1000):
                    return await handler(request)
            except RefusalError as error:
                return _error(error.code, error.problem, field=error.field, retry_after_ms=error.retry_after_ms)
            except RemoteError as error:
                return _error(RefusalCode.MALFORMED, error.problem, field=error.field)
            except TimeoutError:
                return _error(RefusalCode.TIMED_OUT, "took too long")
            except LocalError:
                log.exception("cannot answer %s", request.path)
                return _error(RefusalCode.OVERLOADED, "not possible right now", retry_after_ms=5000)
            except Exception:  # boundary: a bug in one request must not stop the server or show its internals
                incident = secrets.token_hex(6)
                log.exception("incident %s while answering %s", incident, request.path)
                return _error(RefusalCode.INTERNAL, f"internal error, incident {incident}")
            finally:
                self._gate.leave(origin)

        return guarded


def _read_query(request: web.Request) -> dict[str, str]:
    given = dict(request.query)
    if len(given) != len(request.query):
        raise RemoteError("query", "names a parameter twice")
    for name in given:
        if name in request.match_info:
            raise RemoteError(name[:40], "is already in the path")
    return given


async def _describe(request: web.Request) -> web.StreamResponse:
    try:
        program_version = version("prime-swarm")
    except PackageNotFoundError:
        program_version = "0"
    return _reply(request, _to_json(describe_api(program_version)), REVALIDATE)


async def _refuse_path(request: web.Request) -> web.StreamResponse:
    if request.method not in ("GET", "HEAD"):
        body = {"error": {"field": "method", "problem": "this API is read-only: use GET"}}
        return web.json_response(body, status=405, headers={"Allow": "GET, HEAD"})
    raise RefusalError(RefusalCode.UNKNOWN, "path", f"no such route; {API_ROOT}/openapi.json lists them")


def _reply(request: web.Request, body: bytes, caching: str) -> web.Response:
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": caching, "X-Content-Type-Options": "nosniff"}
    if tag in [each.strip().removeprefix("W/") for each in request.headers.get("If-None-Match", "").split(",")]:
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, content_type="application/json", charset="utf-8", headers=headers)


def _error(code: RefusalCode, problem: str, *, field: str = "", retry_after_ms: int = 0) -> web.Response:
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    if retry_after_ms:
        headers["Retry-After"] = str(-(-retry_after_ms // 1000))
    body = {"error": {"field": field, "problem": problem}}
    return web.json_response(body, status=HTTP_STATUS[code], headers=headers)


def _to_json(value: Any) -> bytes:
    return json.dumps(schemas.to_json_value(value), allow_nan=False, separators=(",", ":")).encode()
