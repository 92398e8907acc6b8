"""TOPLOC against the public package, in one process and one thread: 4096 x 4096 bf16, 128 values per 32 tokens.

Needs .oracle/ (`make oracle`), where the package is built from source. Both sides are pinned to one processor: the
package's tensor path starts as many threads as there are, whatever torch is told.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ORACLE = ROOT / ".oracle" / "bin" / "python"
TOKENS, HIDDEN, CHUNK, K = 4096, 4096, 32, 128
INSIDE = "inside"
"""Tells the process that runs in .oracle/."""
Rows = dict[str, Callable[[], Any]]


def measure(rows: Rows, repetitions: int) -> dict[str, float]:
    """Median milliseconds of each, taken in turn so that other load meets all alike."""
    taken: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(repetitions + 1):
        for name, run in rows.items():
            started = time.perf_counter()
            run()
            taken[name].append(1000 * (time.perf_counter() - started))
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def show(title: str, times: dict[str, float], baseline: str) -> None:
    print(f"\n{title:44}{'ms':>10}{'ratio':>9}")
    for name, took in times.items():
        print(f"  {name:42}{took:10.2f}{times[baseline] / took:8.1f}x")


def compare(repetitions: int) -> int:
    import torch
    from toploc import build_proofs_bytes, verify_proofs_bytes

    from prime_protocol.proofs import toploc_numpy as toploc_plain
    from prime_protocol.proofs.tolerance import ToplocThresholds
    from prime_protocol.proofs.toploc import build_proofs, parse_proofs, tensor_to_bits
    from prime_protocol.proofs.toploc_kernels import get_kernels
    from prime_protocol.proofs.toploc_verify import find_faults, verify_proofs
    from prime_protocol.wire.ids import Digest

    torch.set_num_threads(1)
    states = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    tokens, chunks = list(states.unbind()), list(states.view(TOKENS // CHUNK, -1).unbind())
    bits, seed = tensor_to_bits(states), Digest(bytes(32))
    public = build_proofs_bytes(tokens, CHUNK, K, skip_prefill=True)
    blob = b"".join(public)

    def verify(kernels: Any = None) -> None:
        proofs = parse_proofs(blob, tokens=TOKENS, hidden=HIDDEN)
        assert find_faults(verify_proofs(proofs, bits, seed=seed, kernels=kernels), ToplocThresholds()) == []

    builds: Rows = {
        "package, one tensor per token": lambda: build_proofs_bytes(tokens, CHUNK, K, skip_prefill=True),
        "package, one tensor per chunk": lambda: build_proofs_bytes(chunks, 1, K, skip_prefill=True),
        "ours": lambda: build_proofs(bits),
    }
    verifies: Rows = {
        "package, tensor path": lambda: verify_proofs_bytes(states, public, CHUNK, K, skip_prefill=True),
        "package, list path": lambda: verify_proofs_bytes(tokens, public, CHUNK, K, skip_prefill=True),
        "ours: parse, verify with decoys, judge": verify,
    }
    plain = {"build": lambda: build_proofs(bits, toploc_plain), "verify": lambda: verify(toploc_plain)}
    build_ms, verify_ms = measure(builds, repetitions), measure(verifies, repetitions)
    plain_ms = measure(plain, 3)
    fastest_build = min(list(builds)[:2], key=build_ms.__getitem__)
    fastest_verify = min(list(verifies)[:2], key=verify_ms.__getitem__)

    compiled = "compiled" if get_kernels() is not toploc_plain else "NOT compiled: numpy only"
    print(
        f"{TOKENS} x {HIDDEN} bf16, {TOKENS // CHUNK} proofs, one thread, median of {repetitions}; kernels {compiled}"
    )
    show("build", build_ms | {"ours without the compiled kernels": plain_ms["build"]}, fastest_build)
    show("verify", verify_ms | {"ours without the compiled kernels": plain_ms["verify"]}, fastest_verify)
    equal = build_proofs(bits).blob == blob
    build_ratio = build_ms[fastest_build] / build_ms["ours"]
    verify_ratio = verify_ms[fastest_verify] / verify_ms["ours: parse, verify with decoys, judge"]
    print(f"\nRESULT build_ratio={build_ratio:.1f} verify_ratio={verify_ratio:.1f} byte_equal={int(equal)}")
    return 0 if equal else 1


def main() -> int:
    if sys.argv[1:2] == [INSIDE]:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        return compare(int(sys.argv[2]))
    from benchmark import BenchmarkParser, stop_without  # not inside .oracle/, whose path leaves this folder out

    parser = BenchmarkParser(__doc__)
    parser.add_size("--repetitions", 15, 1)
    options = parser.parse()
    if not ORACLE.exists():
        stop_without("the public package is not built: run `make oracle` first", smoke=options.smoke)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "protocol"), "OMP_NUM_THREADS": "1"}
    # -P keeps this folder off the path: this file has the package's name.
    command = [str(ORACLE), "-P", __file__, INSIDE, str(options.repetitions)]
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
