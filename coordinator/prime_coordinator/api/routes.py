"""Everything that can be asked of a coordinator, in one table: the API, its description and the commands follow it.

The description of the JSON API in OpenAPI 3.1, made from the table of questions and the rows. Pure.

Read-only JSON for people and the explorer, under /api/v1. There is no route that changes anything.

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

from prime_coordinator.api import handlers as answers
from prime_coordinator.api import handlers as settlement_rows
from prime_coordinator.api import schemas as rows
from prime_coordinator.api.queries import PARAMS, QueryParams, Route, parse_query
from prime_coordinator.api.schemas import to_json_value
from prime_coordinator.app_context import AppContext
from prime_coordinator.constants import READERS_KNOWN_MAX, READERS_MAX, STATUS_MS
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.rpc import RefusalCode
from prime_runtime.http.json_schema import build_row_schema, list_row_types
from prime_runtime.http.messages import HTTP_STATUS, RefusalError, get_client_address
from prime_runtime.rate_limits import ConcurrencyLimit, RateLimit, TokenBuckets, address_group

log = logging.getLogger(__name__)


ROUTES: dict[str, Route] = {
    "status": Route(path="/status", row=rows.StatusRow, answer=answers.get_status, help="The coordinator at a glance."),
    "settlement": Route(
        path="/settlement",
        row=settlement_rows.SettlementRow,
        answer=settlement_rows.get_settlement,
        help="Who holds the value, and what of the log was brought to the chain.",
    ),
    "payout": Route(
        path="/payouts/{run}/{epoch}",
        row=settlement_rows.PayoutRow,
        answer=settlement_rows.get_payout,
        help="What a payout root on the chain was made of.",
    ),
    "runs": Route(path="/runs", row=rows.RunRow, answer=answers.list_runs, is_paged=True, help="All runs."),
    "run": Route(
        path="/runs/{run}", row=rows.RunDetail, answer=answers.get_run, help="A run, its terms and its steps."
    ),
    "nodes": Route(
        path="/nodes",
        row=rows.NodeRow,
        answer=answers.list_nodes,
        is_paged=True,
        filters=("status", "phase", "role", "owner"),
        help="Nodes, in the order they came.",
    ),
    "node": Route(
        path="/nodes/{node}", row=rows.NodeDetail, answer=answers.get_node, help="All that is known of a node."
    ),
    "leases": Route(
        path="/leases",
        row=rows.LeaseRow,
        answer=answers.list_leases,
        is_paged=True,
        filters=("run", "node"),
        help="Leases that are open.",
    ),
    "submissions": Route(
        path="/submissions",
        row=rows.SubmissionRow,
        answer=answers.list_submissions,
        is_paged=True,
        filters=("run", "node", "step", "progress"),
        help="Submissions, newest first.",
    ),
    "submission": Route(
        path="/submissions/{submission}",
        row=rows.SubmissionDetail,
        answer=answers.get_submission,
        help="A submission and its judgement.",
    ),
    "verdicts": Route(
        path="/verdicts",
        row=rows.VerdictRow,
        answer=answers.list_verdicts,
        is_paged=True,
        filters=("run", "submission", "node"),
        help="Verdicts, newest first; `node` is the validator.",
    ),
    "slashes": Route(
        path="/slashes",
        row=rows.SlashRow,
        answer=answers.list_slashes,
        is_paged=True,
        filters=("run",),
        help="Slashes, newest first.",
    ),
    "slash": Route(
        path="/slashes/{submission}", row=rows.SlashRow, answer=answers.get_slash, help="The slash of a submission."
    ),
    "appeals": Route(
        path="/appeals",
        row=rows.AppealRow,
        answer=answers.list_appeals,
        is_paged=True,
        filters=("run",),
        help="Appeals, newest first.",
    ),
    "checkpoints": Route(
        path="/checkpoints",
        row=rows.CheckpointRow,
        answer=answers.list_checkpoints,
        is_paged=True,
        filters=("run",),
        help="Published checkpoints, newest first.",
    ),
    "refused": Route(
        path="/refused",
        row=rows.RefusedRow,
        answer=answers.list_refused,
        is_paged=True,
        help="Rollout files that intake refused in the last 30 days, newest first; one page.",
    ),
    "entries": Route(
        path="/log/entries",
        row=rows.EntryRow,
        answer=answers.list_entries,
        is_paged=True,
        filters=("kind", "author", "run", "subject"),
        help="Entries of the log, newest first.",
    ),
    "entry": Route(
        path="/log/entries/{index}",
        row=rows.EntryDetail,
        answer=answers.get_entry,
        help="An entry, with its inclusion proof.",
    ),
    "head": Route(path="/log/head", row=rows.HeadRow, answer=answers.get_head, help="The newest signed tree head."),
    "consistency": Route(
        path="/log/consistency",
        row=rows.ConsistencyRow,
        answer=answers.get_consistency,
        required=("old",),
        filters=("new",),
        is_immutable=True,
        help="Proof that an older tree is the beginning of a newer one.",
    ),
}


API_ROOT = "/api/v1"
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
    """The whole document."""
    paths = {API_ROOT + question.path: {"get": _operation(name, question)} for name, question in ROUTES.items()}
    schemas = {
        kind.__name__: build_row_schema(kind) for question in ROUTES.values() for kind in list_row_types(question.row)
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "prime-coordinator",
            "version": version,
            "description": "Read-only. Ids are 0x and hex, times are Unix milliseconds, amounts are nano tokens.",
        },
        "paths": paths,
        "components": {"schemas": {**schemas, "Error": ERROR_SCHEMA}},
    }


def _operation(name: str, question: Route) -> dict[str, Any]:
    row = {"$ref": f"#/components/schemas/{question.row.__name__}"}
    answers = {"200": _response("The answer.", _page_schema(row) if question.is_paged else row)}
    for status, text in (("400", "A parameter is wrong."), ("404", "Not known here."), ("429", "Too many questions.")):
        answers[status] = _response(text, {"$ref": "#/components/schemas/Error"})
    places = [*((each, "path") for each in question.in_path), *((each, "query") for each in question.in_query)]
    return {
        "operationId": name,
        "summary": question.help,
        "parameters": [_parameter(each, place, question) for each, place in places],
        "responses": answers,
    }


def _parameter(name: str, place: str, question: Route) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": place == "path" or name in question.required,
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


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REVALIDATE = "no-cache"
"""Ask each time; an unchanged answer comes back as 304."""
IMMUTABLE = "public, max-age=31536000, immutable"


def add_json_routes(app: web.Application, desk: AppContext) -> None:
    reader = JsonApi(desk)
    for name, question in ROUTES.items():
        app.router.add_get(API_ROOT + question.path, reader.serve(question), name=f"api-{name}")
    app.router.add_get(API_ROOT + "/openapi.json", reader.guard(_describe))
    app.router.add_route("*", API_ROOT + "/{tail:.*}", reader.guard(_refuse_path))


class JsonApi:
    """Answers questions for anybody, within bounds."""

    def __init__(self, desk: AppContext) -> None:
        self._desk = desk
        reading = desk.config.reading
        self._rates = TokenBuckets(
            RateLimit(per_second=reading.per_second, burst=reading.burst), keys_max=READERS_KNOWN_MAX
        )
        self._gate = ConcurrencyLimit(total_max=READERS_MAX, key_max=READERS_MAX // 4)
        self._status: tuple[int, bytes] | None = None

    def serve(self, question: Route) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            ask = parse_query(question, {**_read_query(request), **request.match_info})
            body = await self._answer(question, ask)
            is_settled = question.is_immutable and all(getattr(ask, name) is not None for name in question.in_query)
            return _reply(request, body, IMMUTABLE if is_settled else REVALIDATE)

        return self.guard(answer)

    async def _answer(self, question: Route, ask: QueryParams) -> bytes:
        if question is not ROUTES["status"]:
            return _to_json(await question.answer(self._desk, ask))
        now_ms = self._desk.now_ms()
        # A clock that was set back makes the kept answer look as if it came from the future.
        if self._status is None or not 0 <= now_ms - self._status[0] < STATUS_MS:
            self._status = (now_ms, _to_json(await question.answer(self._desk, ask)))
        return self._status[1]

    def guard(self, handler: Handler) -> Handler:
        """Bounds before, and every failure as JSON after."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            origin = address_group(get_client_address(request, self._desk.config.limits.trusted_proxies))
            now_ms = int(asyncio.get_running_loop().time() * 1000)
            if wait_ms := self._rates.take(origin, now_ms):
                return _error(RefusalError(RefusalCode.RATE_LIMITED, "", "too many questions", retry_after_ms=wait_ms))
            if not self._gate.enter(origin):
                return _error(RefusalError(RefusalCode.OVERLOADED, "", "too many at once", retry_after_ms=1000))
            try:
                async with asyncio.timeout(self._desk.config.limits.handle_ms / 1000):
                    return await handler(request)
            except RefusalError as refuse:
                return _error(refuse)
            except RemoteError as error:
                return _error(RefusalError(RefusalCode.MALFORMED, error.field, error.problem))
            except TimeoutError:
                return _error(RefusalError(RefusalCode.TIMED_OUT, "", "took too long"))
            except LocalError:
                log.exception("cannot answer %s", request.path)
                return _error(RefusalError(RefusalCode.OVERLOADED, "", "not possible right now", retry_after_ms=5000))
            except Exception:  # boundary: one question's bug must not stop the server, nor show its insides
                incident = secrets.token_hex(6)
                log.exception("incident %s while answering %s", incident, request.path)
                return _error(RefusalError(RefusalCode.INTERNAL, "", f"an error here, incident {incident}"))
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
    return _reply(request, _to_json(describe_api(_program_version())), REVALIDATE)


