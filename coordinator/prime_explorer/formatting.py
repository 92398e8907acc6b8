"""Template filters for numbers, times and ids, and SVG drawings. Pure.

The template escapes what filters return. Drawings need no script; their colours come from the style sheet.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup, escape

from prime_explorer.config import LINEAGE_NODES_DRAWN, NETWORK_NODES_DRAWN
from prime_explorer.pages import entries, nodes, submissions
from prime_explorer.pages.live import ServingNode
from prime_explorer.pages.runs import LineageRow, StepSummary
from prime_explorer.pages.submissions import MetricStrip
from prime_protocol.wire.ids import NodeId, friendly_name
from prime_runtime.formatting import NANO, format_amount, format_bytes, format_duration

SCALES = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))


def show_count(number: float | None) -> str:
    """All digits, grouped."""
    return "–" if number is None else f"{number:,}"


def count_things(number: int, thing: str) -> str:
    """1 step, 2 steps."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def show_short_count(number: int) -> str:
    """Three significant digits: 12.3 M."""
    for size, letter in SCALES:
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return str(number)


def show_short_amount(nano: int) -> str:
    """Nano as units, to four decimals."""
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
    """Enough of an id to distinguish it on one page."""
    return f"{digest[:8]}…{digest[-4:]}" if len(digest) > 14 else digest


def show_iso(at_ms: int) -> str:
    """For machines, and for conversion to the reader's time zone."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def show_utc(at_ms: int) -> str:
    """Shown when scripts are disabled."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def with_query(path: str, query: Mapping[str, Any], **changes: Any) -> str:
    """The same page with other parameters, without empty ones."""
    merged = {name: value for name, value in {**query, **changes}.items() if value not in (None, "")}
    return f"{path}?{urlencode(merged)}" if merged else path


def is_id(value: Any) -> bool:
    """Whether a value of an entry is an address or a digest."""
    return isinstance(value, str) and value.startswith("0x") and len(value) in (42, 66)


def select_columns(rows: Iterable[Any], *names: str) -> list[tuple[Any, ...]]:
    """These fields of each row."""
    return [tuple(getattr(row, name) for name in names) for row in rows]


FILTERS: dict[str, Callable[..., Any]] = {
    "amount": format_amount,
    "bytes": format_bytes,
    "columns": select_columns,
    "count": show_count,
    "counted": count_things,
    "short_count": show_short_count,
    "short_amount": show_short_amount,
    "iso": show_iso,
    "name": show_name,
    "number": show_number,
    "percent": show_percent,
    "short": shorten,
    "span": format_duration,
    "utc": show_utc,
}
GLOBALS: dict[str, Any] = {
    "with_query": with_query,
    "is_id": is_id,
    "ENTRY_KINDS": entries.ENTRY_KINDS,
    "NODE_ORDERS": nodes.NODE_ORDERS,
    "ROLES": nodes.ROLE_COLUMNS,
    "NODE_STATUSES": nodes.NODE_STATUSES,
    "PROGRESS": submissions.SUBMISSION_PROGRESS,
    "SLASH_PROGRESS": submissions.SLASH_PROGRESS,
}


WIDTH = 720


def _svg(width: int, height: int, title: str, parts: Sequence[str], kind: str, *, has_links: bool = False) -> Markup:
    """A drawing is one image to a screen reader, unless it contains links."""
    body = Markup("").join(Markup(part) for part in parts)
    return Markup(
        '<svg class="picture {}" viewBox="0 0 {} {}" role="{}" aria-label="{}" xmlns="http://www.w3.org/2000/svg">'
        "{}</svg>"
    ).format(kind, width, height, "group" if has_links else "img", title, body)


def _text(x: float, y: float, words: str, css: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{css}">{escape(words)}</text>'


def _rect(x: float, y: float, width: float, height: float, css: str, title: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1.5):.1f}" height="{height}" rx="2" class="{css}">'
        f"{inside}</rect>"
    )


# --- The timeline of steps --------------------------------------------------------------------------------------------

