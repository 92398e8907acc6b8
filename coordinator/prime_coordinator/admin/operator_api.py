"""The operator's signed requests: entries for the log, anchors, and how many could validate a run.

Only the coordinator's own key may send them. The command line signs with the key in the coordinator's folder, so anyone
who can read that file is the operator.
"""

from functools import partial
from typing import Any

from prime_coordinator.app_context import AppContext
from prime_coordinator.audits.validators import count_validator_owners
from prime_coordinator.operator_messages import (
    ANCHOR_NOW,
    COUNT_VALIDATORS,
    OPERATOR_ENTRY_ENDPOINTS,
    AnchorNow,
    AnchorScheduled,
    CountValidators,
    ValidatorCount,
)
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import Deposited
from prime_protocol.ledger.replay import ENTRY_RULES, EntryScope
from prime_protocol.wire.messages import EntryReply
from prime_protocol.wire.rpc import RefusalCode
from prime_runtime.http.messages import RefusalError
from prime_runtime.http.server import Caller, HttpServer


def add_operator_routes(server: HttpServer, context: AppContext) -> None:
    server.add(ANCHOR_NOW, partial(request_anchor, context))
    server.add(COUNT_VALIDATORS, partial(count_validators, context))
    for endpoint in OPERATOR_ENTRY_ENDPOINTS.values():
        server.add(endpoint, partial(append_entry, context))


async def request_anchor(context: AppContext, caller: Caller, wanted: AnchorNow) -> AnchorScheduled:
    check_operator(context, caller)
    size = context.core.state.size
    if wanted.size > size:
        raise RemoteError("size", f"is {wanted.size}, the log has {size} entries")
    context.settlement.request_anchor()
    return AnchorScheduled(size=size)


async def count_validators(context: AppContext, caller: Caller, wanted: CountValidators) -> ValidatorCount:
    check_operator(context, caller)
    if caller.run is None:
        raise RemoteError("Payload.run", "is missing")
    state, now_ms = context.core.state, context.now_ms()
    return ValidatorCount(
        registered=count_validator_owners(state, wanted.terms, caller.run, now_ms),
        eligible=count_validator_owners(state, wanted.terms, None, now_ms),
    )


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
