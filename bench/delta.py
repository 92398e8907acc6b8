"""How large, how fast and how hungry a weight delta is, beside SHA-256 of the same checkpoint in the same run.

A bf16 checkpoint of 16 tensors with weights from N(0, 0.02), 1 % of the values changed, twice: to a neighbouring value,
as a small learning rate does, and to random bits, the worst there is. Positions are independent: the worst again. One
thread. RESULT takes the worse of both. `--mib 64` for a quick look.
"""

import ctypes
import hashlib
import sys
import time
from pathlib import Path

import numpy as np
from benchmark import BenchmarkParser, print_result
from numpy.typing import NDArray

from prime_protocol.weights.delta import as_bytes, encode_record, patch_blocks
from prime_protocol.weights.delta_lanes import get_kernels

TENSORS = 16
CHANGED = 0.01
Lanes = NDArray[np.uint16]


def make_weights(dice: np.random.Generator, lanes: int) -> Lanes:
    """bf16, rounded half up from float32."""
    values = dice.standard_normal(lanes, dtype=np.float32) * np.float32(0.02)
    return ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def change(dice: np.random.Generator, old: Lanes, kind: str) -> Lanes:
    """A copy with each value changed with probability 1 %."""
    new = old.copy()
    gaps = dice.geometric(CHANGED, int(old.size * CHANGED * 1.05) + 1000)
    positions = np.cumsum(gaps) - 1
    positions = positions[positions < old.size]
    if kind == "neighbour":
        new[positions] += dice.choice(np.array([1, 65535], np.uint16), positions.size)
    else:
        new[positions] ^= dice.integers(1, 65536, positions.size, dtype=np.uint16)
    return new


def reset_peak() -> int:
    """Resident bytes now, with the kernel's high-water mark set back to them."""
    # Pages that malloc kept from earlier work would otherwise be counted before and used after, unseen.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return read_status("VmRSS")


def read_status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"{name} is not in /proc/self/status: this bench needs Linux")


def measure(dice: np.random.Generator, old: list[Lanes], kind: str) -> dict[str, float]:
    """One round trip; the tensors of `old` become the changed ones, in place."""
    new = [change(dice, tensor, kind) for tensor in old]
    changed = sum(int(np.count_nonzero(a != b)) for a, b in zip(old, new, strict=True))
    full_bytes = sum(tensor.nbytes for tensor in new)

    started = time.perf_counter()
    state = hashlib.sha256()
    for tensor in new:
        state.update(tensor.data)
    sha256_s = time.perf_counter() - started

    resident = reset_peak()
    started = time.perf_counter()
    records = [b"".join(encode_record(a, b, 2)) for a, b in zip(old, new, strict=True)]
    encode_s = time.perf_counter() - started
    encode_extra = read_status("VmHWM") - resident

    resident = reset_peak()
    started = time.perf_counter()
    for record, target in zip(records, old, strict=True):
        lanes = as_bytes(target)
        for _ in patch_blocks(record, lanes.size, 2, lambda start, stop, lanes=lanes: lanes[start:stop]):
            pass
    decode_s = time.perf_counter() - started
    decode_extra = read_status("VmHWM") - resident

    return {
        "changed": changed / (full_bytes / 2),
        "size": sum(map(len, records)) / full_bytes,
        "sha256_s": sha256_s,
        "encode_s": encode_s,
        "decode_s": decode_s,
        "time": (encode_s + decode_s) / sha256_s,
        "extra_tensors": max(encode_extra, decode_extra) / old[0].nbytes,
        "exact": float(all(a.tobytes() == b.tobytes() for a, b in zip(old, new, strict=True))),
    }


def main() -> int:
    """0 inside the targets, 1 outside."""
    parser = BenchmarkParser(__doc__)
    parser.add_size("--mib", 1024, 16, "size of the checkpoint")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse()
    dice = np.random.default_rng(arguments.seed)
    lanes = arguments.mib * 2**20 // 2 // TENSORS
    old = [make_weights(dice, lanes) for _ in range(TENSORS)]
    kernels = "numpy" if get_kernels() is None else "C"
    print(f"{arguments.mib} MiB of bf16 in {TENSORS} tensors, {kernels} kernels, one thread")
    names = ("changed", "size", "sha256_s", "encode_s", "decode_s", "time", "extra_tensors")
    print(f"{'change':<10}" + "".join(f"{name:>14}" for name in names))
    rows = []
    for kind in ("neighbour", "random"):
        row = measure(dice, old, kind)
        rows.append(row)
        print(f"{kind:<10}" + "".join(f"{row[name]:>14.5f}" for name in names))
    size, slowest = max(row["size"] for row in rows), max(row["time"] for row in rows)
    memory, exact = max(row["extra_tensors"] for row in rows), min(row["exact"] for row in rows)
    print_result(
        size_fraction=f"{size:.5f}",
        time_vs_sha256=f"{slowest:.3f}",
        bit_exact=f"{exact:.0f}",
        extra_tensors=f"{memory:.2f}",
    )
    is_small = size <= 0.025 and slowest <= 1.0 and memory <= 2
    return 0 if exact == 1 and (is_small or arguments.smoke) else 1


if __name__ == "__main__":
    sys.exit(main())
