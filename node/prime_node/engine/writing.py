"""A completion while it is being written: what it answers to and what it has so far. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from prime_node.engine.seam import Completion, Order, Sampling
from prime_protocol.errors import LocalError
from prime_protocol.rollouts import Finish


@dataclass(slots=True, eq=False)
class Writing:
    """One order on its way. It can leave a batch and join another one at any token."""

    order: Order
    prompt: list[int]
    slot: int | None = None
    """Its place where hidden states wait for their proof, once it has one."""
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

    def get_finish(self, sampling: Sampling) -> Finish | None:
        """Why it ends here; None: it goes on."""
        if self.output[-1] in sampling.eos:
            return Finish.EOS
        return Finish.LENGTH if len(self.output) >= sampling.tokens_max else None

    def complete(self, finish: Finish, proofs: bytes) -> Completion:
        return Completion(
            number=self.order.number,
            tokens=np.array(self.output, np.int32),
            logprobs=np.array(self.logprobs, np.float32),
            finish=finish,
            proofs=proofs,
        )


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
