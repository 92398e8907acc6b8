"""Sort the digits of a number: `^52814>` asks for `12458$`. Learnable from nothing by a model of 125,000 parameters."""

from dataclasses import dataclass
from typing import Self

from prime_protocol.constants import DIGITS_MAX, TASKS_MAX
from prime_protocol.tasks.characters import ASK, REWARDS, START, grade_characters
from prime_protocol.tasks.dice import Dice
from prime_protocol.tasks.family import Grade, SandboxOutcome, Task
from prime_protocol.tasks.spec import Parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class SortDigits:
    """Numbers of `digits` digits, leading zeros included."""

    digits: int
    shaped: bool
    seed: int
    size: int
    name: str = "sort-digits"

    @classmethod
    def open(cls, parameters: Parameters, dataset: bytes) -> Self:
        return cls(
            digits=parameters.take_integer("digits", 5, low=2, high=DIGITS_MAX),
            shaped=parameters.take_choice("reward", REWARDS) == "shaped",
            seed=parameters.take_integer("seed", 0, low=0, high=2**32 - 1),
            size=parameters.take_integer("size", 100_000, low=1, high=TASKS_MAX),
        )

    def make(self, index: int) -> Task:
        assert 0 <= index < self.size
        number = Dice(self.name, self.seed, index).below(10**self.digits)
        text = f"{number:0{self.digits}}"
        return Task(self.name, index, START + text + ASK, "".join(sorted(text)))

    def grade(self, task: Task, completion: str) -> Grade:
        return grade_characters(task.key, completion, shaped=self.shaped)

    def conclude(self, task: Task, outcome: SandboxOutcome) -> Grade:
        raise AssertionError("digits are graded at once, without a job")
