"""What is brought to the chain next, from what both sides say."""

from dataclasses import replace
from typing import Any

import pytest

from prime_coordinator.settlement.actions import (
    AnchorHead,
    ChainAction,
    CloseRun,
    CreateRun,
    ExecutePenalty,
    ExecuteSlash,
    JudgeAppeal,
    JudgePenalty,
    OverturnSlash,
    Payable,
    PenaltyInLog,
    PoolOnChain,
    PostPayoutRoot,
    ProposePenalty,
    ProposeSlash,
    RefundSlash,
    RunInLog,
    RunOnChain,
    RunPhase,
    SetTerms,
    SlashInLog,
    SlashOnChain,
    SlashPhase,
    is_appealable,
    list_actions,
    make_chain_terms,
)
from prime_coordinator.settlement.config import SettlementConfig, SettlementKind
from prime_protocol.wire.ids import NodeId
from support.ledger_network import RUN, TERMS, digest

CONFIG = SettlementConfig(kind=SettlementKind.EVM, rpc="http://127.0.0.1:1", epoch_ms=10_000)
CHAIN_TERMS = make_chain_terms(TERMS, CONFIG, 1)
ANN = NodeId(b"\x01" * 20)
NAME = digest("submission")
NOW = 1_000
LOG = RunInLog(RUN, CHAIN_TERMS, size=50, is_closed=False, payable=None, paid_total=0, slashes=())
CHAIN = RunOnChain(
    phase=RunPhase.ACTIVE, terms=CHAIN_TERMS, size=50, anchored_at=NOW, pool=PoolOnChain(held=100, since=NOW - 10)
)


def due(log: RunInLog = LOG, chain: RunOnChain = CHAIN, now: int = NOW, **how: Any) -> list[ChainAction]:
    return list(list_actions(log, chain, now, **how))


def test_nothing_is_due_where_both_sides_say_the_same() -> None:
    assert due() == []


def test_a_run_comes_first_and_one_that_ended_before_it_came_never_does() -> None:
    assert due(chain=RunOnChain()) == [CreateRun(RUN, CHAIN_TERMS)]
    assert due(replace(LOG, is_closed=True), RunOnChain()) == []


def test_one_head_an_epoch_unless_the_operator_is_in_a_hurry() -> None:
    grown = replace(LOG, size=51)
    assert due(grown, now=NOW + 9) == []
    assert due(grown, now=NOW + 10) == [AnchorHead(RUN)]
    assert due(grown, is_hastened=True) == [AnchorHead(RUN)]


def test_the_same_root_again_says_that_the_operator_is_there() -> None:
    paid = replace(LOG, payable=Payable(50, {ANN: 7}), paid_total=7)
    quiet = replace(CHAIN, pool=PoolOnChain(held=100, promised=7, epoch=3, since=NOW))
    long = CHAIN_TERMS.windows_s
    assert due(paid, quiet, now=NOW + long - 1) == []
    assert due(paid, quiet, now=NOW + long) == [PostPayoutRoot(RUN, 4)]
    nothing = replace(LOG, payable=Payable(50, {}))
    assert due(nothing, replace(CHAIN, pool=PoolOnChain(held=100, since=NOW)), now=NOW + long) == []


def test_nothing_more_is_promised_in_a_run_that_a_funder_left() -> None:
    paid = replace(LOG, payable=Payable(50, {ANN: 7}), paid_total=7, size=60)
    left = replace(CHAIN, pool=PoolOnChain(held=100, since=NOW - 10, is_abandoned=True))
    assert due(paid, left, now=NOW + 100) == []


def test_a_root_needs_the_anchored_head_it_was_computed_from() -> None:
    paid = replace(LOG, payable=Payable(50, {ANN: 7}), paid_total=7)
    assert due(paid) == [PostPayoutRoot(RUN, 1)]
    assert due(replace(paid, payable=Payable(49, {ANN: 7}))) == []
    assert due(replace(paid, payable=None)) == []


@pytest.mark.parametrize(
    "pool",
    [
        PoolOnChain(held=6, since=NOW - 10),
        PoolOnChain(held=100, since=NOW - 9),
        PoolOnChain(held=100, since=NOW - 10, promised=7),
    ],
    ids=["insolvent", "too soon", "promised before"],
)
def test_a_root_that_the_pool_would_refuse_is_not_sent(pool: PoolOnChain) -> None:
    assert due(replace(LOG, payable=Payable(50, {ANN: 7}), paid_total=7), replace(CHAIN, pool=pool)) == []


