"""The operator's own requests: orders that become entries of the log, and questions. Only the coordinator's key asks.

The command line sends them with the key from the coordinator's folder, so whoever can read that file is the operator.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from prime_coordinator.asking import read_ask
from prime_coordinator.core import ORDERS
from prime_coordinator.desk import Desk
from prime_coordinator.questions import QUESTIONS
from prime_coordinator.rows import to_plain
from prime_protocol.codec import Size
from prime_protocol.entries import Deposited
from prime_protocol.envelope import Uint
from prime_protocol.errors import RemoteError
from prime_protocol.exchange import Endpoint, RefusalCode
from prime_protocol.ledger import RULES, Scope
from prime_protocol.messages import Logged
from prime_runtime.http_body import RefuseRequest
from prime_runtime.http_server import Caller, HttpServer

PREFIX = "operator."


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One parameter of a question, as text."""

    name: Annotated[str, Size(1, 40)]
    value: Annotated[str, Size(0, 200)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Operator: a question by its name in questions.py."""

    question: Annotated[str, Size(1, 40)]
    given: Annotated[tuple[Given, ...], Size(0, 16)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The answer, as the JSON that the API gives."""

    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hasten:
    """Operator: bring the log's head to where value is kept now, not when its epoch ends."""

    size: Uint = 0
    """Entries that it has to cover at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hastened:
    """It will be, at the next look at the chain."""

    size: Uint


ASK = Endpoint(PREFIX + "ask", Asked, Told, is_idempotent=True)
ORDER_ENDPOINTS: dict[type, Endpoint[Any, Logged]] = {
    kind: Endpoint(PREFIX + kind.__name__, kind, Logged) for kind in ORDERS
}
"""An order's message is the entry it asks for; the letter names the run."""
HASTEN = Endpoint(PREFIX + "hasten", Hasten, Hastened, is_idempotent=True)
OPERATOR_ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (ASK, HASTEN, *ORDER_ENDPOINTS.values())


def add_operator_routes(server: HttpServer, desk: Desk) -> None:
    server.add(ASK, answer_with(desk))
    server.add(HASTEN, hasten_with(desk))
    for kind, endpoint in ORDER_ENDPOINTS.items():
        server.add(endpoint, order_with(desk, kind))


def answer_with(desk: Desk) -> Callable[[Caller, Asked], Awaitable[Told]]:
    async def answer(caller: Caller, asked: Asked) -> Told:
        check_operator(desk, caller)
        if asked.question not in QUESTIONS:
            raise RefuseRequest(RefusalCode.UNKNOWN, "question", f"{asked.question} is not known here")
        question = QUESTIONS[asked.question]
        ask = read_ask(question, {each.name: each.value for each in asked.given})
        return Told(body=json.dumps(to_plain(await question.answer(desk, ask)), allow_nan=False).encode())

    return answer


def hasten_with(desk: Desk) -> Callable[[Caller, Hasten], Awaitable[Hastened]]:
    async def hasten(caller: Caller, wanted: Hasten) -> Hastened:
        check_operator(desk, caller)
        if wanted.size > desk.core.state.size:
            raise RemoteError("size", f"is {wanted.size}, the log has {desk.core.state.size} entries")
        desk.settlement.hasten()
        return Hastened(size=desk.core.state.size)

    return hasten


def order_with(desk: Desk, kind: type) -> Callable[[Caller, Any], Awaitable[Logged]]:
    needs_run = RULES[kind].scope is Scope.RUN

    async def order(caller: Caller, entry: Any) -> Logged:
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


def check_operator(desk: Desk, caller: Caller) -> None:
    if caller.sender != desk.core.state.coordinator:
        raise RefuseRequest(RefusalCode.FORBIDDEN, "Letter.sender", "only the coordinator's own key may ask this")