TIMELINE_BARS: tuple[
    tuple[str, str, Callable[[StepSummary, StepSummary | None], tuple[int | None, int | None]]], ...
] = (
    ("broadcast", "until the first lease", lambda step, _: (step.published_ms, step.first_lease_ms)),
    ("generate", "first lease to last submission", lambda step, _: (step.first_lease_ms, step.last_submitted_ms)),
    ("audit", "first draw to last outcome", lambda step, _: (step.first_drawn_ms, step.last_settled_ms)),
    (
        "train",
        "last outcome that was trained on, to the next checkpoint",
        lambda _, later: (later.ready_ms, later.published_ms) if later else (None, None),
    ),
)
LABEL_WIDTH, ROW_HEIGHT = 58, 46


def draw_timeline(steps: Sequence[StepSummary]) -> Markup:
    """Newest steps, one row each, with the start and end of each phase according to the log."""
    times = [at for step in steps for at in (step.published_ms, step.last_submitted_ms, step.last_settled_ms) if at]
    if not times:
        return Markup("")
    start, end = min(times), max(times)
    scale = (WIDTH - LABEL_WIDTH - 8) / max(1, end - start)
    parts = []
    for row, step in enumerate(steps):
        later = steps[row + 1] if row + 1 < len(steps) else None
        top = row * ROW_HEIGHT
        parts.append(_text(0, top + 26, f"step {step.step}", "label"))
        for line, (name, meaning, find) in enumerate(TIMELINE_BARS):
            began, ended = find(step, later)
            if began is None or ended is None or ended < began:
                continue
            title = f"{name}, step {step.step}: {format_duration(ended - began)} ({meaning})"
            left = LABEL_WIDTH + (began - start) * scale
            parts.append(_rect(left, top + 4 + 9 * line, (ended - began) * scale, 8, f"bar {name}", title))
    foot = len(steps) * ROW_HEIGHT + 14
    parts.append(_text(LABEL_WIDTH, foot, "0", "label"))
    parts.append(_text(WIDTH - 8, foot, format_duration(end - start), "label", "end"))
    return _svg(WIDTH, foot + 6, f"Timeline of the last {len(steps)} steps", parts, "timeline")


# --- Strips against a threshold ---------------------------------------------------------------------------------------

STRIP_HEIGHT, STRIP_LEFT, SHARE_MAX = 34, 250, 2.0


def draw_strips(strips: Sequence[MetricStrip]) -> Markup:
    """Each metric as a share of the run's limit; points right of the line exceed it."""
    room = WIDTH - STRIP_LEFT - 70
    parts = []
    for row, strip in enumerate(strips):
        middle = row * STRIP_HEIGHT + STRIP_HEIGHT / 2
        parts.append(_text(0, middle + 4, strip.title, "label"))
        parts.append(f'<line x1="{STRIP_LEFT}" x2="{STRIP_LEFT + room}" y1="{middle}" y2="{middle}" class="axis"/>')
        limit = STRIP_LEFT + room / SHARE_MAX
        parts.append(f'<line x1="{limit}" x2="{limit}" y1="{middle - 11}" y2="{middle + 11}" class="limit"/>')
        for point in strip.points:
            x = STRIP_LEFT + room * min(point.share, SHARE_MAX) / SHARE_MAX
            css = "point over" if point.share > 1 else "point"
            who = show_name(point.who) if point.who.startswith("0x") else point.who
            words = escape(f"{who}: {point.value:.4g}, allowed is {strip.limit:g}")
            parts.append(f'<circle cx="{x:.1f}" cy="{middle}" r="4.5" class="{css}"><title>{words}</title></circle>')
        parts.append(_text(WIDTH, middle + 4, f"≤ {strip.limit:g}", "label", "end"))
    title = "Numbers of the audit against what the run allows: " + "; ".join(
        f"{strip.title} at most {max(point.value for point in strip.points):.4g} of {strip.limit:g}" for strip in strips
    )
    return _svg(WIDTH, len(strips) * STRIP_HEIGHT + 4, title, parts, "strips")


# --- Lineage ----------------------------------------------------------------------------------------------------------


