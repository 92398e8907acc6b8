"""An outline as a full screen: for `prime-node status --watch`. Pure: it makes what rich then draws."""

from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from prime_node.outline import Bar, Fact, Grid, Section, Tone, make_outline
from prime_runtime.wording import show_moment

STYLES = {Tone.PLAIN: "", Tone.GOOD: "green", Tone.BUSY: "yellow", Tone.BAD: "bold red", Tone.DIM: "dim"}
CELL_STYLES = {"#": "green", "+": "yellow", ".": "dim"}
BAR_WIDTH = 30
NAME_CHARS = 12


def draw(report: dict[str, Any]) -> RenderableType:
    """Header, troubles, then the sections below each other."""
    outline = make_outline(report)
    title, _, rest = outline.title.partition("  ")
    head = Table.grid(expand=True)
    head.add_column(ratio=1)
    head.add_column(justify="right")
    head.add_row(
        Text.assemble((title, "bold"), "  ", (rest, "dim")), Text(f"{show_moment(report['now_ms'])} UTC", style="dim")
    )
    parts: list[RenderableType] = [head, Text(outline.state, style=STYLES[outline.tone])]
    if outline.troubles:
        parts.append(Panel(Text("\n".join(outline.troubles)), title="what is wrong", border_style="red", expand=True))
    for section in outline.sections:
        parts += _section(section)
    parts.append(Text("Ctrl-C leaves this view; the node goes on", style="dim"))
    return Group(*parts)


def _section(section: Section) -> list[RenderableType]:
    parts: list[RenderableType] = [Rule(Text(section.title, style="bold"), align="left", style="dim")]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True, min_width=NAME_CHARS)
    facts.add_column(ratio=1, overflow="fold")
    for part in section.parts:
        match part:
            case Fact(name, text, tone):
                facts.add_row(Text(name, style="dim"), Text(text, style=STYLES[tone]))
            case Bar(name, _, text):
                line = Table.grid(padding=(0, 2))
                line.add_row(_bar(part), Text(text))
                facts.add_row(Text(name, style="dim"), line)
    if facts.row_count:
        parts.append(facts)
    return parts + [_grid(part) for part in section.parts if isinstance(part, Grid)]


def _bar(part: Bar) -> RenderableType:
    if not part.cells:
        return ProgressBar(total=1.0, completed=min(1.0, part.share), width=BAR_WIDTH)
    return Text.assemble(*((cell, CELL_STYLES.get(cell, "")) for cell in part.cells))


def _grid(grid: Grid) -> Table:
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for header in grid.headers:
        table.add_column(Text(header, style="dim"), no_wrap=header != "reason", overflow="ellipsis")
    for row, tone in zip(grid.rows, grid.tones, strict=True):
        table.add_row(*(Text(cell, style=STYLES[tone]) for cell in row))
    return table
