"""Cheats about proofs: the model answers as it should, and something else stands where its proofs belong.

The tokens are honest here, so that nothing but the proofs can give it away. Half of a proof's forgery is in the node's
own check, which reads the proofs as well: measure_blindly stands in its place, in the cheater's engine process.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from prime_devnet import forgery
from prime_devnet.cheats import Cheat
from prime_node.engine.measuring import Claim, RowNumbers, measure
from prime_node.engine.seam import Completion, Order, Reading, Sampling, Text
from prime_protocol.ids import Digest
from prime_protocol.toploc import build_proofs

LOOKS, LOOK_TOKENS = 8, 64
"""Texts that a forger lets the model read once, to know what its largest values look like."""


def measure_blindly(claim: Claim, reading: Reading, *, seed: Digest) -> RowNumbers:
    """In the place of the node's own check: as if the proofs were the true ones."""
    return measure(replace(claim, proofs=build_proofs(reading.hidden_bits).blob), reading, seed=seed)


class ForgedProof(Cheat):
    """Proofs made without the model, from what it looked like on other texts."""

    forge: forgery.Forge
    _known: forgery.Known | None = None

    def generate(
        self, orders: Sequence[Order], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        self._known = self._known or self._look(sampling)
        for done in self._honest.generate(orders, sampling, is_wanted):
            blob = forgery.forge_row(type(self).forge, self._known, tokens=len(done.tokens), hidden=self.facts.hidden)
            yield replace(done, proofs=blob)

    def _look(self, sampling: Sampling) -> forgery.Known:
        dice = np.random.default_rng(1)
        drawn = dice.integers(0, self.facts.vocabulary, (LOOKS, 1 + LOOK_TOKENS)).astype(np.int32)
        texts = [Text(number=number, prompt=row[:1], output=row[1:], seed=0) for number, row in enumerate(drawn)]
        return forgery.learn(np.concatenate([found.hidden_bits for found in self._honest.read(texts, sampling)]))


class ConstantProof(ForgedProof):
    """One value wherever anybody asks."""

    forge = staticmethod(forgery.make_constant)


class LowDegreeProof(ForgedProof):
    """Through a few likely values."""

    forge = staticmethod(forgery.make_low_degree)


class DressedConstantProof(ForgedProof):
    """The constant, with every coefficient filled in."""

    forge = staticmethod(forgery.make_dressed)


class LearnedProof(ForgedProof):
    """The channels that stand out, each with its likeliest value."""

    forge = staticmethod(forgery.make_learned)


class ReplayedProof(Cheat):
    """The proofs of other completions, in turn."""

    def generate(
        self, orders: Sequence[Order], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        made = list(self._honest.generate(orders, sampling, is_wanted))
        proofs = [done.proofs for done in made]
        for done, other in zip(made, forgery.replay(proofs, [*proofs[1:], *proofs[:1]]), strict=True):
            yield replace(done, proofs=other)


class SwappedChunks(Cheat):
    """The first two proofs of a completion exchanged."""

    def generate(
        self, orders: Sequence[Order], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        for done in self._honest.generate(orders, sampling, is_wanted):
            swapped = forgery.swap(done.proofs, tokens=len(done.tokens), hidden=self.facts.hidden)
            yield replace(done, proofs=swapped)
