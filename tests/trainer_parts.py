"""Parts for tests of the trainer: samples to learn from."""

import numpy as np

from prime_trainer.packing import Sample


def make_sample(seed: int, *, prompt: int, output: int, vocabulary: int = 32) -> Sample:
    """Random tokens with believable log-probs, and an advantage of either sign."""
    dice = np.random.default_rng(seed)
    return Sample(
        prompt_tokens=dice.integers(0, vocabulary, prompt, dtype=np.int32),
        output_tokens=dice.integers(0, vocabulary, output, dtype=np.int32),
        sampled_logprobs=-3 * dice.random(output, dtype=np.float32),
        advantage=float(dice.uniform(-1, 1)),
        temperature=1.0,
    )
