"""Runs every benchmark, one after the other; with `--smoke` at the smallest size, two at a time.

    python bench/run_all.py [--smoke]

Fails if a benchmark fails or does not end with a RESULT line; a smoke run may also end with SKIPPED and a reason.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

BENCH = Path(__file__).resolve().parent
BENCHMARKS = [
    "toploc",
    "delta",
    "codec",
    "signing",
    "log",
    "sampling",
    "rollouts",
    "sandbox",
    "tokenizer",
    "core",
    "growth",
    "coordinator",
    "shardcast",
    "shaped_links",
    "broadcast",
    "gossip",
    "engine",
    "utilisation",
    "audit",
    "read_proofs",
    "near_honest",
    "trainer",
    "async",
    "publish",
    "explorer",
    "gas",
    "load",
]
LONG = ["noise", "staleness"]
"""They take an hour or more, and are run by hand; docs/measurements.md and docs/log.md say how."""
ALONE = ["coordinator", "load"]
"""They use both cores."""
SMOKE_S_MAX = 120
"""A smoke run that takes longer hangs. The longest takes 20 s."""


@dataclass(frozen=True)
class Run:
    """One benchmark that has ended."""

    name: str
    code: int
    seconds: float
    output: str

    @property
    def last_line(self) -> str:
        return (self.output.strip().splitlines() or [""])[-1]

    @property
    def is_good(self) -> bool:
        return self.code == 0 and self.last_line.startswith(("RESULT", "SKIPPED"))


def run_smoke(name: str) -> Run:
    started = time.monotonic()
    command = [sys.executable, str(BENCH / f"{name}.py"), "--smoke"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            output = process.communicate(timeout=SMOKE_S_MAX)[0].decode()
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its servers too
            output = process.communicate()[0].decode() + f"\nit did not end in {SMOKE_S_MAX} s\n"
    return Run(name, process.returncode, time.monotonic() - started, output)


def run_all_smoke() -> int:
    started, failed = time.monotonic(), 0
    together = [name for name in [*BENCHMARKS, *LONG] if name not in ALONE]
    with ThreadPoolExecutor(2) as pool:
        runs = [*pool.map(run_smoke, together), *map(run_smoke, ALONE)]
    for run in runs:
        print(f"{run.name:<14}{run.seconds:>6.1f} s  {run.last_line if run.is_good else 'FAILED'}")
        if not run.is_good:
            failed += 1
            print(run.output, f"exit code {run.code}", sep="\n")
    print(f"RESULT benchmarks={len(runs)} failed={failed} seconds={time.monotonic() - started:.0f}")
    return 1 if failed else 0


def run_all() -> int:
    for name in BENCHMARKS:
        print(f"--- {name}", flush=True)
        code = subprocess.run([sys.executable, str(BENCH / f"{name}.py")], check=False).returncode
        if code:
            return code
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true")
    return run_all_smoke() if parser.parse_args().smoke else run_all()


if __name__ == "__main__":
    sys.exit(main())
