"""How long new weights take to reach the last of many home connections, in virtual time.

    python bench/broadcast.py [--nodes 10 100 1000 10000] [--write]

The nodes' own decisions run in the broadcast simulator. The result is compared in the same run with a lower bound for
any method (bytes over bandwidth), and with a star in which every node fetches from the origin. `--write` puts the table
into docs/broadcast.md and the plot beside it. 10,000 nodes take some minutes of one core.
"""

import math
import statistics
import sys
import time
from dataclasses import dataclass

from benchmark import ROOT, BenchmarkParser, print_result

from prime_lab.simulator.broadcast.plan import MBIT, MIB, BroadcastPlan, plan_home_lines, plan_uniform_lines
from prime_lab.simulator.broadcast.swarm import BroadcastReport, simulate_broadcast

PAGE = ROOT / "docs" / "broadcast.md"
PLOT = ROOT / "docs" / "broadcast.svg"
BEGIN, END = "<!-- bench/broadcast.py writes from here -->", "<!-- to here -->"
SEEDS = {10: 9, 100: 5, 1_000: 3}
"""Seeds for each size; one for a larger size. The median is shown."""
EVEN_SEEDS = 20


@dataclass(frozen=True)
class Row:
    """Medians over the seeds, in seconds."""

    name: str
    nodes: int
    seeds: int
    p50_s: float
    p99_s: float
    last_s: float
    bound_s: float
    star_s: float
    origin: float

    def cells(self) -> list[str]:
        times = [f"{each:,.1f}" for each in (self.p50_s, self.p99_s, self.last_s, self.bound_s, self.star_s)]
        return [self.name, f"{self.nodes:,}", str(self.seeds), *times, f"{self.origin:.1f}"]


HEADS = ["what is sent", "nodes", "seeds", "p50 s", "p99 s", "last s", "limit s", "star s", "origin sends"]


def measure(name: str, plans: list[BroadcastPlan]) -> Row:
    began = time.process_time()
    reports = [simulate_broadcast(plan) for plan in plans]
    assert not any(report.unfinished for report in reports), "a node that stayed did not get everything"

    def median(values: list[float]) -> float:
        return statistics.median(values)

    row = Row(
        name=name,
        nodes=len(plans[0].members) - 1,
        seeds=len(plans),
        p50_s=median([report.quantile_s(0.5) for report in reports]),
        p99_s=median([report.quantile_s(0.99) for report in reports]),
        last_s=median([report.last_s for report in reports]),
        bound_s=median([report.bound_s for report in reports]),
        star_s=median([report.star_s for report in reports]),
        origin=median([report.origin_sent for report in reports]),
    )
    print(
        "  ".join(f"{cell:>12}" for cell in row.cells()), f"   {time.process_time() - began:.0f} s of CPU", flush=True
    )
    return row


def measure_even(*, seeds: int = EVEN_SEEDS, size_bytes: int = 256 * MIB) -> tuple[float, float]:
    """The 16-node figure: median and worst of time to last node over size / bandwidth."""
    ratios = []
    for seed in range(seeds):
        plan = plan_uniform_lines(seed, nodes=16, size_bytes=size_bytes, shard_bytes=MIB)
        report: BroadcastReport = simulate_broadcast(plan)
        ratios.append(report.last_s / (plan.size_bytes / (100 * MBIT)))
    return statistics.median(ratios), max(ratios)


def fit(rows: list[Row]) -> float:
    """Seconds more for each tenfold of nodes: the slope of the straight line through log10(nodes), least squares."""
    xs, ys = [math.log10(row.nodes) for row in rows], [row.last_s for row in rows]
    return statistics.linear_regression(xs, ys).slope if len(rows) > 1 else 0.0


# --- The page and the plot ------------------------------------------------------------------------------------------


def write_page(rows: list[Row], even: tuple[float, float], growth: float) -> None:
    lines = [f"| {' | '.join(HEADS)} |", "|" + "---|" * len(HEADS)]
    lines += [f"| {' | '.join(row.cells())} |" for row in rows]
    lines += [
        "",
        f"Each tenfold of nodes adds {growth:.1f} s (straight line through the delta's rows, least squares); "
        "the star takes ten times as long.",
        "",
        f"16 nodes and an origin, all at 100 Mbit/s, 256 MiB in 1 MiB shards, {EVEN_SEEDS} seeds: the last node has "
        f"all after {even[0]:.2f} × size/bandwidth in the median, {even[1]:.2f} × at worst. What was asked for is "
        "1.3 × and the depth times a shard's time.",
    ]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n\n" + "\n".join(lines) + "\n\n" + END + after)


