"""Engines that cheat: an honest engine underneath, and one lie on top. A dishonest owner would install one of these.

Each engine lies twice: in what it generates, and in the node's own check of it, which would otherwise hold the file
back. A validator reads the file with an honest engine on another machine, and that catches the lie. Cheats about tokens
are here, those about the model in models.py, which needs torch, and those about proofs in proof_forgery.py.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from prime_node.engine.batches import BatchQueue
from prime_node.engine.interface import (
    Completion,
    Engine,
    EngineCapacity,
    EngineFacts,
    EngineQueue,
    ForwardResult,
    GenerateRequest,
    Sampling,
    TokenSequence,
)
from prime_node.engine.measurement import ClaimedRow, RowMeasurement, measure_row
from prime_node.jobs.file_checks import weigh_rows
from prime_protocol.constants import EVIDENCE_FRAUDULENT, EVIDENCE_UNLIKELY
from prime_protocol.proofs.tolerance import Tolerance
from prime_protocol.proofs.toploc import build_proofs
from prime_protocol.rollouts.rollout import FinishReason
from prime_protocol.wire.ids import Digest
from prime_runtime.model_files import ModelFiles

BEST_OF = 4
"""Completions of which a best-of-n cheat keeps one."""
TEMPERATURE_FACTOR = 0.7
"""A cheat for better answers samples at this share of the run's temperature."""
NEAR_TEMPERATURE_FACTOR = 0.985
"""A cheat that hides in honest noise samples at this share of it."""
PADDING_TOKENS = 8
"""Tokens that a cheat for more pay adds to each completion."""
LOGPROB_FACTOR = 0.5
"""Forged log-probs are this share of the true ones: the model looks more certain than it is."""

LIES_ONE_IN, LIE_MARGIN = 2, 5.0
"""A false witness lies about one file in so many, and adds this to every margin."""

CheatedOutput = tuple[GenerateRequest, list[int], FinishReason]


class Cheat:
    """An engine that finds no fault with its own files. It lies about whole batches, one after the other."""

    def __init__(self, honest: Engine) -> None:
        self._honest = honest
        self._batches = BatchQueue(lambda requests, sampling, is_wanted: self.generate(requests, sampling, is_wanted))

    @property
    def facts(self) -> EngineFacts:
        return self._honest.facts

    @property
    def capacity(self) -> EngineCapacity:
        return self._honest.capacity

    @property
    def queue(self) -> EngineQueue:
        return self._batches.state

    def load(self, checkpoint: Path, changed: frozenset[str] | None = None) -> None:
        self._honest.load(checkpoint, changed)

    def add(self, requests: Sequence[GenerateRequest], sampling: Sampling) -> None:
        self._batches.add(requests, sampling)

    def step(self) -> list[Completion]:
        return self._batches.step()

    def cancel(self, numbers: Collection[int]) -> None:
        self._batches.cancel(numbers)

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        yield from self._honest.generate(requests, sampling, is_wanted)

    def read(self, sequences: Sequence[TokenSequence], sampling: Sampling) -> Iterator[ForwardResult]:
        for reading in self._honest.read(sequences, sampling):
            yield replace(reading, margins=np.zeros_like(reading.margins))

    def _prove(self, answers: Sequence[CheatedOutput], sampling: Sampling) -> Iterator[Completion]:
        """True proofs and log-probs, by an honest forward pass, of tokens that the model did not sample."""
        sequences = [
            TokenSequence(number=number, prompt=request.prompt, output=np.array(tokens, np.int32), seed=request.seed)
            for number, (request, tokens, _) in enumerate(answers)
        ]
        for reading in self._honest.read(sequences, sampling):
            request, tokens, finish = answers[reading.number]
            yield Completion(
                number=request.number,
                tokens=np.array(tokens, np.int32),
                logprobs=np.minimum(reading.logprobs, 0),
                finish=finish,
                proofs=build_proofs(reading.hidden_bits).blob,
            )

    def _prove_sampled(
        self, requests: Sequence[GenerateRequest], drawn: Iterable[Completion], sampling: Sampling
    ) -> Iterator[Completion]:
        """The same for completions as they were sampled by other means."""
        by_number = {request.number: request for request in requests}
        answers = [(by_number[done.number], done.tokens.tolist(), done.finish) for done in drawn]
        yield from self._prove(answers, sampling)


