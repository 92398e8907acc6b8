"""How old may rollouts be? GRPO on sort-digits with rollouts 0 to 8 steps old, with the correction on and off.

    python bench/staleness.py [--lags 0,1,2,4,8] [--seeds 0,1] [--steps 80]

Same warm start and same prompts for each; the rollouts of a step are drawn with the published (bf16) weights of so many
steps before. Everything that learns is the trainer's own code; only the network between is left out.
"""

import argparse
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path

import numpy as np
import torch
from digit_runs import Digits, make_learner, make_warm_start

from prime_trainer.harvest import Delivery, make_batch
from prime_trainer.train_config import AdvantageConfig

COLUMNS = (1, 10, 20, 30, 40, 50, 60, 70, 80)
WINDOW = 5
"""Steps that a shown reward is the mean of."""


def run(folder: Path, *, lag: int, correct: bool, seed: int, steps: int) -> tuple[list[float], float, dict[str, float]]:
    """Mean reward of each step's rollouts as drawn, greedy accuracy at the end, and means of the monitors."""
    learner = make_learner(folder, correct=correct, steps=steps)
    digits = Digits(seed)
    past = deque([digits.copy_weights(learner.policy)], maxlen=lag + 1)
    rewards, seen = [], []
    for step in range(1, steps + 1):
        groups = digits.draw(past[0], step, AdvantageConfig(scale_max=100.0))
        batch = make_batch([Delivery(digits.name(step), step - len(past), tuple(groups))], step - 1)
        facts = learner.learn(batch.samples, step)
        rewards.append(batch.facts["reward_mean"])
        seen.append(facts)
        past.append(digits.copy_weights(learner.policy))
    monitors = {name: statistics.fmean(each[name] for each in seen) for name in ("mismatch_kl", "tail", "entropy")}
    return rewards, digits.measure(past[-1]), monitors


def show(rewards: list[float], step: int) -> str:
    if step > len(rewards):
        return "-"
    return f"{np.mean(rewards[max(0, step - WINDOW) : step]):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lags", default="0,1,2,4,8")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--steps", type=int, default=80)
    args = parser.parse_args()
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in args.seeds.split(",")]
    columns = [step for step in COLUMNS if step <= args.steps]
    print("| lag | correction | seed | " + " | ".join(map(str, columns)) + " | greedy | mismatch | tails | time |")
    print("|---" * (len(columns) + 7) + "|")
    last: dict[tuple[int, bool], list[float]] = {}
    for lag in [int(lag) for lag in args.lags.split(",")]:
        for correct in (True, False):
            for seed in seeds:
                with tempfile.TemporaryDirectory(prefix="prime-staleness-") as name:
                    warm = make_warm_start(Path(name), seed)
                    began = time.monotonic()
                    rewards, greedy, seen = run(warm, lag=lag, correct=correct, seed=seed, steps=args.steps)
                took_s = time.monotonic() - began
                cells = [show(rewards, step) for step in columns]
                last.setdefault((lag, correct), []).append(float(np.mean(rewards[-WINDOW:])))
                print(
                    f"| {lag} | {'on' if correct else 'off'} | {seed} | " + " | ".join(cells),
                    f"| {greedy:.3f} | {seen['mismatch_kl']:.4f} | {seen['tail']:.3f} | {took_s:.0f} s |",
                    flush=True,
                )
    words = [f"lag{lag}_{'on' if on else 'off'}={np.mean(found):.3f}" for (lag, on), found in last.items()]
    print("RESULT " + " ".join(words))


if __name__ == "__main__":
    main()
