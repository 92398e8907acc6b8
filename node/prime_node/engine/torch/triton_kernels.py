"""The seeded draw as Triton kernels: winners, margins and log-probs of whole vocabularies in two launches.

`scan_blocks` reads every logit once, computes scores in float32 and keeps three numbers of each block of a row. Then
`finish_rows` reads again, in float64, only the blocks whose best score may be the row's: usually one. There it computes
what prime_protocol.proofs.sampling computes, so that the winner is the same token. A block is left out only if float32
could not be wrong by so much: see `get_slack`.

This module imports Triton, which comes with torch's builds for GPUs. It also runs in Triton's interpreter on a CPU
(TRITON_INTERPRET=1), where the tests compare it with numpy. triton_sampling.py launches the kernels.
"""

import triton
import triton.language as tl

from prime_protocol.proofs import sampling

BLOCK = 4096
"""Logits of a program: 16 for each of 256 threads."""
WARPS = 8

MIX_FIRST = tl.constexpr(sampling.MIX_FIRST)
MIX_SECOND = tl.constexpr(sampling.MIX_SECOND)
KEY_FIRST = tl.constexpr(sampling.KEY_FIRST)
KEY_SECOND = tl.constexpr(sampling.KEY_SECOND)
INFINITY = tl.constexpr(float("inf"))
CELL = tl.constexpr(2.0**-32)
NOISE_SLACK = tl.constexpr(1e-4)
"""Ten times what approximate logarithms of GPUs may add to the noise in float32."""
NOISE_MAX = tl.constexpr(32.0)
"""Above the largest noise, 22.9."""
ROUNDING = tl.constexpr(2.0**-20)
"""Sixteen roundings of float32."""


@triton.jit
def mix_words(words):
    words ^= words >> 16
    words *= MIX_FIRST
    words ^= words >> 15
    words *= MIX_SECOND
    words ^= words >> 15
    return words


@triton.jit
def get_row_keys(seeds, positions, row):
    seed, position = tl.load(seeds + row), tl.load(positions + row).to(tl.uint32)
    low, high = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    first = mix_words(mix_words(mix_words(low ^ KEY_FIRST) ^ high) ^ position)
    second = mix_words(mix_words(mix_words(high ^ KEY_SECOND) ^ low) ^ position)
    return first, second


@triton.jit
def get_bits(first, second, token_ids):
    return mix_words(mix_words(token_ids.to(tl.uint32) ^ first) + second)