def draw_lineage(lineage: Sequence[LineageRow], step: int) -> Markup:
    """Flows from nodes to the checkpoint, as wide as their share of rollouts."""
    shown, rest = list(lineage[:LINEAGE_NODES_DRAWN]), lineage[LINEAGE_NODES_DRAWN:]
    rows = [(show_name(each.node), each.rollouts, f"/nodes/{each.node}") for each in shown]
    if rest:
        rows.append((f"{len(rest)} more nodes", sum(each.rollouts for each in rest), ""))
    total = sum(rollouts for _, rollouts, _ in rows) or 1
    height = max(60, len(rows) * 26 + 8)
    middle = height / 2
    parts = []
    for row, (name, rollouts, href) in enumerate(rows):
        y = row * 26 + 17
        thick = 1.5 + 14 * rollouts / total
        parts.append(
            f'<path d="M 250 {y} C 420 {y}, 420 {middle}, 560 {middle}" class="flow" stroke-width="{thick:.1f}"/>'
        )
        words = _text(242, y + 4, f"{name} · {rollouts:,}", "label", "end")
        parts.append(f'<a href="{escape(href)}">{words}</a>' if href else words)
    parts.append(_rect(560, middle - 22, 150, 44, "box"))
    parts.append(_text(635, middle + 5, f"checkpoint {step}", "", "middle"))
    return _svg(
        WIDTH, height, f"Which nodes' rollouts checkpoint {step} was trained on", parts, "lineage", has_links=True
    )


# --- The network ------------------------------------------------------------------------------------------------------


LABELLED_MAX = 60
"""Nodes up to which a drawing of the network names every node."""


def draw_network(serving: Sequence[ServingNode], newest: str | None) -> Markup:
    """Serving nodes in rows by depth, with lines to the nodes that sent them most of the weights. In a small network
    each has its name and the bytes that it passed on below it."""
    drawn = sorted(serving, key=lambda each: (each.depth, each.node))[:NETWORK_NODES_DRAWN]
    is_labelled = len(drawn) <= LABELLED_MAX
    step_x, step_y, per_line = (152, 62, 4) if is_labelled else (26, 26, 24)
    levels: dict[int, list[ServingNode]] = {}
    for node in drawn:
        levels.setdefault(node.depth, []).append(node)
    parts, places, top = [], dict[str, tuple[float, float]](), 10.0
    for depth in sorted(levels):
        row = sorted(levels[depth], key=lambda node: _get_parents_x(node, places))  # fewer lines cross
        parts.append(_text(0, top + 14, "origin" if depth == 0 else f"depth {depth}", "label"))
        for place, node in enumerate(row):
            x = (140 if is_labelled else 90) + (place % per_line) * step_x
            y = top + 10 + place // per_line * step_y
            places[node.node] = x, y
            parts.append(_draw_peer(node, x, y, newest, [each for each in node.parents if each in places]))
            if is_labelled:
                parts.append(_text(x, y + 22, show_name(node.node), "name", "middle"))
                parts.append(_text(x, y + 35, f"{format_bytes(node.sent_bytes)} sent", "label", "middle"))
        top += step_y * (1 + (len(row) - 1) // per_line) + 22
    lines = [
        f'<line x1="{x:.0f}" y1="{y:.1f}" x2="{places[parent][0]:.0f}" y2="{places[parent][1]:.1f}" class="edge"/>'
        for node in serving
        if node.node in places
        for x, y in (places[node.node],)
        for parent in node.parents
        if parent in places
    ]
    return _svg(
        WIDTH, int(top), f"{len(serving)} nodes that serve weights, by depth", lines + parts, "network", has_links=True
    )


def _get_parents_x(node: ServingNode, places: Mapping[str, tuple[float, float]]) -> float:
    found = [places[parent][0] for parent in node.parents if parent in places]
    return sum(found) / len(found) if found else WIDTH


def _draw_peer(node: ServingNode, x: float, y: float, newest: str | None, parents: Sequence[str]) -> str:
    has_newest = newest in node.manifests
    css = "peer ahead" if has_newest else "peer"
    state = "has the newest weights" if has_newest else "does not serve the newest weights yet"
    sources = f", weights from {', '.join(map(show_name, parents))}" if parents else ""
    words = escape(f"{show_name(node.node)}: {state}, {node.slots_free} free slots{sources}")
    return (
        f'<a href="/nodes/{escape(node.node)}"><circle cx="{x}" cy="{y:.1f}" r="9" class="{css}">'
        f"<title>{words}</title></circle></a>"
    )


DRAWINGS = {
    "draw_timeline": draw_timeline,
    "draw_strips": draw_strips,
    "draw_lineage": draw_lineage,
    "draw_network": draw_network,
}
