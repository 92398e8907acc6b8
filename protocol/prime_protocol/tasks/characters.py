"""Task families for models whose vocabulary is single characters: sorting digits, and arithmetic.

A prompt is `^question>`. The only right completion is the answer and the end mark `$`, with nothing before, between or
after. `^52814>` asks for `12458$`, which a model of 125,000 parameters learns from scratch; `^12+34>` asks for `46$`,
or padded `046$`. Numbers are drawn from a name, a seed and an index by SHA-256 in counter mode, so they are the same
everywhere. The order of draws must never change for a family that a run uses.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Self

from prime_protocol.constants import DIGITS_MAX, TASKS_MAX
from prime_protocol.tasks.family import Grade, GradeReason, SandboxOutcome, Task, TaskParameters

WORD_BYTES = 8
WORD_VALUES = 2**64
HASH_RANDOM_PREFIX = b"prime task 1"


class HashRandom:
    """Draws for one task. Block n is SHA-256(prefix, length of the name, name, seed, index, n), read as four words."""

    def __init__(self, name: str, seed: int, index: int) -> None:
        raw = name.encode()
        numbers = seed.to_bytes(WORD_BYTES, "big") + index.to_bytes(WORD_BYTES, "big")
        self.start = HASH_RANDOM_PREFIX + len(raw).to_bytes(2, "big") + raw + numbers
        self.block = 0
        self.words: list[int] = []

    def word(self) -> int:
        """The next 64 bits."""
        if not self.words:
            digest = sha256(self.start + self.block.to_bytes(WORD_BYTES, "big")).digest()
            self.words = [
                int.from_bytes(digest[at : at + WORD_BYTES], "big") for at in range(0, len(digest), WORD_BYTES)
            ]
            self.block += 1
        return self.words.pop(0)

    def below(self, bound: int) -> int:
        """A number from 0 to bound - 1, each as likely: words that would favour the small ones are drawn again."""
        assert 0 < bound <= WORD_VALUES
        even = WORD_VALUES - WORD_VALUES % bound
        while (word := self.word()) >= even:
            continue
        return word % bound


START, ASK, STOP = "^", ">", "$"
REWARD_MODES = ("exact", "shaped")
SHAPED_MAX = 0.5
PLACES_SHARE, STOPPED_SHARE = 0.9, 0.1
"""Shares of SHAPED_MAX, the most that an inexact completion gets: for right positions, and for stopping in time."""


def grade_characters(key: str, completion: str, *, shaped: bool) -> Grade:
    """Exact match, or with `shaped` a part of the reward for each right position."""
    if completion == key + STOP:
        return Grade(1.0, GradeReason.RIGHT)
    if not shaped:
        return Grade(0.0, GradeReason.WRONG)
    # Only the positions of the answer are compared, however long the completion is.
    places = sum(given == wanted for given, wanted in zip(completion[: len(key)], key, strict=False))
    stopped = completion.find(STOP, 0, len(key) + 1) == len(key)
    reward = SHAPED_MAX * (PLACES_SHARE * places / len(key) + STOPPED_SHARE * stopped)
    return Grade(reward, GradeReason.PARTLY if reward > 0 else GradeReason.WRONG)


OPERATIONS = ("add", "subtract", "multiply")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Two numbers of at most `digits` digits. A difference is never negative: the larger number comes first."""

    operation: str
    digits: int
    padded: bool
    shaped: bool
    seed: int
    size: int
    name: str = "arithmetic"

    @classmethod
    def open(cls, parameters: TaskParameters, dataset: bytes) -> Self:
        return cls(
            operation=parameters.take_choice("operation", OPERATIONS),
            digits=parameters.take_integer("digits", 2, low=1, high=DIGITS_MAX),
            padded=parameters.take_choice("padded", ("no", "yes")) == "yes",
            shaped=parameters.take_choice("reward", REWARD_MODES) == "shaped",
            seed=parameters.take_integer("seed", 0, low=0, high=2**32 - 1),
            size=parameters.take_integer("size", 10_000, low=1, high=TASKS_MAX),
        )

    def make(self, index: int) -> Task:
        assert 0 <= index < self.size
        dice = HashRandom(self.name, self.seed, index)
        one, other = dice.below(10**self.digits), dice.below(10**self.digits)
        match self.operation:
            case "add":
                sign, value, width = "+", one + other, self.digits + 1
            case "subtract":
                one, other = max(one, other), min(one, other)
                sign, value, width = "-", one - other, self.digits
            case _:
                sign, value, width = "*", one * other, 2 * self.digits
        pad = self.digits if self.padded else 0
        prompt = f"{START}{one:0{pad}}{sign}{other:0{pad}}{ASK}"
        return Task(self.name, index, prompt, f"{value:0{width if self.padded else 0}}")

    def grade(self, task: Task, completion: str) -> Grade:
        return grade_characters(task.key, completion, shaped=self.shaped)

    def grade_outcome(self, task: Task, outcome: SandboxOutcome) -> Grade:
        raise AssertionError("arithmetic is graded at once, without a job")


@dataclass(frozen=True, slots=True, kw_only=True)
class SortDigits:
    """Numbers of `digits` digits, leading zeros included."""

    digits: int
    shaped: bool
    seed: int
    size: int
    name: str = "sort-digits"

    @classmethod
    def open(cls, parameters: TaskParameters, dataset: bytes) -> Self:
        return cls(
            digits=parameters.take_integer("digits", 5, low=2, high=DIGITS_MAX),
            shaped=parameters.take_choice("reward", REWARD_MODES) == "shaped",
            seed=parameters.take_integer("seed", 0, low=0, high=2**32 - 1),
            size=parameters.take_integer("size", 100_000, low=1, high=TASKS_MAX),
        )

    def make(self, index: int) -> Task:
        assert 0 <= index < self.size
        number = HashRandom(self.name, self.seed, index).below(10**self.digits)
        text = f"{number:0{self.digits}}"
        return Task(self.name, index, START + text + ASK, "".join(sorted(text)))

    def grade(self, task: Task, completion: str) -> Grade:
        return grade_characters(task.key, completion, shaped=self.shaped)

    def grade_outcome(self, task: Task, outcome: SandboxOutcome) -> Grade:
        raise AssertionError("digits are graded at once, without a job")