@triton.jit
def approximate_gumbel(bits):
    """In float32. Near 1, u is too coarse there, so that its logarithm is the series of 1 - u."""
    u = (bits.to(tl.float32) + 0.5) * CELL
    rest = ((bits ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * CELL
    series = rest * (1 / 5 + rest * (1 / 6 + rest * (1 / 7)))
    series = rest * (1 + rest * (1 / 2 + rest * (1 / 3 + rest * (1 / 4 + series))))
    return -tl.log(tl.where(rest < 0.125, series, -tl.log(u)))


@triton.jit
def compute_gumbel(bits):
    """As the reference does, in float64."""
    return -tl.log(-tl.log((bits.to(tl.float64) + 0.5) * CELL))


@triton.jit
def get_slack(best, temperature):
    """By how much two scores times T, of which one is `best`, may stand in the wrong order in float32."""
    return NOISE_SLACK * temperature + ROUNDING * (tl.abs(best) + NOISE_MAX * temperature)


@triton.jit
def scan_blocks(
    logits,
    seeds,
    positions,
    tops,
    sums,
    bests,
    stride,
    vocabulary,
    temperature_bits,
    BLOCK: tl.constexpr,
    HAS_NOISE: tl.constexpr,
):
    """Of one block of a row: its largest logit, infinity if one is not finite; the sum of exp((logit - largest) / T);
    the best score times T."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = row * tl.num_programs(1) + block
    token_ids = block * BLOCK + tl.arange(0, BLOCK)
    inside = token_ids < vocabulary
    values = tl.load(logits + row * stride + token_ids, mask=inside, other=-INFINITY).to(tl.float32)
    is_finite = tl.min(((tl.abs(values) < INFINITY) | ~inside).to(tl.int32), 0) == 1
    top = tl.max(values, 0)
    best = top
    inverse = 1.0
    if HAS_NOISE:
        temperature = temperature_bits.to(tl.float64, bitcast=True)
        inverse = (1.0 / temperature).to(tl.float32)
        first, second = get_row_keys(seeds, positions, row)
        noise = approximate_gumbel(get_bits(first, second, token_ids))
        best = tl.max(values + temperature.to(tl.float32) * noise, 0)
    tl.store(tops + place, tl.where(is_finite, top, INFINITY))
    tl.store(sums + place, tl.sum(tl.exp((values - top) * inverse), 0))
    tl.store(bests + place, best)


@triton.jit
def join_blocks(tops, sums, bests, blocks, temperature_bits, BLOCKS: tl.constexpr, HAS_NOISE: tl.constexpr):
    """Of a row: the largest logit, the best score times T in float32, the largest score without noise, the logarithm of
    the sum, and the temperature."""
    places = tl.arange(0, BLOCKS)
    here = places < blocks
    block_tops = tl.load(tops + places, mask=here, other=-INFINITY)
    top = tl.max(block_tops, 0)
    best = tl.max(tl.load(bests + places, mask=here, other=-INFINITY), 0)
    temperature = tl.full([], 1.0, tl.float64)
    if HAS_NOISE:
        temperature = temperature_bits.to(tl.float64, bitcast=True)
    block_sums = tl.load(sums + places, mask=here, other=0.0).to(tl.float64)
    block_scores = tl.where(here, block_tops, top).to(tl.float64) / temperature
    top_score = top.to(tl.float64) / temperature
    log_sum = tl.log(tl.sum(block_sums * tl.exp(block_scores - top_score), 0))
    return top, best, top_score, log_sum, temperature


@triton.jit
def find_winner(
    logits, bests, first, second, vocabulary, blocks, temperature, least, BLOCK: tl.constexpr, HAS_NOISE: tl.constexpr
):
    """The best token of a row and its score, in float64, from the blocks that may hold it."""
    winner = tl.full([], 0, tl.int32)
    best_score = tl.full([], -INFINITY, tl.float64)
    for block in range(blocks):
        if tl.load(bests + block) >= least:
            token_ids = block * BLOCK + tl.arange(0, BLOCK)
            inside = token_ids < vocabulary
            values = tl.load(logits + token_ids, mask=inside, other=-INFINITY)
            scores = values.to(tl.float64) / temperature
            if HAS_NOISE:
                scores += compute_gumbel(get_bits(first, second, token_ids))
            found = tl.max(scores, 0)
            # The lowest of equal ones; a later block must be better.
            lowest = tl.min(tl.where(scores == found, token_ids, 2147483647), 0)
            winner = tl.where(found > best_score, lowest, winner)
            best_score = tl.where(found > best_score, found, best_score)
    return winner, best_score


@triton.jit
def finish_rows(
    logits,
    seeds,
    positions,
    tokens,
    tops,
    sums,
    bests,
    out,
    stride,
    vocabulary,
    blocks,
    temperature_bits,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    HAS_NOISE: tl.constexpr,
    HAS_TOKENS: tl.constexpr,
):
    """The winner of a row, the margin and the log-prob of its token, the highest score without noise, the logarithm of
    the sum, and whether all logits are finite: a row of `out` each."""
    row = tl.program_id(0).to(tl.int64)
    here, tops, sums, bests = logits + row * stride, tops + row * blocks, sums + row * blocks, bests + row * blocks
    top, best, top_score, log_sum, temperature = join_blocks(
        tops, sums, bests, blocks, temperature_bits, BLOCKS, HAS_NOISE
    )
    first, second = get_row_keys(seeds, positions, row)
    least = best
    if HAS_NOISE:
        least = best - get_slack(best, temperature.to(tl.float32))
    winner, best_score = find_winner(
        here, bests, first, second, vocabulary, blocks, temperature, least, BLOCK, HAS_NOISE
    )
    token = winner
    if HAS_TOKENS:
        token = tl.load(tokens + row).to(tl.int32)
    plain = tl.load(here + token).to(tl.float64) / temperature
    own = plain
    if HAS_NOISE:
        own += compute_gumbel(get_bits(first, second, token))
    rows = tl.num_programs(0)
    tl.store(out + row, winner.to(tl.float64))
    tl.store(out + rows + row, tl.maximum(best_score - own, 0.0))
    tl.store(out + 2 * rows + row, tl.minimum(plain - top_score - log_sum, 0.0))
    tl.store(out + 3 * rows + row, top_score)
    tl.store(out + 4 * rows + row, log_sum)
    tl.store(out + 5 * rows + row, (top < INFINITY).to(tl.float64))
