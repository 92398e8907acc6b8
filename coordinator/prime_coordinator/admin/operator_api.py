"""The operator's own requests: orders that become entries of the log, and questions. Only the coordinator's key asks.

The command line sends them with the key from the coordinator's folder, so whoever can read that file is the operator.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
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
    """One parameter of a question, as text."""

    name: Annotated[str, Size(1, 40)]
    value: Annotated[str, Size(0, 200)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorQuery:
    """Operator: a question by its name in questions.py."""

    question: Annotated[str, Size(1, 40)]
    given: Annotated[tuple[QueryArgument, ...], Size(0, 16)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAnswer:
    """The answer, as the JSON that the API gives."""

    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorNow:
    """Operator: bring the log's head to where value is kept now, not when its epoch ends."""

    size: Uint = 0
    """Entries that it has to cover at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorScheduled:
    """It will be, at the next look at the chain."""

    size: Uint


QUERY = Endpoint(PREFIX + "ask", OperatorQuery, OperatorAnswer, is_idempotent=True)
OPERATOR_ENTRY_ENDPOINTS: dict[type, Endpoint[Any, EntryReply]] = {
    kind: Endpoint(PREFIX + kind.__name__, kind, EntryReply) for kind in OPERATOR_ENTRIES
}
"""An order's message is the entry it asks for; the letter names the run."""
ANCHOR_NOW = Endpoint(PREFIX + "hasten", AnchorNow, AnchorScheduled, is_idempotent=True)
OPERATOR_ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (QUERY, ANCHOR_NOW, *OPERATOR_ENTRY_ENDPOINTS.values())


def add_operator_routes(server: HttpServer, desk: AppContext) -> None:
    server.add(QUERY, make_query_handler(desk))
    server.add(ANCHOR_NOW, make_anchor_handler(desk))
    for kind, endpoint in OPERATOR_ENTRY_ENDPOINTS.items():
        server.add(endpoint, make_entry_handler(desk, kind))


def make_query_handler(desk: AppContext) -> Callable[[Caller, OperatorQuery], Awaitable[OperatorAnswer]]:
    async def answer(caller: Caller, asked: OperatorQuery) -> OperatorAnswer:
        check_operator(desk, caller)
        if asked.question not in ROUTES:
            raise RefusalError(RefusalCode.UNKNOWN, "question", f"{asked.question} is not known here")
        question = ROUTES[asked.question]
        ask = parse_query(question, {each.name: each.value for each in asked.given})
        return OperatorAnswer(
            body=json.dumps(to_json_value(await question.answer(desk, ask)), allow_nan=False).encode()
        )

    return answer


def make_anchor_handler(desk: AppContext) -> Callable[[Caller, AnchorNow], Awaitable[AnchorScheduled]]:
    async def hasten(caller: Caller, wanted: AnchorNow) -> AnchorScheduled:
        check_operator(desk, caller)
        if wanted.size > desk.core.state.size:
            raise RemoteError("size", f"is {wanted.size}, the log has {desk.core.state.size} entries")
        desk.settlement.request_anchor()
        return AnchorScheduled(size=desk.core.state.size)

    return hasten


def make_entry_handler(desk: AppContext, kind: type) -> Callable[[Caller, Any], Awaitable[EntryReply]]:
    needs_run = ENTRY_RULES[kind].scope is EntryScope.RUN

    async def order(caller: Caller, entry: Any) -> EntryReply:
        check_operator(desk, caller)
        if (caller.run is not None) != needs_run:
            raise RemoteError("Letter.run", "is missing" if needs_run else "must not be given")
        if kind is Deposited and desk.config.settlement.is_evm:
            raise RemoteError("Deposited", "is for value that is in the log alone; here it comes in over the chain")
        try:
            return desk.core.order(entry, caller.run, desk.now_ms())
        finally:
            # A refusal, too, may rest on entries that are not on disk yet.
            await desk.commit()

    return order


def check_operator(desk: AppContext, caller: Caller) -> None:
    if caller.sender != desk.core.state.coordinator:
        raise RefusalError(RefusalCode.FORBIDDEN, "Letter.sender", "only the coordinator's own key may ask this")
