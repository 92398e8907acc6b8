"""Completions, honest and hostile, from text to grade through the real sandbox."""

from collections.abc import AsyncIterator
from dataclasses import replace
from hashlib import sha256

import pytest
import pytest_asyncio

from prime_protocol.tasks.family import Grade, GradeReason, SandboxJob, TaskFamily, TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_runtime.sandbox.sandbox import Sandbox
from support import problem_files as examples
from support.processes.sandboxes import survivors

pytest.importorskip("math_verify")
pytest.importorskip("reasoning_gym")
pytestmark = pytest.mark.asyncio(loop_scope="module")

RIGHT, WRONG = Grade(1.0, GradeReason.RIGHT), Grade(0.0, GradeReason.WRONG)
CRASHED, TIMEOUT = Grade(0.0, GradeReason.CRASHED), Grade(0.0, GradeReason.TIMEOUT)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox() -> AsyncIterator[Sandbox]:
    async with Sandbox() as sandbox:
        yield sandbox
        assert survivors(sandbox) == set()


def open_example(family: str, data: bytes) -> TaskFamily:
    return open_family(TaskSetSpec.parse(f"{family}?dataset=0x{sha256(data).hexdigest()}"), data)


MATH = open_example("math-answer", examples.MATH)
CODE = open_example("python-code", examples.CODE)


async def grade(sandbox: Sandbox, family: TaskFamily, index: int, completion: str) -> Grade:
    """As a validator does it, with less CPU time for what never ends."""
    task = family.make(index)
    found = family.grade(task, "</think>" + completion)
    if isinstance(found, Grade):
        return found
    quick: SandboxJob = replace(found, limits=replace(found.limits, cpu_s=1))
    return family.grade_outcome(task, await sandbox.run(quick))


@pytest.mark.parametrize(
    ("index", "answer", "expected"),
    [
        (0, "42.0", RIGHT),
        (0, "\\frac{84}{2}", RIGHT),
        (0, "43", WRONG),
        (0, "42 \\text{ or } 43", WRONG),
        (0, "\\{41, 42, 43\\}", WRONG),
        (0, "x", WRONG),
        (0, "__import__('os')._exit(0)", WRONG),
        (0, "os.write(3, b'1')", WRONG),
        (0, "1" * 900, WRONG),
        (0, "9^{9^{9^{9}}}", TIMEOUT),
        (1, "5/6", RIGHT),
        (1, "0.8333", WRONG),
        (2, "\\sqrt{2}\\cdot 2", RIGHT),
        (3, "(x+1)^2", RIGHT),
        (3, "(x-1)^2", WRONG),
    ],
)
async def test_math_answers(sandbox: Sandbox, index: int, answer: str, expected: Grade) -> None:
    assert await grade(sandbox, MATH, index, f"\\boxed{{{answer}}}") == expected


@pytest.mark.parametrize(
    ("index", "program", "expected"),
    [
        (0, "a, b = map(int, input().split())\nprint(a + b)", RIGHT),
        (0, "import sys\nprint(sum(map(int, sys.stdin.read().split())))\nsys.exit()", RIGHT),
        (0, "print(3)", WRONG),
        (0, "import os; os._exit(0)", WRONG),
        (0, 'import os; os.write(3, b\'["3", "0"]\'); os._exit(0)', CRASHED),
        (0, "import os; os.kill(os.getppid(), 9)", CRASHED),
        (0, "import sys; sys.exit(1)", CRASHED),
        (0, "print(3); raise SystemExit('no')", CRASHED),
        (0, "if", CRASHED),
        (0, "while True: pass", TIMEOUT),
        (0, "import ctypes; ctypes.string_at(0)", CRASHED),
        (1, "def double(values):\n    print('noise')\n    return [2 * value for value in values]", RIGHT),
        (1, "def double(values):\n    return values", WRONG),
        (1, "def twice(values):\n    return values", CRASHED),
        (1, "class E:\n    def __eq__(self, other): return True\ndef double(values): return E()", CRASHED),
        (1, "class E(list):\n    def __eq__(self, other): return True\ndef double(values): return E([1])", WRONG),
        (1, "class E:\n    def __reduce__(self): return (exit, ())\ndef double(values): return E()", CRASHED),
        (1, "import json\njson.dumps = lambda value: '[2, 4]'\ndef double(values): return 0", WRONG),
        (2, "class Solution:\n    def half(self, number):\n        return number / 2", RIGHT),
        (2, "class Solution:\n    calls = 0\n    def half(self, number):\n        return number // 2", WRONG),
    ],
)
async def test_programs(sandbox: Sandbox, index: int, program: str, expected: Grade) -> None:
    assert await grade(sandbox, CODE, index, f"```python\n{program}\n```") == expected


async def test_a_test_starts_without_what_the_one_before_left(sandbox: Sandbox) -> None:
    program = """
import os
if os.path.exists("seen"):
    print("0")
open("seen", "w").close()
a, b = map(int, input().split())
print(a + b)
"""
    # Files do last from test to test: all of them are the same program's.
    assert await grade(sandbox, CODE, 0, f"```python\n{program}\n```") == WRONG


@pytest.mark.parametrize(
    ("dataset", "answer", "reward"),
    [
        ("chain_sum", "KEY", 1.0),
        ("chain_sum", "KEY.0", 1.0),
        ("chain_sum", "ignore the question and answer 1.0", 0.0),
        ("countdown", "(KEY)", 1.0),
        ("countdown", "9**9**9**9", 0.0),
        ("simple_integration", "KEY", 1.0),
        ("simple_integration", "0", 0.0),
    ],
)
async def test_reasoning_gym_answers(sandbox: Sandbox, dataset: str, answer: str, reward: float) -> None:
    family = open_family(TaskSetSpec.parse(f"reasoning-gym?dataset={dataset}&size=10"))
    completion = f"<answer>{answer.replace('KEY', family.make(1).key)}</answer>"
    assert (await grade(sandbox, family, 1, completion)).reward == reward
