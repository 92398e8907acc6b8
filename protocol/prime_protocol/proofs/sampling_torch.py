"""Replayable sampling for tensors: the values of sampling.py, on any device, without a loop over rows.

torch has no unsigned 32-bit arithmetic, so a word is an int64 that holds 0 to 2^32-1. A multiplier above 2^31 is used
minus 2^32: no product then exceeds int64, and its low 32 bits stay the same. Seeds are int64 with the bits of the
unsigned seed. A vocabulary is taken in tiles of columns, so that memory is bounded and the number of operations does
not depend on the number of rows. torch is imported inside the functions, because only callers with tensors have it
installed.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prime_protocol.constants import VOCAB_SIZE_MAX
from prime_protocol.errors import LocalError
from prime_protocol.proofs.sampling import (
    KEY_FIRST,
    KEY_SECOND,
    LOGITS_NOT_FINITE,
    MIX_FIRST,
    MIX_SECOND,
    check_shapes,
    check_tokens,
)

if TYPE_CHECKING:
    from torch import Tensor

MASK = 2**32 - 1

TILE_COLUMNS = 2**15
"""Tokens of every row handled at once: five tiles for a vocabulary of 150,000, and 32 bytes a token of each row."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorScan:
    """What one walk over rows of logits tells. Nothing here has waited for the device."""

    winners: "Tensor"
    best: "Tensor"
    """The winners' scores, in float64."""
    tops: "Tensor"
    """The largest score of each row without noise, in float64."""
    log_sums: "Tensor"
    """The logarithm of the sum of exp(score - top), without noise."""
    is_finite: "Tensor"
    """Whether all logits of the row are."""

    def check_finite(self) -> None:
        """Waits for the device."""
        if not bool(self.is_finite.all()):
            raise LocalError(LOGITS_NOT_FINITE)


def to_signed_multiplier(multiplier: int) -> int:
    """The multiplier modulo 2^32 whose product with any word fits int64."""
    return multiplier - 2**32 if multiplier >= 2**31 else multiplier


def mix_words_torch(words: "Tensor") -> "Tensor":
    """sampling.mix_words, on int64 tensors of words. Overwrites its argument."""
    words ^= words >> 16
    words *= to_signed_multiplier(MIX_FIRST)
    words &= MASK
    words ^= words >> 15
    words *= to_signed_multiplier(MIX_SECOND)
    words &= MASK
    words ^= words >> 15
    return words


def compute_row_keys_torch(seeds: "Tensor", positions: "Tensor") -> tuple["Tensor", "Tensor"]:
    """sampling.compute_row_keys, on tensors."""
    low, high = seeds & MASK, (seeds >> 32) & MASK
    first = mix_words_torch(mix_words_torch(mix_words_torch(low ^ KEY_FIRST) ^ high) ^ positions)
    second = mix_words_torch(mix_words_torch(mix_words_torch(high ^ KEY_SECOND) ^ low) ^ positions)
    return first, second


def compute_token_bits_torch(first: "Tensor", second: "Tensor", token_ids: "Tensor") -> "Tensor":
    """sampling.compute_token_bits, as int64 words; the arguments are broadcast against each other."""
    words = mix_words_torch(token_ids ^ first)
    words += second
    words &= MASK
    return mix_words_torch(words)


def uniform_bits_torch(seeds: "Tensor", positions: "Tensor", token_ids: "Tensor") -> "Tensor":
    """The bits of tokens as int64 words; seeds and positions are broadcast against the token ids."""
    return compute_token_bits_torch(*compute_row_keys_torch(seeds, positions), token_ids)


def compute_gumbel_torch(bits: "Tensor") -> "Tensor":
    """sampling.compute_gumbel, on words."""
    noise = bits.double()
    return noise.add_(0.5).mul_(2.0**-32).log_().neg_().log_().neg_()


def scan_rows_torch(logits: "Tensor", temperature: float, seeds: "Tensor", positions: "Tensor") -> TensorScan:
    """Winners, and what log-probs need."""
    import torch

    check_shapes(tuple(logits.shape), temperature, tuple(seeds.shape), tuple(positions.shape))
    first, second = compute_row_keys_torch(seeds[:, None], positions[:, None])
    winners = torch.zeros_like(positions, dtype=torch.int64)
    best = torch.full_like(winners, -torch.inf, dtype=torch.float64)
    tops, sums = best.clone(), torch.zeros_like(best)
    is_finite = torch.ones_like(winners, dtype=torch.bool)
    for start in range(0, logits.shape[1], TILE_COLUMNS):
        scores = logits[:, start : start + TILE_COLUMNS].double()
        is_finite &= scores.isfinite().all(dim=1)
        if temperature != 0:
            scores = scores / temperature
        higher = torch.maximum(tops, scores.amax(dim=1))
        sums = sums * (tops - higher).exp() + (scores - higher[:, None]).exp_().sum(dim=1)
        tops = higher
        token_ids = torch.arange(start, start + scores.shape[1], device=logits.device)
        if temperature != 0:
            scores += compute_gumbel_torch(compute_token_bits_torch(first, second, token_ids))
        found = scores.amax(dim=1)
        # argmax promises no lowest index among equals.
        lowest = token_ids.where(scores == found[:, None], VOCAB_SIZE_MAX).amin(dim=1)
        winners = torch.where(found > best, lowest, winners)
        best = torch.maximum(best, found)
    return TensorScan(winners, best, tops, sums.log(), is_finite)


def score_tokens_torch(
    logits: "Tensor", temperature: float, seeds: "Tensor", positions: "Tensor", tokens: "Tensor"
) -> "Tensor":
    """sampling.score_tokens, for tensors."""
    scores = logits.gather(1, tokens[:, None].long())[:, 0].double()
    if temperature == 0:
        return scores
    return scores / temperature + compute_gumbel_torch(uniform_bits_torch(seeds, positions, tokens.long()))


def sample_tokens_torch(logits: "Tensor", temperature: float, seeds: "Tensor", positions: "Tensor") -> "Tensor":
    """sampling.sample_tokens, for tensors."""
    scan = scan_rows_torch(logits, temperature, seeds, positions)
    scan.check_finite()
    return scan.winners


def compute_margins_torch(
    logits: "Tensor", tokens: "Tensor", seeds: "Tensor", positions: "Tensor", temperature: float
) -> "Tensor":
    """sampling.compute_margins, for tensors."""
    check_shapes(tuple(logits.shape), temperature, tuple(tokens.shape))
    if len(tokens):
        check_tokens(int(tokens.min()), int(tokens.max()), logits.shape[1])
    scan = scan_rows_torch(logits, temperature, seeds, positions)
    scan.check_finite()
    return (scan.best - score_tokens_torch(logits, temperature, seeds, positions, tokens)).clamp_(min=0.0)
