"""What is wrong with a rollout file, from numbers and tokens alone."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from prime_node.checks import (
    FLAWS_KEPT,
    Rewards,
    Rules,
    find_model_flaws,
    find_token_flaws,
    judge_disorder,
    judge_file,
)
from prime_node.engine.measuring import RowNumbers
from prime_protocol.constants import REASON_CHARS_MAX
from prime_protocol.entries import Outcome
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NodeId, RunId, Sample, Slot, Step
from prime_protocol.rollouts import Finish, Rollout, RolloutFile, RolloutHeader
from prime_protocol.tolerance import Tolerance
from prime_protocol.toploc_verify import ChunkReport

EOS, LIMIT = 9, 8
TOLERANCE = Tolerance(margin_max=0.5, margin_mean_max=0.1, logprob_error_max=0.4, logprob_error_mean_max=0.2)
PROMPT = np.array([1, 2, 3], np.int32)
RULES = Rules(prompts={7: PROMPT}, eos=frozenset({EOS}), tokens_max=LIMIT, vocabulary=16, tolerance=TOLERANCE)
CHUNK = ChunkReport(128, 0, 0, 0, 0, 1, 10, 0, 0)


def row(output: list[int], finish: Finish = Finish.EOS, prompt: Any = PROMPT) -> Rollout:
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


NUMBERS = RowNumbers(
    row=0,
    tokens=4,
    chunks=(CHUNK,),
    proof_problem="",
    margin_max=0.01,
    margin_at=2,
    margin_sum=0.02,
    logprob_error_max=0.01,
    logprob_error_at=1,
    logprob_error_sum=0.02,
    eos_logprob=-1.0,
)
HONEST = file(row([4, 5, EOS]), row([4] * LIMIT, Finish.LENGTH))


def test_an_honest_file_has_no_flaw_and_its_numbers_are_told() -> None:
    assert find_token_flaws(HONEST, RULES) == []
    numbers = [NUMBERS, replace(NUMBERS, row=1, margin_max=0.3, margin_sum=0.3)]
    assert find_model_flaws(numbers, TOLERANCE) == []
    judged = judge_file(HONEST, numbers, [], Rewards(mean=0.5, right=1, machine_dependent=0))
    assert (judged.outcome, judged.reason) == (Outcome.ACCEPT, "")
    metrics = {metric.name: metric.value for metric in judged.metrics}
    assert metrics["margin_max"] == 0.3
    assert metrics["margin_mean"] == pytest.approx(0.32 / 8)
    assert (metrics["rows"], metrics["tokens"], metrics["chunks"]) == (2.0, 11.0, 2.0)
    assert (metrics["reward_mean"], metrics["decoy_hits_max"], metrics["eos_logprob_min"]) == (0.5, 1.0, -1.0)


@pytest.mark.parametrize(
    ("bad", "check", "words"),
    [
        (row([4, EOS, 5, EOS]), "termination", "goes on after the end token at 1"),
        (row([4, 5]), "termination", "says that it ends with an end token"),
        (row([4, 5], Finish.LENGTH), "termination", "stops after 2 tokens for length, the limit is 8"),
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
    assert judged.outcome is Outcome.HARD
    assert words in judged.reason
    assert {"flaws": 1.0, "flaw_row": 1.0}.items() <= {m.name: m.value for m in judged.metrics}.items()


def test_a_completion_may_end_by_itself_at_the_very_limit() -> None:
    assert find_token_flaws(file(row([4] * (LIMIT - 1) + [EOS])), RULES) == []
    assert find_token_flaws(file(row([4] * (LIMIT - 1) + [EOS], Finish.LENGTH)), RULES) == []


@pytest.mark.parametrize(
    ("changes", "check", "place"),
    [
        ({"margin_max": 0.51}, "margin", 2),
        ({"logprob_error_max": 0.41}, "logprob_error", 1),
        ({"margin_sum": 0.41}, "margin_mean", 0),
        ({"logprob_error_sum": 0.81}, "logprob_error_mean", 0),
        ({"proof_problem": "proofs[0].modulus: is 3", "chunks": ()}, "proofs", 0),
        ({"chunks": (CHUNK, CHUNK._replace(exponent_mismatches=60))}, "exponent_mismatches", 1),
        ({"chunks": (CHUNK, CHUNK._replace(decoy_hits=60))}, "decoy_hits", 1),
    ],
)
def test_numbers_beyond_their_limits_are_hard(changes: dict[str, Any], check: str, place: int) -> None:
    (flaw,) = find_model_flaws([replace(NUMBERS, **changes)], TOLERANCE)
    assert (flaw.check, flaw.place) == (check, place)
    assert flaw.value > flaw.limit


def test_limits_themselves_are_allowed() -> None:
    at_limit = replace(NUMBERS, margin_max=0.5, logprob_error_max=0.4, margin_sum=0.4, logprob_error_sum=0.8)
    assert find_model_flaws([at_limit], TOLERANCE) == []


def test_a_forged_file_is_told_in_a_few_flaws() -> None:
    bad = [replace(NUMBERS, row=number, margin_max=9.0) for number in range(1_000)]
    flaws = find_model_flaws(bad, TOLERANCE)
    assert len(flaws) == FLAWS_KEPT
    assert "; 63 more" in judge_file(HONEST, bad, flaws, None).reason


def test_a_file_that_is_not_in_order_is_soft_and_its_text_is_fit_for_the_log() -> None:
    judged = judge_disorder(RemoteError("footer", "has \x1b[31m colours " + "x" * 1_000))
    assert judged.outcome is Outcome.SOFT
    assert len(judged.reason) == REASON_CHARS_MAX
    assert "\x1b" not in judged.reason
