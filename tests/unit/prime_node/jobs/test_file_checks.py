"""What is wrong with a rollout file, from numbers and tokens alone."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from prime_node.engine.measurement import RowMeasurement
from prime_node.jobs.file_checks import (
    FLAWS_KEPT,
    FileRules,
    RewardSummary,
    find_token_flaws,
    judge_file,
    judge_malformed,
    weigh_rows,
)
from prime_protocol.constants import REASON_CHARS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import Outcome
from prime_protocol.proofs.evidence import ReplayedChunk
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.proofs.toploc_verify import ChunkReport
from prime_protocol.rollouts.rollout import FinishReason, Rollout, RolloutFile, RolloutHeader
from prime_protocol.wire.ids import Digest, NodeId, RunId, Sample, Slot, Step

EOS, LIMIT = 9, 8
TOLERANCE = Tolerance(margin_max=0.5, margin_mean_max=0.1, logprob_error_max=0.4, logprob_error_mean_max=0.2)
PROMPT = np.array([1, 2, 3], np.int32)
RULES = FileRules(prompts={7: PROMPT}, eos=frozenset({EOS}), tokens_max=LIMIT, vocabulary=16, tolerance=TOLERANCE)
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
        assert judged.outcome is Outcome.ACCEPT
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
    whole = NUMBERS.spans[0]._replace(tokens=32)
    unusual = replace(NUMBERS, chunks=(CHUNK._replace(exponent_mismatches=20),), spans=(whole,))
    assert weigh_rows([unusual] * 11, TOLERANCE)[1] == []
    flaws = weigh_rows([replace(unusual, row=number) for number in range(12)], TOLERANCE)[1]
    assert [flaw.row for flaw in flaws] == list(range(12))
    assert flaws[0].text == "exponent_mismatches of row 0, chunk 0 is 20, usual is at most 12"
    mixed = [unusual, *[NUMBERS] * 4] * 20
    assert weigh_rows(mixed, TOLERANCE)[1]
    assert weigh_rows([unusual, *[NUMBERS] * 10] * 20, TOLERANCE)[1] == []


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
