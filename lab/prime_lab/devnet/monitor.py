"""Watches a running devnet from outside, and shows it: the reward curve, what each node does, the cheater's stake.

NetworkMonitor reads the coordinator's public API and the trainer's metrics once a second, nothing that a visitor could
not read. The render functions are pure. DevnetConsole shows a live view on a terminal, and an occasional line
elsewhere.
"""

import json
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import NodeId, friendly_name

RESPONSE_S = 60.0
"""Longer than any answer takes on a busy machine. A process that ended refuses the connection at once."""
STEP_FILE = "steps.jsonl"


@dataclass(slots=True)
class NetworkSnapshot:
    """The state of the network at one moment."""

    status: dict[str, Any] = field(default_factory=dict)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    slashes: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    """The trainer's numbers of each step it has made."""

    @property
    def run(self) -> dict[str, Any]:
        runs: list[dict[str, Any]] = self.status.get("runs", [])
        return runs[0] if runs else {}

    @property
    def step(self) -> int:
        return int(self.run.get("latest_step", -1))


class NetworkMonitor:
    """Reads the public state of one network."""

    def __init__(self, session: aiohttp.ClientSession, url: str, trainer: Path) -> None:
        self._session = session
        self._url = url
        self._trainer = trainer

    async def fetch_snapshot(self) -> NetworkSnapshot:
        """LocalError if the coordinator does not answer."""
        status = await self._ask("/status")
        nodes, slashes = [await self._ask(path) for path in ("/nodes?limit=200", "/slashes?limit=200")]
        rows = [row | nodes["presence"][row["node"]] for row in nodes["nodes"]["rows"]]
        return NetworkSnapshot(status, rows, slashes["slashes"]["rows"], read_steps(self._trainer))

    async def _ask(self, path: str) -> Any:
        try:
            timeout = aiohttp.ClientTimeout(total=RESPONSE_S)
            async with self._session.get(f"{self._url}/api/v1{path}", timeout=timeout) as response:
                response.raise_for_status()
                return await response.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LocalError(f"the coordinator at {self._url} does not answer: {error!r}") from None


def read_steps(folder: Path) -> list[dict[str, Any]]:
    """The trainer's file of numbers; its last line may be half written."""
    path = folder / STEP_FILE
    if not path.exists():
        return []
    found = []
    for line in path.read_text().split("\n")[:-1]:
        found.append(json.loads(line))
    return found


COIN_NANO = 10**9
BARS = "▁▂▃▄▅▆▇█"
CURVE_WIDTH = 60
SLASHES_SHOWN = 4


def draw_sparkline(values: list[float], width: int = CURVE_WIDTH) -> str:
    """A line of bars, 0 to 1, the newest at the right; older ones are averaged to fit."""
    if not values:
        return ""
    columns = min(width, len(values))
    edges = [round(column * len(values) / columns) for column in range(columns + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    return "".join(BARS[min(len(BARS) - 1, int(max(0.0, mean) * len(BARS)))] for mean in means)


def render_snapshot(
    snapshot: NetworkSnapshot, names: dict[NodeId, str], *, steps: int, elapsed_s: float, phase: str
) -> RenderableType:
    rewards = [float(step["reward_mean"]) for step in snapshot.steps]
    head = Text(f"{phase}   step {max(0, snapshot.step)} of {steps}   {elapsed_s:.0f} s", style="bold")
    last = f"  {rewards[-1]:.2f}" if rewards else "  no step yet"
    curve = Text.assemble(("reward  ", "dim"), (draw_sparkline(rewards), "green"), last)
    return Group(head, curve, render_nodes(snapshot, names), *render_slashes(snapshot, names))


def render_nodes(snapshot: NetworkSnapshot, names: dict[NodeId, str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("who", "name", "does", "holds step", "accepted", "invalid", "rejected", "stake", "earned"):
        table.add_column(title, justify="left" if title in ("who", "name", "does") else "right")
    for row in sorted(snapshot.nodes, key=lambda row: names.get(NodeId.parse(row["node"]), "")):
        node = NodeId.parse(row["node"])
        who = names.get(node, "?")
        style = "red" if who.startswith("cheater") else ""
        table.add_row(who, friendly_name(node), *make_cells(row), style=style)
    return table


def make_cells(row: dict[str, Any]) -> list[str]:
    step = row["checkpoint_step"]
    return [
        row["activity"] or row["phase"],
        "-" if step is None or step < 0 else str(step),
        str(row["accepted"]),
        str(row["invalid"]),
        str(row["fraudulent"]),
        f"{row['stake_nano'] / COIN_NANO:,.0f}",
        f"{row['earned_nano'] / COIN_NANO:,.1f}",
    ]


def render_slashes(snapshot: NetworkSnapshot, names: dict[NodeId, str]) -> list[RenderableType]:
    lines = []
    for row in snapshot.slashes[:SLASHES_SHOWN]:
        who = names.get(NodeId.parse(row["node"]), row["node"])
        lines.append(f"{who}: {row['amount_nano'] / COIN_NANO:,.0f} tokens, {row['progress']}")
    return [Panel("\n".join(lines), title="slashes", border_style="red", expand=False)] if lines else []


def format_snapshot(snapshot: NetworkSnapshot, steps: int, elapsed_s: float, phase: str) -> str:
    """For output that is not a terminal."""
    reward = f"{float(snapshot.steps[-1]['reward_mean']):.2f}" if snapshot.steps else "-"
    caught = sum(row["fraudulent"] for row in snapshot.nodes)
    step = f"step {max(0, snapshot.step)} of {steps}"
    return f"{elapsed_s:4.0f} s  {phase}: {step}, reward {reward}, {caught} files rejected"


STEPS_PER_LINE = 10
"""Interval between two lines if there is no terminal."""


class DevnetConsole:
    """One, from the first word to the last."""

    def __init__(self, steps: int) -> None:
        self._console = Console()
        self._steps = steps
        self._began_s = time.monotonic()
        self._told = ("", -1)
        self._live = Live(console=self._console, transient=True) if self._console.is_terminal else None
        self.names: dict[NodeId, str] = {}

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the live view; lines are still printed."""
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def show(self, snapshot: NetworkSnapshot, phase: str) -> None:
        elapsed_s = time.monotonic() - self._began_s
        if self._live is not None:
            self._live.update(
                render_snapshot(snapshot, self.names, steps=self._steps, elapsed_s=elapsed_s, phase=phase),
                refresh=True,
            )
        elif (mark := (phase, snapshot.step // STEPS_PER_LINE)) != self._told:
            self._told = mark
            self.say(format_snapshot(snapshot, self._steps, elapsed_s, phase))
