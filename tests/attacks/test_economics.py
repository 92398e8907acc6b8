"""With what a run and its coordinator have by default no attack pays, neither a worker's nor a validator's."""

from dataclasses import replace

import numpy as np
import pytest

from prime_coordinator.constants import BLAME_MAX, BLAME_PER_OVERTURNED, LEASES_UNSETTLED_MAX, UNSETTLED_STEPS_MAX
from prime_lab.attacks.attack import Attack, AttackVerdict
from prime_lab.attacks.catalog import (
    LEDGER_ATTACKS,
    VALIDATOR_ATTACKS,
    WORKER_ATTACKS,
)
from prime_lab.attacks.economics import (
    COST_SHARE,
    INSPECTED,
    compute_expected_slash_nano,
    compute_gain_nano,
    compute_pay_nano,
    compute_verdict_gain,
)
from prime_lab.attacks.harness import make_terms
from prime_lab.attacks.report import format_gain
from prime_protocol.constants import BASIS_POINTS, REFUTED_VERDICTS
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.proofs.tolerance import Tolerance

TERMS = make_terms(vocabulary=64, model="m", tokens_max=1024, prompt_tokens_max=64, tolerance=Tolerance())
DETECTION = 0.999
TOKEN = 10**9
HALVINGS = 50
BY_NAME = {attack.name: attack for attack in (*WORKER_ATTACKS, *LEDGER_ATTACKS, *VALIDATOR_ATTACKS)}
FRAUDULENT = [attack for attack in (*WORKER_ATTACKS, *LEDGER_ATTACKS) if attack.verdict is AttackVerdict.FRAUDULENT]
PERFECT = replace(BY_NAME["other-model"], saves=1.0)
"""Saves all work, which no attack does."""


