"""With the terms that a run has by default, no attack of a worker pays, however large its submission."""

from dataclasses import replace

import pytest

from prime_attacks.economics import break_even_nano, gain_nano, pay_nano
from prime_attacks.gallery import BOOKS, WORKERS, Attack, Verdict
from prime_attacks.scene import make_terms
from prime_protocol.tolerance import Tolerance

TERMS = make_terms(vocabulary=64, model="m", tokens_max=1024, prompt_tokens_max=64, tolerance=Tolerance())
DETECTION = 0.999
TOKEN = 10**9


@pytest.mark.parametrize("attack", [*WORKERS, *BOOKS], ids=lambda attack: attack.name)
def test_no_attack_pays_whether_it_takes_one_slot_or_a_whole_step(attack: Attack) -> None:
    for slots in (1, TERMS.slots_per_step):
        assert gain_nano(attack, TERMS, slots=slots, detection=DETECTION) < 0
        if attack.verdict is Verdict.HARD:
            assert gain_nano(attack, TERMS, slots=slots, detection=DETECTION, cost_share=1.0) < 0


def test_the_numbers_of_the_document() -> None:
    assert TERMS.step_budget_nano == 2 * TOKEN
    assert (TERMS.audit_floor, TERMS.slash_nano, TERMS.stake_min_nano) == (500, 50 * TOKEN, 100 * TOKEN)
    assert pay_nano(TERMS, TERMS.slots_per_step) == pytest.approx(1.8 * TOKEN)
    assert break_even_nano(TERMS) == pytest.approx(2.63 * TOKEN, rel=0.01)
    four_bits = next(each for each in WORKERS if each.name == "int4-weights")
    assert gain_nano(four_bits, TERMS, slots=1, detection=DETECTION) / TOKEN == pytest.approx(-2.480, abs=0.001)
    assert gain_nano(four_bits, TERMS, slots=64, detection=DETECTION) / TOKEN == pytest.approx(-1.390, abs=0.001)


def test_a_run_that_pays_more_for_a_step_than_a_slash_can_deter_is_seen() -> None:
    """What a perfect cheat gains is nothing at the break-even, and positive beyond."""
    perfect = replace(WORKERS[0], saves=1.0)
    rich = replace(TERMS, step_budget_nano=10 * TOKEN)
    assert pay_nano(rich, rich.slots_per_step) > break_even_nano(rich)
    assert gain_nano(perfect, rich, slots=64, detection=1.0, cost_share=1.0) > 0


def test_the_one_attack_that_is_seldom_seen_by_who_reads_once_pays_for_a_whole_step_only() -> None:
    """As docs/verification.md says first: in bfloat16, chunk by chunk, an 8-bit cache is caught in a tenth of cases."""
    cache = next(each for each in WORKERS if each.name == "int8-cache")
    assert gain_nano(cache, TERMS, slots=1, detection=0.1) / TOKEN == pytest.approx(-0.242, abs=0.001)
    assert gain_nano(cache, TERMS, slots=64, detection=0.1) / TOKEN == pytest.approx(0.254, abs=0.001)
