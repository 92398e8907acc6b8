"""The terms of a run hold together."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_protocol.constants import (
    FLOP_PER_CONTEXT_TOKEN_MAX,
    FLOP_PER_TOKEN_MAX,
    LEASE_SLOTS_MAX,
    READ_US_PER_TOKEN_MAX,
    TEMPERATURE_MIN,
)
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import NodeId
from support.ledger_network import TERMS


def test_a_slash_is_no_more_than_the_least_stake() -> None:
    replace(TERMS, slash_nano=TERMS.stake_min_nano)
    with pytest.raises(RemoteError, match="slash_nano"):
        replace(TERMS, slash_nano=TERMS.stake_min_nano + 1)


def test_a_temperature_is_greedy_or_large_enough_to_divide_by() -> None:
    replace(TERMS, temperature=0.0)
    replace(TERMS, temperature=TEMPERATURE_MIN)
    with pytest.raises(RemoteError, match="temperature"):
        replace(TERMS, temperature=TEMPERATURE_MIN / 2)


@pytest.mark.parametrize("field", ["rollouts_kept_ms", "evidence_kept_ms", "checkpoints_kept_ms"])
def test_no_file_may_be_deleted_before_all_is_decided_that_it_can_decide(field: str) -> None:
    least_ms = TERMS.vesting_ms + TERMS.judgement_ms + TERMS.appeal_ms + TERMS.long_stop_ms
    assert TERMS.compute_decided_ms() == least_ms
    assert getattr(replace(TERMS, **{field: least_ms}), field) == least_ms
    with pytest.raises(RemoteError, match=f"the least is {least_ms}") as caught:
        replace(TERMS, **{field: least_ms - 1})
    assert caught.value.field == field


def test_the_evidence_of_slashes_is_kept_longest() -> None:
    kept_ms = max(TERMS.rollouts_kept_ms, TERMS.evidence_kept_ms)
    replace(TERMS, slash_evidence_kept_ms=kept_ms)
    with pytest.raises(RemoteError, match="slash_evidence_kept_ms"):
        replace(TERMS, slash_evidence_kept_ms=kept_ms - 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("quorum", 0),
        ("quorum", 16),
        ("slots_per_step", 0),
        ("audit_floor", 0),
        ("audit_share", 10_001),
        ("temperature", -0.5),
        ("model", ""),
        ("read_us_per_token", READ_US_PER_TOKEN_MAX + 1),
        ("context_tokens_max", 2**21 + 1),
        ("units_per_token", FLOP_PER_TOKEN_MAX + 1),
        ("units_per_context_token", FLOP_PER_CONTEXT_TOKEN_MAX + 1),
    ],
)
def test_a_term_outside_its_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RemoteError) as caught:
        decode(RunTerms, encode(replace(TERMS, **{field: value})))
    assert caught.value.field == f"RunTerms.{field}"


@pytest.mark.parametrize(("version_next", "upgrade_by_ms"), [(2, 0), (0, 5), (1, 5)])
def test_a_planned_version_is_higher_and_has_its_date(version_next: int, upgrade_by_ms: int) -> None:
    with pytest.raises(RemoteError, match="version_next"):
        replace(TERMS, version_next=version_next, upgrade_by_ms=upgrade_by_ms)


def test_the_lowest_version_rises_on_its_date() -> None:
    terms = replace(TERMS, version_next=2, upgrade_by_ms=1000)
    assert [terms.get_version_min(at_ms) for at_ms in (0, 999, 1000, 2000)] == [1, 1, 2, 2]
    assert TERMS.get_version_min(10**15) == 1


def test_an_inspector_is_named_once() -> None:
    ann, bob = NodeId(b"a" * 20), NodeId(b"b" * 20)
    for inspectors in ((), (bob, ann)):
        terms = replace(TERMS, inspectors=inspectors)
        assert decode(RunTerms, encode(terms)) == terms
    with pytest.raises(RemoteError) as caught:
        replace(TERMS, inspectors=(ann, bob, ann))
    assert caught.value.field == "inspectors"


def test_a_file_is_held_to_the_terms_and_to_the_slots_of_its_lease() -> None:
    limits = TERMS.rollout_limits(4, 2)
    assert (limits.first_slot, limits.slots, limits.samples_per_slot) == (4, 2, TERMS.samples_per_slot)
    assert limits.vocab_size == TERMS.vocabulary


def test_a_row_fits_into_the_models_context() -> None:
    longest = TERMS.prompt_tokens_max + TERMS.output_tokens_max
    assert replace(TERMS, context_tokens_max=longest).row_tokens_max == longest
    with pytest.raises(RemoteError) as caught:
        replace(TERMS, context_tokens_max=longest - 1)
    assert caught.value.field == "context_tokens_max"


@given(
    verdict_ms=st.integers(0, 2**40),
    read_us_per_token=st.integers(0, READ_US_PER_TOKEN_MAX),
    samples_per_slot=st.integers(1, 1024),
    prompt_tokens_max=st.integers(1, 2**20),
    output_tokens_max=st.integers(1, 2**20),
)
def test_a_readable_lease_takes_no_longer_to_read_than_a_verdict_and_one_slot_more_does(**changed: int) -> None:
    terms = replace(TERMS, **changed)

    def read_ms(slots: int) -> int:
        rows = slots * terms.samples_per_slot
        return terms.compute_read_ms(rows=rows, output_tokens=rows * terms.output_tokens_max)

    most = terms.compute_slots_readable()
    assert 0 <= most <= LEASE_SLOTS_MAX
    assert most == 0 or read_ms(most) <= terms.verdict_ms
    assert most == LEASE_SLOTS_MAX or read_ms(most + 1) > terms.verdict_ms


def test_the_time_to_read_follows_the_tokens_and_is_rounded_up() -> None:
    terms = replace(TERMS, read_us_per_token=300, prompt_tokens_max=16, output_tokens_max=32)
    # Three prompts, ten output tokens, and the longest row again: 106 tokens.
    assert terms.compute_read_ms(rows=3, output_tokens=10) == 32
    assert replace(terms, read_us_per_token=0).compute_read_ms(rows=3, output_tokens=10) == 0
