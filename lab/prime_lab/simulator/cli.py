"""Command line of the simulator: `python -m prime_lab.simulator`, and `prime-coordinator simulate`.

Exit codes: 0 every seed passed, 1 a seed failed (the output names it and the violations), 2 bad arguments.

"""

import argparse
import gc
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prime_lab.simulator.simulation import SimulationReport


COMPLAINTS_SHOWN = 20
RUN_OPTIONS = ("seed", "seeds", "jobs")
GC_THRESHOLD = 200_000
"""Allocations between two garbage collections. A world keeps most objects, so frequent collections cost a tenth."""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prime-coordinator simulate",
        description="Run coordinator and nodes in virtual time with loss, crashes and adversaries, and check the log.",
        epilog="Options that are not given are drawn from the seed. The same seed and options replay exactly.",
    )
    parser.add_argument("--seed", type=int, default=1, help="first seed (default 1)")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, one after the other (default 1)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument("--nodes", type=int, default=200, help="nodes, a quarter of them validators (default 200)")
    parser.add_argument(
        "--malicious", type=float, default=0.2, help="share of nodes that are adversaries (default 0.2)"
    )
    parser.add_argument("--steps", type=int, default=3, help="checkpoints to train (default 3)")
    parser.add_argument("--quorum", type=int, default=3, help="validators of one round (default 3)")
    parser.add_argument("--adversaries", help="kinds of adversaries, separated by commas (default all)")
    parser.add_argument("--loss", type=float, help="share of messages that are lost")
    parser.add_argument("--duplicate", type=float, help="share of messages that arrive twice")
    parser.add_argument("--partitions", type=int, help="number of network partitions")
    parser.add_argument("--host-crashes", type=int, help="crashes of the coordinator")
    parser.add_argument("--node-crashes", type=int, help="crashes of nodes")
    parser.add_argument("--audit-crash", type=float, help="share of audits that fail")
    parser.add_argument("--skew-ms", type=int, help="largest clock error of a node, in ms")
    parser.add_argument("--flood", type=int, help="keys that one attacker registers")
    parser.add_argument("--inspectors", type=int, help="validators of the operator that read judged files again")
    parser.add_argument("--finders", type=int, help="strangers that file findings about forged files")
    parser.add_argument("--false-finders", type=int, help="strangers that file findings about honest files")
    parser.add_argument("--every-signature", action="store_true", help="sign and open heartbeats too; slower")
    return parser


def parse_args(argv: list[str] | None) -> argparse.Namespace:
    parser = make_parser()
    args = parser.parse_args(argv)
    from prime_lab.simulator.rare_adversaries import ADVERSARY_NAMES

    args.adversaries = tuple(args.adversaries.split(",")) if args.adversaries else ()
    unknown = set(args.adversaries) - set(ADVERSARY_NAMES)
    if unknown:
        parser.error(f"unknown adversaries: {', '.join(sorted(unknown))}; known are {', '.join(ADVERSARY_NAMES)}")
    if args.nodes < 8 or args.seeds < 1 or args.jobs < 1 or args.steps < 1:
        parser.error("at least 8 nodes and 1 seed, job and step are needed")
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse_args(argv)
    began = time.monotonic()
    seeds = range(args.seed, args.seed + args.seeds)
    options = {name: value for name, value in vars(args).items() if name not in RUN_OPTIONS}
    task = partial(run_seed, options=options)
    if args.jobs > 1:
        with ProcessPoolExecutor(args.jobs) as pool:
            failed = print_reports(pool.map(task, seeds), options)
    else:
        failed = print_reports(map(task, seeds), options)
    seconds = time.monotonic() - began
    print(
        f"RESULT seeds={len(seeds)} failed={len(failed)} nodes={args.nodes} malicious={args.malicious} "
        f"seconds={seconds:.1f} seconds_per_seed={seconds * args.jobs / len(seeds):.2f}"
    )
    return 1 if failed else 0


def run_seed(seed: int, options: dict[str, Any]) -> "SimulationReport":
    from prime_lab.simulator.plan import draw_plan
    from prime_lab.simulator.simulation import simulate

    gc.collect()  # the world before this one
    gc.set_threshold(GC_THRESHOLD)
    return simulate(draw_plan(seed, **options))


def print_reports(reports: Iterable["SimulationReport"], options: dict[str, Any]) -> list[int]:
    """Print each report as it comes; the seeds that failed."""
    failed = []
    for report in reports:
        print(describe_report(report), flush=True)
        if report.complaints:
            failed.append(report.plan.seed)
            print(f"  {report.plan}")
            for complaint in report.complaints[:COMPLAINTS_SHOWN]:
                print(f"  {complaint}")
            print(f"  replay: {replay_command(report.plan.seed, options)}", flush=True)
    return failed


def describe_report(report: "SimulationReport") -> str:
    result = "FAILED" if report.complaints else "ok"
    outcomes = " ".join(f"{name}={count}" for name, count in report.outcomes.items())
    return (
        f"seed {report.plan.seed}: {result} steps={report.steps} entries={report.entries} messages={report.messages} "
        f"virtual_s={report.virtual_s} {outcomes} adversaries={report.adversaries} slashed={report.slashed} "
        f"root={report.root}"
    )


def replay_command(seed: int, options: dict[str, Any]) -> str:
    words = ["python -m prime_lab.simulator", f"--seed {seed}"]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value not in (None, False, ()):
            words.append(f"{flag} {','.join(value) if isinstance(value, tuple) else value}")
    return " ".join(words)
