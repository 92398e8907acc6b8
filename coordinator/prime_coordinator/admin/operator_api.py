"""The operator's signed requests: entries for the log, and queries. Only the coordinator's own key may send them.

The command line signs with the key in the coordinator's folder, so anyone who can read that file is the operator.
"""

import json
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from prime_coordinator.api.queries import parse_query
from prime_coordinator.api.routes import ROUTES
from prime_coordinator.api.schemas import to_json_value
from prime_coordinator.app_context import AppContext
from prime_coordinator.core import OPERATOR_ENTRIES
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import Deposited
from prime_protocol.ledger.replay import ENTRY_RULES, EntryScope
from prime_protocol.wire.codec import Size
from prime_protocol.wire.envelope import Uint
from prime_protocol.wire.messages import EntryReply
from prime_protocol.wire.rpc import Endpoint, RefusalCode
from prime_runtime.http.messages import RefusalError
from prime_runtime.http.server import Caller, HttpServer

PREFIX = "operator."


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryArgument:
    """One parameter of a query, as text."""

    name: Annotated[str, Size(1, 40)]
    value: Annotated[str, Size(0, 200)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorQuery:
    """Operator to coordinator: read a route of the JSON API."""

    route: Annotated[str, Size(1, 40)]
    """Its name in api/routes.py."""
    params: Annotated[tuple[QueryArgument, ...], Size(0, 16)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAnswer:
    """The result, as the JSON that the API returns."""

    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorNow:
    """Operator to coordinator: anchor the log's head on the chain now, not at the end of its epoch."""

    size: Uint = 0
    """Least number of entries that the head must cover."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorScheduled:
    """The head is anchored at the next poll of the chain."""

    size: Uint


QUERY = Endpoint(PREFIX + "query", OperatorQuery, OperatorAnswer, is_idempotent=True)
OPERATOR_ENTRY_ENDPOINTS: dict[type, Endpoint[Any, EntryReply]] = {
    kind: Endpoint(PREFIX + kind.__name__, kind, EntryReply) for kind in OPERATOR_ENTRIES
}
"""The message is the entry to append; the envelope names the run."""
ANCHOR_NOW = Endpoint(PREFIX + "anchor", AnchorNow, AnchorScheduled, is_idempotent=True)
OPERATOR_ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (QUERY, ANCHOR_NOW, *OPERATOR_ENTRY_ENDPOINTS.values())


def add_operator_routes(server: HttpServer, context: AppContext) -> None:
    server.add(QUERY, partial(answer_query, context))
    server.add(ANCHOR_NOW, partial(request_anchor, context))
    for endpoint in OPERATOR_ENTRY_ENDPOINTS.values():
        server.add(endpoint, partial(append_entry, context))


async def answer_query(context: AppContext, caller: Caller, query: OperatorQuery) -> OperatorAnswer:
    check_operator(context, caller)
    if query.route not in ROUTES:
        raise RefusalError(RefusalCode.UNKNOWN, "route", f"{query.route} is not known here")
    route = ROUTES[query.route]
    params = parse_query(route, {each.name: each.value for each in query.params})
    result = to_json_value(await route.handler(context, params))
    return OperatorAnswer(body=json.dumps(result, allow_nan=False).encode())


async def request_anchor(context: AppContext, caller: Caller, wanted: AnchorNow) -> AnchorScheduled:
    check_operator(context, caller)
    size = context.core.state.size
    if wanted.size > size:
        raise RemoteError("size", f"is {wanted.size}, the log has {size} entries")
    context.settlement.request_anchor()
    return AnchorScheduled(size=size)


async def append_entry(context: AppContext, caller: Caller, entry: Any) -> EntryReply:
    check_operator(context, caller)
    needs_run = ENTRY_RULES[type(entry)].scope is EntryScope.RUN
    if (caller.run is not None) != needs_run:
        raise RemoteError("Payload.run", "is missing" if needs_run else "must not be given")
    if isinstance(entry, Deposited) and context.config.settlement.is_evm:
        raise RemoteError("Deposited", "is for networks whose value is in the log alone; here value comes by the chain")
    try:
        return context.core.append_operator_entry(entry, caller.run, context.now_ms())
    finally:
        # A refusal, too, may depend on entries that are not on disk yet.
        await context.commit()


def check_operator(context: AppContext, caller: Caller) -> None:
    if caller.sender != context.core.state.coordinator:
        raise RefusalError(RefusalCode.FORBIDDEN, "Payload.sender", "only the coordinator's own key may send this")
