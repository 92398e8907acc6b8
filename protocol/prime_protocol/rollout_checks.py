"""What the values of a rollout file may be, checked a column at a time. Cheap enough for every file.

Whether the tokens are the model's is for validators; see sampling.py and toploc.py.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prime_protocol.constants import (
    OUTPUT_TOKENS_MAX,
    PERMUTATION_SIZE_MAX,
    TEMPERATURE_MAX,
    TEMPERATURE_MIN,
)
from prime_protocol.errors import RemoteError
from prime_protocol.rollout_pages import Lists
from prime_protocol.rollouts import NO_TARGET, Finish, RolloutLimits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """The decoded columns, in the order of the file."""

    slot: NDArray[np.int64]
    sample: NDArray[np.int32]
    task: NDArray[np.int64]
    temperature: NDArray[np.float64]
    target_length: NDArray[np.int32]
    finish: NDArray[np.int32]
    prompt_tokens: Lists
    output_tokens: Lists
    output_logprobs: Lists
    proofs: list[bytes]


def check_columns(columns: Columns, limits: RolloutLimits) -> None:
    """Refuse the first value that no honest file has, and name its row."""
    slots, samples = np.divmod(np.arange(limits.rows), limits.samples_per_slot)
    refuse("slot", columns.slot, columns.slot != slots + limits.first_slot)
    refuse("sample", columns.sample, columns.sample != samples)
    refuse("task", columns.task, (columns.task < 0) | (columns.task >= PERMUTATION_SIZE_MAX))
    refuse("temperature", columns.temperature, ~allowed_temperatures(columns.temperature))
    lengths = columns.target_length
    refuse("target_length", lengths, (lengths != NO_TARGET) & ((lengths < 1) | (lengths > OUTPUT_TOKENS_MAX)))
    refuse("finish", columns.finish, ~np.isin(columns.finish, list(Finish)))
    check_lengths("prompt_tokens", columns.prompt_tokens, limits.prompt_tokens_max)
    check_lengths("output_tokens", columns.output_tokens, limits.output_tokens_max)
    check_tokens("prompt_tokens", columns.prompt_tokens, limits.vocab_size)
    check_tokens("output_tokens", columns.output_tokens, limits.vocab_size)
    check_logprobs(columns)


def refuse(field: str, values: NDArray[Any], wrong: NDArray[np.bool_]) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        raise RemoteError(f"rows[{row}].{field}", f"may not be {values[row]}")


def allowed_temperatures(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Greedy or in range; not -0.0, which would be a second way to write 0."""
    greedy = (values == 0) & ~np.signbit(values)
    allowed: NDArray[np.bool_] = greedy | ((values >= TEMPERATURE_MIN) & (values <= TEMPERATURE_MAX))
    return allowed


def check_lengths(field: str, lists: Lists, tokens_max: int) -> None:
    longest = max(lists.lengths)
    if longest > tokens_max:
        raise RemoteError(
            f"rows[{lists.lengths.index(longest)}].{field}", f"has {longest} tokens, the limit is {tokens_max}"
        )


def check_tokens(field: str, lists: Lists, vocab_size: int) -> None:
    if lists.values.min() < 0 or lists.values.max() >= vocab_size:
        refuse_element(field, lists, (lists.values < 0) | (lists.values >= vocab_size))


def check_logprobs(columns: Columns) -> None:
    """One per output token, finite and not above 0."""
    lists = columns.output_logprobs
    if lists.lengths != columns.output_tokens.lengths:
        pairs = zip(lists.lengths, columns.output_tokens.lengths, strict=True)
        row = next(number for number, (given, wanted) in enumerate(pairs) if given != wanted)
        raise RemoteError(f"rows[{row}].output_logprobs", f"has {lists.lengths[row]} values, expected one per token")
    # A NaN makes both comparisons false.
    if not (lists.values.min() > -np.inf and lists.values.max() <= 0):
        refuse_element("output_logprobs", lists, ~(np.isfinite(lists.values) & (lists.values <= 0)))


def refuse_element(field: str, lists: Lists, wrong: NDArray[np.bool_]) -> None:
    """Name the row and the place of the first wrong element."""
    element = int(wrong.argmax())
    row = int(np.searchsorted(np.cumsum(lists.lengths), element, side="right"))
    place = element - sum(lists.lengths[:row])
    raise RemoteError(f"rows[{row}].{field}[{place}]", f"may not be {lists.values[element]}")
