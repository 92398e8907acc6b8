"""Samples of unequal length, packed end to end so that no computation goes into padding. Pure.

A pack is one row of tokens with the bounds of its samples; positions begin again with each sample, and attention does
not cross a bound (see attention.py). The last token of a sample is predicted but never read, so it is no input. A model
that would carry something over a bound gets a row for each sample instead, as long as the longest: what comes after a
sample's end changes nothing before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


class PackLayout(StrEnum):
    """How the samples of one forward pass lie."""

    PACKED = "packed"
    """End to end."""
    STACKED = "stacked"
    """Each in a row of its own, filled up at the end."""
    SINGLE = "alone"
    """One sample a pass."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One completion to learn from."""

    prompt_tokens: NDArray[np.int32]
    output_tokens: NDArray[np.int32]
    sampled_logprobs: Floats
    """Of the output tokens, when the worker drew them."""
    advantage: float
    temperature: float

    @property
    def length(self) -> int:
        """Input tokens."""
        return len(self.prompt_tokens) + len(self.output_tokens) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    """One forward pass. L is input tokens, T trained tokens, N samples."""

    tokens_L: Ints
    positions_L: Ints
    bounds: tuple[int, ...]
    """N + 1 of them: sample n is tokens bounds[n] to bounds[n + 1]."""
    logit_index_T: Ints
    """The input token that each trained token is predicted from."""
    targets_T: Ints
    sampled_logp_T: Floats
    advantage_T: Floats
    temperature_T: Floats
    mask_T: Floats
    """1 for a trained token, 0 in a blank pack."""

    @property
    def trained_tokens(self) -> int:
        return int(self.mask_T.sum())


def make_pack(samples: Sequence[Sample]) -> Pack:
    """Equal lengths should stand together: attention then takes them in one call."""
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
    """A pack that weighs nothing: it keeps a rank busy while others have one more than it."""
    zero, nothing = np.zeros(1, np.int64), np.zeros(1, np.float32)
    return Pack(zero, zero, (0, 1), zero, zero, nothing, nothing, nothing + 1, nothing)


def pack_samples(samples: Sequence[Sample], *, tokens_max: int) -> list[Pack]:
    """First fit, longest first. A sample that is longer than a pack gets one of its own; nothing is cut."""
    bins: list[list[Sample]] = []
    rooms: list[int] = []
    for sample in sorted(samples, key=lambda sample: -sample.length):
        place = next((n for n, room in enumerate(rooms) if room >= sample.length), None)
        if place is None:
            bins.append([sample])
            rooms.append(tokens_max - sample.length)
        else:
            bins[place].append(sample)
            rooms[place] -= sample.length
    return [make_pack(each) for each in bins]


def stack_samples(samples: Sequence[Sample], *, tokens_max: int) -> list[Pack]:
    """Longest first, as many as fit when each takes as much as the longest of them."""
    stacks: list[list[Sample]] = []
    for sample in sorted(samples, key=lambda sample: -sample.length):
        if stacks and (len(stacks[-1]) + 1) * stacks[-1][0].length <= tokens_max:
            stacks[-1].append(sample)
        else:
            stacks.append([sample])
    return [make_pack(each) for each in stacks]


def make_packs(samples: Sequence[Sample], layout: PackLayout, *, tokens_max: int) -> list[Pack]:
    """Forward passes over all samples, of at most so many tokens each, filling included."""
    if layout is PackLayout.STACKED:
        return stack_samples(samples, tokens_max=tokens_max)
    return pack_samples(samples, tokens_max=tokens_max if layout is PackLayout.PACKED else 1)


def stack_rows(pack: Pack) -> tuple[Ints, Ints]:
    """Tokens (N, longest) with a row for each sample, and where the pack's places are in them, row after row."""
    starts, lengths = np.array(pack.bounds[:-1]), np.diff(pack.bounds)
    tokens_NL = np.zeros((len(lengths), lengths.max()), np.int64)
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        tokens_NL[row, :length] = pack.tokens_L[start : start + length]
    rows_T = np.searchsorted(starts, pack.logit_index_T, "right") - 1
    return tokens_NL, rows_T * tokens_NL.shape[1] + pack.logit_index_T - starts[rows_T]


def distribute_packs(packs: Sequence[Pack], ranks: int) -> list[list[Pack]]:
    """To each rank as many as to the others, the largest first to who has least, filled up with blanks."""
    hands: list[list[Pack]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for pack in sorted(packs, key=lambda pack: -len(pack.tokens_L)):
        rank = loads.index(min(loads))
        hands[rank].append(pack)
        loads[rank] += len(pack.tokens_L)
    most = max(1, *map(len, hands))
    return [hand + [make_filler_pack()] * (most - len(hand)) for hand in hands]


def split_minibatches(samples: Sequence[Sample], parts: int) -> list[list[Sample]]:
    """Minibatches of about as many trained tokens each; none is empty."""
    split: list[list[Sample]] = [[] for _ in range(min(parts, len(samples)))]
    loads = [0] * len(split)
    for sample in sorted(samples, key=lambda sample: -len(sample.output_tokens)):
        part = loads.index(min(loads))
        split[part].append(sample)
        loads[part] += len(sample.output_tokens)
    return split
