"""The batch and the model that bench/trainer.py trains with on every side, and how each side answers it.

A side is a process that reads `step` from its standard input and writes one line of JSON after each step.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SMALL_VOCABULARY, REAL_VOCABULARY = 4096, 151_936
"""The second is Qwen's: there the head computes more than all layers of this model together."""
SAMPLES = {SMALL_VOCABULARY: 32, REAL_VOCABULARY: 16}
PROMPT = 24
LENGTH_MEDIAN, LENGTH_SPREAD, LENGTH_MAX = 72, 0.9, 512
MODEL = {
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
    "bos_token_id": None,
    "eos_token_id": 1,
}
LEARNING_RATE, CLIP_NORM, DELTA, CLIP_LOW, CLIP_HIGH = 1e-5, 1.0, 4.0, 0.2, 0.28


def make_batch(seed: int, vocabulary: int, samples: int) -> dict[str, Any]:
    """Completions with a heavy tail of lengths, as reasoning has, and advantages of both signs."""
    dice = np.random.default_rng(seed)
    lengths = np.clip(dice.lognormal(np.log(LENGTH_MEDIAN), LENGTH_SPREAD, samples), 4, LENGTH_MAX).astype(int)
    return {
        "prompts": [dice.integers(2, vocabulary, PROMPT).tolist() for _ in lengths],
        "outputs": [dice.integers(2, vocabulary, int(length)).tolist() for length in lengths],
        "advantages": dice.uniform(-1, 1, samples).tolist(),
    }


def read_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def serve(step: Callable[[], dict[str, float]], before_bytes: int) -> None:
    """Until the input ends. `step` does one optimizer step and returns its loss and gradient norm."""
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        facts = step()
        facts |= {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        print(json.dumps(facts | {"peak_bytes": read_peak_bytes() - before_bytes}), flush=True)


def read_batch(path: Path) -> dict[str, Any]:
    batch: dict[str, Any] = json.loads(path.read_text())
    return batch
