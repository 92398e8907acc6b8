"""The parameters of pages: each has one accepted spelling, and a JSON Schema for the description of the API. Pure."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from prime_explorer.config import QUERY_CHARS_MAX, ROWS_PER_PAGE, ROWS_PER_PAGE_MAX
from prime_explorer.pages.entries import ENTRY_KINDS
from prime_explorer.pages.nodes import NODE_ORDERS, NODE_PHASES, NODE_STATUSES, ROLE_COLUMNS
from prime_explorer.pages.submissions import SUBMISSION_PROGRESS
from prime_protocol.constants import LOG_ENTRIES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.wire.ids import Digest, NodeId, RunId, Step, parse_address

NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")
CURSOR = re.compile(r"(0|[1-9][0-9]{0,17})\.(0x[0-9a-f]{40})")
SUBJECT = re.compile(r"0x[0-9a-f]{40}|0x[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageParams:
    """The parsed parameters of one request. None or empty: not given."""

    run: RunId | None = None
    node: NodeId | None = None
    owner: NodeId | None = None
    author: NodeId | None = None
    submission: Digest | None = None
    about: bytes | None = None
    kind: str = ""
    state: str = ""
    status: str = ""
    phase: str = ""
    role: str = ""
    order: str = "units"
    q: str = ""
    step: Step | None = None
    epoch: int | None = None
    index: int | None = None
    old: int | None = None
    new: int | None = None
    first: int = 0
    before: int | None = None
    after: tuple[int, bytes] | None = None
    limit: int = ROWS_PER_PAGE


@dataclass(frozen=True, slots=True)
class ParamFormat:
    """How one parameter is written."""

    parse: Callable[[str], Any]
    schema: Mapping[str, Any]
    """JSON Schema of the text."""
    help: str


def _choice_param(choices: Iterable[str], text: str) -> ParamFormat:
    words = list(choices)

    def parse(raw: str) -> str:
        if raw not in words:
            raise RemoteError("", f"is not one of {', '.join(words)}")
        return raw

    return ParamFormat(parse, {"type": "string", "enum": words}, text)


def _number_param(low: int, high: int, text: str) -> ParamFormat:
    def parse(raw: str) -> int:
        if not NUMBER.fullmatch(raw) or not low <= int(raw) <= high:
            raise RemoteError("", f"is not a whole number from {low:,} to {high:,}")
        return int(raw)

    return ParamFormat(parse, {"type": "integer", "minimum": low, "maximum": high}, text)


def _parse_subject(raw: str) -> bytes:
    text = raw.lower()
    if not SUBJECT.fullmatch(text):
        raise RemoteError("", "is not an address or a digest: 0x and 40 or 64 hex digits")
    return bytes.fromhex(text[2:])


def _parse_cursor(raw: str) -> tuple[int, bytes]:
    match = CURSOR.fullmatch(raw)
    if not match:
        raise RemoteError("", "is not a position in this table; go back to its first page")
    return int(match[1]), bytes.fromhex(match[2][2:])


def _parse_text(raw: str) -> str:
    if len(raw) > QUERY_CHARS_MAX:
        raise RemoteError("", f"has {len(raw)} characters, the most are {QUERY_CHARS_MAX}")
    return raw.strip()


ADDRESS = {"type": "string", "pattern": "^0x[0-9a-f]{40}$"}
DIGEST = {"type": "string", "pattern": "^0x[0-9a-f]{64}$"}
ADDRESS_OR_DIGEST = {"type": "string", "pattern": "^0x([0-9a-fA-F]{40}|[0-9a-fA-F]{64})$"}
STEP_MAX = 2**53

PARAMS: dict[str, ParamFormat] = {
    "run": ParamFormat(RunId, {"type": "string", "pattern": f"^{RunId.PATTERN.pattern}$"}, "Name of a run."),
    "node": ParamFormat(parse_address, ADDRESS, "Address of a node."),
    "owner": ParamFormat(parse_address, ADDRESS, "Address of an owner."),
    "author": ParamFormat(parse_address, ADDRESS, "Address that signed the entry."),
    "submission": ParamFormat(Digest.parse, DIGEST, "Name of a submission."),
    "about": ParamFormat(_parse_subject, ADDRESS_OR_DIGEST, "Address or digest that the entry refers to."),
    "kind": _choice_param(ENTRY_KINDS, "Kind of entry."),
    "state": _choice_param(SUBMISSION_PROGRESS, "Progress of a submission."),
    "status": _choice_param(NODE_STATUSES, "Status of a node, as the log states it."),
    "phase": _choice_param(NODE_PHASES, "State of a node by its last heartbeat."),
    "role": _choice_param(ROLE_COLUMNS, "Role that the node registered."),
    "order": _choice_param(NODE_ORDERS, "What the nodes are ordered by, highest first."),
    "q": ParamFormat(
        _parse_text, {"type": "string", "maxLength": QUERY_CHARS_MAX}, "First characters of a name or id."
    ),
    "step": _number_param(0, STEP_MAX, "Number of a step."),
    "epoch": _number_param(1, STEP_MAX, "Number of a payout root, from 1."),
    "index": _number_param(0, LOG_ENTRIES_MAX, "Number of an entry, from 0."),
    "old": _number_param(0, LOG_ENTRIES_MAX, "Entries under the older tree head."),
    "new": _number_param(0, LOG_ENTRIES_MAX, "Entries under the newer tree head; the newest one if left out."),
    "first": _number_param(0, 10**6, "First rollout that is shown."),
    "before": _number_param(0, LOG_ENTRIES_MAX, "`next` of the previous page."),
    "after": ParamFormat(
        _parse_cursor, {"type": "string", "pattern": f"^{CURSOR.pattern}$"}, "`next` of the previous page."
    ),
    "limit": _number_param(1, ROWS_PER_PAGE_MAX, f"Most rows of the page; {ROWS_PER_PAGE} if left out."),
}


def parse_params(names: Iterable[str], required: Iterable[str], given: Mapping[str, str]) -> PageParams:
    """RemoteError names a parameter that is unknown, missing or malformed."""
    known = list(names)
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name not in known:
            raise RemoteError(name[:40], f"is not a parameter here; allowed: {', '.join(known) or 'none'}")
        try:
            values[name] = PARAMS[name].parse(text)
        except RemoteError as error:
            raise RemoteError(name, error.problem) from None
    for name in required:
        if name not in values:
            raise RemoteError(name, "is missing")
    return PageParams(**values)
