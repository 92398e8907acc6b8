"""How templates write numbers, times and ids. Pure. What comes out is escaped by the template like anything else."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from prime_explorer.pages import entries, nodes, slashes, submissions
from prime_protocol.ids import NodeId
from prime_protocol.names import friendly_name
from prime_runtime.wording import NANO, show_amount, show_bytes, show_span

SCALES = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def show_count(number: float | None) -> str:
    """Every digit."""
    return "–" if number is None else f"{number:,}"


def count_things(number: int, thing: str) -> str:
    """1 step, 2 steps."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def show_short_count(number: int) -> str:
    """Three digits that count: 12.3 M."""
    for size, letter in SCALES:
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return str(number)


def show_short_amount(nano: int) -> str:
    """Nano as tokens, to four decimals."""
    return f"{nano / NANO:,.4f}".rstrip("0").rstrip(".")


def show_percent(share: float | None) -> str:
    if share is None:
        return "–"
    return f"{100 * share:.1f} %" if 0 < share < 0.1 else f"{100 * share:.0f} %"


def show_number(number: float | None, digits: int = 3) -> str:
    return "–" if number is None else f"{number:.{digits}g}"


def show_name(address: str) -> str:
    return friendly_name(NodeId.parse(address))


def shorten(digest: str) -> str:
    """Enough of an id to tell it from others on one page."""
    return f"{digest[:8]}…{digest[-4:]}" if len(digest) > 14 else digest


def show_iso(at_ms: int) -> str:
    """For machines, and for the reader's own zone."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def show_utc(at_ms: int) -> str:
    """As it stands where no script runs."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def with_query(path: str, query: Mapping[str, Any], **changes: Any) -> str:
    """The same page with other parameters; those that are empty are left out."""
    merged = {name: value for name, value in {**query, **changes}.items() if value not in (None, "")}
    return f"{path}?{urlencode(merged)}" if merged else path


def is_id(value: Any) -> bool:
    """Whether a value of an entry is an address or a digest."""
    return isinstance(value, str) and value.startswith("0x") and len(value) in (42, 66)


def take_columns(rows: Iterable[Any], *names: str) -> list[tuple[Any, ...]]:
    """These fields of each row."""
    return [tuple(getattr(row, name) for name in names) for row in rows]


FILTERS: dict[str, Callable[..., Any]] = {
    "amount": show_amount,
    "bytes": show_bytes,
    "columns": take_columns,
    "count": show_count,
    "counted": count_things,
    "short_count": show_short_count,
    "short_amount": show_short_amount,
    "iso": show_iso,
    "name": show_name,
    "number": show_number,
    "percent": show_percent,
    "short": shorten,
    "span": show_span,
    "utc": show_utc,
}
GLOBALS: dict[str, Any] = {
    "with_query": with_query,
    "is_id": is_id,
    "ENTRY_KINDS": entries.KINDS,
    "NODE_ORDERS": nodes.ORDERS,
    "ROLES": nodes.ROLES,
    "NODE_STATUSES": nodes.STATUSES,
    "PROGRESS": submissions.PROGRESS,
    "SLASH_PROGRESS": slashes.PROGRESS,
}
