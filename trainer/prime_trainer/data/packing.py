"""Packing: samples of unequal length in one forward pass, without computing on padding. Pure.

A pack is one row of tokens with the bounds of its samples. Positions restart with each sample, and attention does not
cross a bound (see model/attention.py). The last token of a sample is predicted but never an input. A model that would
carry state across a bound gets one row per sample instead, padded at the end: what follows a sample's end does not
change what comes before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]
T = TypeVar("T")


class PackLayout(StrEnum):
    """How the samples of one forward pass are arranged."""

    PACKED = "packed"
    """Concatenated in one row."""
    STACKED = "stacked"
    """One row per sample, padded at the end."""
    SINGLE = "alone"
    """One sample per pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One completion to train on."""

    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    sampled_logprobs: Floats
    """Log-probs of the output tokens when the worker sampled them."""
    advantage: float
    temperature: float

    @property
    def length(self) -> int:
        """Number of input tokens."""
        return len(self.prompt_tokens) + len(self.output_tokens) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """One forward pass. L is input tokens, T trained tokens, N samples."""

    tokens_L: Ints
    positions_L: Ints
    bounds: tuple[int, ...]
    """N + 1 offsets: sample n is tokens bounds[n] to bounds[n + 1]."""
    logit_index_T: Ints
    """Index of the input token whose logits predict each trained token."""
    targets_T: Ints
    sampled_logp_T: Floats
    advantage_T: Floats
    temperature_T: Floats
    mask_T: Floats
    """1 for a trained token, 0 in a filler pack."""

    @property
    def trained_tokens(self) -> int:
        return int(self.mask_T.sum())


def make_pack(samples: Sequence[Sample]) -> Pack:
    """Samples of equal length should be adjacent: attention then computes them in one call."""
    lengths = [sample.length for sample in samples]
    outputs = [len(sample.output_tokens) for sample in samples]
    bounds = (0, *np.cumsum(lengths).tolist())
    return Pack(
        tokens_L=np.concatenate(
            [part for each in samples for part in (each.prompt_tokens, each.output_tokens[:-1])], dtype=np.int64
        ),
        positions_L=np.concatenate([np.arange(length, dtype=np.int64) for length in lengths]),
        bounds=bounds,
        logit_index_T=np.concatenate(
            [np.arange(end - count, end) for end, count in zip(bounds[1:], outputs, strict=True)]
        ),
        targets_T=np.concatenate([sample.output_tokens for sample in samples], dtype=np.int64),
        sampled_logp_T=np.concatenate([sample.sampled_logprobs for sample in samples]),
        advantage_T=np.repeat(np.array([sample.advantage for sample in samples], np.float32), outputs),
        temperature_T=np.repeat(np.array([sample.temperature or 1.0 for sample in samples], np.float32), outputs),
        mask_T=np.ones(sum(outputs), np.float32),
    )


def make_filler_pack() -> Pack:
    """A pack with weight 0. It gives a rank a pass to run while other ranks have one pack more."""
    zero, nothing = np.zeros(1, np.int64), np.zeros(1, np.float32)
    return Pack(zero, zero, (0, 1), zero, zero, nothing, nothing, nothing + 1, nothing)


def pack_samples(samples: Sequence[Sample], *, tokens_max: int) -> list[Pack]:
    """First fit, longest first. A sample that is longer than a pack gets its own; nothing is truncated."""
    bins: list[list[Sample]] = []
    free: list[int] = []
    for sample in sorted(samples, key=lambda sample: -sample.length):
        first = next((number for number, left in enumerate(free) if left >= sample.length), None)
        if first is None:
            bins.append([sample])
            free.append(tokens_max - sample.length)
        else:
            bins[first].append(sample)
            free[first] -= sample.length
    return [make_pack(each) for each in bins]


def stack_samples(samples: Sequence[Sample], *, tokens_max: int) -> list[Pack]:
    """Longest first, as many per stack as fit when each is padded to the longest."""
    stacks: list[list[Sample]] = []
    for sample in sorted(samples, key=lambda sample: -sample.length):
        if stacks and (len(stacks[-1]) + 1) * stacks[-1][0].length <= tokens_max:
            stacks[-1].append(sample)
        else:
            stacks.append([sample])
    return [make_pack(each) for each in stacks]


def make_packs(samples: Sequence[Sample], layout: PackLayout, *, tokens_max: int) -> list[Pack]:
    """Forward passes over all samples, of at most `tokens_max` tokens each, padding included."""
    if layout is PackLayout.STACKED:
        return stack_samples(samples, tokens_max=tokens_max)
    return pack_samples(samples, tokens_max=tokens_max if layout is PackLayout.PACKED else 1)


def stack_rows(pack: Pack) -> tuple[Ints, Ints]:
    """Tokens (N, longest) with one row per sample, and the pack's logit indexes in the flattened rows."""
    starts, lengths = np.array(pack.bounds[:-1]), np.diff(pack.bounds)
    tokens_NL = np.zeros((len(lengths), lengths.max()), np.int64)
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        tokens_NL[row, :length] = pack.tokens_L[start : start + length]
    rows_T = np.searchsorted(starts, pack.logit_index_T, "right") - 1
    return tokens_NL, rows_T * tokens_NL.shape[1] + pack.logit_index_T - starts[rows_T]


def distribute_packs(packs: Sequence[Pack], ranks: int) -> list[list[Pack]]:
    """Give each rank the same number of packs, of about equal size; filler packs make up the difference."""
    shares = _balance(packs, ranks, lambda pack: len(pack.tokens_L))
    most = max(1, *map(len, shares))
    return [share + [make_filler_pack()] * (most - len(share)) for share in shares]


def split_minibatches(samples: Sequence[Sample], parts: int) -> list[list[Sample]]:
    """Split into minibatches of about equally many trained tokens; none is empty."""
    return _balance(samples, min(parts, len(samples)), lambda sample: len(sample.output_tokens))


def _balance(items: Sequence[T], parts: int, size: Callable[[T], int]) -> list[list[T]]:
    """Largest first, each into the part that has the least so far."""
    split: list[list[T]] = [[] for _ in range(parts)]
    loads = [0] * parts
    for item in sorted(items, key=size, reverse=True):
        part = loads.index(min(loads))
        split[part].append(item)
        loads[part] += size(item)
    return split
