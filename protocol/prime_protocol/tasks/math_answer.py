"""Mathematical problems with a boxed answer: right if it is the same text, or the same value by math-verify.

The text comparison is done here. The symbolic comparison parses untrusted text with libraries that may not terminate,
so it is a sandbox job. math-verify's own timeouts use signals and are off; the sandbox enforces the time limit.
"""

import json
from dataclasses import dataclass
from typing import Self

from prime_protocol.constants import GRADER_CPU_S, MATH_ANSWER_CHARS_MAX
from prime_protocol.tasks.dataset import MathProblem, parse_math_problems, verify_dataset_digest
from prime_protocol.tasks.family import (
    THINKING,
    Grade,
    GradeReason,
    SandboxJob,
    SandboxLimits,
    SandboxOutcome,
    Task,
    TaskParameters,
    extract_boxed,
    grade_failure,
    strip_thinking,
)
from prime_protocol.wire.ids import Digest

INSTRUCTION = "\n\nThink step by step, then put the final answer in \\boxed{}."

LIMITS = SandboxLimits(cpu_s=GRADER_CPU_S)

IGNORED_LATEX = ("\\left", "\\right", "\\!", "\\,", "\\;", "\\:", "\\ ", "$", " ", "\t", "\n", "\u00a0")
EQUIVALENT_LATEX = (("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("\\%", "%"), ("^{\\circ}", ""), ("^\\circ", ""))

MATH_READER = """
import math_verify

config = [math_verify.LatexExtractionConfig()]

def read(answer):
    return math_verify.parse("\\\\boxed{" + answer + "}", extraction_config=config, parsing_timeout=None)
"""

PREPARE = f"""{MATH_READER}
math_verify.verify(read("\\\\frac{{1}}{{2}}+x"), read("(x+0.5)^2"), timeout_seconds=None)
"""
"""The parser builds its tables at the first call, which takes a third of a second."""

GRADER = f"""{MATH_READER}
import json, os, sys

request = json.load(sys.stdin)

def is_right():
    given = read(request["answer"])
    return any(math_verify.verify(read(right), given, timeout_seconds=None) for right in request["answers"])

try:
    verdict = is_right()
except Exception:
    verdict = False
os.write(3, b"1" if verdict else b"0")
os._exit(0)
"""
"""Runs inside the sandbox. What cannot be parsed or compared is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MathAnswer:
    """The problems of one file, in its order."""

    problems: tuple[MathProblem, ...]
    thinking: bool
    name: str = "math-answer"

    @classmethod
    def open(cls, parameters: TaskParameters, dataset: bytes) -> Self:
        verify_dataset_digest(dataset, Digest.parse(parameters.take_text("dataset")))
        thinking = parameters.take_choice("thinking", THINKING) == "required"
        return cls(problems=parse_math_problems(dataset), thinking=thinking)

    @property
    def size(self) -> int:
        return len(self.problems)

    def make(self, index: int) -> Task:
        problem = self.problems[index]
        return Task(self.name, index, problem.prompt + INSTRUCTION, json.dumps(problem.answers))

    def grade(self, task: Task, completion: str) -> Grade | SandboxJob:
        text = strip_thinking(completion, required=self.thinking)
        answer = extract_boxed(text) if text is not None else None
        if not answer:
            return Grade(0.0, GradeReason.NO_ANSWER)
        if len(answer) > MATH_ANSWER_CHARS_MAX:
            return Grade(0.0, GradeReason.TOO_LONG)
        answers: list[str] = json.loads(task.key)
        if any(normalise(answer) == normalise(right) for right in answers):
            return Grade(1.0, GradeReason.RIGHT)
        # Printable ASCII is all that LaTeX needs. The parser takes digits of other scripts for the same numbers.
        if not (answer.isascii() and answer.replace("\n", " ").isprintable()):
            return Grade(0.0, GradeReason.MALFORMED)
        request = json.dumps({"answer": answer, "answers": answers}).encode()
        return SandboxJob(GRADER, request, LIMITS, prepare=PREPARE)

    def grade_outcome(self, task: Task, outcome: SandboxOutcome) -> Grade:
        failure = grade_failure(outcome)
        if failure is not None:
            return failure
        match outcome.result:
            case b"1":
                return Grade(1.0, GradeReason.RIGHT)
            case b"0":
                return Grade(0.0, GradeReason.WRONG)
            case _:
                return Grade(0.0, GradeReason.CRASHED)


def normalise(answer: str) -> str:
    """The answer without what only changes how it looks."""
    for text in IGNORED_LATEX:
        answer = answer.replace(text, "")
    for text, same in EQUIVALENT_LATEX:
        answer = answer.replace(text, same)
    return answer.rstrip(".")
