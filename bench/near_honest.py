"""How many tokens it takes until small, steady deviations are audited, held and convicted, by their size.

    python bench/near_honest.py [--files 24]

The model is the devnet's tiny one after its warm start, run in bfloat16 with calibrated bounds. Each deviation writes
files of 8 slots, 64 answers of six tokens, all of which are audited, until what they add up to convicts or the files
are over. A run that audits one file in twenty sees the first suspicious one after twenty times as many tokens.
Ends with RESULT honest_most= largest= smallest=, the sum of honest work and the tokens to a conviction.
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmark import BenchmarkParser

from prime_lab.attacks.answer_attacks import LEASE_SLOTS, calibrate_answers, make_harness_config
from prime_lab.attacks.detection import read_rows
from prime_lab.attacks.harness import AttackHarness, open_harness
from prime_lab.attacks.study import BFLOAT16, IMITATED, open_engine
from prime_lab.cheats.engines import Cheat, NearHonest
from prime_lab.cheats.registry import open_cheat
from prime_node.jobs.file_checks import weigh_rows
from prime_protocol.constants import SUSPICION_AUDITED, SUSPICION_HELD
from prime_protocol.ledger.run_record import RunRecord, convicts
from prime_protocol.proofs.tolerance import Tolerance

TEMPERATURES = (0.9, 0.95, 0.97, 0.98, 0.985, 0.99, 0.995)
MODELS = ("fp8-weights", "int8-weights", "int8-cache")


@dataclass
class Found:
    """Tokens read until each happened; None where it did not."""

    audited: int | None = None
    held: int | None = None
    convicted: int | None = None
    most: int = 0
    tokens: int = 0


def list_cheats(harness: AttackHarness) -> dict[str, Cheat]:
    checkpoint = harness.config.checkpoint
    cheats: dict[str, Cheat] = {"honest": Cheat(open_engine(IMITATED, checkpoint))}
    for name in MODELS:
        cheats[name] = open_cheat(name, open_engine(IMITATED, checkpoint))
        cheats[name].load(checkpoint)
    for factor in TEMPERATURES:
        near = NearHonest(open_engine(IMITATED, checkpoint))
        near.factor = factor
        cheats[f"{factor} of the temperature"] = near
    return cheats


def follow(harness: AttackHarness, cheat: Cheat, bounds: Tolerance, files: int) -> Found:
    found, record = Found(), RunRecord()
    reader = open_engine(BFLOAT16, harness.config.checkpoint)
    for number in range(files):
        rows = read_rows(harness, reader, harness.make_rows(cheat, harness.lease(LEASE_SLOTS)), f"file {number}")
        weighed, flaws = weigh_rows(rows, bounds)
        found.tokens += sum(row.tokens for row in rows)
        if flaws or convicts(record.evidence, weighed.bets):
            found.convicted = found.tokens
            return found
        record.add(weighed.bets)
        found.most = max(found.most, record.suspicion)
        if record.suspicion >= SUSPICION_AUDITED and found.audited is None:
            found.audited = found.tokens
        if record.suspicion >= SUSPICION_HELD and found.held is None:
            found.held = found.tokens
    return found


async def measure(folder: Path, files: int) -> dict[str, Found]:
    async with open_harness(make_harness_config(folder)) as harness:
        bounds = calibrate_answers(harness)
        print(f"margin_rate {bounds.margin_rate}, margin_scale {bounds.margin_scale}")
        print(f"{'deviation':<28}{'audited':>9}{'held':>9}{'convicted':>11}{'tokens':>9}{'most':>7}")
        rows = {}
        for name, cheat in list_cheats(harness).items():
            found = rows[name] = follow(harness, cheat, bounds, files)
            columns = [str(each) if each else "-" for each in (found.audited, found.held, found.convicted)]
            print(
                f"{name:<28}{columns[0]:>9}{columns[1]:>9}{columns[2]:>11}{found.tokens:>9}{found.most / 10:>7}",
                flush=True,
            )
        return rows


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--files", 24, 1)
    args = parser.parse()
    with tempfile.TemporaryDirectory(prefix="prime-near-") as scratch:
        rows = asyncio.run(measure(Path(scratch), args.files))
    convicted = [found.convicted for found in rows.values() if found.convicted]
    print(
        f"RESULT honest_most={rows['honest'].most / 10} largest={min(convicted, default=0)} "
        f"smallest={max(convicted, default=0)}"
    )


if __name__ == "__main__":
    main()
