"""Attention within the samples of a pack and never across them, for any `transformers` model with pluggable attention.

Adjacent samples of equal length are one batched call. A block mask over the whole pack gives the same numbers, but its
cost grows with the square of the pack's length, not of the samples'.
"""

from itertools import groupby, pairwise
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from prime_protocol.errors import LocalError
from prime_trainer.model.context import ContextSlice, attend_in_context

Tensor = Any

ATTENTION_NAME = "prime_segments"
SEGMENT_BOUNDS = "cu_seq_lens_q"
"""The keyword under which `transformers` passes the bounds of samples to attention."""


def segment_attention(
    module: Any,
    query_1HLD: Tensor,
    key_1KLD: Tensor,
    value_1KLD: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The interface of `transformers`: queries, keys and values of one pack to outputs (1, L, H, D)."""
    if softcap is not None:
        raise LocalError("this model caps its attention scores, which packed attention does not support")
    part = options[SEGMENT_BOUNDS]
    if isinstance(part, ContextSlice):
        given = (query_1HLD[0], key_1KLD[0], value_1KLD[0])
        return attend_in_context(*given, part, scaling=scaling, window=sliding_window)[None], None
    outputs, start = [], 0
    lengths = [end - begin for begin, end in pairwise(part)]
    for length, run in groupby(lengths):
        count = len(list(run))
        stop = start + count * length
        query, key, value = (
            each[0, :, start:stop].unflatten(1, (count, length)).transpose(0, 1)
            for each in (query_1HLD, key_1KLD, value_1KLD)
        )
        is_windowed = sliding_window is not None and sliding_window < length
        out_NHSD = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=_make_window_mask(length, sliding_window, query.device) if is_windowed else None,
            is_causal=not is_windowed,
            scale=scaling,
            dropout_p=dropout if module.training else 0.0,
            enable_gqa=True,
        )
        outputs.append(out_NHSD.transpose(1, 2).flatten(0, 1))
        start = stop
    return torch.cat(outputs)[None], None


def _make_window_mask(length: int, width: int | None, device: Any) -> Tensor:
    """Each token attends to itself and the `width` - 1 tokens before it."""
    positions = torch.arange(length, device=device)
    behind = positions[:, None] - positions[None, :]
    return (behind >= 0) & (behind < (width or length))


def register_attention() -> None:
    """Register it with `transformers` under ATTENTION_NAME."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, segment_attention)
