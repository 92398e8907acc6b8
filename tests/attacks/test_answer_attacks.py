"""Edits that stay below every limit of a chunk move the reward and are caught, with default and calibrated bounds."""

from pathlib import Path

from prime_lab.attacks.answer_attacks import attack_answers
from prime_lab.attacks.catalog import (
    ANSWER_ATTACKS,
    CROSS_RUN,
    STEADY_ATTACKS,
)
from prime_lab.attacks.ledger_attacks import attack_reputation


async def test_right_answers_that_no_single_chunk_shows_are_caught_by_their_sum(tmp_path: Path) -> None:
    found = [each async for each in attack_answers(tmp_path)]
    names = [attack.name for attack in (*(attack for attack in ANSWER_ATTACKS for _ in range(2)), *STEADY_ATTACKS)]
    assert [attack.name for attack, _ in found] == names
    for attack, outcome in found:
        assert outcome.is_as_listed(attack), outcome
        assert ("right became" if attack in ANSWER_ATTACKS else "tokens: ") in outcome.reason


def test_a_good_name_of_a_cheap_run_spares_no_audit_in_an_expensive_one() -> None:
    ((attack, outcome),) = attack_reputation()
    assert attack is CROSS_RUN
    assert outcome.is_as_listed(attack), outcome