def test_an_epoch_that_was_missed_keeps_its_budget() -> None:
    budget = CHAIN_TERMS.epochBudget
    paid = replace(LOG, payable=Payable(50, {ANN: 2 * budget}), paid_total=2 * budget)
    rich = replace(CHAIN, pool=PoolOnChain(held=2 * budget, since=NOW - 10))
    assert due(paid, rich) == []
    assert due(paid, rich, now=NOW + 10) == [PostPayoutRoot(RUN, 1)]


def slashed(**facts: Any) -> RunInLog:
    return replace(LOG, slashes=(SlashInLog(NAME, proposed=40, **facts),))


def seen(phase: SlashPhase, **times: int) -> RunOnChain:
    return replace(CHAIN, slashes={NAME: SlashOnChain(phase, **times)})


def test_a_slash_is_proposed_once_its_entry_is_anchored() -> None:
    assert due(slashed()) == [ProposeSlash(RUN, NAME)]
    assert due(slashed(), replace(CHAIN, size=40), now=NOW + 1) == []


def test_a_slash_is_executed_after_its_window_only_if_the_log_says_so() -> None:
    ended, window_over = (
        slashed(ended=45, is_executed=True),
        seen(SlashPhase.OPEN, appeal_until=NOW, judge_until=NOW + 9),
    )
    assert due(ended, seen(SlashPhase.OPEN, appeal_until=NOW + 1, judge_until=NOW + 9)) == []
    assert due(ended, window_over) == [ExecuteSlash(RUN, NAME)]
    assert due(slashed(), window_over) == []
    assert due(slashed(ended=50, is_executed=True), window_over) == [], "its end is not anchored"
    assert due(slashed(), window_over, now=NOW + 9) == [RefundSlash(RUN, NAME)], "the court gives back what nobody ends"


def test_what_the_log_alone_overturned_is_overturned_on_the_chain_at_once() -> None:
    is_open = seen(SlashPhase.OPEN, appeal_until=NOW + 1, judge_until=NOW + 9)
    assert due(slashed(ended=45), is_open) == [OverturnSlash(RUN, NAME)]
    assert due(slashed(ended=50), is_open) == [], "its end is not anchored"


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        (CHAIN, True),
        (replace(CHAIN, slashes={NAME: SlashOnChain(SlashPhase.OPEN, appeal_until=NOW + 1)}), True),
        (replace(CHAIN, slashes={NAME: SlashOnChain(SlashPhase.OPEN, appeal_until=NOW)}), False),
        (replace(CHAIN, slashes={NAME: SlashOnChain(SlashPhase.APPEALED)}), True),
        (replace(CHAIN, slashes={NAME: SlashOnChain(SlashPhase.REFUNDED)}), False),
        (replace(CHAIN, is_frozen=True), False),
        (RunOnChain(), True),
    ],
)
def test_the_log_ends_no_slash_that_can_still_be_appealed_before_the_court(chain: RunOnChain, expected: bool) -> None:
    log = slashed()
    assert is_appealable(log, log.slashes[0], chain, NOW) is expected


def test_a_run_that_never_comes_to_the_chain_holds_no_slash_open() -> None:
    log = replace(slashed(), is_closed=True)
    assert not is_appealable(log, log.slashes[0], RunOnChain(), NOW)


def test_an_appeal_is_judged_with_a_quorum_of_others_or_refunded_when_its_time_is_over() -> None:
    appealed = seen(SlashPhase.APPEALED, judge_until=NOW + 5)
    assert due(slashed(), appealed) == []
    assert due(slashed(ended=45, can_judge=True), appealed) == [JudgeAppeal(RUN, NAME)]
    assert due(slashed(ended=50, can_judge=True), appealed) == [], "its end is not anchored"
    assert due(slashed(ended=45), appealed) == []
    assert due(slashed(ended=45), appealed, now=NOW + 5) == [RefundSlash(RUN, NAME)]


def test_a_frozen_log_convicts_and_promises_nothing() -> None:
    frozen = replace(seen(SlashPhase.OPEN), is_frozen=True)
    everything = replace(slashed(ended=45, is_executed=True), size=60, payable=Payable(50, {ANN: 7}))
    assert due(everything, frozen) == [RefundSlash(RUN, NAME)]
    assert due(everything, replace(CHAIN, is_frozen=True)) == []


