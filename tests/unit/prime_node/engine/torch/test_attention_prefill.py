"""Claims about attention over whole sequences: our kernel and torch's find the same, for sequences of any length."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from prime_node.engine.torch.attention import (
    attend_prefill,
    attend_prefill_native,
    get_prefill_kernel,
    has_native_prefill,
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_heads(tokens: int, heads: int, kv_heads: int, size: int) -> tuple[Tensor, ...]:
    """As dense.py hands them over: parts of wider rows."""
    wide = torch.randn(tokens, heads + 2 * kv_heads, size, generator=torch.Generator().manual_seed(1))
    return wide.split([heads, kv_heads, kv_heads], dim=1)


def attend_plainly(queries: Tensor, keys: Tensor, values: Tensor, length: int) -> Tensor:
    """In float64."""
    query, key, value = (each.double().unflatten(0, (-1, length)).transpose(1, 2) for each in (queries, keys, values))
    found = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return found.transpose(1, 2).flatten(2).flatten(0, 1)


@pytest.mark.parametrize("length", [1, 2, 5, 6, 7, 8, 15, 16, 17, 33, 96, 191])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 2, 32), (7, 1, 64), (3, 3, 40), (2, 1, 8), (8, 2, 128)])
def test_the_kernel_finds_what_plain_attention_finds(length: int, heads: int, kv_heads: int, size: int) -> None:
    given = make_heads(3 * length, heads, kv_heads, size)
    wanted = attend_plainly(*given, length)
    assert (attend_prefill_native(*given, length) - wanted).abs().max() < 1e-5
    assert (attend_prefill(*(each.bfloat16() for each in given), length).float() - wanted).abs().max() < 0.1


def test_far_apart_scores_do_not_overflow_and_broken_numbers_are_not_covered_up() -> None:
    queries, keys, values = (each.clone() for each in make_heads(20, 2, 1, 8))
    queries[10, 0], keys[3] = 1e4, 1.0
    keys[:3], keys[4:11] = 0.5, 0.5
    found = attend_prefill_native(queries, keys, values, 20)
    assert torch.equal(found[10, :8], values[3, 0]), "all weight on one"
    assert found.isfinite().all()
    keys[12] = float("nan")
    found = attend_prefill_native(queries, keys, values, 20)
    assert found[:12].isfinite().all(), "who comes before it does not see it"
    assert found[12:].isnan().all()


def test_the_kernel_is_taken_where_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_native_prefill(torch.zeros(1, 2, 8))
    assert not has_native_prefill(torch.zeros(1, 2, 12)), "half a vector"
    assert not has_native_prefill(torch.zeros(1, 2, 8, dtype=torch.bfloat16))
    torch.set_num_threads(2)
    assert not has_native_prefill(torch.zeros(1, 2, 8))
    torch.set_num_threads(1)
    get_prefill_kernel.cache_clear()
    monkeypatch.setattr("prime_node.engine.native.library", lambda name: None)
    assert not has_native_prefill(torch.zeros(1, 2, 8))
    given = make_heads(10, 2, 1, 8)
    assert (attend_prefill(*given, 5) - attend_plainly(*given, 5)).abs().max() < 1e-5, "torch does the same"
    get_prefill_kernel.cache_clear()
