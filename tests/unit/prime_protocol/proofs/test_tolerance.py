"""A run's tolerance: within its bounds on the wire, and the same limits where proofs are judged."""

import pytest

from prime_protocol.errors import RemoteError
from prime_protocol.proofs.tolerance import Precision, Tolerance, ToplocThresholds
from prime_protocol.wire.codec import decode, encode


def test_what_is_not_said_is_the_papers_tolerance() -> None:
    assert Tolerance().thresholds() == ToplocThresholds()
    assert Tolerance().precision is Precision.BFLOAT16


def test_the_runs_own_limits_judge_its_proofs() -> None:
    thresholds = Tolerance(
        exponent_mismatches_max=3, sign_mismatches_max=1, mantissa_error_mean_max=0.5, mantissa_error_median_max=2
    ).thresholds()
    assert thresholds == ToplocThresholds(
        exponent_mismatches_max=3, sign_mismatches_max=1, mantissa_error_mean_max=0.5, mantissa_error_median_max=2
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("exponent_mismatches_max", 128),
        ("sign_mismatches_max", -1),
        ("mantissa_error_mean_max", 128.0),
        ("mantissa_error_median_max", 128),
        ("margin_max", float("inf")),
        ("margin_mean_max", -0.1),
        ("logprob_error_max", 101.0),
    ],
)
def test_a_bound_that_would_allow_everything_or_nothing_is_refused(name: str, value: float) -> None:
    with pytest.raises(RemoteError, match=name):
        decode(Tolerance, encode(Tolerance(**{name: value})))
