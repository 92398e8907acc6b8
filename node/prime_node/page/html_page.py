"""An outline as a page: plain HTML that comes again by itself, without scripts. Pure."""

from collections.abc import Iterable
from html import escape
from typing import Any

from prime_node.outline import Bar, Fact, Grid, Outline, Section, Tone, make_outline
from prime_runtime.wording import show_moment

REFRESH_S = 5
STYLE_PATH = "/style.css"


def render_page(report: dict[str, Any]) -> str:
    outline = make_outline(report)
    sections = "".join(map(_section, outline.sections))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="{REFRESH_S}">
<title>{escape(_mark(outline))}{escape(outline.title.partition("  ")[0])}</title>
<link rel="stylesheet" href="{STYLE_PATH}">
</head>
<body>
{_head(outline, report["now_ms"])}
<main>
{sections}</main>
<footer>This page is for this machine only and takes no orders. In a terminal: <code>prime-node status --watch</code>,
<code>prime-node pause</code>. For machines: <a href="/metrics">metrics</a>.</footer>
</body>
</html>
"""


def _mark(outline: Outline) -> str:
    """What a tab among others shows when something is wrong."""
    return "! " if outline.troubles else ""


def _head(outline: Outline, now_ms: int) -> str:
    title, _, node = outline.title.partition("  ")
    troubles = "".join(f"<li>{escape(text)}</li>" for text in outline.troubles)
    listed = f'<ul class="troubles" role="alert">{troubles}</ul>\n' if troubles else ""
    return (
        f'<header>\n<h1>{escape(title)}</h1>\n<p class="id">{escape(node)}</p>\n'
        f'<p class="state {outline.tone}">{escape(outline.state)}</p>\n'
        f'<p class="dim">as of {show_moment(now_ms)} UTC</p>\n{listed}</header>'
    )


def _section(section: Section) -> str:
    facts = "".join(_row(part) for part in section.parts if isinstance(part, Fact | Bar))
    grids = "".join(_grid(part) for part in section.parts if isinstance(part, Grid))
    table = f'<dl class="facts">{facts}</dl>\n' if facts else ""
    return f"<section>\n<h2>{escape(section.title)}</h2>\n{table}{grids}</section>\n"


def _row(part: Fact | Bar) -> str:
    if isinstance(part, Bar):
        share = max(0.0, min(1.0, part.share))
        shown = f'<progress max="1" value="{share:.3f}">{share:.0%}</progress> {escape(part.text)}'
        return f"<dt>{escape(part.name)}</dt><dd>{shown}</dd>"
    return f'<dt>{escape(part.name)}</dt><dd class="{part.tone}">{escape(part.text)}</dd>'


def _grid(grid: Grid) -> str:
    head = _cells("th", grid.headers)
    rows = "".join(
        f'<tr class="{tone}">{_cells("td", row)}</tr>' for row, tone in zip(grid.rows, grid.tones, strict=True)
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>\n'


def _cells(tag: str, texts: Iterable[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


assert {str(tone) for tone in Tone} == {"plain", "good", "busy", "bad", "dim"}, "style.css has a colour for each"