async def _refuse_path(request: web.Request) -> web.StreamResponse:
    if request.method not in ("GET", "HEAD"):
        body = {"error": {"field": "method", "problem": "there is nothing to change here; GET only"}}
        return web.json_response(body, status=405, headers={"Allow": "GET, HEAD"})
    raise RefusalError(RefusalCode.UNKNOWN, "path", f"see {API_ROOT}/openapi.json for what can be asked")


def _reply(request: web.Request, body: bytes, caching: str) -> web.Response:
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": caching, "X-Content-Type-Options": "nosniff"}
    if tag in [each.strip().removeprefix("W/") for each in request.headers.get("If-None-Match", "").split(",")]:
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, content_type="application/json", charset="utf-8", headers=headers)


def _error(refuse: RefusalError) -> web.Response:
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    if refuse.retry_after_ms:
        headers["Retry-After"] = str(-(-refuse.retry_after_ms // 1000))
    body = {"error": {"field": refuse.field, "problem": refuse.problem}}
    return web.json_response(body, status=HTTP_STATUS[refuse.code], headers=headers)


def _to_json(value: Any) -> bytes:
    return json.dumps(to_json_value(value), allow_nan=False, separators=(",", ":")).encode()


def _program_version() -> str:
    try:
        return version("prime-swarm")
    except PackageNotFoundError:
        return "0"
