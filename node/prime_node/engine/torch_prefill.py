"""How whole sequences look at themselves: with our own kernel on one thread of a CPU, else with torch's.

Audits read this way, and prompts are read this way before they are answered. torch's way takes about twice as long on
short heads, which is two fifths of an audit of a small model.
"""

import ctypes
from functools import cache as remember
from typing import Any

from torch import Tensor
from torch.nn import functional

from prime_node.engine.native import bind
from prime_node.engine.torch_attention import NEW, POINTER, SIZE, address, is_plain

PANEL, QUERIES = 16, 6
"""As in native/prefill.c: keys that lie together, and queries that are taken side by side."""


def attend_run(queries: Tensor, keys: Tensor, values: Tensor, length: int) -> Tensor:
    """Sequences of one length end to end, from (tokens, heads, size) each to what was found, (tokens, heads * size)."""
    if is_native(queries):
        return attend_natively(queries, keys, values, length)
    query, key, value = (tensor.unflatten(0, (-1, length)).transpose(1, 2) for tensor in (queries, keys, values))
    found = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return found.transpose(1, 2).flatten(2).flatten(0, 1)


def is_native(queries: Tensor) -> bool:
    """Whether the kernel serves here."""
    return is_plain(queries.dtype, queries.device, queries.shape[2]) and get_kernel() is not None


def attend_natively(queries: Tensor, keys: Tensor, values: Tensor, length: int) -> Tensor:
    (tokens, query_heads, size), heads = queries.shape, keys.shape[1]
    padded = -(-length // PANEL) * PANEL
    workspace = queries.new_empty(padded * (2 * size + QUERIES))
    found = queries.new_empty((tokens, query_heads * size))
    get_kernel()(
        *(part for new in (queries, keys, values) for part in (address(new), new.stride(0))),
        tokens // length,
        length,
        heads,
        query_heads // heads,
        size,
        size**-0.5,
        workspace.data_ptr(),
        found.data_ptr(),
    )
    return found


@remember
def get_kernel() -> Any:
    """prefill_attend of native/prefill.c; None where it was not compiled."""
    return bind("prefill", "prefill_attend", *NEW, *[SIZE] * 5, ctypes.c_float, POINTER, POINTER)
