"""A false engine class gains nothing: what it is judged by is never wider than what a worker without a class is."""

from pathlib import Path

from prime_lab.attacks.catalog import CLASS_ATTACKS
from prime_lab.attacks.class_attacks import attack_with_classes, calibrate_classes
from prime_lab.attacks.harness import HarnessConfig, digest_words, open_engine, open_harness, open_honest_engines
from prime_lab.attacks.suite import TOKENS_MAX, VOCABULARY
from prime_lab.cheats.registry import open_cheat
from prime_node.jobs.file_checks import weigh_rows
from prime_protocol.proofs.tolerance import Precision, Tolerance
from prime_trainer.model.tiny import make_tiny_checkpoint

LEASES, SLOTS = 3, 11
"""264 completions of up to four chunks: hardly more than a fit needs."""


async def test_a_cheat_gains_nothing_by_a_false_class_and_its_own_class_finds_more(tmp_path: Path) -> None:
    config = HarnessConfig(
        checkpoint=make_tiny_checkpoint(tmp_path / "tiny", vocabulary=VOCABULARY, eos=None),
        folder=tmp_path / "workers",
        tokens_max=TOKENS_MAX,
        tolerance=Tolerance(precision=Precision.FLOAT32),
    )
    async with open_harness(config) as harness:
        engines = open_honest_engines(harness)
        terms, own, noisy = await calibrate_classes(harness, engines, LEASES, SLOTS)
        narrow, wide = (terms.get_tolerance(name, own) for name in (own, noisy))
        assert narrow.logprob_error_max < wide.logprob_error_max
        fresh = harness.make_rows(engines[0], harness.lease(2))
        assert weigh_rows(await harness.measure(fresh, digest_words("fresh")), narrow)[0].evidence == 0
        for name in ("int8-cache", "int8-weights", "near-honest"):
            cheat = open_cheat(name, open_engine(harness))
            cheat.load(config.checkpoint)
            measured = await harness.measure(harness.make_rows(cheat, harness.lease(1)), digest_words(name))
            silent, claimed, honest = (
                weigh_rows(measured, terms.get_tolerance(each, own))[0].evidence for each in (None, noisy, own)
            )
            assert silent <= claimed <= honest, name
        found = [each async for each in attack_with_classes(harness, engines, LEASES, SLOTS)]
        assert [attack for attack, _ in found] == list(CLASS_ATTACKS)
        assert all(result.is_as_listed(attack) for attack, result in found), found
        assert harness.briefing.terms.class_bounds.classes == ()
