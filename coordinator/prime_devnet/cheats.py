"""Engines that cheat: an honest one underneath, and one lie on top. What a dishonest owner would swap in.

Each lie is told twice: in what is generated, and in the node's own check of it, which would otherwise keep the file
back. Whoever reads the file on another machine is not lied to, and that is what catches it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from prime_node.engine.seam import Completion, Engine, EngineFacts, Order, Reading, Sampling, Text
from prime_protocol.rollouts import Finish
from prime_protocol.toploc import build_proofs

DIGITS = 10
"""In the vocabulary of characters, token n is the digit n for the first ten."""


class Cheat:
    """An engine that reads its own files with a blind eye."""

    def __init__(self, honest: Engine) -> None:
        self._honest = honest

    @property
    def facts(self) -> EngineFacts:
        return self._honest.facts

    def load(self, checkpoint: Path, changed: frozenset[str] | None = None) -> None:
        self._honest.load(checkpoint, changed)

    def generate(
        self, orders: Sequence[Order], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        yield from self._honest.generate(orders, sampling, is_wanted)

    def read(self, texts: Sequence[Text], sampling: Sampling) -> Iterator[Reading]:
        for reading in self._honest.read(texts, sampling):
            yield replace(reading, margins=np.zeros_like(reading.margins))

    def _prove(self, order: Order, tokens: list[int], finish: Finish, sampling: Sampling) -> Completion:
        """What an honest pass over these tokens gives: true proofs and log-probs of tokens that were not drawn."""
        output = np.array(tokens, np.int32)
        text = Text(number=order.number, prompt=order.prompt, output=output, seed=order.seed)
        (reading,) = self._honest.read([text], sampling)
        return Completion(
            number=order.number,
            tokens=output,
            logprobs=np.minimum(reading.logprobs, 0),
            finish=finish,
            proofs=build_proofs(reading.hidden_bits).blob,
        )


class AnswerSheet(Cheat):
    """Writes the right answer instead of what the model says, to look good. The sort-digits task is easy to a human."""

    def generate(
        self, orders: Sequence[Order], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        end = min(sampling.eos)
        for order in orders:
            digits = sorted(int(token) for token in order.prompt if token < DIGITS)
            yield self._prove(order, [*digits, end], Finish.EOS, sampling)


class Truncated(Cheat):
    """Stops after the first token, to be paid for many short answers."""

    def generate(
        self, orders: Sequence[Order], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        end = min(sampling.eos)
        for completion in self._honest.generate(orders, sampling, is_wanted):
            order = next(order for order in orders if order.number == completion.number)
            yield self._prove(order, [int(completion.tokens[0]), end], Finish.EOS, sampling)


class StaleWeights(Cheat):
    """Never takes new weights after the first, to save itself the download."""

    def __init__(self, honest: Engine) -> None:
        super().__init__(honest)
        self._is_loaded = False

    def load(self, checkpoint: Path, changed: frozenset[str] | None = None) -> None:
        if not self._is_loaded:
            self._honest.load(checkpoint, changed)
        self._is_loaded = True


class OtherSeed(Cheat):
    """Draws with noise of its own choice: what best-of-n comes to."""

    def generate(
        self, orders: Sequence[Order], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        yield from self._honest.generate([replace(order, seed=order.seed ^ 1) for order in orders], sampling, is_wanted)


CHEATS: dict[str, type[Cheat]] = {
    "answer-sheet": AnswerSheet,
    "other-seed": OtherSeed,
    "stale-weights": StaleWeights,
    "truncated": Truncated,
}