def compute_break_even_detection(
    attack: Attack, terms: RunTerms, *, slots: int, leases: int = 1, cost_share: float = COST_SHARE
) -> float:
    """The share of drawn forgeries that must be seen, so that the attack does not pay; 1 where that is not enough."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        gain = compute_gain_nano(attack, terms, slots=slots, detection=middle, leases=leases, cost_share=cost_share)
        low, high = (middle, high) if gain > 0 else (low, middle)
    return high


def compute_break_even_nano(terms: RunTerms) -> float:
    """The pay of one submission from which a perfect saving pays: a run must stay below it."""
    floor = terms.audit_floor / BASIS_POINTS
    return floor * terms.slash_nano / (1 - floor)


def compute_break_even_inspected(*, saves: float, wrong: float, cost_share: float = COST_SHARE) -> float:
    """The share of judged files that must be read again so that a verdict without a look does not pay."""
    return max(0.0, saves * cost_share - wrong) / REFUTED_VERDICTS


def compute_verdicts_until_suspension(wrong: float) -> float:
    """Expected, from a good name, where each verdict falls with that chance."""
    steps = np.eye(BLAME_MAX)
    for blame in range(BLAME_MAX):
        steps[blame, max(0, blame - 1)] -= 1 - wrong
        if blame + BLAME_PER_OVERTURNED < BLAME_MAX:
            steps[blame, blame + BLAME_PER_OVERTURNED] -= wrong
    return float(np.linalg.solve(steps, np.ones(BLAME_MAX))[0])


@pytest.mark.parametrize("attack", [*WORKER_ATTACKS, *LEDGER_ATTACKS], ids=lambda attack: attack.name)
def test_no_attack_pays_whether_it_takes_one_slot_or_a_whole_step(attack: Attack) -> None:
    for slots in (1, TERMS.slots_per_step):
        assert compute_gain_nano(attack, TERMS, slots=slots, detection=DETECTION) < 0


def get_slots_max(leases: int) -> int:
    """Of each of so many unsettled leases of one node."""
    most = TERMS.slots_per_step
    return min(most, UNSETTLED_STEPS_MAX * most // leases)


@pytest.mark.parametrize("attack", FRAUDULENT, ids=lambda attack: attack.name)
def test_none_pays_with_as_many_forged_leases_at_once_as_a_node_may_have_unsettled(attack: Attack) -> None:
    """However its slots are cut, work costs all of its pay, and the last slashes find an empty stake."""
    for leases in range(1, LEASES_UNSETTLED_MAX + 1):
        slots = get_slots_max(leases)
        assert compute_gain_nano(attack, TERMS, slots=slots, detection=DETECTION, leases=leases, cost_share=1.0) < 0


@pytest.mark.parametrize("attack", FRAUDULENT, ids=lambda attack: attack.name)
def test_every_attack_would_break_even_well_below_the_detection_that_is_measured(attack: Attack) -> None:
    assert compute_break_even_detection(attack, TERMS, slots=1) < 0.011
    assert compute_break_even_detection(attack, TERMS, slots=8) < 0.08
    for leases in (1, UNSETTLED_STEPS_MAX, LEASES_UNSETTLED_MAX):
        assert compute_break_even_detection(attack, TERMS, slots=get_slots_max(leases), leases=leases) < 0.6


def test_slashes_of_one_node_together_take_no_more_than_its_stake() -> None:
    assert compute_expected_slash_nano(TERMS, 1, 1.0) == TERMS.slash_nano
    assert compute_expected_slash_nano(TERMS, 8, 1.0) == TERMS.stake_min_nano
    assert compute_expected_slash_nano(TERMS, 8, 0.05) / TOKEN == pytest.approx(19.69, abs=0.01)
    assert compute_expected_slash_nano(replace(TERMS, stake_min_nano=10**12), 8, 0.05) / TOKEN == pytest.approx(20.0)


def test_the_numbers_of_the_document() -> None:
    assert TERMS.step_budget_nano == 2 * TOKEN
    assert (TERMS.audit_floor, TERMS.slash_nano, TERMS.stake_min_nano) == (500, 50 * TOKEN, 100 * TOKEN)
    assert compute_pay_nano(TERMS, TERMS.slots_per_step) == pytest.approx(1.8 * TOKEN)
    assert compute_break_even_nano(TERMS) == pytest.approx(2.63 * TOKEN, rel=0.01)
    four_bits = BY_NAME["int4-weights"]
    assert compute_gain_nano(four_bits, TERMS, slots=1, detection=DETECTION) / TOKEN == pytest.approx(-2.480, abs=0.001)
    assert compute_gain_nano(four_bits, TERMS, slots=64, detection=DETECTION) / TOKEN == pytest.approx(
        -1.390, abs=0.001
    )
    assert compute_gain_nano(PERFECT, TERMS, slots=64, detection=DETECTION) / TOKEN == pytest.approx(-0.877, abs=0.001)
    at_once = [
        compute_gain_nano(PERFECT, TERMS, slots=get_slots_max(leases), detection=DETECTION, leases=leases) / TOKEN
        for leases in (UNSETTLED_STEPS_MAX, 8, 32)
    ]
    assert at_once == pytest.approx([-1.755, -16.432, -61.033], abs=0.001)
    for attack, one, eight, step in (
        ("older-checkpoint", 0.001, 0.009, 0.066),
        ("int8-cache", 0.003, 0.026, 0.198),
        ("int8-weights", 0.005, 0.043, 0.330),
        ("small-model", 0.006, 0.051, 0.396),
        ("int4-weights", 0.007, 0.060, 0.462),
        ("other-model", 0.010, 0.077, 0.594),
    ):
        found = [compute_break_even_detection(BY_NAME[attack], TERMS, slots=slots) for slots in (1, 8, 64)]
        assert found == pytest.approx([one, eight, step], abs=0.0006)


def test_a_deviation_that_takes_several_files_gains_less_before_the_first_audit_than_the_slash_takes() -> None:
    files = BASIS_POINTS / TERMS.audit_floor
    for slots, gain, even in ((1, -49.5, 93.6), (TERMS.slots_per_step, -15.8, 1.46)):
        saved_nano = files * COST_SHARE * compute_pay_nano(TERMS, slots)
        assert (saved_nano - TERMS.slash_nano) / TOKEN == pytest.approx(gain, abs=0.05)
        assert TERMS.slash_nano / saved_nano == pytest.approx(even, rel=0.01)


def test_a_run_that_pays_more_for_a_step_than_a_slash_can_deter_is_seen() -> None:
    """What a perfect cheat gains is nothing at the break-even, and positive beyond, however surely it is seen."""
    rich = replace(TERMS, step_budget_nano=10 * TOKEN)
    assert compute_pay_nano(rich, rich.slots_per_step) > compute_break_even_nano(rich)
    assert compute_gain_nano(PERFECT, rich, slots=64, detection=1.0, cost_share=1.0) > 0
    assert compute_break_even_detection(PERFECT, rich, slots=64) == 1.0


def test_the_one_attack_that_is_seldom_seen_by_who_reads_once_pays_for_a_whole_step_only() -> None:
    """As docs/verification.md says first: in bfloat16, chunk by chunk, an 8-bit cache is caught in a tenth of cases."""
    cache = BY_NAME["int8-cache"]
    assert compute_gain_nano(cache, TERMS, slots=1, detection=0.1) / TOKEN == pytest.approx(-0.242, abs=0.001)
    assert compute_gain_nano(cache, TERMS, slots=64, detection=0.1) / TOKEN == pytest.approx(0.254, abs=0.001)


def test_a_refused_copy_costs_no_more_than_the_pay_that_it_does_not_get() -> None:
    copied = BY_NAME["copied-file"]
    assert compute_gain_nano(copied, TERMS, slots=1, detection=0.0) == compute_gain_nano(
        copied, TERMS, slots=1, detection=1.0
    )
    assert compute_gain_nano(copied, TERMS, slots=1, detection=1.0, cost_share=1.0) == 0.0


@pytest.mark.parametrize("idle", [0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("saves", [0.3, 1.0])
def test_not_looking_does_not_pay_a_validator_however_seldom_and_however_honest_the_others_are(
    idle: float, saves: float
) -> None:
    for wrong in (0.0, 0.05, 0.5, 1.0):
        for cost_share in (COST_SHARE, 0.5, 0.2):
            assert compute_verdict_gain(saves=saves, wrong=wrong, idle=idle, cost_share=cost_share) < 0


def test_the_numbers_of_validators_in_the_document() -> None:
    assert (INSPECTED, REFUTED_VERDICTS) == (0.1, 20)
    for idle, gain in ((1.0, -0.05), (0.5, -0.525), (0.1, -0.105), (0.01, -0.0105)):
        assert compute_verdict_gain(saves=1.0, wrong=0.0, idle=idle) == pytest.approx(gain)
    assert compute_break_even_inspected(saves=1.0, wrong=0.0) == pytest.approx(0.0475)
    assert compute_verdict_gain(saves=1.0, wrong=0.0, inspected=0.047, idle=0.1) > 0
    assert compute_verdict_gain(saves=1.0, wrong=0.0, inspected=0.048, idle=0.1) < 0
    assert compute_break_even_inspected(saves=1.0, wrong=1.0) == 0.0
    assert [format_gain(BY_NAME[name], TERMS) for name in ("lazy", "copies-verdicts", "vindictive")] == [
        "-0.05 of a verdict's pay",
        "-0.05 of a verdict's pay",
        "-",
    ]


def test_without_an_inspector_not_looking_pays_unless_nearly_all_files_are_dishonest() -> None:
    """As docs/verification.md says first: a run whose terms name nobody has nobody who would see it."""
    for wrong, gain in ((0.0, 0.95), (0.05, 0.90), (0.2, 0.75), (0.5, 0.45), (1.0, -0.05)):
        assert compute_verdict_gain(saves=1.0, wrong=wrong, inspected=0.0) == pytest.approx(gain)


def test_a_validator_that_is_seldom_wrong_is_seldom_sent_away() -> None:
    assert compute_verdicts_until_suspension(1.0) == 2.0
    for wrong, verdicts in ((0.01, 9552), (0.05, 340), (0.1, 81.2), (0.2, 21.6), (0.5, 5.2)):
        assert compute_verdicts_until_suspension(wrong) == pytest.approx(verdicts, rel=0.01)
