"""Claims about the steps between products: our kernels and torch's give the same, and each serves where it can."""

import numpy as np
import pytest
import torch

from prime_node.engine.torch.dense import get_angles
from prime_node.engine.torch.dense_shape import DenseShape, RopeShape
from prime_node.engine.torch.kernels import (
    NativeOps,
    TorchOps,
    get_kernels,
    open_ops,
    store_bf16_rows,
    supports_native_ops,
)

CPU = torch.device("cpu")
TOKENS, HEADS, HEAD = 13, 5, 32


def make_shape(hidden: int = 64, intermediate: int = 24, head_dim: int = HEAD) -> DenseShape:
    return DenseShape(
        vocabulary=8,
        hidden=hidden,
        intermediate=intermediate,
        layers=1,
        heads=4,
        kv_heads=1,
        head_dim=head_dim,
        epsilon=1e-6,
        rope=RopeShape(kind="default", theta=10000.0, scaling={}),
        is_tied=True,
        has_qkv_bias=False,
        has_out_bias=False,
        has_mlp_bias=False,
        has_qk_norm=False,
    )


def make_both() -> tuple[NativeOps, TorchOps]:
    frequencies = 1.0 / 10000 ** (torch.arange(0, HEAD, 2) / HEAD)
    angles = get_angles(frequencies, torch.arange(TOKENS) * 37)
    return NativeOps(get_kernels(), angles), TorchOps(angles, torch.float32)


def test_norms_are_the_same() -> None:
    native, plain = make_both()
    states, weight = torch.randn(TOKENS, 64) * torch.logspace(-3, 3, TOKENS)[:, None], torch.randn(64)
    torch.testing.assert_close(native.norm(states, weight, 1e-6), plain.norm(states, weight, 1e-6), rtol=2e-6, atol=0)


def test_gates_are_the_same_and_never_overflow() -> None:
    native, plain = make_both()
    both = torch.randn(TOKENS, 48) * 10
    both[0, :8] = torch.tensor([0.0, -0.0, 100.0, -100.0, 3e38, -3e38, 1e-30, float("nan")])
    both[0, 24:32] = 1.0
    torch.testing.assert_close(
        native.silu_and_multiply(both), plain.silu_and_multiply(both), rtol=4e-6, atol=1e-35, equal_nan=True
    )


def test_heads_are_turned_the_same_and_their_neighbours_left_alone() -> None:
    native, plain = make_both()
    rows = torch.randn(TOKENS, HEADS, HEAD)
    wanted, values = plain.rotate(rows[:, :-1]), rows[:, -1].clone()
    torch.testing.assert_close(native.rotate(rows[:, :-1]), wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(rows[:, -1], values)


@pytest.mark.parametrize("size", [7, 64])
def test_rows_are_kept_as_torch_rounds_them(size: int) -> None:
    bits = torch.randint(-(2**31), 2**31, (TOKENS, size), dtype=torch.int64).to(torch.int32)
    bits[0, :6] = torch.tensor([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7FFFFFFF, 0x7F800001, 1])
    rows = bits.view(torch.float32)
    pages, written = torch.randperm(2 * TOKENS)[:TOKENS].numpy(), np.arange(TOKENS) * 3
    kept, wanted = (torch.zeros(2 * TOKENS, 4, size, dtype=torch.bfloat16) for _ in range(2))
    assert store_bf16_rows(rows, pages, written, kept).tolist() == [row for row in range(TOKENS) if row * 3 % 4 == 3]
    wanted[torch.from_numpy(pages), torch.from_numpy(written % 4)] = rows.to(torch.bfloat16)
    numbers = ~wanted.isnan()
    assert torch.equal(kept.view(torch.int16)[numbers], wanted.view(torch.int16)[numbers])
    assert kept[~numbers].isnan().all()


@pytest.mark.parametrize("odd", [{"hidden": 60}, {"intermediate": 20}, {"head_dim": 24}])
def test_odd_sizes_go_to_torch(odd: dict[str, int]) -> None:
    assert not supports_native_ops(make_shape(**odd), CPU, torch.float32)


def test_threads_and_precision_decide() -> None:
    angles = torch.zeros(1, HEAD)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert isinstance(open_ops(make_shape(), angles, torch.float32), NativeOps)
        assert isinstance(open_ops(make_shape(), angles, torch.bfloat16), TorchOps)
        torch.set_num_threads(2)
        assert isinstance(open_ops(make_shape(), angles, torch.float32), TorchOps)
    finally:
        torch.set_num_threads(threads)
