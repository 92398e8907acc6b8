"""The text that names a task set in a run's configuration: a family and its parameters, one spelling per set.

    sort-digits?digits=5&reward=shaped&size=100000

Names come in ascending order. What a parameter may be is the family's to say; it takes them out of `Parameters` one by
one, and whatever is left over is refused by name.
"""

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from prime_protocol.constants import TASK_PARAMETER_CHARS_MAX, TASK_PARAMETERS_MAX, TASK_SET_CHARS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest

FAMILY = re.compile(r"[a-z][a-z-]{0,39}")
NAME = re.compile(rf"[a-z][a-z0-9_.]{{0,{TASK_PARAMETER_CHARS_MAX - 1}}}")
VALUE = re.compile(rf"[A-Za-z0-9_.+-]{{1,{TASK_PARAMETER_CHARS_MAX}}}")
NUMBER = re.compile(r"0|[1-9][0-9]{0,18}")


@dataclass(frozen=True, slots=True)
class TaskSetSpec:
    """A family and its parameters, as written."""

    family: str
    parameters: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Accept exactly what `str` prints."""
        if len(text) > TASK_SET_CHARS_MAX:
            raise RemoteError("task_set", f"is {len(text)} characters, the limit is {TASK_SET_CHARS_MAX}")
        family, mark, rest = text.partition("?")
        if not FAMILY.fullmatch(family):
            raise RemoteError("task_set.family", "must be lower-case letters and dashes")
        pairs = tuple(parse_pair(pair) for pair in rest.split("&")) if mark else ()
        if len(pairs) > TASK_PARAMETERS_MAX:
            raise RemoteError("task_set", f"has {len(pairs)} parameters, the limit is {TASK_PARAMETERS_MAX}")
        names = [name for name, _ in pairs]
        for before, after in pairwise(names):
            if before >= after:
                raise RemoteError(f"task_set.{after}", "parameters must be in ascending order, each once")
        return cls(family, pairs)

    @property
    def problem_file(self) -> Digest | None:
        """Digest of the file that the problems come from; None for families that make their own.

        `dataset` is a digest where it is written as one; reasoning-gym's is the name of a generator.
        """
        dataset = dict(self.parameters).get("dataset", "")
        return Digest.parse(dataset) if dataset.startswith("0x") else None

    def __str__(self) -> str:
        return (
            self.family + "?" * bool(self.parameters) + "&".join(f"{name}={value}" for name, value in self.parameters)
        )


def parse_pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not NAME.fullmatch(name):
        raise RemoteError("task_set", "a parameter's name must be lower-case letters, digits, dots and underscores")
    if not VALUE.fullmatch(value):
        raise RemoteError(
            f"task_set.{name}", "a value must be letters, digits, dots, dashes, plus signs or underscores"
        )
    return name, value


class Parameters:
    """A spec's parameters while a family reads them. Each is taken once; `finish` refuses what nobody took."""

    def __init__(self, spec: TaskSetSpec) -> None:
        self.left = dict(spec.parameters)

    def take_integer(self, name: str, default: int, *, low: int, high: int) -> int:
        text = self.left.pop(name, str(default))
        if not NUMBER.fullmatch(text) or not low <= int(text) <= high:
            raise RemoteError(f"task_set.{name}", f"must be a whole number from {low} to {high}")
        return int(text)

    def take_choice(self, name: str, options: tuple[str, ...]) -> str:
        """One of the options; the first is the default."""
        text = self.left.pop(name, options[0])
        if text not in options:
            raise RemoteError(f"task_set.{name}", f"must be one of {', '.join(options)}")
        return text

    def take_text(self, name: str) -> str:
        if name not in self.left:
            raise RemoteError(f"task_set.{name}", "is missing")
        return self.left.pop(name)

    def take_prefixed(self, prefix: str) -> tuple[tuple[str, str], ...]:
        """All parameters whose names start with `prefix`, without it."""
        taken = sorted(name for name in self.left if name.startswith(prefix))
        return tuple((name.removeprefix(prefix), self.left.pop(name)) for name in taken)

    def finish(self) -> None:
        for name in self.left:
            raise RemoteError(f"task_set.{name}", "this family has no such parameter")
