"""Forged TOPLOC proofs, and engines that submit them with honest tokens.

The forger has run the model before, on texts of its own. It knows which values are likely and, in a model with outlying
channels, also where. From then on it builds proofs without running the model. The tokens are honest, so that only the
proofs can give the forger away. The node checks its own proofs as well, so measure_ignoring_proofs stands in for that
check in the forger's engine process.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

import numpy as np

from prime_lab.cheats.engines import Cheat
from prime_node.engine.interface import Completion, ForwardResult, GenerateRequest, Sampling, TokenSequence
from prime_node.engine.measurement import ClaimedRow, RowMeasurement, measure_row
from prime_protocol.constants import TOPLOC_CHUNK_TOKENS, TOPLOC_K, TOPLOC_PRIME, TOPLOC_PROOF_BYTES
from prime_protocol.proofs.toploc import ChunkGroup, ProofLayout, build_proofs
from prime_protocol.proofs.toploc_kernels import get_kernels
from prime_protocol.proofs.toploc_numpy import Bits
from prime_protocol.wire.ids import Digest

LOW_DEGREE = 16
CANDIDATES = 256
"""Constants that are tried before one is chosen."""
CHANNELS = 16
"""Outlying channels that a forger remembers."""


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """What a forger knows of a model's largest values."""

    constant: int
    """The pattern that is nearest to most of them."""
    channels: tuple[tuple[int, int], ...]
    """Channels that stand out most often, each with its likeliest pattern."""


ProofForger = Callable[[ModelStatistics, ChunkGroup, int], Bits]
"""The words of one proof, from what is known, the shape of the chunk, and the hidden size."""


def learn_statistics(states: Bits) -> ModelStatistics:
    """Learn from hidden states of the model, bf16 patterns by token and channel: a forger cannot know more."""
    chunks = len(states) // TOPLOC_CHUNK_TOKENS
    whole = np.ascontiguousarray(states[: chunks * TOPLOC_CHUNK_TOKENS]).reshape(chunks, -1)
    indices, values = get_kernels().select(whole)
    hidden = states.shape[1]
    channels: Counter[int] = Counter((indices % hidden).ravel().tolist())
    likeliest = []
    for channel, _ in channels.most_common(CHANNELS):
        here = values[(indices % hidden) == channel]
        likeliest.append((channel, compute_median_pattern(here)))
    return ModelStatistics(choose_constant(values), tuple(likeliest))


def choose_constant(values: Bits) -> int:
    """The pattern with the best fit to most chunks, by what the verifier compares: exponent and mantissa."""
    magnitudes = np.unique(values & 0x7FFF)
    candidates = magnitudes[np.linspace(0, len(magnitudes) - 1, min(CANDIDATES, len(magnitudes))).astype(int)]
    sign = 0x8000 if (values >> 15).mean() > 0.5 else 0
    return int(min(candidates, key=lambda pattern: compute_misfit(int(pattern), values))) | sign


def compute_misfit(pattern: int, values: Bits) -> float:
    """How far a constant is from passing, on average over the chunks."""
    matches = (values >> 7 & 0xFF) == pattern >> 7
    errors = np.abs((values & 0x7F).astype(int) - (pattern & 0x7F))
    count = matches.sum(axis=1)
    mean = np.where(count > 0, (errors * matches).sum(axis=1) / np.maximum(count, 1), 128)
    return float(np.maximum((values.shape[1] - count) / 60, mean / 40).mean())


