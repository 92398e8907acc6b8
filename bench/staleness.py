"""How old rollouts may be: GRPO on sort-digits with rollouts 0 to 8 steps old, with the correction on and off.

    python bench/staleness.py [--lags 0,1,2,4,8] [--corrections on,off] [--seeds 0,1,2] [--steps 160]
                              [--learning-rate 0.0003] [--results FILE [--runs N]] [--svg FILE]

Every run has the same warm start and the same prompts. The rollouts of a step are drawn with the published (bf16)
weights of an earlier step, as old as the lag says. Training is the trainer's own code; only the network is left out. A
sweep takes most of an hour. With --results each run is kept as a line of JSON and not run again, and --runs stops after
that many new runs.
"""

import json
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmark import BenchmarkParser
from digit_runs import Digits, make_learner, make_warm_start

from prime_trainer.config import AdvantageConfig
from prime_trainer.data.rollout_buffer import GradedSubmission, make_batch

COLUMNS = 8
"""Steps of which a reward is shown in the table, and at which the picture has a number, the first one aside."""
WINDOW = 5
"""Steps that a shown reward is the mean of."""
COLOURS = ("#1b6ca8", "#2a9d5c", "#c9a227", "#d1495b", "#5b3a8c", "#333333")
WIDTH, HEIGHT, LEFT, TOP, ROOM = 460, 300, 40, 30, 230
"""Of one picture, in points."""
Key = tuple[int, bool, int]
Run = dict[str, Any]


@dataclass(frozen=True)
class Recipe:
    """What all runs of a sweep share."""

    steps: int
    learning_rate: float


