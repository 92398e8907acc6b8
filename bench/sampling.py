"""What does replayable sampling cost per row of logits? numpy and torch on one thread, against a plain softmax draw."""

import time
from collections.abc import Callable

import numpy as np
import torch

from prime_protocol.proofs.sampling import compute_margins, sample_tokens

VOCAB_SIZE = 150_000
ROWS = 16
REPEATS = 5


def best_us(work: Callable[[], object]) -> float:
    """Microseconds per row, the best of a few repeats after one to warm up."""
    work()
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times) / ROWS * 1e6


def measure(logits: np.ndarray) -> dict[str, float]:
    seeds = np.random.default_rng(1).integers(0, 2**64, ROWS, dtype=np.uint64)
    positions = np.arange(ROWS)
    tensor, tensors = torch.from_numpy(logits), (torch.from_numpy(seeds.view(np.int64)), torch.from_numpy(positions))
    tokens = sample_tokens(logits, 1.0, seeds, positions)
    return {
        "choose, numpy": best_us(lambda: sample_tokens(logits, 1.0, seeds, positions)),
        "replay margin, numpy": best_us(lambda: compute_margins(logits, tokens, seeds, positions, 1.0)),
        "choose, torch": best_us(lambda: sample_tokens(tensor, 1.0, *tensors)),
        "replay margin, torch": best_us(lambda: compute_margins(tensor, torch.from_numpy(tokens), *tensors, 1.0)),
        "torch softmax + multinomial": best_us(lambda: torch.multinomial(tensor.softmax(dim=1), 1)),
    }


def main() -> None:
    torch.set_num_threads(1)
    normal = np.random.default_rng(0).normal(size=(ROWS, VOCAB_SIZE)).astype(np.float32)
    sharp = 2.5 * normal
    sharp[:, 7] += 20
    peaked, flat = measure(sharp), measure(normal / 10)
    print(f"{'us per row of ' + str(VOCAB_SIZE):32}{'peaked':>10}{'flat':>10}")
    for name in peaked:
        print(f"{name:32}{peaked[name]:10.0f}{flat[name]:10.0f}")
    margins = peaked["replay margin, numpy"], peaked["replay margin, torch"]
    print("RESULT numpy_margin_us={:.0f} torch_margin_us={:.0f}".format(*margins))


if __name__ == "__main__":
    main()
