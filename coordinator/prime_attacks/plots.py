"""Curves as SVG, drawn by hand: right against wrong alarms, the wrong ones on a scale of powers of ten. Pure."""

import math
from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT, EDGE = 460, 320, 48
LEAST = 1e-3
"""Left edge of the scale; what is below is drawn there."""
COLOURS = ("#0b5fa5", "#b3261e", "#2e7d32", "#8a5a00", "#6a3fa0", "#00707a")

Curve = tuple[str, Sequence[tuple[float, float]]]


def place(wrong: float, right: float) -> tuple[float, float]:
    across = 1 - math.log10(max(wrong, LEAST)) / math.log10(LEAST)
    return EDGE + across * (WIDTH - 2 * EDGE), HEIGHT - EDGE - right * (HEIGHT - 2 * EDGE)


def draw_roc(title: str, curves: Sequence[Curve]) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT + 18 * len(curves)}" '
        f'font-family="sans-serif" font-size="11" role="img" aria-label="{escape(title)}">',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="{WIDTH / 2}" y="20" text-anchor="middle" font-size="13">{escape(title)}</text>',
        *draw_axes(),
    ]
    for number, (name, points) in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        y = HEIGHT + 18 * number
        parts.append(
            f'<line x1="{EDGE}" y1="{y - 4}" x2="{EDGE + 18}" y2="{y - 4}" stroke="{colour}" stroke-width="3"/>'
        )
        parts.append(f'<text x="{EDGE + 24}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def draw_axes() -> list[str]:
    lines = []
    for power in range(round(math.log10(LEAST)), 1):
        x, bottom = place(10.0**power, 0.0)
        _, top = place(10.0**power, 1.0)
        lines.append(f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{top}" stroke="#dddddd"/>')
        lines.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{10.0**power:g}</text>')
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = place(LEAST, share)
        lines.append(f'<line x1="{x}" y1="{y:.1f}" x2="{WIDTH - EDGE}" y2="{y:.1f}" stroke="#dddddd"/>')
        lines.append(f'<text x="{x - 6}" y="{y + 4:.1f}" text-anchor="end">{share:g}</text>')
    middle = WIDTH / 2
    lines.append(f'<text x="{middle}" y="{HEIGHT - 16}" text-anchor="middle">honest submissions rejected</text>')
    lines.append(
        f'<text x="12" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 12 {HEIGHT / 2})">'
        "dishonest submissions rejected</text>"
    )
    return lines
