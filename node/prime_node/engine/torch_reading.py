"""What a model says of finished texts: one pass for several of them, then their output tokens in bounded pieces."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prime_node.engine.seam import Reading, Sampling, Text
from prime_node.engine.torch_model import Model
from prime_node.engine.torch_sampling import Draws, get_logprobs, get_margins, take_likeliest, take_own
from prime_node.engine.torch_twin import Twin
from prime_protocol.errors import RemoteError
from prime_protocol.toploc import bits_of_tensor

LOGITS_MAX = 2**22
"""Logits at once: 16 MiB in float32, whatever the vocabulary."""

Piece = tuple[Tensor, Tensor, Tensor]
"""Margins, log-probs, and log-probs of the likeliest end token, of some rows."""
Logits = Callable[[Tensor], Tensor]


def check_texts(texts: Sequence[Text], *, vocabulary: int, context_max: int) -> None:
    """The tokens are the author's: what no model could have written is its fault."""
    for text in texts:
        field = f"rows[{text.number}]"
        if not len(text.prompt) or not len(text.output):
            raise RemoteError(field, "has no prompt or no output")
        if len(text.prompt) + len(text.output) > context_max:
            raise RemoteError(field, f"is longer than the model's context of {context_max} tokens")
        for tokens in (text.prompt, text.output):
            if tokens.min() < 0 or tokens.max() >= vocabulary:
                raise RemoteError(field, f"has tokens outside of the {vocabulary} there are")


def plan_groups(texts: Sequence[Text], tokens_max: int) -> list[list[Text]]:
    """Texts of about the same length together, at most so many tokens at once, at least one text."""
    groups: list[list[Text]] = []
    tokens = 0
    for text in sorted(texts, key=get_length):
        if not groups or tokens + get_length(text) > tokens_max:
            groups.append([])
            tokens = 0
        groups[-1].append(text)
        tokens += get_length(text)
    return groups


def get_length(text: Text) -> int:
    return len(text.prompt) + len(text.output)


def read_group(
    model: Model, texts: Sequence[Text], sampling: Sampling, *, vocabulary: int, twin: Twin | None = None
) -> Iterator[Reading]:
    """With a twin the numbers are those of the one that does not round, and `own_...` of the one that does."""
    # The last token leads to nothing that is asked for.
    fed = [np.concatenate((text.prompt, text.output[:-1])).astype(np.int64) for text in texts]
    firsts = [len(text.prompt) - 1 for text in texts]
    exact: Model | Twin = model if twin is None or twin.is_rounded else twin
    rows_max = max(1, LOGITS_MAX // vocabulary)
    hidden = exact.read(fed, firsts)
    pieces = measure(exact.get_logits, hidden, texts, sampling, rows_max)
    columns = [torch.cat(parts).cpu().numpy() for parts in zip(*pieces, strict=True)]
    bits = bits_of_tensor(hidden.to(torch.bfloat16))
    own_bits = own_logprobs = None
    if twin is not None:
        rounded: Model | Twin = twin if twin.is_rounded else model
        own_hidden = rounded.read(fed, firsts)
        own_bits = bits_of_tensor(own_hidden.to(torch.bfloat16))
        own_logprobs = get_own_logprobs(rounded.get_logits, own_hidden, texts, sampling, rows_max).cpu().numpy()
    start = 0
    for text in texts:
        rows = slice(start, start := start + len(text.output))
        margins, logprobs, eos_logprobs = (column[rows] for column in columns)
        yield Reading(
            number=text.number,
            hidden_bits=bits[rows],
            margins=margins,
            logprobs=logprobs,
            eos_logprobs=eos_logprobs,
            own_hidden_bits=None if own_bits is None else own_bits[rows],
            own_logprobs=None if own_logprobs is None else own_logprobs[rows],
        )


def get_own_logprobs(
    get_logits: Logits, hidden: Tensor, texts: Sequence[Text], sampling: Sampling, rows_max: int
) -> Tensor:
    """Of each output token, a bounded number at a time."""
    tokens = torch.from_numpy(np.concatenate([text.output for text in texts]).astype(np.int64)).to(hidden.device)
    pieces = zip(hidden.split(rows_max), tokens.split(rows_max), strict=True)
    return torch.cat([take_own(get_logprobs(get_logits(some), sampling.temperature), own) for some, own in pieces])


def measure(
    get_logits: Logits, hidden: Tensor, texts: Sequence[Text], sampling: Sampling, rows_max: int
) -> Iterator[Piece]:
    """The rows of all texts, a bounded number at a time."""
    tokens = torch.from_numpy(np.concatenate([text.output for text in texts]).astype(np.int64))
    seeds = np.repeat(np.array([text.seed for text in texts], np.uint64), [len(text.output) for text in texts])
    positions: NDArray[np.int64] = np.concatenate([np.arange(len(text.output)) for text in texts])
    start = 0
    while start < len(hidden):
        rows = slice(start, start := start + rows_max)
        logits = get_logits(hidden[rows])
        own = tokens[rows].to(logits.device)
        margins = get_margins(logits, own, Draws(sampling.temperature, seeds[rows], positions[rows]))
        logprobs = get_logprobs(logits, sampling.temperature)
        yield margins, take_own(logprobs, own), take_likeliest(logprobs, sampling.eos)
