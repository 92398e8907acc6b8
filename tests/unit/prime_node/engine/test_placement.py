"""Where the copies of a model run, for models and cards whose sizes are published."""

from typing import Any

import pytest

from prime_node.engine.placement import SEQUENCES_WANTED, ModelSize, choose_placement
from prime_protocol.errors import LocalError

GIB = 2**30
QWEN3_8B: dict[str, Any] = {
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
}
QWQ_32B: dict[str, Any] = {
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "intermediate_size": 27648,
    "vocab_size": 152064,
}
SMALL = ModelSize.parse(QWEN3_8B, weight_bytes=16_381_470_720, context_max=40_960)
LARGE = ModelSize.parse(QWQ_32B, weight_bytes=65_527_752_704, context_max=131_072)


def test_sizes_follow_from_the_published_configuration() -> None:
    assert SMALL.kv_token_bytes == 2 * 36 * 8 * 128 * 2 == 147_456
    assert LARGE.kv_token_bytes == 2 * 64 * 8 * 128 * 2
    assert LARGE.widths == (27648,)


@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_a_model_that_fits_one_card_with_room_runs_once_on_each(gpus: int) -> None:
    found = choose_placement(SMALL, gpus=gpus, memory_bytes=72 * GIB, sequence_tokens=8192)
    assert (found.tensor_parallel, found.replicas, found.unused) == (1, gpus, 0)
    assert found.get_sequences(8192) >= gpus * SEQUENCES_WANTED


def test_a_model_larger_than_one_card_is_split() -> None:
    found = choose_placement(LARGE, gpus=8, memory_bytes=72 * GIB, sequence_tokens=16_384)
    assert (found.tensor_parallel, found.replicas) == (4, 2)
    with pytest.raises(LocalError, match=r"a sequence of 16384 tokens does not fit: over 1 of 1 GPUs .* 61\.0 GiB"):
        choose_placement(LARGE, gpus=1, memory_bytes=61 * GIB, sequence_tokens=16_384)


def test_what_is_left_over_is_unused_and_splits_need_whole_heads() -> None:
    found = choose_placement(LARGE, gpus=7, memory_bytes=72 * GIB, sequence_tokens=16_384)
    assert (found.tensor_parallel, found.replicas, found.unused) == (4, 1, 3)
    assert not LARGE.can_split(3)
    assert not LARGE.can_split(5), "8 key-value heads do not divide over 5"
    assert SMALL.can_split(16), "each of 8 key-value heads is on two GPUs"
    assert found.split(tuple("abcdefg")) == [("a", "b", "c", "d")]


def test_without_ample_room_the_split_that_holds_most_is_taken() -> None:
    memory = 24 * GIB
    found = choose_placement(SMALL, gpus=2, memory_bytes=memory, sequence_tokens=16_384)
    alone, both = SMALL.get_kv_tokens(1, memory), SMALL.get_kv_tokens(2, memory)
    assert 16_384 <= alone < SEQUENCES_WANTED * 16_384
    assert both > 2 * alone
    assert (found.tensor_parallel, found.kv_tokens) == (2, both)


def test_a_size_that_the_operator_gives_is_taken_or_refused() -> None:
    found = choose_placement(SMALL, gpus=8, memory_bytes=72 * GIB, sequence_tokens=4096, tensor_parallel=2)
    assert (found.tensor_parallel, found.replicas) == (2, 4)
    for size in (3, 16):
        with pytest.raises(LocalError, match=f"cannot be split over {size} of 8 GPUs: it has 32 heads"):
            choose_placement(SMALL, gpus=8, memory_bytes=72 * GIB, tensor_parallel=size)
    with pytest.raises(LocalError, match="0 GPUs are given"):
        choose_placement(SMALL, gpus=0, memory_bytes=GIB)
