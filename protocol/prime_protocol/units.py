"""What a rollout is worth: the matrix-multiply FLOP of generating it, in units of 10^9.

The run's terms carry the two factors, computed once from the model's shape; the log carries the token counts. So
everybody computes the same credit, and nobody declares any.
"""

from dataclasses import dataclass

from prime_protocol.constants import UNIT_FLOP


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense decoder, as its config file states it."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """A state-space decoder (Mamba): what is behind a token is in a state of fixed size, so context costs nothing."""

    layers: int
    hidden: int
    inner: int
    """Channels of a layer's recurrence."""
    state: int
    """Numbers of state in each channel."""
    rank: int
    """Of the product that a channel's step size comes from."""
    kernel: int
    """Inputs that a channel's convolution sees."""
    vocabulary: int


def state_flop_per_token(shape: StateShape) -> int:
    """Products and convolution at two FLOP per weight, the recurrence at six per number of state, and the head."""
    products = shape.inner * (3 * shape.hidden + 2 * shape.rank + 2 * shape.state + shape.kernel)
    recurrence = 3 * shape.inner * shape.state
    return 2 * (shape.layers * (products + recurrence) + shape.vocabulary * shape.hidden)


def flop_per_token(shape: ModelShape) -> int:
    """Projections, gated feed-forward and output head, for one token: two FLOP per weight."""
    attention = shape.hidden * shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    feed_forward = 3 * shape.hidden * shape.feed_forward
    return 2 * (shape.layers * (attention + feed_forward) + shape.vocabulary * shape.hidden)


def flop_per_context_token(shape: ModelShape) -> int:
    """Scores and weighted sum against one earlier token, in all layers."""
    return 4 * shape.layers * shape.head_dim * shape.heads


def context_tokens(prompt_tokens: int, output_tokens: int) -> int:
    """Sum over the output tokens of what each attends to: the prompt, the outputs before it, and itself."""
    return output_tokens * prompt_tokens + output_tokens * (output_tokens + 1) // 2


def compute_units(*, output_tokens: int, context_tokens: int, per_token: int, per_context_token: int) -> int:
    """Credit for a submission, rounded down, at least 1 for any work at all."""
    flop = output_tokens * per_token + context_tokens * per_context_token
    return max(1, flop // UNIT_FLOP)
