"""How long a sandboxed job takes from request to outcome, by kind of job: the price of one grade at a validator.

python bench/sandbox.py [--jobs 40]
"""

import asyncio
import json
import time
from hashlib import sha256

from benchmark import BenchmarkParser, print_result

from prime_protocol.tasks.family import SandboxJob, TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_runtime.sandbox.sandbox import Sandbox

MATH = json.dumps({"prompt": "What is 6 times 7?", "answers": ["42"]}).encode() + b"\n"
CODE = (
    json.dumps(
        {
            "prompt": "Read two numbers and print their sum.",
            "kind": "stdin",
            "tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "-5 5\n", "output": "0\n"}],
        }
    ).encode()
    + b"\n"
)
PROGRAM = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"


def make_job(spec: str, data: bytes, completion: str) -> SandboxJob:
    family = open_family(TaskSetSpec.parse(spec), data)
    found = family.grade(family.make(0), "</think>" + completion)
    assert isinstance(found, SandboxJob)
    return found


def make_jobs() -> dict[str, SandboxJob]:
    math, code = (f"0x{sha256(data).hexdigest()}" for data in (MATH, CODE))
    return {
        "empty": SandboxJob("pass", b""),
        "code": make_job(f"python-code?dataset={code}", CODE, PROGRAM),
        "math": make_job(f"math-answer?dataset={math}", MATH, "\\boxed{\\frac{84}{2}}"),
        "gym": make_job("reasoning-gym?dataset=chain_sum&size=9", b"", "<answer>12</answer>"),
    }


async def measure(repeats: int) -> dict[str, float]:
    """Milliseconds of a job, by kind, once the sandbox has warmed up for that kind."""
    found = {}
    print(f"{'job':8} {'first ms':>9} {'then ms':>9}")
    async with Sandbox() as sandbox:
        print("layers:", ", ".join((await sandbox.capabilities()).layers))
        for name, job in make_jobs().items():
            started = time.perf_counter()
            await sandbox.run(job)
            first = time.perf_counter()
            for _ in range(repeats):
                await sandbox.run(job)
            found[name] = (time.perf_counter() - first) / repeats * 1000
            print(f"{name:8} {(first - started) * 1000:9.1f} {found[name]:9.1f}")
    return found


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--jobs", 40, 1, "jobs of each kind")
    times_ms = asyncio.run(measure(parser.parse().jobs))
    print_result(**{f"{name}_ms": f"{value:.1f}" for name, value in times_ms.items()})


if __name__ == "__main__":
    main()
