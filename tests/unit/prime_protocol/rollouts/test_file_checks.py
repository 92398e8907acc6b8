"""Values that no honest file has are refused, and the error names the row."""

from typing import Any

import numpy as np
import pytest

from prime_protocol.errors import RemoteError
from prime_protocol.rollouts.file import read_rollouts
from prime_protocol.rollouts.rollout import compute_proofs_bytes
from support.rollout_examples import LIMITS, bent_file, rollouts


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def tokens(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("row", "changes", "field"),
    [
        (1, {"slot": 11}, "rows[1].slot"),
        (5, {"slot": 9}, "rows[5].slot"),
        (1, {"sample": 0}, "rows[1].sample"),
        (4, {"sample": 2}, "rows[4].sample"),
        (2, {"task": -1}, "rows[2].task"),
        (2, {"task": 2**40}, "rows[2].task"),
        (0, {"temperature": -0.0}, "rows[0].temperature"),
        (0, {"temperature": 0.0001}, "rows[0].temperature"),
        (0, {"temperature": 101.0}, "rows[0].temperature"),
        (3, {"temperature": float("nan")}, "rows[3].temperature"),
        (3, {"temperature": float("inf")}, "rows[3].temperature"),
        (1, {"target_length": 0}, "rows[1].target_length"),
        (1, {"target_length": -2}, "rows[1].target_length"),
        (1, {"target_length": 2**20 + 1}, "rows[1].target_length"),
        (5, {"finish": 2}, "rows[5].finish"),
        (5, {"finish": -1}, "rows[5].finish"),
        (2, {"prompt_tokens": tokens(*range(13))}, "rows[2].prompt_tokens"),
        (2, {"prompt_tokens": tokens(1, 2, 1000)}, "rows[2].prompt_tokens[2]"),
        (0, {"prompt_tokens": tokens(-1)}, "rows[0].prompt_tokens[0]"),
        (5, {"output_tokens": tokens(0, -(2**31))}, "rows[5].output_tokens[1]"),
        (5, {"output_tokens": tokens(2**31 - 1, 0)}, "rows[5].output_tokens[0]"),
        (5, {"output_logprobs": floats(-1, float("nan"))}, "rows[5].output_logprobs[1]"),
        (5, {"output_logprobs": floats(-1, float("-inf"))}, "rows[5].output_logprobs[1]"),
        (5, {"output_logprobs": floats(float("inf"), -1)}, "rows[5].output_logprobs[0]"),
        (0, {"output_logprobs": floats(1e-30)}, "rows[0].output_logprobs[0]"),
        (5, {"output_logprobs": floats(-1)}, "rows[5].output_logprobs"),
        (5, {"output_logprobs": floats(-1, -1, -1)}, "rows[5].output_logprobs"),
    ],
)
def test_value_is_refused_by_name(row: int, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(RemoteError) as caught:
        read_rollouts(bent_file(row, **changes), LIMITS)
    assert caught.value.field == field


def test_completion_over_the_runs_length_is_refused() -> None:
    longer = {
        "output_tokens": np.zeros(71, np.int32),
        "output_logprobs": np.zeros(71, np.float32),
        "proofs": bytes(compute_proofs_bytes(71)),
    }
    with pytest.raises(RemoteError) as caught:
        read_rollouts(bent_file(1, **longer), LIMITS)
    assert caught.value.field == "rows[1].output_tokens"


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.0},
        {"temperature": 0.001},
        {"temperature": 100.0},
        {"target_length": 1},
        {"target_length": 2**20},
        {"task": 2**40 - 1},
        {"output_logprobs": floats(-0.0, -3e38)},
        {"output_tokens": tokens(0, 999)},
    ],
)
def test_values_at_the_limits_are_accepted(changes: dict[str, Any]) -> None:
    file = read_rollouts(bent_file(5, **changes), LIMITS)
    for name, value in changes.items():
        assert np.array_equal(getattr(file.rows[5], name), value)


def test_the_examples_themselves_are_accepted() -> None:
    assert len(read_rollouts(bent_file(0), LIMITS).rows) == len(rollouts())
