"""What is wrong with a rollout file, from numbers and tokens alone."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_node.engine.measurement import RowMeasurement
from prime_node.jobs.file_checks import (
    FLAWS_KEPT,
    FileRules,
    RewardSummary,
    RowWeigher,
    choose_second_reading,
    clamp_bet,
    find_token_flaws,
    judge_file,
    judge_malformed,
    verify_second_reading,
    weigh_rows,
)
from prime_protocol.constants import EVIDENCE_BETS, REASON_CHARS_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import Outcome
from prime_protocol.proofs.evidence import ReplayedChunk
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.proofs.toploc_verify import ChunkReport
from prime_protocol.rollouts.rollout import FinishReason, Rollout, RolloutFile, RolloutHeader
from prime_protocol.wire.ids import Digest, NodeId, RunId, Sample, Slot, Step

EOS, LIMIT = 9, 8
TOLERANCE = Tolerance(margin_max=0.5, margin_mean_max=0.1, logprob_error_max=0.4, logprob_error_mean_max=0.2)
PROMPT = np.array([1, 2, 3], np.int32)
RULES = FileRules(prompts={7: PROMPT}, eos=frozenset({EOS}), tokens_max=LIMIT, context_max=11, vocabulary=16)
CHUNK = ChunkReport(128, 0, 0, 0, 0, 1, 10, 0, 0)


def row(output: list[int], finish: FinishReason = FinishReason.EOS, prompt: Any = PROMPT) -> Rollout:
    return Rollout(
        slot=Slot(0),
        sample=Sample(0),
        task=7,
        temperature=1.0,
        target_length=None,
        finish=finish,
        prompt_tokens=prompt,
        output_tokens=np.array(output, np.int32),
        output_logprobs=np.zeros(len(output), np.float32),
        proofs=b"",
    )


def file(*rows: Rollout) -> RolloutFile:
    root = Digest(sha256(b"root").digest())
    header = RolloutHeader(run=RunId("run-1"), step=Step(0), checkpoint_root=root, lease=0, node=NodeId(bytes(20)))
    return RolloutFile(header, rows)


NUMBERS = RowMeasurement(
    row=0,
    tokens=4,
    chunks=(CHUNK,),
    proof_problem="",
    spans=(ReplayedChunk(4, 0.01, 2, 0.02, 0.01, 1, 0.02),),
    margin_max=0.01,
    margin_at=2,
    margin_sum=0.02,
    logprob_error_max=0.01,
    logprob_error_at=1,
    logprob_error_sum=0.02,
    eos_logprob=-1.0,
)
HONEST = file(row([4, 5, EOS]), row([4] * LIMIT, FinishReason.LENGTH))


def test_an_honest_file_has_no_flaw_and_reports_its_metrics() -> None:
    assert find_token_flaws(HONEST, RULES) == []
    numbers = [NUMBERS, replace(NUMBERS, row=1, margin_max=0.3, margin_sum=0.3)]
    assert weigh_rows(numbers, TOLERANCE)[1] == []
    judged = judge_file(HONEST, numbers, [], RewardSummary(mean=0.5, right=1, machine_dependent=0))
    assert (judged.outcome, judged.reason) == (Outcome.ACCEPT, "")
    metrics = {metric.name: metric.value for metric in judged.metrics}
    assert metrics["margin_max"] == 0.3
    assert metrics["margin_mean"] == pytest.approx(0.32 / 8)
    assert (metrics["rows"], metrics["tokens"], metrics["chunks"]) == (2.0, 11.0, 2.0)
    assert (metrics["reward_mean"], metrics["decoy_hits_max"], metrics["eos_logprob_min"]) == (0.5, 1.0, -1.0)


@pytest.mark.parametrize(
    ("bad", "check", "words"),
    [
        (row([4, EOS, 5, EOS]), "termination", "continues after the end token at 1"),
        (row([4, 5]), "termination", "claims to end with an end token"),
        (
            row([4, 5], FinishReason.LENGTH),
            "termination",
            "claims to end at the length limit with 2 tokens, the limit is 8",
        ),
        (row([4, 16, EOS]), "vocabulary", "token 16, the model has 16"),
        (row([4, EOS], prompt=np.array([1, 2, 4], np.int32)), "prompt", "not that of task 7, from token 2 on"),
        (row([4, EOS], prompt=np.array([1, 2], np.int32)), "prompt", "from token 2 on"),
    ],
)
def test_tokens_that_no_model_gave_are_hard(bad: Rollout, check: str, words: str) -> None:
    dishonest = file(row([EOS]), bad)
    (flaw,) = find_token_flaws(dishonest, RULES)
    assert (flaw.check, flaw.row) == (check, 1)
    judged = judge_file(dishonest, [], [flaw], None)
    assert judged.outcome is Outcome.FRAUDULENT
    assert words in judged.reason
    assert {"flaws": 1.0, "flaw_row": 1.0}.items() <= {m.name: m.value for m in judged.metrics}.items()


def test_a_completion_may_end_by_itself_at_the_very_limit() -> None:
    assert find_token_flaws(file(row([4] * (LIMIT - 1) + [EOS])), RULES) == []
    assert find_token_flaws(file(row([4] * (LIMIT - 1) + [EOS], FinishReason.LENGTH)), RULES) == []


def test_a_row_that_is_longer_than_the_models_context_is_hard() -> None:
    long = row([4] * (LIMIT - 1) + [EOS])
    (flaw,) = find_token_flaws(file(long), replace(RULES, context_max=10))
    assert (flaw.check, flaw.row, flaw.value, flaw.limit) == ("context", 0, 11.0, 10.0)
    assert flaw.text == "row 0 has 11 tokens, the model's context is 10"


def with_span(**changes: Any) -> RowMeasurement:
    """A row whose only chunk gave these numbers."""
    span = NUMBERS.spans[0]._replace(**changes)
    whole = {name: value for name, value in changes.items() if hasattr(NUMBERS, name)}
    return replace(NUMBERS, spans=(span,), **whole)


@pytest.mark.parametrize(
    ("row", "check", "place"),
    [
        (with_span(margin_max=2.1, margin_at=3), "margin", 3),
        (with_span(logprob_error_max=1.7), "logprob_error", 1),
        (with_span(margin_sum=1.7), "margin_mean", 0),
        (with_span(logprob_error_sum=3.3), "logprob_error_mean", 0),
        (replace(NUMBERS, proof_problem="proofs[0].modulus: is 3", chunks=()), "proofs", 0),
        (replace(NUMBERS, chunks=(CHUNK._replace(mantissa_error_sum=128 * 41),)), "mantissa_error_mean", 0),
        (replace(NUMBERS, chunks=(CHUNK._replace(decoy_hits=60),)), "decoy_hits", 0),
    ],
)
def test_a_number_far_beyond_its_limit_is_hard_by_itself(row: RowMeasurement, check: str, place: int) -> None:
    flaw = weigh_rows([row], TOLERANCE)[1][0]
    assert (flaw.check, flaw.place) == (check, place)
    assert flaw.value > flaw.limit


@pytest.mark.parametrize(
    ("row", "check"),
    [
        (with_span(margin_max=0.51), "margin"),
        (with_span(logprob_error_max=0.41), "logprob_error"),
        (replace(NUMBERS, chunks=(CHUNK._replace(exponent_mismatches=60),)), "exponent_mismatches"),
    ],
)
def test_one_chunk_beyond_a_limit_is_not_enough_and_three_are(row: RowMeasurement, check: str) -> None:
    for count in (1, 2):
        rows = [replace(row, row=number) for number in range(count)] + [NUMBERS] * 8
        weighed, flaws = weigh_rows(rows, TOLERANCE)
        assert flaws == []
        assert (weighed.beyond, weighed.convicts) == (count, False)
        judged = judge_file(HONEST, rows, flaws, None, weighed)
        assert judged.outcome is (Outcome.ACCEPT if count == 1 else Outcome.INVALID)
        assert ("honest noise makes such numbers" in judged.reason) == (count == 2)
        assert {"evidence": 5.0 * count, "chunks_beyond": float(count)}.items() <= {
            metric.name: metric.value for metric in judged.metrics
        }.items()
    flaws = weigh_rows([replace(row, row=number) for number in range(3)], TOLERANCE)[1]
    assert {(flaw.check, flaw.row) for flaw in flaws} >= {(check, 0), (check, 1), (check, 2)}
    assert "the limit is" in flaws[0].text


def test_a_mean_of_the_file_beyond_its_limit_counts_like_one_chunk() -> None:
    weighed, flaws = weigh_rows([with_span(margin_sum=0.44)], TOLERANCE)
    assert (flaws, weighed.beyond) == ([], 1)


def test_many_unusual_chunks_are_another_model_even_if_none_is_beyond_a_limit() -> None:
    plain = with_span(margin_max=0.0, margin_sum=0.0)
    whole = plain.spans[0]._replace(tokens=32)
    unusual = replace(NUMBERS, chunks=(CHUNK._replace(exponent_mismatches=20),), spans=(whole,))
    assert weigh_rows([unusual] * 11, TOLERANCE)[1] == []
    flaws = weigh_rows([replace(unusual, row=number) for number in range(12)], TOLERANCE)[1]
    assert [flaw.row for flaw in flaws] == list(range(12))
    assert flaws[0].text == "exponent_mismatches of row 0, chunk 0 is 20, usual is at most 12"
    mixed = [unusual, *[plain] * 4] * 20
    assert weigh_rows(mixed, TOLERANCE)[1]
    assert weigh_rows([unusual, *[plain] * 10] * 20, TOLERANCE)[1] == []


def test_completions_that_are_all_a_little_noisier_are_another_computation() -> None:
    calibrated = replace(TOLERANCE, noise_spread=0.05, noise_spread_chunk=0.1)
    twice = NUMBERS.spans[0]._replace(tokens=32, own_logprob_error_sum=0.32, own_mantissa_error_mean=0.5)
    noisy = replace(
        NUMBERS,
        chunks=(CHUNK._replace(mantissa_error_sum=80),) * 4,
        spans=(twice._replace(logprob_error_sum=0.4),) * 4,
    )
    typical = replace(noisy, chunks=(CHUNK._replace(mantissa_error_sum=64),) * 4)
    typical = replace(typical, spans=(twice._replace(logprob_error_sum=0.32),) * 4)
    weighed, flaws = weigh_rows([typical] * 1_000, calibrated)
    assert (flaws, weighed.noise, weighed.unusual) == ([], 0, 0)
    weighed, flaws = weigh_rows([noisy] * 2 + [typical] * 6, calibrated)
    assert (flaws, weighed.noise, weighed.evidence) == ([], 44, 44)
    weighed, flaws = weigh_rows([replace(noisy, row=number) for number in range(8)], calibrated)
    assert (weighed.most, weighed.noise, weighed.convicts) == (0, 176, True)
    assert [(flaw.check, flaw.row) for flaw in flaws] == [("noise", number) for number in range(8)]
    assert flaws[0].text == "noise of row 0 is 1.25 times this machine's own, the limit is 1.071"
    broken = replace(noisy, proof_problem="modulus", chunks=())
    assert weigh_rows([broken], calibrated)[0].noise == 0


def test_right_answers_that_each_lose_by_little_are_caught_by_their_sum() -> None:
    calibrated = replace(TOLERANCE, margin_rate=0.003, margin_scale=0.012)
    edited = with_span(margin_max=0.15, margin_sum=0.25, losers=2)
    plain = with_span(margin_max=0.0, margin_sum=0.0)
    weighed, flaws = weigh_rows([edited] * 2 + [plain] * 14, calibrated)
    assert (flaws, weighed.convicts, weighed.is_unlikely) == ([], False, False)
    weighed, flaws = weigh_rows([edited] * 3 + [plain] * 13, calibrated)
    assert (flaws, weighed.most, weighed.is_unlikely) == ([], 0, True)
    rows = [replace(edited if number < 6 else plain, row=number) for number in range(16)]
    weighed, flaws = weigh_rows(rows, calibrated)
    assert (weighed.most, weighed.noise, weighed.convicts) == (0, 0, True)
    assert [(flaw.check, flaw.row) for flaw in flaws] == [("margin_sum", number) for number in range(6)]
    assert flaws[0].text.startswith(
        "the tokens of row 0 lose by margins that honest noise makes with a chance of 1e-14"
    )


def test_a_file_that_brings_its_authors_sums_to_the_limit_is_fraudulent_although_it_shows_nothing_itself() -> None:
    calibrated = replace(TOLERANCE, margin_rate=0.003, margin_scale=0.012)
    rows = [with_span(margin_max=0.15, margin_sum=0.25, losers=2)] * 2
    weighed, flaws = weigh_rows(rows, calibrated)
    assert (len(weighed.bets), max(weighed.bets) >= 50) == (EVIDENCE_BETS, True)
    below, above = (tuple(sum_ for _ in weighed.bets) for sum_ in (99, 100))
    for sums, outcome in (((), Outcome.ACCEPT), (below, Outcome.ACCEPT), (above, Outcome.FRAUDULENT)):
        judged = judge_file(HONEST, rows, flaws, None, weighed, sums=sums)
        assert judged.outcome is outcome
    assert [flaw.check for flaw in judged.flaws] == ["accumulated"]
    assert judged.reason == "the author's files in this run come to evidence of 15 with this one, the limit is 15"
    assert (clamp_bet(10**6), clamp_bet(-(10**6)), clamp_bet(7)) == (10_000, -10_000, 7)


def test_limits_themselves_are_allowed() -> None:
    at_limit = with_span(margin_max=0.5, logprob_error_max=0.4, margin_sum=0.4, logprob_error_sum=0.8)
    weighed, flaws = weigh_rows([at_limit], TOLERANCE)
    assert (flaws, weighed.beyond, weighed.unusual) == ([], 0, 1)


def test_a_forged_file_lists_only_a_few_flaws() -> None:
    bad = [replace(with_span(margin_max=9.0), row=number) for number in range(1_000)]
    flaws = weigh_rows(bad, TOLERANCE)[1]
    assert len(flaws) == FLAWS_KEPT
    assert "; 63 more" in judge_file(HONEST, bad, flaws, None).reason


def test_a_file_that_is_not_in_order_is_soft_and_its_text_is_fit_for_the_log() -> None:
    judged = judge_malformed(RemoteError("footer", "has \x1b[31m colours " + "x" * 1_000))
    assert judged.outcome is Outcome.INVALID
    assert len(judged.reason) == REASON_CHARS_MAX
    assert "\x1b" not in judged.reason


# --- Reading stops early, and a second time -------------------------------------------------------------------------

WHOLE = NUMBERS.spans[0]._replace(tokens=32)
KINDS = (
    NUMBERS,
    replace(NUMBERS, chunks=(CHUNK._replace(exponent_mismatches=20),), spans=(WHOLE,)),
    with_span(margin_max=0.51),
    with_span(logprob_error_max=1.7),
    replace(NUMBERS, proof_problem="proofs[0].modulus: is 3", chunks=()),
    with_span(margin_sum=0.44),
    with_span(margin_max=0.4, margin_sum=1.5, losers=4),
)
"""Usual, unusual, beyond a limit, far beyond, malformed, a mean beyond its limit, and margins that are unlikely."""
ROWS = st.lists(st.sampled_from(KINDS), min_size=1, max_size=40).map(
    lambda rows: [replace(row, row=number) for number, row in enumerate(rows)]
)


@given(ROWS, st.integers(1, 10))
def test_reading_that_stops_when_it_convicts_judges_as_a_whole_reading(rows: list[RowMeasurement], block: int) -> None:
    weigher, read = RowWeigher(TOLERANCE), 0
    while read < len(rows) and not weigher.sum().convicts:
        weigher.add(rows[read : read + block])
        read = min(read + block, len(rows))
    weighed, flaws = weigher.finish(is_whole=read == len(rows))
    assert bool(flaws) == weighed.convicts == weigh_rows(rows, TOLERANCE)[0].convicts


@given(ROWS)
def test_more_rows_never_lower_the_evidence_that_reading_stops_at(rows: list[RowMeasurement]) -> None:
    weigher, before = RowWeigher(TOLERANCE), 0
    for row in rows:
        weigher.add([row])
        assert weigher.sum().evidence >= before
        before = weigher.sum().evidence
    assert weigher.finish(is_whole=True)[0].evidence >= before


def test_honest_rows_after_edited_ones_lower_the_bets_and_acquit_nobody() -> None:
    calibrated = replace(TOLERANCE, margin_rate=0.003, margin_scale=0.012)
    edited = [replace(with_span(margin_max=0.15, margin_sum=0.25, losers=2), row=number) for number in range(12)]
    plain = [replace(with_span(margin_max=0.0, margin_sum=0.0), row=number) for number in range(12, 4_000)]
    weigher = RowWeigher(calibrated)
    weigher.add(edited)
    stopped, flaws = weigher.finish(is_whole=False)
    whole = weigh_rows([*edited, *plain], calibrated)[0]
    assert stopped.convicts and whole.convicts and {flaw.check for flaw in flaws} == {"margin_sum"}
    assert len(stopped.bets) == EVIDENCE_BETS, "of what was read"
    assert stopped.bets[0] > 0 > whole.bets[0]


def test_a_small_deviation_in_all_rows_counts_only_when_all_were_read() -> None:
    calibrated = replace(TOLERANCE, margin_rate=0.003, margin_scale=0.012)
    rows = [replace(with_span(margin_max=0.03, margin_sum=0.03, losers=1), row=number) for number in range(64)]
    weigher = RowWeigher(calibrated)
    weigher.add(rows)
    assert weigher.finish(is_whole=False)[0].margin < weigher.finish(is_whole=True)[0].margin


@given(ROWS, st.data())
def test_a_second_reading_fits_into_the_cost_of_an_accept(rows: list[RowMeasurement], data: st.DataObject) -> None:
    """Whatever the lengths of the rows, and wherever reading stopped."""
    lengths = data.draw(st.lists(st.integers(2, 1_000), min_size=len(rows), max_size=60))
    (again,) = choose_second_reading(rows, lengths, TOLERANCE, is_rejected=False)
    accept = sum(lengths) + lengths[again]
    assert lengths[again] == max(lengths)
    chosen = choose_second_reading(rows, lengths, TOLERANCE, is_rejected=True)
    assert chosen == sorted(set(chosen))
    assert len(chosen) >= 1
    assert max(chosen) < len(rows), "only what was read is read again"
    assert sum(lengths[: len(rows)]) + sum(lengths[row] for row in chosen) <= accept


def test_only_the_rows_that_convict_are_read_again() -> None:
    forged, beyond = with_span(logprob_error_max=1.7), with_span(margin_max=0.51)
    one = [replace(row, row=number) for number, row in enumerate([NUMBERS, beyond, NUMBERS, forged, NUMBERS])]
    assert choose_second_reading(one, [10] * 9, TOLERANCE, is_rejected=True) == [3]
    many = [replace(beyond if number % 2 else NUMBERS, row=number) for number in range(8)]
    assert choose_second_reading(many, [10] * 20, TOLERANCE, is_rejected=True) == [1, 3, 5]
    assert choose_second_reading(many, [10] * 8, TOLERANCE, is_rejected=True) == [1], "no tokens are left for more"


def test_a_machine_whose_second_reading_differs_gives_no_verdict() -> None:
    forged, beyond = with_span(logprob_error_max=1.7), with_span(margin_max=0.51)
    verify_second_reading([forged], [forged], TOLERANCE, is_rejected=True)
    verify_second_reading([beyond] * 3, [beyond, beyond, NUMBERS], TOLERANCE, is_rejected=True)
    verify_second_reading([NUMBERS], [NUMBERS], TOLERANCE, is_rejected=False)
    for first, second, is_rejected in ((forged, NUMBERS, True), (forged, beyond, True), (NUMBERS, forged, False)):
        with pytest.raises(LocalError, match="this machine's memory or engine is faulty"):
            verify_second_reading([first], [second], TOLERANCE, is_rejected=is_rejected)
