"""Command line of the broadcast simulator: `python -m prime_lab.simulator.broadcast`.

Exit codes: 0 every node that stayed got every shard, 1 some did not, 2 bad arguments.
"""

import argparse
import time
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prime_lab.simulator.broadcast.plan import BroadcastPlan
    from prime_lab.simulator.broadcast.swarm import BroadcastReport


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m prime_lab.simulator.broadcast",
        description="Send weights from one origin to many nodes in virtual time, with the nodes' own decisions.",
        epilog="The same seed and options replay exactly.",
    )
    parser.add_argument("--nodes", type=int, default=100, help="nodes beside the origin (default 100)")
    parser.add_argument("--seed", type=int, default=1, help="first seed (default 1)")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, one after the other (default 1)")
    parser.add_argument("--mib", type=int, default=64, help="size of what is sent, in MiB (default 64)")
    parser.add_argument("--shard-mib", type=int, default=4, help="size of a shard, in MiB (default 4)")
    parser.add_argument("--churn", type=float, default=0.2, help="share of nodes that leave on the way (default 0.2)")
    parser.add_argument("--late", type=float, default=0.1, help="share of nodes that join late (default 0.1)")
    parser.add_argument("--malicious", type=float, default=0.0, help="share of nodes that send wrong bytes (default 0)")
    parser.add_argument("--origin-mbit", type=int, default=1000, help="the origin's line (default 1000)")
    parser.add_argument("--even-mbit", type=int, help="give every node this bandwidth, without faults")
    parser.add_argument("--slots", type=int, default=6, help="upload slots of each node on even lines (default 6)")
    parser.add_argument("--transfers", type=int, help="transfers that each node runs at once")
    return parser


def make_plan(args: argparse.Namespace, seed: int) -> "BroadcastPlan":
    from prime_lab.simulator.broadcast.plan import MIB, plan_home_lines, plan_uniform_lines

    size_bytes, shard_bytes = args.mib * MIB, args.shard_mib * MIB
    if args.even_mbit is not None:
        return plan_uniform_lines(
            seed,
            nodes=args.nodes,
            mbit=args.even_mbit,
            size_bytes=size_bytes,
            shard_bytes=shard_bytes,
            slots=args.slots,
        )
    return plan_home_lines(
        seed,
        nodes=args.nodes,
        size_bytes=size_bytes,
        shard_bytes=shard_bytes,
        origin_mbit=args.origin_mbit,
        churn=args.churn,
        late=args.late,
        malicious=args.malicious,
    )


def main(argv: list[str] | None = None) -> int:
    parser = make_parser()
    args = parser.parse_args(argv)
    if min(args.nodes, args.seeds, args.mib, args.shard_mib, args.origin_mbit, args.slots, args.transfers or 1) < 1:
        parser.error("nodes, seeds, sizes, slots and transfers are at least 1")
    if max(args.churn, args.late, args.malicious) > 1 or min(args.churn, args.late, args.malicious) < 0:
        parser.error("shares are from 0 to 1")
    from prime_lab.simulator.broadcast.swarm import simulate_broadcast
    from prime_node.weights.events import FetchLimits

    limits = FetchLimits() if args.transfers is None else FetchLimits(transfers_max=args.transfers)
    reports, began = [], time.process_time()
    for seed in range(args.seed, args.seed + args.seeds):
        reports.append(simulate_broadcast(replace(make_plan(args, seed), limits=limits)))
    print_reports(reports)
    unfinished = sum(report.unfinished for report in reports)
    print(f"{time.process_time() - began:.1f} s of CPU time; {unfinished} nodes without all shards")
    return 1 if unfinished else 0


def print_reports(reports: "list[BroadcastReport]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="time to each node that stayed, in seconds")
    heads = "seed nodes p50 p99 last limit star origin wasted corrupt full depth events"
    for head in heads.split():
        table.add_column(head, justify="right")
    for report in reports:
        if not report.times:
            continue
        table.add_row(
            str(report.plan.seed),
            f"{len(report.plan.members) - 1:,}",
            f"{report.quantile_s(0.5):.1f}",
            f"{report.quantile_s(0.99):.1f}",
            f"{report.last_s:.1f}",
            f"{report.bound_s:.1f}",
            f"{report.star_s:.1f}",
            f"{report.origin_sent:.2f}x",
            f"{report.wasted:.1%}",
            str(report.corrupt_shards),
            f"{report.fulls:,}",
            str(report.depth),
            f"{report.events:,}",
        )
    Console(width=120).print(table)
    print("limit: the lower bound. star: all fetch from the origin. origin: what it sent, in checkpoint sizes.")
