"""What a model says of finished texts: one pass for several of them, then their output tokens in bounded pieces."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prime_node.engine.seam import Reading, Sampling, Text
from prime_node.engine.torch_model import Model
from prime_node.engine.torch_sampling import Draws, get_logprobs, get_margins, take_likeliest, take_own
from prime_protocol.errors import RemoteError
from prime_protocol.toploc import bits_of_tensor

LOGITS_MAX = 2**22
"""Logits at once: 16 MiB in float32, whatever the vocabulary."""

Piece = tuple[Tensor, Tensor, Tensor]
"""Margins, log-probs, and log-probs of the likeliest end token, of some rows."""


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


def read_group(model: Model, texts: Sequence[Text], sampling: Sampling, *, vocabulary: int) -> Iterator[Reading]:
    # The last token leads to nothing that is asked for.
    fed = [np.concatenate((text.prompt, text.output[:-1])).astype(np.int64) for text in texts]
    hidden = model.read(fed, [len(text.prompt) - 1 for text in texts])
    pieces = measure(model, hidden, texts, sampling, max(1, LOGITS_MAX // vocabulary))
    columns = [torch.cat(parts).cpu().numpy() for parts in zip(*pieces, strict=True)]
    bits = bits_of_tensor(hidden.to(torch.bfloat16))
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
        )


def measure(model: Model, hidden: Tensor, texts: Sequence[Text], sampling: Sampling, rows_max: int) -> Iterator[Piece]:
    """The rows of all texts, a bounded number at a time."""
    tokens = torch.from_numpy(np.concatenate([text.output for text in texts]).astype(np.int64))
    seeds = np.repeat(np.array([text.seed for text in texts], np.uint64), [len(text.output) for text in texts])
    positions: NDArray[np.int64] = np.concatenate([np.arange(len(text.output)) for text in texts])
    start = 0
    while start < len(hidden):
        rows = slice(start, start := start + rows_max)
        logits = model.get_logits(hidden[rows])
        own = tokens[rows].to(logits.device)
        margins = get_margins(logits, own, Draws(sampling.temperature, seeds[rows], positions[rows]))
        logprobs = get_logprobs(logits, sampling.temperature)
        yield margins, take_own(logprobs, own), take_likeliest(logprobs, sampling.eos)
