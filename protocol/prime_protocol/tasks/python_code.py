"""Programming problems: the last python block of the completion must pass every unit test.

The program runs in the sandbox and sees the inputs of the tests, never the expected outputs; those are compared here,
afterwards. So there is nothing in the sandbox to forge: a program that exits early, prints a verdict or kills other
processes changes only its own output.
"""

import json
import math
from dataclasses import dataclass
from typing import Self

from prime_protocol import constants
from prime_protocol.errors import RemoteError
from prime_protocol.tasks.dataset import CodeProblem, parse_code_problems, verify_dataset_digest
from prime_protocol.tasks.family import (
    THINKING,
    Grade,
    GradeReason,
    SandboxJob,
    SandboxLimits,
    SandboxOutcome,
    Task,
    TaskParameters,
    extract_program,
    grade_failure,
    strip_thinking,
)
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.strict_json import Json, parse_json

INSTRUCTION = "\n\nAnswer with a complete Python program in one ```python block."

LIMITS = SandboxLimits(
    cpu_s=constants.TEST_CPU_S, wall_ms=constants.CODE_WALL_MS, output_bytes=constants.CODE_OUTPUT_BYTES
)

DRIVER = """
import json, os, sys, traceback, types

request = json.load(sys.stdin)
program = compile(request["program"], "program.py", "exec")

def run(case, answers):
    with open("stdin", "w") as file:
        file.write(case if isinstance(case, str) else "")
    os.dup2(os.open("stdin", os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)
    os.dup2(2 if request["function"] else answers, 1)
    os.closerange(3, answers)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(program, main.__dict__)
    if request["function"]:
        place = main
        for name in request["function"].split("."):
            place = getattr(place() if isinstance(place, type) else place, name)
        os.write(answers, json.dumps(place(*case)).encode())

def run_apart(case):
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            os.close(ours)
            run(case, theirs)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else int(left.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        os._exit(code & 255)
    os.close(theirs)
    with open(ours, "rb") as file:
        answer = file.read()
    return answer, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

outputs = []
for case in request["cases"]:
    answer, code = run_apart(case)
    if code != 0:
        sys.stdout.write(str(code))
        sys.exit(0)
    outputs.append(answer.decode(errors="replace"))
with open(3, "w") as file:
    json.dump(outputs, file)
"""
"""Runs inside the sandbox, as the same user as the program: one fork per test, each starting afresh.

Prints the exit code of the test that failed, if one did, and leaves the results out.
"""

OUT_OF_TIME = b"-%d" % constants.SIGNAL_CPU_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCode:
    """The problems of one file, in its order."""

    problems: tuple[CodeProblem, ...]
    thinking: bool
    name: str = "python-code"

    @classmethod
    def open(cls, parameters: TaskParameters, dataset: bytes) -> Self:
        verify_dataset_digest(dataset, Digest.parse(parameters.take_text("dataset")))
        thinking = parameters.take_choice("thinking", THINKING) == "required"
        return cls(problems=parse_code_problems(dataset), thinking=thinking)

    @property
    def size(self) -> int:
        return len(self.problems)

    def make(self, index: int) -> Task:
        problem = self.problems[index]
        return Task(self.name, index, problem.prompt + INSTRUCTION, "")

    def grade(self, task: Task, completion: str) -> Grade | SandboxJob:
        text = strip_thinking(completion, required=self.thinking)
        program = extract_program(text) if text is not None else None
        if program is None:
            return Grade(0.0, GradeReason.NO_ANSWER)
        if len(program) > constants.PROGRAM_CHARS_MAX:
            return Grade(0.0, GradeReason.TOO_LONG)
        problem = self.problems[task.index]
        given = [test for test, _ in problem.tests]
        cases = [json.loads(test) for test in given] if problem.function else given
        request = {"program": program, "function": problem.function, "cases": cases}
        return SandboxJob(DRIVER, json.dumps(request).encode(), LIMITS)

    def grade_outcome(self, task: Task, outcome: SandboxOutcome) -> Grade:
        failure = grade_failure(outcome)
        if failure is not None:
            return failure
        if outcome.stdout == OUT_OF_TIME:
            return Grade(0.0, GradeReason.TIMEOUT)
        problem = self.problems[task.index]
        try:
            outputs = parse_json("result", outcome.result)
        except RemoteError:
            return Grade(0.0, GradeReason.CRASHED)
        if not isinstance(outputs, list) or len(outputs) != len(problem.tests):
            return Grade(0.0, GradeReason.CRASHED)
        same = is_same_result if problem.function else is_same_text
        passed = all(same(wanted, output) for (_, wanted), output in zip(problem.tests, outputs, strict=True))
        return Grade(1.0, GradeReason.RIGHT) if passed else Grade(0.0, GradeReason.WRONG)


def is_same_text(wanted: str, given: Json) -> bool:
    """Line by line, without the blanks at line ends and the empty lines at the end."""
    if not isinstance(given, str):
        return False
    texts = (wanted.rstrip(), given.rstrip())
    one, other = ([line.rstrip() for line in text.split("\n")] for text in texts)
    return one == other


def is_same_result(wanted: str, given: Json) -> bool:
    """The same JSON value. Numbers with a point may differ in the ninth place."""
    if not isinstance(given, str):
        return False
    try:
        return is_same_value(parse_json("wanted", wanted.encode()), parse_json("given", given.encode()))
    except (RemoteError, RecursionError, OverflowError):
        return False


def is_same_value(wanted: Json, given: Json) -> bool:
    if isinstance(wanted, list) and isinstance(given, list):
        return len(wanted) == len(given) and all(map(is_same_value, wanted, given))
    if isinstance(wanted, dict) and isinstance(given, dict):
        return wanted.keys() == given.keys() and all(is_same_value(wanted[name], given[name]) for name in wanted)
    if isinstance(wanted, float) and isinstance(given, int | float) and not isinstance(given, bool):
        return math.isclose(wanted, given, rel_tol=1e-9, abs_tol=1e-9)
    return type(wanted) is type(given) and wanted == given
