"""Replayable sampling: Gumbel noise from an integer hash of (seed, position, token id), and the replay margin.

The next token is argmax(logits / T + noise). The hash uses 32-bit integers only, so its bits are equal on every device.
The two logarithms are float64 and may differ in the last place, which is far below the tolerance of any margin. Where
seeds come from is in ledger/randomness.py.

This is the reference, in numpy. sampling_torch.py computes the same for tensors. The kernels of the engines (Triton on
a GPU, C on a CPU) find the same winners, and are tested against this.
"""

from typing import TYPE_CHECKING, Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from prime_protocol.constants import TEMPERATURE_MAX, TEMPERATURE_MIN, VOCAB_SIZE_MAX
from prime_protocol.errors import LocalError, RemoteError

if TYPE_CHECKING:
    from torch import Tensor

Floats: TypeAlias = NDArray[np.float64]
Words: TypeAlias = NDArray[np.uint32]

# Multipliers of a 32-bit mixing function from a public search for low avalanche bias (hash-prospector, two rounds).
# A token goes through it twice with a key between, so that two rows never share a shifted sequence of noise.
MIX_FIRST = 0x21F0AAAD
MIX_SECOND = 0xD35A2D97
KEY_FIRST = 0x9E3779B9
KEY_SECOND = 0x85EBCA6B

CHUNK_ELEMENTS = 2**18
"""Logits handled at once: every temporary array stays in the second-level cache, and memory stays bounded."""

LOGITS_NOT_FINITE = "the model gave logits that are not finite: check its weights and precision"

PRUNE_SLACK = 1e-6
"""Wider than any rounding of the two logarithms, so that pruning never drops a winner."""
ROUNDING = 2.0**-50
"""The same for the sum of a score and its noise in float64, relative to the score."""
EXPONENT_MAX = 700.0
"""exp of more overflows float64."""


def compute_row_keys(seeds: NDArray[np.uint64], positions: NDArray[np.uint32]) -> tuple[Words, Words]:
    """Two keys per row, from the row's seed and position."""
    low, high = seeds.astype(np.uint32), (seeds >> np.uint64(32)).astype(np.uint32)
    first = mix_words(mix_words(mix_words(low ^ np.uint32(KEY_FIRST)) ^ high) ^ positions)
    second = mix_words(mix_words(mix_words(high ^ np.uint32(KEY_SECOND)) ^ low) ^ positions)
    return first, second


def compute_token_bits(first: Words, second: Words, token_ids: Words) -> Words:
    """The bits of tokens under row keys; the arguments are broadcast against each other."""
    words = mix_words(token_ids ^ first)
    words += second
    return mix_words(words)


def mix_words(words: Words) -> Words:
    """A bijection of 32-bit words in which every input bit moves every output bit. Overwrites its argument."""
    shifted = words >> np.uint32(16)
    words ^= shifted
    words *= np.uint32(MIX_FIRST)
    words ^= np.right_shift(words, np.uint32(15), out=shifted)
    words *= np.uint32(MIX_SECOND)
    words ^= np.right_shift(words, np.uint32(15), out=shifted)
    return words


def compute_gumbel(bits: Words) -> Floats:
    """Noise of uniform bits: u is the middle of one of 2^32 equal cells, so it is never 0 or 1."""
    noise: Floats = -np.log(-np.log((bits + 0.5) * 2.0**-32))
    return noise


@overload
def sample_tokens(
    logits: NDArray[np.floating[Any]], temperature: float, seeds: NDArray[Any], positions: NDArray[Any]
) -> NDArray[np.int64]: ...
@overload
def sample_tokens(logits: "Tensor", temperature: float, seeds: "Tensor", positions: "Tensor") -> "Tensor": ...
def sample_tokens(logits: Any, temperature: float, seeds: Any, positions: Any) -> Any:
    """The next token of each row of logits (B, V). Temperature 0 is greedy; among equals the lowest id wins."""
    if not isinstance(logits, np.ndarray):
        # Imported here, because only callers with tensors have torch.
        from prime_protocol.proofs.sampling_torch import sample_tokens_torch

        return sample_tokens_torch(logits, temperature, seeds, positions)
    check_shapes(logits.shape, temperature, seeds.shape, positions.shape)
    tokens = np.empty(len(logits), np.int64)
    for rows in chunk_rows(logits.shape):
        _, tokens[rows] = find_winners(logits[rows], temperature, seeds[rows], positions[rows])
    return tokens


@overload
def compute_margins(
    logits: NDArray[np.floating[Any]],
    tokens: NDArray[Any],
    seeds: NDArray[Any],
    positions: NDArray[Any],
    temperature: float,
) -> Floats: ...
@overload
def compute_margins(
    logits: "Tensor", tokens: "Tensor", seeds: "Tensor", positions: "Tensor", temperature: float
) -> "Tensor": ...
def compute_margins(logits: Any, tokens: Any, seeds: Any, positions: Any, temperature: float) -> Any:
    """Margins of many rows (N, V) at once, each with its own seed and position: completions laid end to end."""
    if not isinstance(logits, np.ndarray):
        from prime_protocol.proofs.sampling_torch import compute_margins_torch

        return compute_margins_torch(logits, tokens, seeds, positions, temperature)
    check_shapes(logits.shape, temperature, tokens.shape, seeds.shape, positions.shape)
    check_tokens(tokens.min(initial=0), tokens.max(initial=0), logits.shape[1])
    margins = np.empty(len(tokens), np.float64)
    for rows in chunk_rows(logits.shape):
        best, _ = find_winners(logits[rows], temperature, seeds[rows], positions[rows])
        own = score_tokens(logits[rows], temperature, seeds[rows], positions[rows], tokens[rows])
        margins[rows] = np.maximum(best - own, 0.0)
    return margins