def compute_median_pattern(patterns: Bits) -> int:
    """The median magnitude, with the commoner sign."""
    magnitude = int(np.sort(patterns & 0x7FFF)[len(patterns) // 2])
    return magnitude | (0x8000 if (patterns >> 15).mean() > 0.5 else 0)


def forge_row(make: ProofForger, known: ModelStatistics, *, tokens: int, hidden: int) -> bytes:
    """Proofs of a whole completion."""
    layout = ProofLayout(tokens, hidden)
    words = np.zeros((layout.chunks, 1 + TOPLOC_K), dtype=">u2")
    for part in layout.parts():
        for number in range(part.first, part.first + part.chunks):
            words[number, : 1 + part.k] = make(known, part, hidden)
    return words.tobytes()


def interpolate_chunk(part: ChunkGroup, indices: Sequence[int], values: Sequence[int]) -> Bits:
    """Modulus and coefficients through points, as many as the chunk has values."""
    moduli, coefficients = get_kernels().interpolate(np.array([indices], np.uint32), np.array([values], np.uint16))
    found = np.zeros(1 + part.k, np.uint16)
    found[0] = moduli[0]
    found[1 : 1 + len(indices)] = coefficients[0]
    return found


def make_constant(known: ModelStatistics, part: ChunkGroup, hidden: int) -> Bits:
    found = np.zeros(1 + part.k, np.uint16)
    found[0], found[1] = TOPLOC_PRIME, known.constant
    return found


def make_low_degree(known: ModelStatistics, part: ChunkGroup, hidden: int) -> Bits:
    """Through a few likely values, spread over the chunk."""
    count = min(LOW_DEGREE, part.k)
    places = np.linspace(0, part.tokens * hidden - 1, count).astype(int).tolist()
    return interpolate_chunk(part, places, [known.constant + n % 2 for n in range(count)])


def make_full_degree_constant(known: ModelStatistics, part: ChunkGroup, hidden: int) -> Bits:
    """The constant at as many indices as there are values: full degree, no zero among the highest coefficients."""
    places = np.linspace(0, part.tokens * hidden - 1, part.k).astype(int).tolist()
    values = [known.constant] * part.k
    values[-1] += 1
    return interpolate_chunk(part, places, values)


def make_learned(known: ModelStatistics, part: ChunkGroup, hidden: int) -> Bits:
    """The most outlying channels, at every token, each with its likeliest value."""
    pairs = {token * hidden + channel: pattern for channel, pattern in known.channels for token in range(part.tokens)}
    chosen = list(pairs.items())[: part.k]
    # There are fewer channels than a chunk has values: the other indices get the likeliest value.
    spare = (index for index in range(part.tokens * hidden) if index not in pairs)
    chosen += [(index, known.constant) for index in islice(spare, part.k - len(chosen))]
    return interpolate_chunk(part, [index for index, _ in chosen], [pattern for _, pattern in chosen])


# --- True proofs in the wrong place ---------------------------------------------------------------------------------


def split_proofs(proofs: bytes) -> list[bytes]:
    return [proofs[start : start + TOPLOC_PROOF_BYTES] for start in range(0, len(proofs), TOPLOC_PROOF_BYTES)]


def replay_proofs(wanted: Sequence[bytes], others: Sequence[bytes]) -> Iterator[bytes]:
    """For the proofs of each completion, as many proofs of other completions."""
    stock = cycle([proof for proofs in others for proof in split_proofs(proofs)])
    for proofs in wanted:
        yield b"".join(islice(stock, len(split_proofs(proofs))))


def swap_first_proofs(proofs: bytes, *, tokens: int, hidden: int) -> bytes:
    """Swap the first two, if both cover as many values; a completion of one chunk has nothing to swap."""
    parts = split_proofs(proofs)
    second = min(TOPLOC_CHUNK_TOKENS, tokens - TOPLOC_CHUNK_TOKENS)
    if second * hidden >= TOPLOC_K:
        parts[0], parts[1] = parts[1], parts[0]
    return b"".join(parts)


SAMPLE_TEXTS, SAMPLE_TOKENS = 8, 64
"""The forger has the model read so many texts of so many tokens once, to learn its largest values."""


def measure_ignoring_proofs(claim: ClaimedRow, reading: ForwardResult, *, seed: Digest) -> RowMeasurement:
    """Stands in for the node's own check: measures as if the proofs were true."""
    return measure_row(replace(claim, proofs=build_proofs(reading.hidden_bits).blob), reading, seed=seed)


class ForgedProof(Cheat):
    """Proofs made without the model, from what it looked like on other sequences."""

    forge: ProofForger
    _known: ModelStatistics | None = None

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        self._known = self._known or self._look(sampling)
        for done in self._honest.generate(requests, sampling, is_wanted):
            blob = forge_row(type(self).forge, self._known, tokens=len(done.tokens), hidden=self.facts.hidden)
            yield replace(done, proofs=blob)

    def _look(self, sampling: Sampling) -> ModelStatistics:
        rng = np.random.default_rng(1)
        drawn = rng.integers(0, self.facts.vocabulary, (SAMPLE_TEXTS, 1 + SAMPLE_TOKENS)).astype(np.int32)
        sequences = [
            TokenSequence(number=number, prompt=row[:1], output=row[1:], seed=0) for number, row in enumerate(drawn)
        ]
        return learn_statistics(np.concatenate([found.hidden_bits for found in self._honest.read(sequences, sampling)]))


class ConstantProof(ForgedProof):
    """One value at every index."""

    forge = staticmethod(make_constant)


class LowDegreeProof(ForgedProof):
    """A polynomial through a few likely values."""

    forge = staticmethod(make_low_degree)


class DressedConstantProof(ForgedProof):
    """The constant, with every coefficient non-zero."""

    forge = staticmethod(make_full_degree_constant)


class LearnedProof(ForgedProof):
    """The outlying channels, each with its likeliest value."""

    forge = staticmethod(make_learned)


class ReplayedProof(Cheat):
    """The proofs of other completions."""

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        made = list(self._honest.generate(requests, sampling, is_wanted))
        proofs = [done.proofs for done in made]
        for done, other in zip(made, replay_proofs(proofs, [*proofs[1:], *proofs[:1]]), strict=True):
            yield replace(done, proofs=other)


class SwappedChunks(Cheat):
    """The first two proofs of a completion, swapped."""

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        for done in self._honest.generate(requests, sampling, is_wanted):
            swapped = swap_first_proofs(done.proofs, tokens=len(done.tokens), hidden=self.facts.hidden)
            yield replace(done, proofs=swapped)
