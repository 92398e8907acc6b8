"""How noisy honest machines are, and whether an audit ever rejects one.

A tiny model runs in torch and vLLM, in float32 and bfloat16, in small and large batches, with one thread and two; each
setup reads what all of them generated. A quarter of the completions calibrates the bounds of a run. The others are
judged by these bounds in files of 16 completions, as a validator does. On a CPU without bfloat16 instructions it is
emulated.

    python bench/noise.py [COMPLETIONS] [--exact] [--results FOLDER] [--minutes MINUTES]

With --exact it runs in float32 only, and vLLM on one process and split over two; that takes minutes. All of it takes
long. With --results the same command continues where it was stopped. With --minutes it stops after that time,
says that there is more to do, and exits with code 3.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmark import BenchmarkParser, print_result
from noise_blocks import Measurement, RowsByPair, TimeIsUp

from prime_node.calibration.fit import CalibrationTarget
from prime_node.calibration.measure import EMULATED, FLOAT32, CalibrationPlan, plan_setups, random_prompts
from prime_node.calibration.noise import collect_noise
from prime_node.calibration.report import COLUMNS, list_bounds, list_noise, list_pair_bounds
from prime_node.calibration.table import build_table, combine_pairs, fit_pair, widen_default
from prime_node.engine.config import EngineKind
from prime_node.engine.interface import Sampling
from prime_node.jobs.file_checks import weigh_rows
from prime_protocol.proofs.class_bounds import EngineClass
from prime_protocol.proofs.tolerance import Precision, Tolerance
from prime_runtime.model_files import ModelFiles
from prime_trainer.model.tiny import make_tiny_checkpoint

VLLM = Path(__file__).parents[1] / ".vllm/bin/python"
VOCABULARY, CONTEXT = 512, 1024
COMPLETIONS = 7_000
"""The least: with fewer, a quarter of a pairing in bfloat16 has no 1,000 chunks to fit bounds to."""
EXACT_COMPLETIONS = 2_000
"""The least in float32 alone: three ways to run the model, each with a quarter to fit its bounds to."""
SMOKE_COMPLETIONS = 8
FLOAT32_SHARE = 6
"""Completions in float32 for each in bfloat16, which is slow where it is imitated."""
TOKENS = 256
"""Each completion has eight chunks: no token ends it."""
FILE_ROWS = 16
UNFINISHED = 3
"""Exit code where there is more to do."""


def make_plan(checkpoint: Path, completions: int, *, is_exact: bool, smoke: bool) -> CalibrationPlan:
    engines: list[tuple[EngineKind, Path | None]] = [(EngineKind.TORCH, None), (EngineKind.VLLM, VLLM)]
    precisions, batches, threads = [FLOAT32, EMULATED], [5, 64], [1, 2]
    splits = [1]
    if is_exact:
        precisions, splits = precisions[:1], [1, 2]
    if smoke:
        engines, precisions, batches, threads = engines[:1], precisions[:1], batches[1:], threads[:1]
    return CalibrationPlan(
        checkpoint=checkpoint,
        setups=plan_setups(
            engines, precisions, batches=batches, threads=threads, imitated_share=FLOAT32_SHARE, splits=splits
        ),
        completions=completions,
        sampling=Sampling(temperature=1.0, eos=frozenset(), tokens_max=TOKENS),
        prompts=random_prompts(VOCABULARY, CONTEXT, 1),
        seed=1,
    )


def split(rows: RowsByPair, *, is_exact: bool) -> tuple[RowsByPair, RowsByPair]:
    """To calibrate with, and to judge. Exact: only pairings without bfloat16."""
    chosen = {pairing: found for pairing, found in rows.items() if not (is_exact and "bfloat16" in pairing)}
    known = {pairing: [row for row in found if row.row // 7 % 4 == 0] for pairing, found in chosen.items()}
    return known, {pairing: [row for row in found if row.row // 7 % 4] for pairing, found in chosen.items()}


def count_rejects(rows: RowsByPair, bounds: Mapping[str, Tolerance]) -> tuple[int, int]:
    """Files, and those that an audit refuses by the bounds of their pairing."""
    files = [
        (pairing, found[n : n + FILE_ROWS]) for pairing, found in rows.items() for n in range(0, len(found), FILE_ROWS)
    ]
    refused = [flaws for pairing, file in files if (flaws := weigh_rows(file, bounds[pairing])[1])]
    for flaws in refused[:10]:
        print(f"  refused: {flaws[0].text}")
    return len(files), len(refused)


def show(columns: Sequence[str], table: list[list[str]]) -> None:
    widths = [max(len(row[n]) for row in [list(columns), *table]) for n in range(len(columns))]
    for row in [list(columns), *table]:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def judge(rows: RowsByPair, precision: Precision, hidden: int) -> tuple[int, int]:
    """Files that are refused by one bound for all pairings, and by bounds of each."""
    known, fresh = split(rows, is_exact=precision is Precision.FLOAT32)
    noises = [collect_noise(pairing, found) for pairing, found in known.items()]
    target = CalibrationTarget(file_tokens=FILE_ROWS * TOKENS)
    fitted = [
        fit_pair(*map(name_class, noise.pair.split(" → ")), noise, target, precision=precision, hidden=hidden)
        for noise in noises
    ]
    default = widen_default(combine_pairs(fitted), noises, target)
    table = build_table(default, fitted)
    print(f"\na run in {precision}, bounds for one false reject in {1 / target.false_rejects:g}:")
    show(("bound", "largest seen", "value"), list_bounds(default, noises))
    print()
    show(*list_pair_bounds(default, table))
    by_pair = {
        noise.pair: table.find(pair.generating, pair.judging, default=default)
        for noise, pair in zip(noises, fitted, strict=True)
    }
    files, refused = count_rejects(fresh, dict.fromkeys(fresh, default))
    _, refused_by_pair = count_rejects(fresh, by_pair)
    print(f"{files} files of the others judged: {refused} refused by one bound, {refused_by_pair} by those of pairs")
    return refused, refused_by_pair


def name_class(kind: str) -> EngineClass:
    """Of "torch float32"."""
    return EngineClass(kind.replace(" ", "/"))


def main() -> int:
    parser = BenchmarkParser(__doc__)
    parser.add_argument("completions", type=int, nargs="?", default=0)
    parser.add_argument("--exact", action="store_true", help="in float32 only, and vLLM split over two as well")
    parser.add_argument("--results", type=Path, help="keep what is measured here, and go on from it")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    flags = parser.parse()
    least = EXACT_COMPLETIONS if flags.exact else COMPLETIONS
    flags.completions = SMOKE_COMPLETIONS if flags.smoke else flags.completions or least
    if not flags.smoke and flags.completions < least:
        parser.error(f"{flags.completions} completions are too few to fit bounds to, it takes {least}")
    with tempfile.TemporaryDirectory(prefix="prime-noise-") as folder:
        checkpoint = make_tiny_checkpoint(
            Path(folder) / "model", vocabulary=VOCABULARY, context=CONTEXT, heads=2, kv_heads=1, spread=1.5
        )
        results = flags.results or Path(folder) / "results"
        results.mkdir(parents=True, exist_ok=True)
        plan = make_plan(checkpoint, flags.completions, is_exact=flags.exact, smoke=flags.smoke)
        ends_at = time.monotonic() + 60 * flags.minutes
        try:
            rows = asyncio.run(Measurement(plan, results, ends_at).run())
        except TimeIsUp:
            print(f"the {flags.minutes:g} minutes are over; the same command continues from {results}")
            return UNFINISHED
        precisions = [] if flags.smoke else [Precision.FLOAT32] if flags.exact else list(Precision)
        report(rows, precisions, ModelFiles.open(checkpoint).hidden)
    return 0


def report(rows: RowsByPair, precisions: Sequence[Precision], hidden: int) -> None:
    """Of each run that was measured. None: a smoke run has too few completions to fit bounds to."""
    print()
    show(COLUMNS, list_noise([collect_noise(pairing, found) for pairing, found in rows.items()]))
    judged = [judge(rows, precision, hidden) for precision in precisions]
    rejects, pair_rejects = (sum(each[place] for each in judged) for place in (0, 1))
    compared = {pairing: sum(len(row.chunks) for row in found) for pairing, found in rows.items()}
    # Every completion is read once by torch in float32.
    chunks = sum(count for pairing, count in compared.items() if pairing.endswith(f"→ torch {FLOAT32}"))
    margin = max(row.margin_max for found in rows.values() for row in found)
    total = sum(compared.values())
    print(f"\n{chunks} chunks were written; reading them gave {total} comparisons")
    print_result(
        chunks=chunks,
        comparisons=total,
        false_rejects=rejects,
        pair_false_rejects=pair_rejects,
        margin_max=f"{margin:.3g}",
    )


if __name__ == "__main__":
    sys.exit(main())
