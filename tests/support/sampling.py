"""The noise and the margins of single completions, as tests compare them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from prime_protocol.proofs import sampling


def to_signed_seed(seed: int) -> int:
    """The int64 with the bits of an unsigned 64-bit seed."""
    return seed - 2**64 if seed >= 2**63 else seed


def uniform_bits(seed: int, position: int, token_ids: NDArray[np.integer[Any]]) -> NDArray[np.uint32]:
    """The 32 random bits of each token at one position."""
    first, second = sampling.compute_row_keys(np.array([seed], np.uint64), np.array([position], np.uint32))
    return sampling.compute_token_bits(first, second, token_ids.astype(np.uint32))


def gumbel_noise(seeds: NDArray[np.uint64], positions: NDArray[Any], vocab_size: int) -> NDArray[np.float64]:
    """The noise of every token, a row per (seed, position)."""
    first, second = sampling.compute_row_keys(seeds, positions.astype(np.uint32))
    token_ids = np.arange(vocab_size, dtype=np.uint32)
    return sampling.compute_gumbel(sampling.compute_token_bits(first[:, None], second[:, None], token_ids))


def replay_margin(logits: Any, tokens: Any, seed: int, start_position: int, temperature: float) -> Any:
    """By how much each token of one completion loses against the replayed winner: 0 where it is the winner."""
    if isinstance(logits, np.ndarray):
        positions: Any = np.arange(start_position, start_position + len(tokens), dtype=np.uint32)
        seeds: Any = np.full(len(tokens), seed, np.uint64)
    else:
        import torch

        positions = torch.arange(start_position, start_position + len(tokens), device=tokens.device)
        seeds = torch.full_like(positions, to_signed_seed(seed))
    return sampling.compute_margins(logits, tokens, seeds, positions, temperature)
