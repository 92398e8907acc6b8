"""What a rollout is worth, from a model's shape and the counts of its tokens."""

import pytest

from prime_protocol.constants import (
    FLOP_PER_CONTEXT_TOKEN_MAX,
    FLOP_PER_TOKEN_MAX,
    FLOP_PER_UNIT,
    SUBMISSION_TOKENS_MAX,
)
from prime_protocol.ledger.rewards import (
    StateSpaceShape,
    TransformerShape,
    compute_flop_per_context_token,
    compute_flop_per_token,
    compute_state_space_flop_per_token,
    compute_units,
    count_context_tokens,
)

QWEN3_8B = TransformerShape(
    layers=36, hidden=4096, heads=32, kv_heads=8, head_dim=128, feed_forward=12288, vocabulary=151936
)


def test_a_token_costs_two_flop_per_weight_it_meets() -> None:
    # 8,190,735,360 parameters, less the input embedding and the norms, which no matrix multiply meets.
    norms = 36 * (2 * 4096 + 2 * 128) + 4096
    assert compute_flop_per_token(QWEN3_8B) == 2 * (8_190_735_360 - 151936 * 4096 - norms)


def test_a_context_token_costs_a_score_and_a_sum_in_every_head() -> None:
    assert compute_flop_per_context_token(QWEN3_8B) == 2 * 2 * 36 * 32 * 128


@pytest.mark.parametrize(("prompt", "output"), [(0, 0), (5, 0), (0, 1), (7, 1), (3, 4), (100, 250)])
def test_context_tokens_are_what_each_output_token_attends_to(prompt: int, output: int) -> None:
    assert count_context_tokens(prompt, output) == sum(prompt + place + 1 for place in range(output))


def test_units_are_rounded_down_and_at_least_one() -> None:
    def units(tokens: int) -> int:
        return compute_units(output_tokens=tokens, context_tokens=10, per_token=FLOP_PER_UNIT - 1, per_context_token=0)

    assert [units(tokens) for tokens in (0, 1, 2, 3)] == [1, 1, 1, 2]


def test_the_largest_submission_of_the_largest_model_has_units_that_an_entry_can_carry() -> None:
    units = compute_units(
        output_tokens=SUBMISSION_TOKENS_MAX,
        context_tokens=2**63 - 1,
        per_token=FLOP_PER_TOKEN_MAX,
        per_context_token=FLOP_PER_CONTEXT_TOKEN_MAX,
    )
    assert units < 2**63


def test_a_token_of_a_state_space_model_meets_its_weights_and_its_state() -> None:
    """Mamba of 130 million parameters, its embeddings once: all but norms, biases, step sizes, skips and decays."""
    shape = StateSpaceShape(layers=24, hidden=768, inner=1536, state=16, rank=48, kernel=4, vocabulary=50280)
    small = 24 * (768 + 1536 + 1536 + 1536 + 1536 * 16) + 768
    assert compute_state_space_flop_per_token(shape) == 2 * (129_135_360 - small) + 24 * 6 * 1536 * 16
