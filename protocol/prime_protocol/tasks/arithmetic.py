"""Sums, differences and products of two numbers, character by character: `^12+34>` asks for `46$`, or padded `046$`."""

from dataclasses import dataclass
from typing import Self

from prime_protocol.constants import DIGITS_MAX, TASKS_MAX
from prime_protocol.tasks.characters import ASK, REWARDS, START, grade_characters
from prime_protocol.tasks.dice import Dice
from prime_protocol.tasks.family import Grade, SandboxOutcome, Task
from prime_protocol.tasks.spec import Parameters

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
    def open(cls, parameters: Parameters, dataset: bytes) -> Self:
        return cls(
            operation=parameters.take_choice("operation", OPERATIONS),
            digits=parameters.take_integer("digits", 2, low=1, high=DIGITS_MAX),
            padded=parameters.take_choice("padded", ("no", "yes")) == "yes",
            shaped=parameters.take_choice("reward", REWARDS) == "shaped",
            seed=parameters.take_integer("seed", 0, low=0, high=2**32 - 1),
            size=parameters.take_integer("size", 10_000, low=1, high=TASKS_MAX),
        )

    def make(self, index: int) -> Task:
        assert 0 <= index < self.size
        dice = Dice(self.name, self.seed, index)
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

    def conclude(self, task: Task, outcome: SandboxOutcome) -> Grade:
        raise AssertionError("arithmetic is graded at once, without a job")