class Rewriter(Cheat):
    """Lets the model answer, and then changes the answer."""

    def __init__(self, honest: Engine) -> None:
        super().__init__(honest)
        self.left_alone: set[int] = set()
        """Requests of the last lease whose answer did not change: they are honest work."""

    def rewrite(self, request: GenerateRequest, done: Completion, sampling: Sampling) -> tuple[list[int], FinishReason]:
        return done.tokens.tolist(), done.finish

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        by_number = {request.number: request for request in requests}
        answers: list[CheatedOutput] = []
        self.left_alone = set()
        for done in self._honest.generate(requests, sampling, is_wanted):
            request = by_number[done.number]
            tokens, finish = self.rewrite(request, done, sampling)
            if tokens == done.tokens.tolist():
                self.left_alone.add(request.number)
            answers.append((request, tokens, finish))
        yield from self._prove(answers, sampling)


class AnswerSheet(Cheat):
    """Writes the right answer instead of the model's, for better rewards. Sorting digits needs no model."""

    def load(self, checkpoint: Path, changed: frozenset[str] | None = None) -> None:
        super().load(checkpoint, changed)
        self._files = ModelFiles.open(checkpoint)

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        end = min(sampling.eos)
        prompts = self._files.decode([request.prompt.tolist() for request in requests])
        texts = ["".join(sorted(filter(str.isdigit, prompt))) for prompt in prompts]
        answers: list[CheatedOutput] = [
            (request, [*tokens, end], FinishReason.EOS)
            for request, tokens in zip(requests, self._files.encode_texts(texts), strict=True)
        ]
        yield from self._prove(answers, sampling)


class SelectiveAnswerSheet(AnswerSheet):
    """Writes the right answer only in the rows where its file still passes the tests of chunks, the cheapest first."""

    tolerance: Tolerance = Tolerance()
    """Bounds of the run: they are public."""

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        drawn = {done.number: done for done in self._honest.generate(requests, sampling, is_wanted)}
        right = {done.number: done for done in super().generate(requests, sampling, is_wanted)}
        rows = self._measure(requests, drawn, sampling)
        swapped = self._measure(requests, right, sampling)
        wrong = [number for number in drawn if drawn[number].tokens.tolist() != right[number].tokens.tolist()]
        for number in sorted(wrong, key=lambda number: swapped[number].margin_sum):
            tried = rows | {number: swapped[number]}
            if self.accepts([tried[request.number] for request in requests]):
                rows, drawn = tried, drawn | {number: right[number]}
        yield from drawn.values()

    def accepts(self, rows: Sequence[RowMeasurement]) -> bool:
        """Whether chunks and means stay below a conviction; margins are not summed over a completion."""
        return weigh_rows(rows, self.tolerance)[0].most < EVIDENCE_FRAUDULENT

    def _measure(
        self, requests: Sequence[GenerateRequest], done: Mapping[int, Completion], sampling: Sampling
    ) -> dict[int, RowMeasurement]:
        claims = {
            request.number: ClaimedRow(
                sequence=TokenSequence(
                    number=request.number,
                    prompt=request.prompt,
                    output=done[request.number].tokens,
                    seed=request.seed,
                ),
                logprobs=done[request.number].logprobs,
                proofs=done[request.number].proofs,
            )
            for request in requests
        }
        readings = self._honest.read([claim.sequence for claim in claims.values()], sampling)
        return {each.number: measure_row(claims[each.number], each, seed=Digest(bytes(32))) for each in readings}


class CarefulAnswerSheet(SelectiveAnswerSheet):
    """The same, with the whole public weighing: every file that it writes is accepted."""

    def accepts(self, rows: Sequence[RowMeasurement]) -> bool:
        return weigh_rows(rows, self.tolerance)[0].evidence < EVIDENCE_UNLIKELY


class Truncated(Rewriter):
    """Stops after the first token, to be paid for many short answers."""

    def rewrite(self, request: GenerateRequest, done: Completion, sampling: Sampling) -> tuple[list[int], FinishReason]:
        return [int(done.tokens[0]), min(sampling.eos)], FinishReason.EOS


class Padded(Rewriter):
    """Adds tokens to the model's answer, to be paid for more."""

    def rewrite(self, request: GenerateRequest, done: Completion, sampling: Sampling) -> tuple[list[int], FinishReason]:
        tokens = done.tokens.tolist()
        if done.finish is not FinishReason.EOS:
            return tokens, done.finish
        spoken = tokens[:-1] or [int(request.prompt[-1])]
        return [
            *tokens[:-1],
            *(spoken * PADDING_TOKENS)[: min(PADDING_TOKENS, sampling.tokens_max - len(tokens))],
            tokens[-1],
        ], (FinishReason.EOS)


