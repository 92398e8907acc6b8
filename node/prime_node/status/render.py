"""The status model as plain text, as a full terminal screen, and as a self-refreshing HTML page without scripts. Pure.

What is shown is decided in status_model.py; this module only lays it out.
"""

from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from prime_node.status.status_model import Bar, Fact, Grid, Section, StatusModel, Tone, make_status_model
from prime_runtime.formatting import format_time

NAME_CHARS = 12
BAR_CELLS = 30


def render_text(report: dict[str, Any]) -> str:
    """For `prime-node status`: alerts first, then the sections."""
    model = make_status_model(report)
    lines = [f"!!! {alert}" for alert in model.alerts] + [model.title, model.state]
    for section in model.sections:
        lines += _text_section(section)
    return "\n".join(lines) + "\n"


def _text_section(section: Section) -> Iterator[str]:
    yield ""
    yield section.title
    for part in section.parts:
        match part:
            case Fact(name, text):
                yield f"  {name:{NAME_CHARS}} {text}"
            case Bar(name, share, text, cells):
                yield f"  {name:{NAME_CHARS}} [{cells or draw_bar(share)}] {text}"
            case Grid():
                yield from _text_grid(part)


def draw_bar(share: float, cells: int = BAR_CELLS) -> str:
    filled = round(max(0.0, min(1.0, share)) * cells)
    return "#" * filled + "." * (cells - filled)


def _text_grid(grid: Grid) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(grid.headers, *grid.rows, strict=True)]
    for row in (grid.headers, *grid.rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield ("  " + "  ".join(cells)).rstrip()


STYLES = {Tone.PLAIN: "", Tone.GOOD: "green", Tone.BUSY: "yellow", Tone.BAD: "bold red", Tone.DIM: "dim"}
CELL_STYLES = {"#": "green", "+": "yellow", ".": "dim"}
SCREEN_BAR_CELLS = 30
SCREEN_NAME_CHARS = 12


def render_screen(report: dict[str, Any]) -> RenderableType:
    """For `prime-node status --watch`: header, alerts, then the sections."""
    model = make_status_model(report)
    title, _, rest = model.title.partition("  ")
    head = Table.grid(expand=True)
    head.add_column(ratio=1)
    head.add_column(justify="right")
    head.add_row(
        Text.assemble((title, "bold"), "  ", (rest, "dim")), Text(f"{format_time(report['now_ms'])} UTC", style="dim")
    )
    parts: list[RenderableType] = [head, Text(model.state, style=STYLES[model.tone])]
    if model.alerts:
        parts.append(Panel(Text("\n".join(model.alerts)), title="alerts", border_style="red", expand=True))
    for section in model.sections:
        parts += _screen_section(section)
    parts.append(Text("Ctrl-C leaves this view; the node keeps running", style="dim"))
    return Group(*parts)


def _screen_section(section: Section) -> list[RenderableType]:
    parts: list[RenderableType] = [Rule(Text(section.title, style="bold"), align="left", style="dim")]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True, min_width=SCREEN_NAME_CHARS)
    facts.add_column(ratio=1, overflow="fold")
    for part in section.parts:
        match part:
            case Fact(name, text, tone):
                facts.add_row(Text(name, style="dim"), Text(text, style=STYLES[tone]))
            case Bar(name, _, text):
                line = Table.grid(padding=(0, 2))
                line.add_row(_screen_bar(part), Text(text))
                facts.add_row(Text(name, style="dim"), line)
    if facts.row_count:
        parts.append(facts)
    return parts + [_screen_grid(part) for part in section.parts if isinstance(part, Grid)]


def _screen_bar(part: Bar) -> RenderableType:
    if not part.cells:
        return ProgressBar(total=1.0, completed=min(1.0, part.share), width=SCREEN_BAR_CELLS)
    return Text.assemble(*((cell, CELL_STYLES.get(cell, "")) for cell in part.cells))


def _screen_grid(grid: Grid) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for header in grid.headers:
        table.add_column(Text(header, style="dim"), no_wrap=header != "reason", overflow="ellipsis")
    for row, tone in zip(grid.rows, grid.tones, strict=True):
        table.add_row(*(Text(cell, style=STYLES[tone]) for cell in row))
    return table


REFRESH_S = 5
STYLE_PATH = "/style.css"


def render_html(report: dict[str, Any]) -> str:
    model = make_status_model(report)
    sections = "".join(map(_html_section, model.sections))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="{REFRESH_S}">
<title>{escape(_html_title_mark(model))}{escape(model.title.partition("  ")[0])}</title>
<link rel="stylesheet" href="{STYLE_PATH}">
</head>
<body>
{_html_head(model, report["now_ms"])}
<main>
{sections}</main>
<footer>This page is for this machine only and takes no orders. In a terminal: <code>prime-node status --watch</code>,
<code>prime-node pause</code>. For machines: <a href="/metrics">metrics</a>.</footer>
</body>
</html>
"""


def _html_title_mark(model: StatusModel) -> str:
    """What a tab among others shows when something is wrong."""
    return "! " if model.alerts else ""


def _html_head(model: StatusModel, now_ms: int) -> str:
    title, _, node = model.title.partition("  ")
    alerts = "".join(f"<li>{escape(text)}</li>" for text in model.alerts)
    listed = f'<ul class="alerts" role="alert">{alerts}</ul>\n' if alerts else ""
    return (
        f'<header>\n<h1>{escape(title)}</h1>\n<p class="id">{escape(node)}</p>\n'
        f'<p class="state {model.tone}">{escape(model.state)}</p>\n'
        f'<p class="dim">as of {format_time(now_ms)} UTC</p>\n{listed}</header>'
    )


def _html_section(section: Section) -> str:
    facts = "".join(_html_row(part) for part in section.parts if isinstance(part, Fact | Bar))
    grids = "".join(_html_grid(part) for part in section.parts if isinstance(part, Grid))
    table = f'<dl class="facts">{facts}</dl>\n' if facts else ""
    return f"<section>\n<h2>{escape(section.title)}</h2>\n{table}{grids}</section>\n"


def _html_row(part: Fact | Bar) -> str:
    if isinstance(part, Bar):
        share = max(0.0, min(1.0, part.share))
        shown = f'<progress max="1" value="{share:.3f}">{share:.0%}</progress> {escape(part.text)}'
        return f"<dt>{escape(part.name)}</dt><dd>{shown}</dd>"
    return f'<dt>{escape(part.name)}</dt><dd class="{part.tone}">{escape(part.text)}</dd>'


def _html_grid(grid: Grid) -> str:
    head = _html_cells("th", grid.headers)
    rows = "".join(
        f'<tr class="{tone}">{_html_cells("td", row)}</tr>' for row, tone in zip(grid.rows, grid.tones, strict=True)
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>\n'


def _html_cells(tag: str, texts: Iterable[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


assert {str(tone) for tone in Tone} == {"plain", "good", "busy", "bad", "dim"}, "style.css has a colour for each"
