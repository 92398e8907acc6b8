"""The same noise and margins as sampling.py, for tensors on any device that has int64 and float64.

torch has no 32-bit unsigned arithmetic, so words are int64 tensors holding 0 to 2^32-1. A multiplier above 2^31 is
taken minus 2^32: then no product leaves int64, and its low 32 bits are the same. Seeds are int64 with the bits of the
unsigned seed. torch is imported inside the functions, because only callers with tensors have it.
"""

from typing import TYPE_CHECKING

from prime_protocol.errors import LocalError
from prime_protocol.sampling import (
    KEY_FIRST,
    KEY_SECOND,
    MIX_FIRST,
    MIX_SECOND,
    check_shapes,
    check_tokens,
    chunks,
)

if TYPE_CHECKING:
    from torch import Tensor

MASK = 2**32 - 1


def signed(multiplier: int) -> int:
    """The multiplier modulo 2^32 whose product with any word fits int64."""
    return multiplier - 2**32 if multiplier >= 2**31 else multiplier


def signed_seed(seed: int) -> int:
    """The int64 with the bits of an unsigned 64-bit seed."""
    return seed - 2**64 if seed >= 2**63 else seed


def mix_torch(words: "Tensor") -> "Tensor":
    """sampling.mix, on int64 tensors of words. Overwrites its argument."""
    words ^= words >> 16
    words *= signed(MIX_FIRST)
    words &= MASK
    words ^= words >> 15
    words *= signed(MIX_SECOND)
    words &= MASK
    words ^= words >> 15
    return words


def row_keys_torch(seeds: "Tensor", positions: "Tensor") -> tuple["Tensor", "Tensor"]:
    """sampling.row_keys, on tensors."""
    low, high = seeds & MASK, (seeds >> 32) & MASK
    first = mix_torch(mix_torch(mix_torch(low ^ KEY_FIRST) ^ high) ^ positions)
    second = mix_torch(mix_torch(mix_torch(high ^ KEY_SECOND) ^ low) ^ positions)
    return first, second


def uniform_bits_torch(seeds: "Tensor", positions: "Tensor", token_ids: "Tensor") -> "Tensor":
    """The bits of tokens as int64 words; seeds and positions are broadcast against the token ids."""
    first, second = row_keys_torch(seeds, positions)
    words = mix_torch(token_ids ^ first)
    words += second
    words &= MASK
    return mix_torch(words)


def gumbel_noise_torch(seeds: "Tensor", positions: "Tensor", vocab_size: int) -> "Tensor":
    """The noise of every token (B, V) in float64, on the device of the seeds."""
    import torch

    token_ids = torch.arange(vocab_size, device=seeds.device)
    return gumbel_torch(uniform_bits_torch(seeds[:, None], positions[:, None], token_ids))


def gumbel_torch(bits: "Tensor") -> "Tensor":
    """sampling.gumbel, on words."""
    noise = bits.double()
    return noise.add_(0.5).mul_(2.0**-32).log_().neg_().log_().neg_()


def choose_torch(logits: "Tensor", temperature: float, seeds: "Tensor", positions: "Tensor") -> "Tensor":
    """sampling.choose, for tensors."""
    check_shapes(tuple(logits.shape), temperature, tuple(seeds.shape), tuple(positions.shape))
    tokens = positions.new_empty(len(logits))
    for rows in chunks(tuple(logits.shape)):
        scores = noisy_scores(logits[rows], temperature, seeds[rows], positions[rows])
        tokens[rows] = scores.argmax(dim=1)
    return tokens


def replay_margins_torch(
    logits: "Tensor", tokens: "Tensor", seeds: "Tensor", positions: "Tensor", temperature: float
) -> "Tensor":
    """sampling.replay_margins, for tensors."""
    shapes = [tuple(column.shape) for column in (tokens, seeds, positions)]
    check_shapes(tuple(logits.shape), temperature, *shapes)
    margins = logits.new_empty(len(tokens)).double()
    if len(tokens):
        check_tokens(int(tokens.min()), int(tokens.max()), logits.shape[1])
    for rows in chunks(tuple(logits.shape)):
        scores = noisy_scores(logits[rows], temperature, seeds[rows], positions[rows])
        margins[rows] = scores.amax(dim=1) - scores.gather(1, tokens[rows, None].long())[:, 0]
    return margins


def noisy_scores(logits: "Tensor", temperature: float, seeds: "Tensor", positions: "Tensor") -> "Tensor":
    """Logits over the temperature plus the noise, in float64; the plain logits at temperature 0."""
    scores = logits.double()
    if temperature != 0:
        scores = scores / temperature
    if not bool(scores.isfinite().all()):
        raise LocalError("the model gave logits that are not finite: check its weights and precision")
    if temperature == 0:
        return scores
    return scores + gumbel_noise_torch(seeds, positions, logits.shape[1])


def completion_rows(tokens: "Tensor", seed: int, start_position: int) -> tuple["Tensor", "Tensor"]:
    """Seeds and positions of one completion's rows, on the device of its tokens."""
    import torch

    positions = torch.arange(start_position, start_position + len(tokens), device=tokens.device)
    return torch.full_like(positions, signed_seed(seed)), positions
