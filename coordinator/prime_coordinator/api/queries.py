"""The parameters of read requests: each has one accepted spelling. Pure.

The JSON API and the operator's endpoint take the same requests; the table of them is in routes.py.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from prime_coordinator.api.schemas import SubmissionProgress
from prime_coordinator.app_context import AppContext
from prime_coordinator.constants import PAGE_ROWS, PAGE_ROWS_MAX
from prime_coordinator.scheduling.eligibility import NodePhase
from prime_protocol.constants import LOG_ENTRIES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import NodeStatus, Role
from prime_protocol.ledger.replay import ENTRY_TYPES
from prime_protocol.wire.ids import Digest, NodeId, RunId, Step

CURSOR = re.compile(r"[0-9]{1,19}(\.[0-9]{1,19})?")
CURSOR_MAX = 2**63 - 1
"""Largest number in a cursor: databases and `islice` count in 64 bits with a sign."""
NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
SUBJECT = re.compile(r"0x[0-9a-f]{40}|0x[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryParams:
    """The parsed parameters of one request. None: not given."""

    run: RunId | None = None
    node: NodeId | None = None
    owner: NodeId | None = None
    author: NodeId | None = None
    submission: Digest | None = None
    step: Step | None = None
    progress: SubmissionProgress | None = None
    subject: str | None = None
    kind: str | None = None
    status: NodeStatus | None = None
    phase: NodePhase | None = None
    role: Role | None = None
    epoch: int | None = None
    index: int | None = None
    old: int | None = None
    new: int | None = None
    cursor: tuple[int, ...] | None = None
    limit: int = PAGE_ROWS


@dataclass(frozen=True, slots=True)
class ParamFormat:
    """How one parameter is written."""

    parse: Callable[[str], Any]
    schema: Mapping[str, Any]
    """JSON Schema of the text."""
    help: str


def _enum_param(kind: type[StrEnum]) -> ParamFormat:
    def parse(text: str) -> StrEnum:
        if text not in list(kind):
            raise RemoteError("", f"is not one of {', '.join(kind)}")
        return kind(text)

    return ParamFormat(parse, {"type": "string", "enum": [str(word) for word in kind]}, kind.__doc__ or "")


def _number_param(low: int, high: int, text: str) -> ParamFormat:
    def parse(raw: str) -> int:
        if not NUMBER.fullmatch(raw) or not low <= int(raw) <= high:
            raise RemoteError("", f"is not a whole number from {low} to {high}")
        return int(raw)

    return ParamFormat(parse, {"type": "integer", "minimum": low, "maximum": high}, text)


def _parse_cursor(text: str) -> tuple[int, ...]:
    numbers = tuple(map(int, text.split("."))) if CURSOR.fullmatch(text) else ()
    if not numbers or max(numbers) > CURSOR_MAX:
        raise RemoteError("", "is not a cursor; pass `next` of the previous page")
    return numbers


def _parse_kind(text: str) -> str:
    if text not in ENTRY_TYPES:
        raise RemoteError("", f"is not one of {', '.join(sorted(ENTRY_TYPES))}")
    return text


def _parse_subject(text: str) -> str:
    if not SUBJECT.fullmatch(text):
        raise RemoteError("", "is not an address or a digest: 0x and 40 or 64 lower-case hex digits")
    return text


ADDRESS = {"type": "string", "pattern": "^0x[0-9a-f]{40}$"}
DIGEST = {"type": "string", "pattern": "^0x[0-9a-f]{64}$"}
ADDRESS_OR_DIGEST = {"type": "string", "pattern": f"^({SUBJECT.pattern})$"}
STEP_MAX = 2**53

PARAMS: dict[str, ParamFormat] = {
    "run": ParamFormat(RunId, {"type": "string", "pattern": f"^{RunId.PATTERN.pattern}$"}, "Name of a run."),
    "node": ParamFormat(NodeId.parse, ADDRESS, "Address of a node."),
    "owner": ParamFormat(NodeId.parse, ADDRESS, "Address of an owner."),
    "author": ParamFormat(NodeId.parse, ADDRESS, "Address that signed the entry."),
    "submission": ParamFormat(Digest.parse, DIGEST, "Name of a submission."),
    "subject": ParamFormat(_parse_subject, ADDRESS_OR_DIGEST, "Address or digest that the entry refers to."),
    "kind": ParamFormat(_parse_kind, {"type": "string", "enum": sorted(ENTRY_TYPES)}, "Kind of entry."),
    "step": _number_param(0, STEP_MAX, "Number of a step."),
    "progress": _enum_param(SubmissionProgress),
    "status": _enum_param(NodeStatus),
    "phase": _enum_param(NodePhase),
    "role": _enum_param(Role),
    "epoch": _number_param(1, STEP_MAX, "Number of a payout root, from 1."),
    "index": _number_param(0, LOG_ENTRIES_MAX, "Number of an entry, from 0."),
    "old": _number_param(0, LOG_ENTRIES_MAX, "Entries under the older tree head."),
    "new": _number_param(0, LOG_ENTRIES_MAX, "Entries under the newer tree head; the newest one if left out."),
    "cursor": ParamFormat(
        _parse_cursor, {"type": "string", "pattern": f"^{CURSOR.pattern}$"}, "`next` of the previous page."
    ),
    "limit": _number_param(1, PAGE_ROWS_MAX, "Most rows of the page."),
}


@dataclass(frozen=True, slots=True)
class ResultPage:
    """Rows, and the cursor of the next page. A page may be short, even empty, and still have a next one."""

    rows: tuple[Any, ...]
    next: str | None


QueryHandler = Callable[[AppContext, QueryParams], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Route:
    """One read request: its path, its parameters, its handler and the type of its result."""

    path: str
    """Under the API's root; a part in braces is a parameter."""
    row: type
    """Type of the result, or of each row of a page."""
    handler: QueryHandler
    help: str
    filters: tuple[str, ...] = ()
    """Optional parameters in the query."""
    is_paged: bool = field(default=False, kw_only=True)
    required: tuple[str, ...] = field(default=(), kw_only=True)
    """Parameters in the query that must be given."""
    is_immutable: bool = field(default=False, kw_only=True)
    """The result never changes if every parameter is given."""

    @property
    def in_path(self) -> tuple[str, ...]:
        return tuple(re.findall(r"\{(\w+)\}", self.path))

    @property
    def in_query(self) -> tuple[str, ...]:
        return (*self.required, *self.filters, *(("cursor", "limit") if self.is_paged else ()))


def parse_query(route: Route, given: Mapping[str, str]) -> QueryParams:
    """RemoteError names a parameter that is unknown, missing or malformed."""
    known = (*route.in_path, *route.in_query)
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name not in known:
            allowed = ", ".join(route.in_query) or "none"
            raise RemoteError(name[:40], f"is not a parameter here; allowed: {allowed}")
        try:
            values[name] = PARAMS[name].parse(text)
        except RemoteError as error:
            raise RemoteError(name, error.problem) from None
    for name in (*route.in_path, *route.required):
        if name not in values:
            raise RemoteError(name, "is missing")
    return QueryParams(**values)