def find_winners(
    logits: NDArray[Any], temperature: float, seeds: NDArray[Any], positions: NDArray[Any]
) -> tuple[Floats, NDArray[np.int64]]:
    """The best score of each row and the token that has it."""
    likeliest = logits.argmax(axis=1)
    tops = scores_at(logits, temperature, likeliest)
    # The logits are our own model's: a hole in them is our fault. argmax finds a NaN, the lowest value an infinity.
    if not (np.isfinite(tops).all() and np.isfinite(logits.min())):
        raise LocalError(LOGITS_NOT_FINITE)
    if temperature == 0:
        return tops, likeliest
    first, second = compute_row_keys(seeds.astype(np.uint64), positions.astype(np.uint32))
    bits = compute_token_bits(first[:, None], second[:, None], np.arange(logits.shape[1], dtype=np.uint32))
    near = find_candidates(logits, temperature, bits, likeliest, tops)
    rows, columns = np.divmod(near, logits.shape[1])
    return choose_among(logits[rows, columns], temperature, bits[rows, columns], rows, columns)


def choose_among(
    logits: NDArray[Any], temperature: float, bits: Words, rows: NDArray[np.int64], columns: NDArray[np.int64]
) -> tuple[Floats, NDArray[np.int64]]:
    """The winners among some tokens of each row, given by row and then by token id: one or more of every row."""
    totals = logits.astype(np.float64) / temperature + compute_gumbel(bits)
    all_rows = np.arange(rows[-1] + 1)
    best = np.maximum.reduceat(totals, np.searchsorted(rows, all_rows))
    hits = np.flatnonzero(totals == best[rows])
    return best, columns[hits[np.searchsorted(rows[hits], all_rows)]]


def find_candidates(
    logits: NDArray[Any], temperature: float, bits: Words, likeliest: NDArray[np.int64], tops: Floats
) -> NDArray[np.int64]:
    """Places of the tokens that can win their row, of which few remain: the costly logarithms are for them only.

    The winner has at least the total of the likeliest token, and of the one with the most noise. So its noise must make
    up for what its score lacks to the likeliest, and its score for what its noise lacks to the most.
    """
    loudest = bits.argmax(axis=1)
    most = compute_gumbel(np.take_along_axis(bits, loudest[:, None], axis=1)[:, 0])
    likely = tops + compute_gumbel(np.take_along_axis(bits, likeliest[:, None], axis=1)[:, 0])
    least = np.maximum(likely, scores_at(logits, temperature, loudest) + most)
    # Where scores are so large that their last place is worth as much as the noise, many are equal: keep them all.
    least -= PRUNE_SLACK + ROUNDING * np.abs(least)
    least_bits = np.exp(-np.exp(np.minimum(tops - least, EXPONENT_MAX))) * 2.0**32 - 1.0
    # In the type of the logits, and then one further down, as rounding may have gone up.
    bounded = np.maximum((least - most) * temperature, np.finfo(logits.dtype).min).astype(logits.dtype)
    least_logits = np.nextafter(bounded, np.array(-np.inf, logits.dtype))
    is_near = bits >= np.maximum(least_bits, 0.0).astype(np.uint32)[:, None]
    is_near &= logits >= least_logits[:, None]
    return np.flatnonzero(is_near)


def scores_at(logits: NDArray[Any], temperature: float, tokens: NDArray[Any]) -> Floats:
    """Logits over the temperature of one token per row, in float64."""
    scores: Floats = np.take_along_axis(logits, tokens[:, None], axis=1)[:, 0].astype(np.float64)
    return scores if temperature == 0 else scores / temperature


def score_tokens(
    logits: NDArray[Any], temperature: float, seeds: NDArray[Any], positions: NDArray[Any], tokens: NDArray[Any]
) -> Floats:
    """The score of one given token per row."""
    scores = scores_at(logits, temperature, tokens)
    if temperature == 0:
        return scores
    first, second = compute_row_keys(seeds.astype(np.uint64), positions.astype(np.uint32))
    return scores + compute_gumbel(compute_token_bits(first, second, tokens.astype(np.uint32)))


def chunk_rows(shape: tuple[int, ...]) -> list[slice]:
    """Slices of rows, each with about CHUNK_ELEMENTS logits."""
    rows = max(1, CHUNK_ELEMENTS // shape[1])
    return [slice(start, start + rows) for start in range(0, shape[0], rows)]


def check_shapes(logits: tuple[int, ...], temperature: float, *columns: tuple[int, ...]) -> None:
    """Refuse a temperature outside the agreed range; shapes that do not fit are a bug."""
    assert len(logits) == 2
    assert 1 <= logits[1] <= VOCAB_SIZE_MAX
    assert all(shape == logits[:1] for shape in columns)
    if temperature != 0 and not TEMPERATURE_MIN <= temperature <= TEMPERATURE_MAX:
        raise LocalError(f"temperature is {temperature}, allowed is 0 or {TEMPERATURE_MIN} to {TEMPERATURE_MAX}")


def check_tokens(lowest: int, highest: int, vocab_size: int) -> None:
    """The tokens are the worker's: one outside the vocabulary is its fault."""
    if lowest < 0 or highest >= vocab_size:
        raise RemoteError("output_tokens", f"tokens {lowest} to {highest} in a vocabulary of {vocab_size}")
