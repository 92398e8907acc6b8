"""Attacks on the weighing of short answers: edits that stay below every limit of a chunk, to move the reward.

The model has learnt a little of its task, so that a right answer is often nearly as likely as the one it drew. The run
is in bfloat16, and every attack is made with default bounds and with bounds calibrated on honest work of this model.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

from prime_lab.attacks.attack import Attack, AttackResult, AttackVerdict
from prime_lab.attacks.catalog import (
    ANSWER_ATTACKS,
    STEADY_ATTACKS,
)
from prime_lab.attacks.detection import read_rows
from prime_lab.attacks.forged_files import SentFile
from prime_lab.attacks.harness import TASK_SET, AttackHarness, HarnessConfig, open_harness
from prime_lab.attacks.study import BFLOAT16, IMITATED, open_engine
from prime_lab.cheats.engines import Cheat, SelectiveAnswerSheet
from prime_lab.cheats.registry import open_cheat
from prime_lab.devnet.recipe import OUTPUT_TOKENS, PROMPT_TOKENS, WARM_STEPS
from prime_node.calibration.fit import CalibrationTarget, fit_tolerance
from prime_node.calibration.noise import collect_noise
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.run_record import RunRecord
from prime_protocol.proofs.tolerance import Precision, Tolerance
from prime_protocol.rollouts.file import write_rollouts
from prime_protocol.rollouts.rollout import Rollout
from prime_trainer.model.tiny import make_tiny_checkpoint

LEASE_SLOTS = 8
FILES_MAX = 24
CALIBRATION_LEASES, CALIBRATION_SLOTS = 3, 64
"""1,536 honest completions."""
SPREAD = 0.3
"""Of the random weights that the warm start begins with, as in a devnet."""


def make_warm_checkpoint(folder: Path) -> Path:
    """A tiny model that sorts five digits in about a fifth of its answers."""
    from prime_trainer.config import SftConfig
    from prime_trainer.sft import train_sft

    start = make_tiny_checkpoint(folder / "start", spread=SPREAD)
    train_sft(SftConfig(model=start, out=folder / "warm", task_set=TASK_SET, steps=WARM_STEPS), lambda step, loss: None)
    return folder / "warm"


def make_harness_config(folder: Path) -> HarnessConfig:
    return HarnessConfig(
        checkpoint=make_warm_checkpoint(folder),
        folder=folder / "answers",
        tokens_max=OUTPUT_TOKENS,
        prompt_tokens_max=PROMPT_TOKENS,
        tolerance=Tolerance(),
    )


async def attack_answers(folder: Path) -> AsyncIterator[tuple[Attack, AttackResult]]:
    async with open_harness(make_harness_config(folder)) as harness:
        calibrated = calibrate_answers(harness)
        for attack in ANSWER_ATTACKS:
            for bounds in (Tolerance(), calibrated):
                harness.hold_to(bounds)
                yield attack, await submit_answers(harness, attack, bounds)
        for attack in STEADY_ATTACKS:
            yield attack, await submit_until_convicted(harness, attack, calibrated)


def calibrate_answers(harness: AttackHarness) -> Tolerance:
    """Bounds of honest answers, by the code of `prime-node calibrate`."""
    checkpoint = harness.config.checkpoint
    writer, reader = open_engine(IMITATED, checkpoint), open_engine(BFLOAT16, checkpoint)
    rows = []
    for number in range(CALIBRATION_LEASES):
        made = harness.make_rows(writer, harness.lease(CALIBRATION_SLOTS))
        rows += read_rows(harness, reader, made, f"calibration {number}")
    return fit_tolerance(
        [collect_noise(f"{IMITATED} → {BFLOAT16}", rows)],
        CalibrationTarget(),
        precision=Precision.BFLOAT16,
        hidden=harness.model.hidden,
    )


async def submit_answers(harness: AttackHarness, attack: Attack, bounds: Tolerance) -> AttackResult:
    """One file through intake and audit. The attacker knows the bounds."""
    engine = open_engine(IMITATED, harness.config.checkpoint)
    cheat = open_cheat_with_bounds(harness, attack.name, bounds)
    lease = harness.lease(LEASE_SLOTS)
    honest, rows = harness.make_rows(engine, lease), harness.make_rows(cheat, lease)
    found = await harness.submit(SentFile(data=write_rollouts(harness.header(lease), rows)), lease)
    before, after = measure_right(harness, honest), measure_right(harness, rows)
    told = f"{before:.0%} right became {after:.0%}; {found.reason or 'accepted'}"
    # Where nothing was gained there was no occasion, which is no proof of anything.
    verdict = found.verdict if after > before else None
    return AttackResult(verdict=verdict, checks=found.checks, reason=told, tokens=found.tokens)


async def submit_until_convicted(harness: AttackHarness, attack: Attack, bounds: Tolerance) -> AttackResult:
    """File after file through intake and audit, each with what the ones before came to, as the ledger adds it up."""
    cheat = open_cheat_with_bounds(harness, attack.name, bounds)
    record, tokens = RunRecord(), 0
    for number in range(1, FILES_MAX + 1):
        lease = harness.lease(LEASE_SLOTS)
        data = write_rollouts(harness.header(lease), harness.make_rows(cheat, lease))
        examined = replace(await harness.audit(data, lease), sums=record.evidence)
        judged = examined.judge()
        assert examined.weighed is not None
        tokens += sum(row.tokens for row in examined.numbers)
        if judged.outcome is Outcome.FRAUDULENT:
            told = f"file {number}, {tokens} tokens: {judged.reason}"
            checks = tuple(flaw.check for flaw in judged.flaws)
            return AttackResult(verdict=AttackVerdict.FRAUDULENT, checks=checks, reason=told, tokens=tokens)
        record.add(examined.weighed.bets)
    return AttackResult(verdict=None, checks=(), reason=f"{FILES_MAX} files came to {record.suspicion / 10:g}")


def open_cheat_with_bounds(harness: AttackHarness, name: str, bounds: Tolerance) -> Cheat:
    cheat = open_cheat(name, open_engine(IMITATED, harness.config.checkpoint))
    if isinstance(cheat, SelectiveAnswerSheet):
        cheat.tolerance = bounds
    cheat.load(harness.config.checkpoint)
    return cheat


def measure_right(harness: AttackHarness, rows: Sequence[Rollout]) -> float:
    family, files = harness.briefing.family, harness.model
    texts = files.decode([[int(token) for token in row.output_tokens if token not in files.eos] for row in rows])
    right = [text == family.make(row.task).key for text, row in zip(texts, rows, strict=True)]
    return sum(right) / len(right)
