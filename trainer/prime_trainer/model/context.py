"""Context parallelism: several ranks compute one pack, each a part of its tokens, so that long samples fit.

Everything but attention works on single tokens. In attention a rank has the queries of its tokens and gathers the keys
and values of all of them; their gradients are added up over the ranks on the way back. Of twice as many equal parts as
ranks, a rank takes one from the front and one from the back, because later tokens attend to more.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from prime_trainer.data.packing import Floats, Ints, Pack

Tensor = Any

# The second names are those of torch before 2.13, which warns of them.
gather_rows = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
scatter_sum = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True, eq=False)
class ContextSlice:
    """One rank's part of a pack, in the place where attention expects the bounds of samples."""

    bounds: tuple[int, ...]
    """Of the samples of the whole pack, and of its padding."""
    ranges: tuple[tuple[int, int], ...]
    """Tokens of the pack that this rank has, in its own order."""
    order_L: Ints
    """For each token of the pack, its place among the tokens of all ranks, one after the other."""
    group: Any

    def list_queries(self) -> Iterator[tuple[int, int, int]]:
        """(start of the sample, first query, end of the queries) of each piece of a sample that this rank has."""
        for first, last in self.ranges:
            for start, end in pairwise(self.bounds):
                if max(first, start) < min(last, end):
                    yield start, max(first, start), min(last, end)


def split_ranges(total: int, parts: int, part: int) -> tuple[tuple[int, int], ...]:
    """The tokens of one rank; `total` is a multiple of 2 x `parts`."""
    size = total // (2 * parts)
    return tuple((number * size, (number + 1) * size) for number in (part, 2 * parts - 1 - part))


def slice_pack(pack: Pack, parts: int, part: int, group: Any) -> tuple[Pack, ContextSlice]:
    """The part of a pack: its tokens, and the trained tokens that they predict."""
    length = len(pack.tokens_L)
    padding = -length % (2 * parts)
    total = length + padding
    bounds = (*pack.bounds, total) if padding else pack.bounds
    positions_L = np.concatenate([pack.positions_L, np.arange(padding, dtype=np.int64)])
    tokens_L = np.concatenate([pack.tokens_L, np.zeros(padding, np.int64)])
    ranges = split_ranges(total, parts, part)
    own_L = _list_tokens(ranges)
    place_L = np.full(total, -1, np.int64)
    place_L[own_L] = np.arange(len(own_L))
    is_own_T = place_L[pack.logit_index_T] >= 0

    def choose(values_T: Floats) -> Floats:
        return values_T[is_own_T]

    everyone = np.concatenate([_list_tokens(split_ranges(total, parts, each)) for each in range(parts)])
    order_L = np.empty(total, np.int64)
    order_L[everyone] = np.arange(total)
    sliced = Pack(
        tokens_L=tokens_L[own_L],
        positions_L=positions_L[own_L],
        bounds=bounds,
        logit_index_T=place_L[pack.logit_index_T[is_own_T]],
        targets_T=pack.targets_T[is_own_T],
        sampled_logp_T=choose(pack.sampled_logp_T),
        advantage_T=choose(pack.advantage_T),
        temperature_T=choose(pack.temperature_T),
        mask_T=choose(pack.mask_T),
    )
    return sliced, ContextSlice(bounds, ranges, order_L, group)


def _list_tokens(ranges: tuple[tuple[int, int], ...]) -> Ints:
    return np.concatenate([np.arange(first, last, dtype=np.int64) for first, last in ranges])


class GatherRows(torch.autograd.Function):  # type: ignore[misc]
    """The rows of all ranks of the group, one rank after the other; their gradients are summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Any) -> Tensor:
        ctx.group = group
        gathered = rows.new_empty(dist.get_world_size(group) * rows.shape[0], *rows.shape[1:])
        gather_rows(gathered, rows.contiguous(), group=group)
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        own = gradient.new_empty(gradient.shape[0] // dist.get_world_size(ctx.group), *gradient.shape[1:])
        scatter_sum(own, gradient.contiguous(), group=ctx.group)
        return own, None


def attend_in_context(
    query_HLD: Tensor,
    key_KLD: Tensor,
    value_KLD: Tensor,
    part: ContextSlice,
    *,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """Outputs (own tokens, H, D) of this rank's queries over the keys and values of all ranks."""
    order = torch.from_numpy(part.order_L).to(query_HLD.device)
    both = torch.stack([key_KLD, value_KLD]).transpose(0, 2)
    key_KLD, value_KLD = GatherRows.apply(both, part.group)[order].transpose(0, 2)
    # With a mask, GPUs have no fast kernel for fewer keys than queries.
    key_HLD, value_HLD = (each.repeat_interleave(len(query_HLD) // len(each), dim=0) for each in (key_KLD, value_KLD))
    outputs, done = [], 0
    for start, first, last in part.list_queries():
        count = last - first
        queries_1HQD = query_HLD[None, :, done : done + count]
        distance = torch.arange(first, last, device=order.device)[:, None] - torch.arange(
            start, last, device=order.device
        )
        mask = (distance >= 0) & (distance < (window or last))
        out_1HQD = scaled_dot_product_attention(
            queries_1HQD,
            key_HLD[None, :, start:last],
            value_HLD[None, :, start:last],
            attn_mask=mask,
            scale=scaling,
        )
        outputs.append(out_1HQD[0].transpose(0, 1))
        done += count
    return torch.cat(outputs)
