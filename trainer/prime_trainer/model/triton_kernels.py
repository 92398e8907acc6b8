"""The head's tile kernels in Triton: each reads a tile of logits once, where torch's operations read it ten times.

The matrix products around them are cuBLAS's. The kernels also run in Triton's interpreter on a CPU
(TRITON_INTERPRET=1), where the tests compare them with torch's. triton_head.py launches them.
"""

import triton
import triton.language as tl

BLOCK = 4096
"""Logits of a program at a time: 16 for each of 256 threads."""
WARPS = 8

INFINITY = tl.constexpr(float("inf"))


@triton.jit
def update_rows(
    logits, targets, temperatures, tops, sums, weighted, target_logits, stride, columns, BLOCK: tl.constexpr
):
    """Add a tile's row to its running maximum, sum of exponentials, sum of weighted logits, and target's logit."""
    row = tl.program_id(0).to(tl.int64)
    temperature, target = tl.load(temperatures + row), tl.load(targets + row)
    top, total, moment = tl.load(tops + row), tl.load(sums + row), tl.load(weighted + row)
    if (target >= 0) & (target < columns):
        tl.store(target_logits + row, tl.load(logits + row * stride + target) / temperature)
    for start in range(0, columns, BLOCK):
        places = start + tl.arange(0, BLOCK)
        inside = places < columns
        values = tl.load(logits + row * stride + places, mask=inside, other=-INFINITY) / temperature
        higher = tl.maximum(top, tl.max(values, 0))
        shrink = tl.exp(top - higher)
        shares = tl.exp(values - higher)
        total = total * shrink + tl.sum(shares, 0)
        # Outside of the row the share is 0 and the logit infinite.
        moment = moment * shrink + tl.sum(tl.where(inside, shares * values, 0.0), 0)
        top = higher
    tl.store(tops + row, top)
    tl.store(sums + row, total)
    tl.store(weighted + row, moment)


@triton.jit
def differentiate_rows(
    logits,
    targets,
    temperatures,
    log_sums,
    entropies,
    logp_grads,
    entropy_grads,
    out,
    stride,
    out_stride,
    columns,
    BLOCK: tl.constexpr,
    HAS_ENTROPY: tl.constexpr,
):
    """The gradient of one block of a row's logits."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = places < columns
    temperature, logp_grad = tl.load(temperatures + row), tl.load(logp_grads + row)
    log_share = tl.load(logits + row * stride + places, mask=inside, other=-INFINITY) / temperature
    log_share -= tl.load(log_sums + row)
    pull = tl.zeros_like(log_share) + logp_grad
    if HAS_ENTROPY:
        pull += tl.load(entropy_grads + row) * (log_share + tl.load(entropies + row))
    grad = tl.where(inside, -tl.exp(log_share) * pull, 0.0)
    grad = tl.where(places == tl.load(targets + row), grad + logp_grad, grad) / temperature
    tl.store(out + row * out_stride + places, grad, mask=inside)