def run(lag: int, correct: bool, seed: int, recipe: Recipe) -> Run:
    """Mean reward of each step's rollouts as drawn, greedy accuracy at the end, and means of the monitors."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="prime-staleness-") as name:
        learner = make_learner(make_warm_start(Path(name), seed), correct=correct, **asdict(recipe))
    digits = Digits(seed)
    past = deque([digits.copy_weights(learner.policy)], maxlen=lag + 1)
    rewards, seen = [], []
    for step in range(1, recipe.steps + 1):
        groups = digits.draw(past[0], step, AdvantageConfig(scale_max=100.0))
        batch = make_batch([GradedSubmission(digits.name(step), step - len(past), tuple(groups))], step - 1)
        seen.append(learner.train_step(batch.samples, step))
        rewards.append(batch.metrics["reward_mean"])
        past.append(digits.copy_weights(learner.policy))
    monitors = {name: statistics.fmean(each[name] for each in seen) for name in ("mismatch_kl", "tail", "entropy")}
    return {
        "lag": lag,
        "correct": correct,
        "seed": seed,
        **asdict(recipe),
        "rewards": rewards,
        "greedy": digits.measure(past[-1]),
        "seconds": time.monotonic() - began,
        **monitors,
    }


def read_results(path: Path | None, recipe: Recipe) -> dict[Key, Run]:
    if path is None or not path.exists():
        return {}
    found = [json.loads(line) for line in path.read_text().splitlines()]
    same = [each for each in found if asdict(recipe).items() <= each.items()]
    return {(each["lag"], each["correct"], each["seed"]): each for each in same}


def keep(path: Path | None, found: Run) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(found) + "\n")


def smooth(rewards: Sequence[float]) -> list[float]:
    return [float(np.mean(rewards[max(0, end - WINDOW) : end])) for end in range(1, len(rewards) + 1)]


def list_marks(steps: int) -> list[int]:
    return sorted({max(1, round(steps * part / COLUMNS)) for part in range(1, COLUMNS + 1)})


# --- Tables -----------------------------------------------------------------------------------------------------------


def list_rows(results: dict[Key, Run], steps: int) -> Iterator[str]:
    """One row for each lag and correction: means over seeds, the spread over seeds at the end."""
    columns = [1, *list_marks(steps)]
    yield "| lag | correction | " + " | ".join(map(str, columns)) + " | last, each seed | greedy | mismatch | tails |"
    yield "|---" * (len(columns) + 6) + "|"
    for lag, correct in dict.fromkeys(key[:2] for key in sorted(results, key=lambda key: (key[0], not key[1], key[2]))):
        runs = [each for key, each in results.items() if key[:2] == (lag, correct)]
        curves = np.array([smooth(each["rewards"]) for each in runs])
        cells = [f"{curves[:, step - 1].mean():.2f}" for step in columns]
        ends = " ".join(f"{end:.3f}" for end in sorted(curves[:, -1]))
        means = {name: statistics.fmean(each[name] for each in runs) for name in ("greedy", "mismatch_kl", "tail")}
        yield (
            f"| {lag} | {'on' if correct else 'off'} | {' | '.join(cells)} | {ends} | {means['greedy']:.3f} "
            f"| {means['mismatch_kl']:.4f} | {means['tail']:.3f} |"
        )


def result_line(results: dict[Key, Run]) -> str:
    ends: dict[tuple[int, bool], list[float]] = {}
    for (lag, correct, _), each in sorted(results.items()):
        ends.setdefault((lag, correct), []).append(smooth(each["rewards"])[-1])
    words = [f"lag{lag}_{'on' if correct else 'off'}={np.mean(found):.3f}" for (lag, correct), found in ends.items()]
    return "RESULT " + " ".join(words)


# --- Curves -----------------------------------------------------------------------------------------------------------


def draw(results: dict[Key, Run], steps: int) -> str:
    """Two pictures side by side: correction on, correction off. A line is the mean over seeds, a band their range."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {HEIGHT}">',
        "<style>text{font:12px sans-serif}</style>",
        f'<rect width="{2 * WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for place, correct in enumerate((True, False)):
        parts += draw_side(results, steps, place * WIDTH, correct=correct)
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw_side(results: dict[Key, Run], steps: int, left: int, *, correct: bool) -> Iterator[str]:
    across, start = WIDTH - LEFT - 70, left + LEFT
    yield f'<text x="{start}" y="18">reward by step, correction {"on" if correct else "off"}</text>'
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = TOP + ROOM * (1 - share)
        yield f'<path d="M{start} {y}h{across}" stroke="#ddd"/>'
        yield f'<text x="{start - 6}" y="{y + 4}" text-anchor="end">{share:g}</text>'
    for step in (0, *list_marks(steps)):
        yield f'<text x="{start + across * step / steps:.0f}" y="{TOP + ROOM + 18}" text-anchor="middle">{step}</text>'
    lags = sorted({key[0] for key in results if key[1] is correct})
    for place, lag in enumerate(lags):
        curves = np.array([smooth(each["rewards"]) for key, each in results.items() if key[:2] == (lag, correct)])
        at = [start + across * (step + 1) / steps for step in range(curves.shape[1])]
        low, high, mean = curves.min(0), curves.max(0), curves.mean(0)
        edge = [*zip(at, high, strict=True), *reversed(list(zip(at, low, strict=True)))]
        colour = COLOURS[place % len(COLOURS)]
        yield f'<path d="{trace(edge)}Z" fill="{colour}" opacity="0.12"/>'
        yield f'<path d="{trace(zip(at, mean, strict=True))}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        y = TOP + ROOM - 16 * (len(lags) - place) + 8
        yield f'<path d="M{start + across + 6} {y - 4}h14" stroke="{colour}" stroke-width="3"/>'
        yield f'<text x="{start + across + 24}" y="{y}">lag {lag}</text>'


def trace(points: Any) -> str:
    return "M" + "L".join(f"{x:.1f} {TOP + ROOM * (1 - value):.1f}" for x, value in points)


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--lags", "0,1,2,4,8", "0,1")
    parser.add_size("--corrections", "on,off", "on")
    parser.add_size("--seeds", "0,1,2", "0")
    parser.add_size("--steps", 160, 1)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--results", type=Path, help="file that runs are kept in, and not made again")
    parser.add_argument("--runs", type=int, default=1000, help="new runs to make before ending")
    parser.add_argument("--svg", type=Path, help="draw the curves into this file")
    args = parser.parse()
    torch.set_num_threads(1)
    lags, seeds = ([int(word) for word in words.split(",")] for words in (args.lags, args.seeds))
    recipe = Recipe(args.steps, args.learning_rate)
    results = read_results(args.results, recipe)
    corrections = [word == "on" for word in args.corrections.split(",")]
    wanted = [(lag, correct, seed) for seed in seeds for correct in corrections for lag in lags]
    for key in [key for key in wanted if key not in results][: args.runs]:
        results[key] = run(*key, recipe)
        keep(args.results, results[key])
    shown = {key: results[key] for key in wanted if key in results}
    for line in list_rows(shown, args.steps):
        print(line)
    if args.svg:
        args.svg.write_text(draw(shown, args.steps))
    print(result_line(shown))


if __name__ == "__main__":
    main()