class EditedAnswer(Rewriter):
    """Changes one token of each answer and keeps the rest."""

    def rewrite(self, request: GenerateRequest, done: Completion, sampling: Sampling) -> tuple[list[int], FinishReason]:
        tokens = done.tokens.tolist()
        place = max(0, len(tokens) - 2)
        others = [token for token in range(self.facts.vocabulary) if token not in (tokens[place], *sampling.eos)]
        tokens[place] = others[request.seed % len(others)]
        is_over = tokens[-1] in sampling.eos or len(tokens) == sampling.tokens_max
        return (tokens, done.finish) if is_over else ([*tokens, min(sampling.eos)], FinishReason.EOS)


class OtherSeed(Cheat):
    """Samples with a seed of its own choice."""

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        yield from self._honest.generate(
            [replace(request, seed=request.seed ^ 1) for request in requests], sampling, is_wanted
        )


class BestOf(Cheat):
    """Samples several times and submits the likeliest completion; the first sample is the honest one."""

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        tries = [
            replace(request, number=place * BEST_OF + number, seed=request.seed ^ number)
            for place, request in enumerate(requests)
            for number in range(BEST_OF)
        ]
        best: dict[int, Completion] = {}
        for done in self._honest.generate(tries, sampling, is_wanted):
            place = done.number // BEST_OF
            if place not in best or done.logprobs.mean() > best[place].logprobs.mean():
                best[place] = replace(done, number=requests[place].number)
        yield from best.values()


class WrongTemperature(Cheat):
    """Samples at a lower temperature than the run's, for better answers, and reports the log-probs of the run's."""

    factor: float = TEMPERATURE_FACTOR

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        cooler = replace(sampling, temperature=sampling.temperature * self.factor)
        drawn = self._honest.generate(requests, cooler, is_wanted)
        yield from self._prove_sampled(requests, drawn, sampling)


class NearHonest(WrongTemperature):
    """Samples only slightly cooler: no file of its own shows it."""

    factor = NEAR_TEMPERATURE_FACTOR


class HiddenPrompt(Cheat):
    """Answers a shorter prompt than the one in the file, which costs less."""

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        yield from self._honest.generate([cut_prompt(request) for request in requests], sampling, is_wanted)

    def read(self, sequences: Sequence[TokenSequence], sampling: Sampling) -> Iterator[ForwardResult]:
        yield from super().read(
            [replace(sequence, prompt=sequence.prompt[len(sequence.prompt) // 2 :]) for sequence in sequences], sampling
        )


def cut_prompt(request: GenerateRequest) -> GenerateRequest:
    return replace(request, prompt=request.prompt[len(request.prompt) // 2 :])


class ForgedLogprobs(Cheat):
    """Makes the model look more certain than it is, which would distort training."""

    def generate(
        self, requests: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        for done in self._honest.generate(requests, sampling, is_wanted):
            yield replace(done, logprobs=done.logprobs * np.float32(LOGPROB_FACTOR))

    def read(self, sequences: Sequence[TokenSequence], sampling: Sampling) -> Iterator[ForwardResult]:
        for reading in super().read(sequences, sampling):
            yield replace(reading, logprobs=reading.logprobs * np.float32(LOGPROB_FACTOR))


class StaleWeights(Cheat):
    """Keeps the first weights, to save the downloads."""

    def __init__(self, honest: Engine) -> None:
        super().__init__(honest)
        self._is_loaded = False

    def load(self, checkpoint: Path, changed: frozenset[str] | None = None) -> None:
        if not self._is_loaded:
            self._honest.load(checkpoint, changed)
        self._is_loaded = True


class FalseWitness(Cheat):
    """For a validator: finds half of all files dishonest, the same ones at each reading."""

    def read(self, sequences: Sequence[TokenSequence], sampling: Sampling) -> Iterator[ForwardResult]:
        is_lying = min(sequence.seed for sequence in sequences) % LIES_ONE_IN == 0
        for reading in self._honest.read(sequences, sampling):
            yield replace(reading, margins=reading.margins + np.float32(LIE_MARGIN)) if is_lying else reading
