"""An outline as plain lines: for `prime-node status`, in a terminal as in a pipe. Pure."""

from collections.abc import Iterator
from typing import Any

from prime_node.outline import Bar, Fact, Grid, Outline, Section, make_outline

NAME_CHARS = 12
BAR_CELLS = 30


def render(report: dict[str, Any]) -> str:
    """All of it, what is wrong first."""
    outline = make_outline(report)
    return "\n".join([*_head(outline), *(line for section in outline.sections for line in _section(section))]) + "\n"


def _head(outline: Outline) -> Iterator[str]:
    for trouble in outline.troubles:
        yield f"!!! {trouble}"
    yield outline.title
    yield outline.state


def _section(section: Section) -> Iterator[str]:
    yield ""
    yield section.title
    for part in section.parts:
        match part:
            case Fact(name, text):
                yield f"  {name:{NAME_CHARS}} {text}"
            case Bar(name, share, text, cells):
                yield f"  {name:{NAME_CHARS}} [{cells or draw_bar(share)}] {text}"
            case Grid():
                yield from _grid(part)


def draw_bar(share: float, cells: int = BAR_CELLS) -> str:
    filled = round(max(0.0, min(1.0, share)) * cells)
    return "#" * filled + "." * (cells - filled)


def _grid(grid: Grid) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(grid.headers, *grid.rows, strict=True)]
    for row in (grid.headers, *grid.rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield ("  " + "  ".join(cells)).rstrip()