def draw(rows: list[Row]) -> str:
    """Seconds over nodes, the nodes in tenfolds: a straight line is logarithmic growth."""
    width, height, left, bottom = 640, 360, 60, 50
    top_s = 10 * math.ceil(max(row.last_s for row in rows) / 10 + 1)
    low, high = math.log10(rows[0].nodes), math.log10(rows[-1].nodes)

    def x(nodes: int) -> float:
        return left + (math.log10(nodes) - low) / max(1e-9, high - low) * (width - left - 130)

    def y(seconds: float) -> float:
        return height - bottom - seconds / top_s * (height - bottom - 20)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        "<style>text{font:12px sans-serif}</style>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for seconds in range(0, top_s + 1, 10):
        parts.append(f'<path d="M{left} {y(seconds):.1f}H{width - 120}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y(seconds) + 4:.1f}" text-anchor="end">{seconds}</text>')
    for row in rows:
        parts.append(
            f'<text x="{x(row.nodes):.1f}" y="{height - bottom + 18}" text-anchor="middle">{row.nodes:,}</text>'
        )
    series = [
        ("last node", "#b00020", [row.last_s for row in rows]),
        ("99th percentile", "#d07000", [row.p99_s for row in rows]),
        ("median node", "#0050a0", [row.p50_s for row in rows]),
        ("lower limit", "#555", [row.bound_s for row in rows]),
    ]
    for name, colour, values in series:
        points = " ".join(f"{x(row.nodes):.1f},{y(value):.1f}" for row, value in zip(rows, values, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{width - 118}" y="{y(values[-1]) + 4:.1f}" fill="{colour}">{name}</text>')
    star = [(x(row.nodes), y(row.star_s)) for row in rows]
    points = " ".join(f"{each[0]:.1f},{each[1]:.1f}" for each in star)
    parts.append(f'<clipPath id="c"><path d="M{left} 20H{width - 120}V{height - bottom}H{left}z"/></clipPath>')
    parts.append(f'<polyline points="{points}" fill="none" stroke="#999" stroke-dasharray="5 4" clip-path="url(#c)"/>')
    parts.append(f'<text x="{x(rows[0].nodes) + 150:.1f}" y="34" fill="#777">star, everybody from the origin</text>')
    parts.append(f'<text x="{left}" y="{height - 12}">nodes, 20 % of them leaving on the way</text>')
    parts.append('<text x="8" y="14">seconds</text></svg>')
    return "\n".join(parts) + "\n"


def measure_smoke() -> int:
    """Ten nodes, one seed of each kind."""
    row = measure("delta, 4 MiB", [plan_home_lines(1, nodes=10, size_bytes=4 * MIB)])
    even = measure_even(seeds=1, size_bytes=8 * MIB)
    print_result(n10_s=f"{row.last_s:.1f}", even16_worst=f"{even[1]:.3f}")
    return 0


def main() -> int:
    parser = BenchmarkParser(__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 100, 1_000, 10_000])
    parser.add_argument("--write", action="store_true", help="put the results into docs/")
    args = parser.parse()
    if args.smoke:
        return measure_smoke()
    print("  ".join(f"{head:>12}" for head in HEADS))
    rows = []
    for nodes in args.nodes:
        seeds = range(1, SEEDS.get(nodes, 1) + 1)
        rows.append(measure("delta, 64 MiB", [plan_home_lines(seed, nodes=nodes) for seed in seeds]))
    key = plan_home_lines(1, nodes=100, size_bytes=2**30, shard_bytes=16 * MIB, within_ms=120_000.0)
    small = [plan_home_lines(seed, nodes=1_000, size_bytes=4 * MIB, within_ms=5_000.0) for seed in (1, 2, 3)]
    others = [measure("keyframe, 1 GiB", [key]), measure("one shard, 4 MiB", small)]
    even, growth = measure_even(), fit(rows)
    print(f"16 nodes at 100 Mbit/s: {even[0]:.3f} x size/bandwidth in the median, {even[1]:.3f} x at worst")
    if args.write:
        write_page(rows + others, even, growth)
        PLOT.write_text(draw(rows))
    times = {f"n{row.nodes}_s": f"{row.last_s:.1f}" for row in rows}
    print_result(**times, growth_per_tenfold=f"{growth:.1f}", even16_worst=f"{even[1]:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
