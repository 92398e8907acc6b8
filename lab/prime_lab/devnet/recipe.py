"""The settings of the demonstration: a tiny model that learns to sort five digits on two cores in a few minutes.

At the start most answers are wrong, at the end most are right. Numbers only.
"""

TASK_SET = "sort-digits"
HELD_OUT = "sort-digits?seed=1"
"""Drawn with another seed, so the run does not contain these problems."""

SLOTS, SAMPLES = 96, 16
PROMPT_TOKENS, OUTPUT_TOKENS = 16, 8
LAG_MAX = 2
WARM_STEPS = 32
"""Steps of supervised warm start. It ends below 30 % right; without it there would be no right answer to learn from."""
RECURRENT_WARM_STEPS = 60
"""The same for the model without attention, which takes longer to get there."""
EVALUATION_TASKS = 512
"""Held-out problems."""

COIN_NANO = 10**9
FAUCET, STAKE, SLASH, BOND, BUDGET = 1_000 * COIN_NANO, 100 * COIN_NANO, 50 * COIN_NANO, 5 * COIN_NANO, 10 * COIN_NANO
VALIDATOR_SLASH = 20 * COIN_NANO
APPEAL_MS, JUDGEMENT_MS, LONG_STOP_MS, VERDICT_MS = 5_000, 30_000, 60_000, 30_000
CHAIN_APPEAL_MS = 30_000
"""With a chain: a slash comes before the court after an epoch, and the node needs a few blocks for its bond."""
HEARTBEAT_MS, HEAD_MS, TICK_MS = 300, 100, 50
RANDOMNESS_PERIOD_S, DRAW_MARGIN_MS = 1, 500
"""Short, because all parties are on one machine."""

LEARNING_RATE = 1e-3
TRAINER = {
    "optimizer.learning_rate": LEARNING_RATE,
    "optimizer.warmup_steps": 5,
    "optimizer.decay_to": 0.1,
    "optimizer.beta2": 0.95,
    "optimizer.weight_decay": 0.0,
    "loss.entropy_weight": 0.02,
    "advantage.scale_max": 4.0,
    "batch.groups": SLOTS,
    "batch.minibatches": 2,
    "evaluation.task_set": HELD_OUT,
    "evaluation.every": 10,
    "evaluation.tokens_max": OUTPUT_TOKENS,
}

REWARD_BEFORE_MAX, REWARD_AFTER_MIN = 0.3, 0.8
"""Results that the demonstration must reach on held-out problems."""

TOLERANCE = {
    "exponent_mismatches_max": 8,
    "mantissa_error_mean_max": 2.0,
    "mantissa_error_median_max": 2,
    "margin_max": 0.05,
    "margin_mean_max": 0.001,
    "logprob_error_max": 0.05,
    "logprob_error_mean_max": 0.001,
    "exponent_mismatches_usual": 2,
    "mantissa_error_mean_usual": 0.5,
    "margin_usual": 0.01,
    "margin_mean_usual": 0.001,
    "logprob_error_usual": 0.01,
    "logprob_error_mean_usual": 0.001,
}
"""All nodes run the same engine in float32 on one machine, so noise is small; `prime-node calibrate` measures it."""
