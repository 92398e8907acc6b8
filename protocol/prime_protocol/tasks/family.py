"""What a task is, and the two ways to its reward: at once, or by way of a job that the rim runs in its sandbox.

Only the shapes live here; each family has a file of its own. A family decides everything about a task from its index,
so that a worker and a validator who never met see the same prompt and reach the same reward.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from prime_protocol import constants


class Reason(StrEnum):
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


MACHINE_DEPENDENT = frozenset({Reason.CRASHED, Reason.TIMEOUT})
"""Another machine may see another end: faster, or with more memory. No ground for a charge of fraud on its own."""


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
    reason: Reason

    def __post_init__(self) -> None:
        assert 0.0 <= self.reward <= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
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
    """A Python program to run behind walls. What it is compared with is not in it: the task's key stays outside."""

    source: str
    stdin: bytes
    limits: Limits = Limits()
    prepare: str = ""
    """Trusted code of ours that loads libraries and fills their caches, run once for all jobs that name the same.

    Without it a job sees the standard library only.
    """


class End(StrEnum):
    """How a job ended."""

    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class SandboxOutcome:
    """What is left of a job. `code` is the exit code or the signal number, 0 where there is neither."""

    end: End
    code: int
    stdout: bytes
    stderr: bytes
    result: bytes
    """What was written to descriptor 3. A grader reports there, so that no print can pass for a grade."""


class Family(Protocol):
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

    def conclude(self, task: Task, outcome: SandboxOutcome) -> Grade:
        """The grade that a job's outcome means."""
        ...


def grade_failure(outcome: SandboxOutcome) -> Grade | None:
    """The grade of a job that did not end well by itself; None if it did."""
    if outcome.end is End.EXIT:
        return None if outcome.code == 0 else Grade(0.0, Reason.CRASHED)
    if outcome.end is End.OUTPUT:
        return Grade(0.0, Reason.OUTPUT)
    if outcome.end is End.SIGNAL and outcome.code != constants.SIGNAL_CPU_TIME:
        return Grade(0.0, Reason.CRASHED)
    return Grade(0.0, Reason.TIMEOUT)
