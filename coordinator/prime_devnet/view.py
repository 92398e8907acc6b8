"""The network at a glance, for a terminal: reward curve, who does what, the cheater's stake going. Pure."""

from itertools import pairwise
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from prime_devnet.watch import Look
from prime_protocol.ids import NodeId
from prime_protocol.names import friendly_name

NANO = 10**9
BARS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 60
SLASHES_SHOWN = 4


def draw_curve(values: list[float], width: int = CURVE_WIDTH) -> str:
    """A line of bars, 0 to 1, the newest at the right; older ones are averaged to fit."""
    if not values:
        return ""
    columns = min(width, len(values))
    edges = [round(column * len(values) / columns) for column in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    return "".join(BARS[min(len(BARS) - 1, int(max(0.0, mean) * len(BARS)))] for mean in means)


def render(look: Look, names: dict[NodeId, str], *, steps: int, elapsed_s: float, phase: str) -> RenderableType:
    rewards = [float(step["reward_mean"]) for step in look.steps]
    head = Text(f"{phase}   step {max(0, look.step)} of {steps}   {elapsed_s:.0f} s", style="bold")
    last = f"  {rewards[-1]:.2f}" if rewards else "  no step yet"
    curve = Text.assemble(("reward  ", "dim"), (draw_curve(rewards), "green"), last)
    return Group(head, curve, render_nodes(look, names), *render_slashes(look, names))


def render_nodes(look: Look, names: dict[NodeId, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("who", "name", "does", "holds step", "accepted", "soft", "rejected", "stake", "earned"):
        table.add_column(title, justify="left" if title in ("who", "name", "does") else "right")
    for row in sorted(look.nodes, key=lambda row: names.get(NodeId.parse(row["node"]), "")):
        node = NodeId.parse(row["node"])
        who = names.get(node, "?")
        style = "red" if who.startswith("cheater") else ""
        table.add_row(who, friendly_name(node), *cells(row), style=style)
    return table


def cells(row: dict[str, Any]) -> list[str]:
    step = row["checkpoint_step"]
    return [
        row["activity"] or row["phase"],
        "-" if step is None or step < 0 else str(step),
        str(row["accepted"]),
        str(row["soft"]),
        str(row["hard"]),
        f"{row['stake_nano'] / NANO:,.0f}",
        f"{row['earned_nano'] / NANO:,.1f}",
    ]


def render_slashes(look: Look, names: dict[NodeId, str]) -> list[RenderableType]:
    lines = []
    for row in look.slashes[:SLASHES_SHOWN]:
        who = names.get(NodeId.parse(row["node"]), row["node"])
        lines.append(f"{who}: {row['amount_nano'] / NANO:,.0f} tokens, {row['progress']}")
    return [Panel("\n".join(lines), title="slashes", border_style="red", expand=False)] if lines else []


def one_line(look: Look, steps: int, elapsed_s: float, phase: str) -> str:
    """For output that is not a terminal."""
    reward = f"{float(look.steps[-1]['reward_mean']):.2f}" if look.steps else "-"
    hard = sum(row["hard"] for row in look.nodes)
    return f"{elapsed_s:4.0f} s  {phase}: step {max(0, look.step)} of {steps}, reward {reward}, {hard} files rejected"
