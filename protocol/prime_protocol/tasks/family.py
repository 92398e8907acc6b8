"""What a task family is: the spec that names a task set, tasks and grades, and where the answer is in a completion.

    sort-digits?digits=5&reward=shaped&size=100000

A spec has one spelling per task set: parameters come in ascending order, the family takes each of them out of
TaskParameters, and a parameter that is left over is refused by name. A family derives everything about a task from its
index, so a worker and a validator see the same prompt and compute the same reward. A reward is computed at once, or by
a job that the rim runs in its sandbox.

The last answer in a completion counts, and only after the thinking. Every function reads each character a bounded
number of times, so a completion of a million brackets costs no more than one of a million letters. The families
themselves are in files of their own.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Protocol, Self

from prime_protocol import constants
from prime_protocol.constants import (
    ANSWER_CHARS_MAX,
    COMPLETION_CHARS_MAX,
    TASK_PARAMETER_CHARS_MAX,
    TASK_PARAMETERS_MAX,
    TASK_SET_CHARS_MAX,
)
from prime_protocol.errors import RemoteError
from prime_protocol.wire.ids import Digest

FAMILY_NAME = re.compile(r"[a-z][a-z-]{0,39}")
PARAMETER_NAME = re.compile(rf"[a-z][a-z0-9_.]{{0,{TASK_PARAMETER_CHARS_MAX - 1}}}")
PARAMETER_VALUE = re.compile(rf"[A-Za-z0-9_.+-]{{1,{TASK_PARAMETER_CHARS_MAX}}}")
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
        if not FAMILY_NAME.fullmatch(family):
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
    if not PARAMETER_NAME.fullmatch(name):
        raise RemoteError("task_set", "a parameter's name must be lower-case letters, digits, dots and underscores")
    if not PARAMETER_VALUE.fullmatch(value):
        raise RemoteError(
            f"task_set.{name}", "a value must be letters, digits, dots, dashes, plus signs or underscores"
        )
    return name, value


class TaskParameters:
    """A spec's parameters while a family reads them. Each is taken once; `finish` refuses those that were not taken."""

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


class GradeReason(StrEnum):
    """Why a completion got its reward."""

    RIGHT = "right"
    PARTLY = "partly right"
    WRONG = "wrong"
    NO_ANSWER = "no answer found"
    MALFORMED = "answer not in the form that the task asks for"
    TOO_LONG = "answer too long"
    CRASHED = "program failed"
    OUTPUT = "wrote too much"
    TIMEOUT = "out of time"


MACHINE_DEPENDENT = frozenset({GradeReason.CRASHED, GradeReason.TIMEOUT})
"""A faster machine, or one with more memory, may see another end. So it is no evidence of fraud by itself."""


@dataclass(frozen=True, slots=True)
class Task:
    """One question. `key` is what the family needs to grade it, and no part of the prompt."""

    family: str
    index: int
    prompt: str
    key: str


@dataclass(frozen=True, slots=True)
class Grade:
    """The reward of one completion, 0 to 1, before any length reward, which is the trainer's."""

    reward: float
    reason: GradeReason

    def __post_init__(self) -> None:
        assert 0.0 <= self.reward <= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What a job may use. Each is per process but the wall clock, the output and the number of processes."""

    wall_ms: int = constants.JOB_WALL_MS
    cpu_s: int = constants.JOB_CPU_S
    memory_bytes: int = constants.JOB_MEMORY_BYTES
    file_bytes: int = constants.JOB_FILE_BYTES
    output_bytes: int = constants.JOB_OUTPUT_BYTES
    processes: int = constants.JOB_PROCESSES
    open_files: int = constants.JOB_OPEN_FILES


@dataclass(frozen=True, slots=True)
class SandboxJob:
    """A Python program to run in the sandbox. The task's key stays outside, so it never sees what is expected."""

    source: str
    stdin: bytes
    limits: SandboxLimits = SandboxLimits()
    prepare: str = ""
    """Trusted code of ours that loads libraries and fills their caches, run once for all jobs that name the same.

    Without it a job sees the standard library only.
    """


class JobEnd(StrEnum):
    """How a job ended."""

    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class SandboxOutcome:
    """The result of a job. `code` is the exit code or the signal number, 0 if there is neither."""

    end: JobEnd
    code: int
    stdout: bytes
    stderr: bytes
    result: bytes
    """What was written to descriptor 3. A grader reports there, so that no print can pass for a grade."""


class TaskFamily(Protocol):
    """A family of tasks with its parameters: everything about task `index` for 0 <= index < size."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int: ...

    def make(self, index: int) -> Task:
        """The task, always the same one."""
        ...

    def grade(self, task: Task, completion: str) -> Grade | SandboxJob:
        """The grade, or the job to run and hand to `conclude`."""
        ...

    def grade_outcome(self, task: Task, outcome: SandboxOutcome) -> Grade:
        """The grade that a job's outcome means."""
        ...


def grade_failure(outcome: SandboxOutcome) -> Grade | None:
    """The grade of a job that did not end well by itself; None if it did."""
    if outcome.end is JobEnd.EXIT:
        return None if outcome.code == 0 else Grade(0.0, GradeReason.CRASHED)
    if outcome.end is JobEnd.OUTPUT:
        return Grade(0.0, GradeReason.OUTPUT)
    if outcome.end is JobEnd.SIGNAL and outcome.code != constants.SIGNAL_CPU_TIME:
        return Grade(0.0, GradeReason.CRASHED)
    return Grade(0.0, GradeReason.TIMEOUT)


THINK_END = "</think>"
BOXED = "\\boxed{"
FENCE = "```"
PYTHON_FENCES = ("```python", "```py", "```python3")
ANSWER_START, ANSWER_END = "<answer>", "</answer>"
THINKING = ("required", "optional")
"""What a family's `thinking` parameter may be: whether a completion without the closing tag has an answer at all."""


def strip_thinking(completion: str, *, required: bool) -> str | None:
    """What comes after the last closing think tag; all of it where the tag is optional and absent."""
    if len(completion) > COMPLETION_CHARS_MAX:
        return None
    _, tag, rest = completion.rpartition(THINK_END)
    return rest if tag or not required else None


def extract_boxed(text: str) -> str | None:
    """The content of the last \\boxed{...}, nested braces included. None if there is none or it does not close."""
    start = text.rfind(BOXED)
    if start < 0:
        return None
    first = start + len(BOXED)
    end = min(len(text), first + ANSWER_CHARS_MAX)
    depth, place = 1, first
    while place < end:
        character = text[place]
        if character == "\\":
            place += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[first:place].strip()
        place += 1
    return None


def extract_program(text: str) -> str | None:
    """The last fenced python block that closes."""
    program: str | None = None
    lines: list[str] | None = None
    for line in text.split("\n"):
        bare = line.strip()
        if lines is None:
            lines = [] if bare.lower() in PYTHON_FENCES else None
        elif bare == FENCE:
            program, lines = "\n".join(lines) + "\n", None
        else:
            lines.append(line)
    return program


def extract_tagged(text: str) -> str | None:
    """The text between the last <answer> and the </answer> after it."""
    _, tag, rest = text.rpartition(ANSWER_START)
    answer, end, _ = rest.partition(ANSWER_END)
    return answer.strip() if tag and end else None