def test_new_terms_are_announced_and_a_closed_run_closed_when_it_owes_nothing() -> None:
    dearer = replace(CHAIN_TERMS, stakeMin=CHAIN_TERMS.stakeMin + 1)
    assert due(replace(LOG, terms=dearer)) == [SetTerms(RUN, dearer)]
    assert due(replace(LOG, is_closed=True)) == [CloseRun(RUN)]
    assert due(replace(LOG, is_closed=True, paid_total=5)) == []
    pending = replace(CHAIN, pool=PoolOnChain(held=100, since=NOW, promised=5, epoch=1))
    assert due(replace(LOG, is_closed=True, paid_total=5), pending) == [], "a challenge may still void the last root"
    matured = replace(pending, pool=replace(pending.pool, matured=5))
    assert due(replace(LOG, is_closed=True, paid_total=5), matured) == [CloseRun(RUN)]
    closed = replace(slashed(), is_closed=True)
    assert due(closed, seen(SlashPhase.OPEN, appeal_until=NOW + 1, judge_until=NOW + 9)) == []
    assert due(closed, seen(SlashPhase.EXECUTED)) == [CloseRun(RUN)]


def test_the_chain_waits_longer_for_a_judgement_than_the_log() -> None:
    assert CHAIN_TERMS.judgementWindow * 1000 > TERMS.appeal_ms + TERMS.judgement_ms
    assert CHAIN_TERMS.appealWindow * 1000 >= TERMS.appeal_ms


@pytest.mark.parametrize(
    ("seen", "can_judge", "now", "action"),
    [
        (None, True, NOW, ProposePenalty),
        (SlashOnChain(SlashPhase.OPEN, NOW + 10, NOW + 90), True, NOW + 9, None),
        (SlashOnChain(SlashPhase.OPEN, NOW + 10, NOW + 90), False, NOW + 10, ExecutePenalty),
        (SlashOnChain(SlashPhase.OPEN, NOW + 10, NOW + 90), True, NOW + 90, RefundSlash),
        (SlashOnChain(SlashPhase.APPEALED, NOW + 10, NOW + 90), True, NOW, JudgePenalty),
        (SlashOnChain(SlashPhase.APPEALED, NOW + 10, NOW + 90), False, NOW + 89, None),
        (SlashOnChain(SlashPhase.APPEALED, NOW + 10, NOW + 90), True, NOW + 90, RefundSlash),
        (SlashOnChain(SlashPhase.EXECUTED, NOW + 10, NOW + 90), True, NOW + 99, None),
        (SlashOnChain(SlashPhase.REFUNDED, NOW + 10, NOW + 90), True, NOW + 99, None),
    ],
)
def test_a_penalty_is_brought_once_anchored_and_taken_to_its_end(
    seen: SlashOnChain | None, can_judge: bool, now: int, action: type | None
) -> None:
    log = replace(LOG, penalties=(PenaltyInLog(NAME, scored=49, can_judge=can_judge),))
    chain = replace(CHAIN, slashes={NAME: seen} if seen else {})
    wanted = [action(RUN, NAME)] if action else []
    assert due(log, chain, now) == wanted


def test_a_penalty_waits_for_its_anchor_and_a_frozen_log_penalises_nobody() -> None:
    log = replace(LOG, penalties=(PenaltyInLog(NAME, scored=50),))
    assert due(log) == []
    anchored = replace(LOG, penalties=(PenaltyInLog(NAME, scored=49),))
    assert due(anchored, replace(CHAIN, is_frozen=True)) == []
    opened = replace(CHAIN, is_frozen=True, slashes={NAME: SlashOnChain(SlashPhase.OPEN, NOW + 10, NOW + 90)})
    assert due(anchored, opened) == [RefundSlash(RUN, NAME)]


def test_a_run_is_not_closed_over_an_open_penalty() -> None:
    log = replace(LOG, is_closed=True, penalties=(PenaltyInLog(NAME, scored=49),))
    opened = replace(CHAIN, slashes={NAME: SlashOnChain(SlashPhase.OPEN, NOW + 10, NOW + 90)})
    assert due(log, opened) == []
    ended = replace(CHAIN, slashes={NAME: SlashOnChain(SlashPhase.EXECUTED, NOW + 10, NOW + 90)})
    assert due(log, ended) == [CloseRun(RUN)]


def test_terms_carry_the_penalty_and_the_bounty() -> None:
    terms = make_chain_terms(replace(TERMS, validator_slash_nano=TERMS.stake_min_nano, bounty_share=123), CONFIG, 3)
    assert (terms.validatorSlash, terms.bountyShare) == (3 * TERMS.stake_min_nano, 123)
    assert terms.slashPerDay == CONFIG.slashes_per_day * terms.validatorSlash
