"""Rates and their certainty, the two rules side by side, and curves: counted by hand where that can be done."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from prime_lab.attacks.detection import (
    DEPLOYED,
    PAPER,
    compute_area,
    compute_confidence_interval,
    compute_roc,
    count_tokens_needed,
    find_checks,
    measure_rate,
    score_rows,
    split_submissions,
)
from prime_lab.attacks.report import draw_roc, list_rates
from prime_lab.attacks.study import rebuild_row
from prime_protocol.proofs.evidence import ReplayedChunk
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.proofs.toploc_verify import ChunkReport

CHUNK = ChunkReport(128, 0, 0, 0, 0, 1, 10, 0, 0)
SPAN = ReplayedChunk(32, 0.0, 0, 0.0, 0.0, 0, 0.0)
ROW = rebuild_row(0, (SPAN, SPAN), (CHUNK, CHUNK), -1.0, "")
NOISY = CHUNK._replace(exponent_mismatches=20)
BOUNDS = Tolerance()


@pytest.mark.parametrize(
    ("n", "k", "low", "high"),
    [(200, 200, 0.98172, 1.0), (10, 0, 0.0, 0.30850), (100, 50, 0.39832, 0.60168), (0, 0, 0.0, 1.0)],
)
def test_intervals_are_clopper_and_pearsons(n: int, k: int, low: float, high: float) -> None:
    assert compute_confidence_interval(n, k) == pytest.approx((low, high), abs=1e-5)


def test_a_curve_that_tells_all_apart_has_area_one_and_one_that_tells_nothing_a_half() -> None:
    assert compute_area(compute_roc([0.0, 1.0], [2.0, 3.0])) == 1.0
    assert compute_area(compute_roc([1.0, 2.0], [1.0, 2.0])) == 0.5
    assert compute_area(compute_roc([2.0, 3.0], [0.0, 1.0])) == 0.0


def test_the_original_looks_at_three_numbers_of_each_chunk() -> None:
    for changes, by_paper, by_deployed in (
        ({"exponent_mismatches": 39}, True, False),
        ({"exponent_mismatches": 61}, True, True),
        ({"mantissa_error_sum": 128 * 11}, True, False),
        ({"mantissa_error_median": 41}, True, True),
        ({"decoy_hits": 64, "leading_zeros": 127, "sign_mismatches": 60}, False, False),
    ):
        rows = [replace(ROW, chunks=(CHUNK, CHUNK._replace(**changes)))]
        assert (PAPER.rejects(rows), DEPLOYED.rejects(rows)) == (by_paper, by_deployed)


def test_unusual_chunks_convict_after_twelve_and_the_tokens_are_counted() -> None:
    rows = [replace(ROW, chunks=(NOISY, NOISY)) for _ in range(8)]
    assert count_tokens_needed(rows, BOUNDS) == 12 * 32
    assert score_rows(rows, BOUNDS) == 16.0
    assert find_checks(rows, BOUNDS) == ("exponent_mismatches",)
    assert count_tokens_needed([ROW] * 8, BOUNDS) is None
    broken = [ROW, replace(ROW, chunks=(), proof_problem="modulus")]
    assert count_tokens_needed(broken, BOUNDS) == 96


def test_a_rate_is_as_sure_as_its_rows_or_its_submissions_make_it() -> None:
    forged = replace(ROW, chunks=(CHUNK._replace(leading_zeros=100),) * 2)
    found = measure_rate("forged", split_submissions([forged] * 80), BOUNDS)
    assert (found.submissions, found.caught, found.rows_caught, found.tokens) == (10, 10, 80, 512)
    assert found.interval[0] < 0.7
    assert found.sure() > 0.99999
    assert (found.paper, found.deployed) == (0, 0)
    quiet = measure_rate("honest", split_submissions([ROW] * 80), BOUNDS)
    assert (quiet.caught, quiet.checks, quiet.needed, quiet.sure()) == (0, (), (), 0.0)
    (_, line) = list_rates([found])
    assert (
        "| forged | 10 of 10 | > 99.999 % | > 99.999 % | 512 | 32, 32 | leading_zeros | 100.0% | 0.0% | 0.0% |" in line
    )


def test_curves_are_well_formed_pictures() -> None:
    picture = ElementTree.fromstring(draw_roc("a < b", [("ours", [(0.0, 0.0), (0.01, 1.0), (1.0, 1.0)])]))
    assert picture.tag.endswith("svg")
    assert next(each.text for each in picture.iter() if each.tag.endswith("text")) == "a < b"
