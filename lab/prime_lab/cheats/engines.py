"""Engines that cheat: an honest one underneath, and one lie on top. What a dishonest owner would swap in.

Each lie is told twice: in what is generated, and in the node's own check of it, which would otherwise keep the file
back. Whoever reads the file on another machine is not lied to, and that is what catches it. Cheats about tokens are
here, those about the model itself in cheats_model.py, which needs torch, and those about proofs in cheats_proofs.py.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np

from prime_node.engine.interface import (
    Completion,
    Engine,
    EngineFacts,
    ForwardResult,
    GenerateRequest,
    Sampling,
    TokenSequence,
)
from prime_protocol.proofs.toploc import build_proofs
from prime_protocol.rollouts.rollout import FinishReason
from prime_runtime.model_files import ModelFiles

BEST_OF = 4
"""Completions of which a best-of-n cheat keeps one."""
TEMPERATURE_FACTOR = 0.7
"""Part of the run's temperature that a cheat for better answers draws with."""
PADDING_TOKENS = 8
"""Tokens that a cheat for more pay adds to each completion."""
LOGPROB_FACTOR = 0.5
"""What forged log-probs are of the true ones: the model looks surer than it is."""

LIES_ONE_IN, LIE_MARGIN = 2, 5.0
"""How often a false witness lies, and by how much it says that tokens were not drawn."""

CheatedOutput = tuple[GenerateRequest, list[int], FinishReason]


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
        self, orders: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        yield from self._honest.generate(orders, sampling, is_wanted)

    def read(self, texts: Sequence[TokenSequence], sampling: Sampling) -> Iterator[ForwardResult]:
        for reading in self._honest.read(texts, sampling):
            yield replace(reading, margins=np.zeros_like(reading.margins))

    def _prove(self, answers: Sequence[CheatedOutput], sampling: Sampling) -> Iterator[Completion]:
        """What an honest pass over these tokens gives: true proofs and log-probs of tokens that were not drawn."""
        texts = [
            TokenSequence(number=number, prompt=order.prompt, output=np.array(tokens, np.int32), seed=order.seed)
            for number, (order, tokens, _) in enumerate(answers)
        ]
        for reading in self._honest.read(texts, sampling):
            order, tokens, finish = answers[reading.number]
            yield Completion(
                number=order.number,
                tokens=np.array(tokens, np.int32),
                logprobs=np.minimum(reading.logprobs, 0),
                finish=finish,
                proofs=build_proofs(reading.hidden_bits).blob,
            )


