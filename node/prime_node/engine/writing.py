"""A completion while it is being written: what it answers to and what it has so far. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from prime_node.engine.seam import Completion, Order, Sampling
from prime_protocol.errors import LocalError
from prime_protocol.rollouts import Finish


@dataclass(slots=True, eq=False)
class Writing:
    """One order on its way. It can leave a batch and join another one at any token."""

    order: Order
    prompt: list[int]
    page: int | None = None
    """Where its hidden states wait for their proof, once it has joined a batch."""
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.output)

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    def append(self, token: int, logprob: float) -> None:
        self.output.append(token)
        self.logprobs.append(logprob)

    def get_finish(self, sampling: Sampling) -> Finish:
        """Why it ends here."""
        return Finish.EOS if self.output[-1] in sampling.eos else Finish.LENGTH

    def complete(self, finish: Finish, proofs: bytes) -> Completion:
        return Completion(
            number=self.order.number,
            tokens=np.array(self.output, np.int32),
            logprobs=np.array(self.logprobs, np.float32),
            finish=finish,
            proofs=proofs,
        )


@dataclass(slots=True, eq=False)
class Lineup:
    """The rows of a batch as arrays, so that a step needs no loop over them. Good until somebody joins or leaves."""

    writings: Sequence[Writing]
    seeds: NDArray[np.uint64]
    pages: NDArray[np.int64]
    written: NDArray[np.int64]
    """Tokens that each has so far."""

    @classmethod
    def of(cls, writings: Sequence[Writing]) -> "Lineup":
        """Everybody in a batch has a page."""
        return cls(
            writings,
            np.array([writing.order.seed for writing in writings], np.uint64),
            np.array([writing.page for writing in writings], np.int64),
            np.array([len(writing.output) for writing in writings], np.int64),
        )

    def find_ended(self, tokens: Sequence[int], sampling: Sampling) -> list[int]:
        """Rows that end with the tokens they have just got."""
        if self.written.max() >= sampling.tokens_max:
            is_long = (self.written >= sampling.tokens_max).tolist()
            return [row for row, token in enumerate(tokens) if is_long[row] or token in sampling.eos]
        return [row for row, token in enumerate(tokens) if token in sampling.eos]


def check_orders(orders: Sequence[Order], sampling: Sampling, *, vocabulary: int, context_max: int) -> None:
    """LocalError where the model cannot answer: a completion cut short by the context would look like a lie."""
    if sampling.tokens_max < 1:
        raise LocalError(f"tokens_max is {sampling.tokens_max}, it must be at least 1")
    for order in orders:
        if not len(order.prompt):
            raise LocalError(f"order {order.number} has no prompt; there must be a token to go on from")
        if order.prompt.min() < 0 or order.prompt.max() >= vocabulary:
            raise LocalError(f"the prompt of order {order.number} has tokens outside of the {vocabulary} there are")
        if len(order.prompt) + sampling.tokens_max > context_max:
            raise LocalError(
                f"order {order.number} has {len(order.prompt)} prompt tokens and may take {sampling.tokens_max} more; "
                f"the model's context ends at {context_max}"
            )
