"""Claims about attention while decoding: our kernel and torch's find the same, for rows of any length."""

import pytest
import torch
from torch.nn import functional

from prime_node.engine.torch.attention import (
    KvCache,
    NativeAttention,
    StripedAttention,
    get_decode_kernel,
    has_native_decode,
    open_attention,
)
from prime_node.engine.torch.dense_shape import DenseShape, RopeShape

LENGTHS = [1, 2, 7, 8, 9, 64, 65, 128, 190, 191]


def make_cache(heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32) -> KvCache:
    """Full of numbers, behind the rows' ends as well."""
    shape = DenseShape(
        vocabulary=8,
        hidden=64,
        intermediate=8,
        layers=2,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        epsilon=1e-6,
        rope=RopeShape(kind="default", theta=10000.0, scaling={}),
        is_tied=True,
        has_qkv_bias=False,
        has_out_bias=False,
        has_mlp_bias=False,
        has_qk_norm=False,
    )
    cache = KvCache(shape, rows=12, device=torch.device("cpu"), dtype=dtype, bytes_max=None)
    cache.reserve(192, 192)
    torch.manual_seed(0)
    for tensor in (*cache.keys, *cache.values):
        tensor.normal_()
    return cache


def attend_plainly(cache: KvCache, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Row by row, in float64."""
    found = []
    for row, length in enumerate(LENGTHS):
        past = [tensors[1][row, :, : length - 1] for tensors in (cache.keys, cache.values)]
        key, value = (
            torch.cat((old, new[row][:, None]), 1).double() for old, new in zip(past, (keys, values), strict=True)
        )
        query = queries[row].double()[:, None]
        found.append(
            functional.scaled_dot_product_attention(query[None], key[None], value[None], enable_gqa=True).flatten()
        )
    return torch.stack(found)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(4, 2, 32), (7, 1, 64), (3, 3, 40), (2, 1, 8), (8, 2, 128)]
)
def test_both_ways_find_what_plain_attention_finds_and_keep_the_new_token(
    heads: int, kv_heads: int, head_dim: int
) -> None:
    # As dense.py hands them over: parts of wider rows.
    wide = torch.randn(len(LENGTHS), heads + 2 * kv_heads, head_dim, generator=torch.Generator().manual_seed(1))
    queries, keys, values = wide.split([heads, kv_heads, kv_heads], dim=1)
    for kind in (NativeAttention, StripedAttention):
        cache = make_cache(heads, kv_heads, head_dim)
        wanted = attend_plainly(cache, queries, keys, values)
        found = kind(cache, LENGTHS).attend(1, queries, keys, values)
        assert (found - wanted).abs().max() < 1e-5, kind
        for row, length in enumerate(LENGTHS):
            assert torch.equal(cache.keys[1][row, :, length - 1], keys[row])
            assert torch.equal(cache.values[1][row, :, length - 1], values[row])
        untouched = make_cache(heads, kv_heads, head_dim)
        assert torch.equal(cache.keys[0], untouched.keys[0])
        assert torch.equal(cache.keys[1][len(LENGTHS) :], untouched.keys[1][len(LENGTHS) :])


def test_far_apart_scores_and_broken_numbers_come_out_as_they_should() -> None:
    cache = make_cache(2, 1, 8)
    keys, values = torch.ones(1, 1, 8), torch.full((1, 1, 8), 3.0)
    queries = torch.stack((torch.full((8,), 1e4), torch.full((8,), -1e4)))[None]
    cache.keys[0][0, 0, :5] = 0.5
    cache.values[0][0, 0, :5] = 2.0
    found = NativeAttention(cache, [6]).attend(0, queries, keys, values)
    assert found.tolist() == [[3.0] * 8 + [2.0] * 8], "all weight on the nearest, without overflow"
    cache.values[0][0, 0, 2] = float("nan")
    assert NativeAttention(cache, [6]).attend(0, queries, keys, values).isnan().any(), "a hole is not covered up"
    cache.keys[0][0, 0, 2] = float("nan")
    assert NativeAttention(cache, [6]).attend(0, queries, keys, values).isnan().all()


def test_the_kernel_is_taken_where_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert isinstance(open_attention(make_cache(2, 1, 8), [3]), NativeAttention)
    assert not has_native_decode(make_cache(2, 1, 12)), "half a vector"
    assert not has_native_decode(make_cache(2, 1, 8, torch.bfloat16))
    torch.set_num_threads(2)
    assert isinstance(open_attention(make_cache(2, 1, 8), [3]), StripedAttention)
    torch.set_num_threads(threads)
    get_decode_kernel.cache_clear()
    monkeypatch.setattr("prime_node.engine.native.library", lambda name: None)
    assert not has_native_decode(make_cache(2, 1, 8))
    get_decode_kernel.cache_clear()