class Rewriter(Cheat):
    """Lets the model answer, and then writes something else."""

    def __init__(self, honest: Engine) -> None:
        super().__init__(honest)
        self.left_alone: set[int] = set()
        """Orders of the last lease whose answer it had nothing to change in: they are honest work."""

    def rewrite(self, order: GenerateRequest, done: Completion, sampling: Sampling) -> tuple[list[int], FinishReason]:
        return done.tokens.tolist(), done.finish

    def generate(
        self, orders: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        by_number = {order.number: order for order in orders}
        answers: list[CheatedOutput] = []
        self.left_alone = set()
        for done in self._honest.generate(orders, sampling, is_wanted):
            order = by_number[done.number]
            tokens, finish = self.rewrite(order, done, sampling)
            if tokens == done.tokens.tolist():
                self.left_alone.add(order.number)
            answers.append((order, tokens, finish))
        yield from self._prove(answers, sampling)


class AnswerSheet(Cheat):
    """Writes the right answer instead of what the model says, to look good. The sort-digits task is easy to a human."""

    def load(self, checkpoint: Path, changed: frozenset[str] | None = None) -> None:
        super().load(checkpoint, changed)
        self._files = ModelFiles.open(checkpoint)

    def generate(
        self, orders: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        end = min(sampling.eos)
        answers: list[CheatedOutput] = []
        for order in orders:
            digits = sorted(sign for sign in self._files.decode(order.prompt.tolist()) if sign.isdigit())
            tokens = self._files.tokenizer.encode("".join(digits), add_special_tokens=False).ids
            answers.append((order, [*tokens, end], FinishReason.EOS))
        yield from self._prove(answers, sampling)


class Truncated(Rewriter):
    """Stops after the first token, to be paid for many short answers."""

    def rewrite(self, order: GenerateRequest, done: Completion, sampling: Sampling) -> tuple[list[int], FinishReason]:
        return [int(done.tokens[0]), min(sampling.eos)], FinishReason.EOS


class Padded(Rewriter):
    """Says more than the model did, to be paid for more tokens."""

    def rewrite(self, order: GenerateRequest, done: Completion, sampling: Sampling) -> tuple[list[int], FinishReason]:
        tokens = done.tokens.tolist()
        if done.finish is not FinishReason.EOS:
            return tokens, done.finish
        spoken = tokens[:-1] or [int(order.prompt[-1])]
        return [
            *tokens[:-1],
            *(spoken * PADDING_TOKENS)[: min(PADDING_TOKENS, sampling.tokens_max - len(tokens))],
            tokens[-1],
        ], (FinishReason.EOS)


class EditedAnswer(Rewriter):
    """Changes one token of each answer, and leaves the rest as the model said it."""

    def rewrite(self, order: GenerateRequest, done: Completion, sampling: Sampling) -> tuple[list[int], FinishReason]:
        tokens = done.tokens.tolist()
        place = max(0, len(tokens) - 2)
        others = [token for token in range(self.facts.vocabulary) if token not in (tokens[place], *sampling.eos)]
        tokens[place] = others[order.seed % len(others)]
        is_over = tokens[-1] in sampling.eos or len(tokens) == sampling.tokens_max
        return (tokens, done.finish) if is_over else ([*tokens, min(sampling.eos)], FinishReason.EOS)


class OtherSeed(Cheat):
    """Draws with noise of its own choice."""

    def generate(
        self, orders: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        yield from self._honest.generate([replace(order, seed=order.seed ^ 1) for order in orders], sampling, is_wanted)


class BestOf(Cheat):
    """Draws several times and hands in what the model likes most; the first draw is the honest one."""

    def generate(
        self, orders: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        tries = [
            replace(order, number=place * BEST_OF + number, seed=order.seed ^ number)
            for place, order in enumerate(orders)
            for number in range(BEST_OF)
        ]
        best: dict[int, Completion] = {}
        for done in self._honest.generate(tries, sampling, is_wanted):
            place = done.number // BEST_OF
            if place not in best or done.logprobs.mean() > best[place].logprobs.mean():
                best[place] = replace(done, number=orders[place].number)
        yield from best.values()


class WrongTemperature(Cheat):
    """Draws cooler than the run wants, for better answers, and reports the log-probs that it should have."""

    def generate(
        self, orders: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        by_number = {order.number: order for order in orders}
        cooler = replace(sampling, temperature=sampling.temperature * TEMPERATURE_FACTOR)
        drawn = self._honest.generate(orders, cooler, is_wanted)
        answers = [(by_number[done.number], done.tokens.tolist(), done.finish) for done in drawn]
        yield from self._prove(answers, sampling)


class HiddenPrompt(Cheat):
    """Answers a shorter prompt than the one in the file: less to read."""

    def generate(
        self, orders: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        yield from self._honest.generate([cut_prompt(order) for order in orders], sampling, is_wanted)

    def read(self, texts: Sequence[TokenSequence], sampling: Sampling) -> Iterator[ForwardResult]:
        yield from super().read(
            [replace(text, prompt=text.prompt[len(text.prompt) // 2 :]) for text in texts], sampling
        )


def cut_prompt(order: GenerateRequest) -> GenerateRequest:
    return replace(order, prompt=order.prompt[len(order.prompt) // 2 :])


class ForgedLogprobs(Cheat):
    """Makes the model look surer than it is, which would bend what the trainer learns."""

    def generate(
        self, orders: Sequence[GenerateRequest], sampling: Sampling, is_wanted: Callable[[], bool] = lambda: True
    ) -> Iterator[Completion]:
        for done in self._honest.generate(orders, sampling, is_wanted):
            yield replace(done, logprobs=done.logprobs * np.float32(LOGPROB_FACTOR))

    def read(self, texts: Sequence[TokenSequence], sampling: Sampling) -> Iterator[ForwardResult]:
        for reading in super().read(texts, sampling):
            yield replace(reading, logprobs=reading.logprobs * np.float32(LOGPROB_FACTOR))


class StaleWeights(Cheat):
    """Never takes new weights after the first, to save itself the download."""

    def __init__(self, honest: Engine) -> None:
        super().__init__(honest)
        self._is_loaded = False

    def load(self, checkpoint: Path, changed: frozenset[str] | None = None) -> None:
        if not self._is_loaded:
            self._honest.load(checkpoint, changed)
        self._is_loaded = True


class FalseWitness(Cheat):
    """A validator's: finds half of all files dishonest, and the same ones however often it reads."""

    def read(self, texts: Sequence[TokenSequence], sampling: Sampling) -> Iterator[ForwardResult]:
        is_lying = min(text.seed for text in texts) % LIES_ONE_IN == 0
        for reading in self._honest.read(texts, sampling):
            yield replace(reading, margins=reading.margins + np.float32(LIE_MARGIN)) if is_lying else reading


MODEL = "prime_lab.cheats.models"
PROOFS = "prime_lab.cheats.proof_forgery"
PROOF_CHEATS: dict[str, str] = {
    "constant-proof": f"{PROOFS}:ConstantProof",
    "dressed-constant-proof": f"{PROOFS}:DressedConstantProof",
    "learned-proof": f"{PROOFS}:LearnedProof",
    "low-degree-proof": f"{PROOFS}:LowDegreeProof",
    "replayed-proof": f"{PROOFS}:ReplayedProof",
    "swapped-chunks": f"{PROOFS}:SwappedChunks",
}
"""Their node must not look at its own proofs either."""
CHEATS: dict[str, str] = {
    "answer-sheet": f"{__name__}:AnswerSheet",
    "best-of-n": f"{__name__}:BestOf",
    "edited-answer": f"{__name__}:EditedAnswer",
    "forged-logprobs": f"{__name__}:ForgedLogprobs",
    "fp8-cache": f"{MODEL}:Fp8Cache",
    "fp8-weights": f"{MODEL}:Fp8Weights",
    "hidden-prompt": f"{__name__}:HiddenPrompt",
    "int4-weights": f"{MODEL}:Int4Weights",
    "int8-cache": f"{MODEL}:Int8Cache",
    "int8-weights": f"{MODEL}:Int8Weights",
    "older-checkpoint": f"{MODEL}:OlderCheckpoint",
    "other-model": f"{MODEL}:OtherModel",
    "other-seed": f"{__name__}:OtherSeed",
    "padded": f"{__name__}:Padded",
    "small-model": f"{MODEL}:SmallModel",
    "stale-weights": f"{__name__}:StaleWeights",
    "top-k": f"{MODEL}:TopK",
    "truncated": f"{__name__}:Truncated",
    "wrong-temperature": f"{__name__}:WrongTemperature",
    **PROOF_CHEATS,
}
"""By name, as module and class: half of them need torch, and whoever lists them does not."""


FALSE_WITNESS, LAZY = "false-witness", "lazy"
VALIDATOR_CHEATS: dict[str, str] = {FALSE_WITNESS: f"{__name__}:FalseWitness", LAZY: f"{__name__}:Cheat"}
"""Of validators, which work as no worker's."""


def open_cheat(name: str, honest: Engine) -> Cheat:
    module, _, kind = (CHEATS | VALIDATOR_CHEATS)[name].partition(":")
    cheat: Cheat = getattr(import_module(module), kind)(honest)
    return cheat
