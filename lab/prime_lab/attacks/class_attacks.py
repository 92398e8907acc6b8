"""Attacks on the bounds of engine classes: a worker names a class whose noise might cover what it did.

The run is in float32. Honest engines of one class have narrow bounds, and the table also knows a noisier class, which
computes in bfloat16. docs/verification/engine-classes.md says why such a lie gains nothing.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from prime_lab.attacks.attack import Attack, AttackResult
from prime_lab.attacks.catalog import CLASS_ATTACKS
from prime_lab.attacks.forged_files import SentFile
from prime_lab.attacks.harness import BATCHES, AttackHarness, digest_words, open_engine
from prime_lab.cheats.registry import open_cheat
from prime_node.calibration.fit import CalibrationTarget
from prime_node.calibration.noise import PairNoise, collect_noise
from prime_node.calibration.table import build_table, combine_pairs, fit_pair
from prime_node.engine.interface import Engine
from prime_node.engine.machine_class import get_engine_class
from prime_node.engine.measurement import RowMeasurement
from prime_node.engine.torch.device import EMULATED_BF16
from prime_node.engine.torch.engine import TorchEngine
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.proofs.class_bounds import EngineClass
from prime_protocol.rollouts.file import write_rollouts

HIDING_CHEAT = "int4-weights"


async def attack_with_classes(
    harness: AttackHarness, engines: Sequence[Engine], leases: int, slots: int
) -> AsyncIterator[tuple[Attack, AttackResult]]:
    """The harness is as before when this ends."""
    before = harness.briefing
    (attack,) = CLASS_ATTACKS
    terms, _, noisy = await calibrate_classes(harness, engines, leases, slots)
    harness.briefing = replace(before, terms=terms)
    cheat = open_cheat(HIDING_CHEAT, open_engine(harness))
    cheat.load(harness.config.checkpoint)
    lease = harness.lease(1)
    rows = harness.make_rows(cheat, lease)
    found: dict[EngineClass | None, tuple[int, AttackResult]] = {}
    for name in (noisy, None):
        data = write_rollouts(harness.header(lease), rows, name, names_class=True)
        examined = await harness.audit(data, lease)
        assert examined.weighed is not None
        found[name] = examined.weighed.evidence, await harness.submit(SentFile(data=data), lease)
    harness.briefing = before
    (claimed, result), (silent, _) = found[noisy], found[None]
    # A class that made the same work look better would be a gain, whatever the verdict.
    yield attack, result if claimed >= silent else replace(result, verdict=None)


async def calibrate_classes(
    harness: AttackHarness, engines: Sequence[Engine], leases: int, slots: int
) -> tuple[RunTerms, EngineClass, EngineClass]:
    """Terms with a table of two classes, both read by the first: the honest engines', and a noisier one."""
    own = get_engine_class(engines[0].facts)
    assert own is not None, "torch says what it is"
    noisy_engines = [
        TorchEngine(device="cpu", precision=EMULATED_BF16, threads=1, batch_max=batch) for batch in BATCHES
    ]
    for engine in noisy_engines:
        engine.load(harness.config.checkpoint)
    noisy = get_engine_class(noisy_engines[0].facts)
    assert noisy is not None
    tolerance = harness.briefing.terms.tolerance
    pairs = [
        fit_pair(
            name,
            own,
            await measure_class(harness, writers, leases, slots, name),
            CalibrationTarget(),
            precision=tolerance.precision,
            hidden=harness.model.hidden,
        )
        for name, writers in ((own, engines), (noisy, noisy_engines))
    ]
    default = combine_pairs(pairs)
    terms = harness.briefing.terms
    return replace(terms, tolerance=default, class_bounds=build_table(default, pairs)), own, noisy


async def measure_class(
    harness: AttackHarness, engines: Sequence[Engine], leases: int, slots: int, name: EngineClass
) -> PairNoise:
    rows: list[RowMeasurement] = []
    for number in range(leases):
        made = harness.make_rows(engines[number % len(engines)], harness.lease(slots))
        rows += await harness.measure(made, digest_words("classes", name, number))
    return collect_noise(name, rows)
