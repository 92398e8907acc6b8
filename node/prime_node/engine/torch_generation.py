"""One call of generate: who is writing, who waits in line, who is done and waits for proofs.

Sequences that finish leave their row at once and the next in line take it, so that long completions hold nobody up.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from prime_node.engine.seam import Completion, Order, Sampling
from prime_node.engine.torch_model import Batch, Model
from prime_node.engine.torch_proofs import ProofMaker
from prime_node.engine.torch_sampling import Draws, choose_tokens
from prime_node.engine.writing import Lineup, Writing
from prime_protocol.rollouts import Finish


class Generation:
    """Orders on their way. `proofs` has room for each sequence that is in a batch."""

    def __init__(self, orders: Sequence[Order], sampling: Sampling, proofs: ProofMaker) -> None:
        self.sampling = sampling
        self.proofs = proofs
        self.waiting = deque(Writing(order, order.prompt.tolist()) for order in orders)
        self.running: list[Writing] = []
        """By row of the batch."""
        self._lineup: Lineup | None = None
        """Of those, while they are the same."""
        self.ending: deque[tuple[Writing, Finish]] = deque()
        """Done, in the order in which their proofs will be."""

    @property
    def is_busy(self) -> bool:
        return bool(self.waiting or self.running)

    def step(self, model: Model, batch: Batch, room: int) -> None:
        """One token for everybody. If memory runs out, nobody has got one, and `requeue` is all that is left to do."""
        joining = batch.pick(self.waiting, room - len(self.running))
        self.running += joining
        for writing in joining:
            self.proofs.join(writing)
        if joining or self._lineup is None:
            self._lineup = Lineup.of(self.running)
        lineup = self._lineup
        hidden = batch.advance(self.running, len(joining))
        draws = Draws(self.sampling.temperature, lineup.seeds, lineup.written)
        tokens, logprobs = choose_tokens(model.get_logits(hidden), draws)
        self.proofs.note(lineup, hidden)
        for writing, token, logprob in zip(self.running, tokens, logprobs, strict=True):
            writing.append(token, logprob)
        lineup.written += 1
        self._let_go(batch, lineup.find_ended(tokens, self.sampling))

    def requeue(self) -> None:
        """Everybody back to the front of the line, with what they have written."""
        self.waiting.extendleft(reversed(self.running))
        self.running = []
        self._lineup = None

    def take_ready(self, *, is_last: bool = False) -> Iterator[Completion]:
        """Completions whose proofs are made; with `is_last` all, however long that takes."""
        if is_last:
            self.proofs.hand_over()
        while self.ending and (is_last or self.proofs.is_ready(self.ending[0][0])):
            writing, finish = self.ending.popleft()
            yield writing.complete(finish, self.proofs.take(writing))

    def _let_go(self, batch: Batch, gone: list[int]) -> None:
        for row in gone:
            writing = self.running[row]
            self.ending.append((writing, writing.get_finish(self.sampling)))
            self.proofs.finish(writing)
        if gone:
            rows = self.running
            self._lineup = None
            # First without them: moving rows may run out of memory, and who is done must not be requeued.
            self.running = [writing for row, writing in enumerate(rows) if row not in gone]
            self.running = [rows[row] for row in batch.leave(gone)]
