"""What does replayable sampling cost per row of logits? C, numpy and torch on one thread, against a plain softmax draw.

The engine's draw on a CPU (C and numpy) includes the log-prob of the token, and checks that every logit is finite.
"""

import numpy as np
import torch
from benchmark import BenchmarkParser, print_result, take_turns

from prime_node.engine.torch.draws import Draws
from prime_node.engine.torch.sampling import NumpySampler, TorchSampler
from prime_protocol.proofs.sampling import compute_margins, sample_tokens

ROWS = 16


def measure(logits: np.ndarray, rounds: int) -> dict[str, float]:
    """Microseconds per row of logits, in the best round."""
    seeds = np.random.default_rng(1).integers(0, 2**64, ROWS, dtype=np.uint64)
    positions = np.arange(ROWS)
    tensor, draws = torch.from_numpy(logits), Draws(1.0, seeds, positions)
    native, general = NumpySampler(), TorchSampler()
    tokens = sample_tokens(logits, 1.0, seeds, positions)
    works = {
        "choose, numpy": lambda: sample_tokens(logits, 1.0, seeds, positions),
        "replay margin, numpy": lambda: compute_margins(logits, tokens, seeds, positions, 1.0),
        "draw and log-prob, C": lambda: native.scan(tensor, draws),
        "margin and log-prob, C": lambda: native.scan(tensor, draws, torch.from_numpy(tokens)),
        "draw and log-prob, torch": lambda: general.scan(tensor, draws),
        "torch softmax + multinomial": lambda: torch.multinomial(tensor.softmax(dim=1), 1),
    }
    return {name: min(times) / ROWS * 1e6 for name, times in take_turns(works, rounds=rounds, warm_up=True).items()}


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--vocabulary", 150_000, 1_000)
    parser.add_size("--rounds", 5, 1)
    args = parser.parse()
    torch.set_num_threads(1)
    normal = np.random.default_rng(0).normal(size=(ROWS, args.vocabulary)).astype(np.float32)
    sharp = 2.5 * normal
    sharp[:, 7] += 20
    peaked, flat = measure(sharp, args.rounds), measure(normal / 10, args.rounds)
    print(f"{'us per row of ' + str(args.vocabulary):32}{'peaked':>10}{'flat':>10}")
    for name in peaked:
        print(f"{name:32}{peaked[name]:10.0f}{flat[name]:10.0f}")
    print_result(
        native_us=f"{peaked['draw and log-prob, C']:.0f}",
        numpy_margin_us=f"{peaked['replay margin, numpy']:.0f}",
        torch_us=f"{peaked['draw and log-prob, torch']:.0f}",
    )


if __name__ == "__main__":
    main()
