"""How long a sandboxed job takes from request to outcome, by kind of job: the price of one grade at a validator."""

import asyncio
import sys
import time
from hashlib import sha256
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "protocol"))

from prime_protocol.tasks import examples
from prime_protocol.tasks.family import SandboxJob, TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_runtime.sandbox.sandbox import Sandbox

JOBS = 40


def job(spec: str, data: bytes, completion: str) -> SandboxJob:
    family = open_family(TaskSetSpec.parse(spec), data)
    found = family.grade(family.make(0), "</think>" + completion)
    assert isinstance(found, SandboxJob)
    return found


def jobs() -> dict[str, SandboxJob]:
    math, code = (f"0x{sha256(data).hexdigest()}" for data in (examples.MATH, examples.CODE))
    program = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"
    return {
        "empty": SandboxJob("pass", b""),
        "code": job(f"python-code?dataset={code}", examples.CODE, program),
        "math": job(f"math-answer?dataset={math}", examples.MATH, "\\boxed{\\frac{84}{2}}"),
        "gym": job("reasoning-gym?dataset=chain_sum&size=9", b"", "<answer>12</answer>"),
    }


async def main() -> None:
    results = {}
    print(f"{'job':8} {'first ms':>9} {'then ms':>9}")
    async with Sandbox() as sandbox:
        print("layers:", ", ".join((await sandbox.capabilities()).layers))
        for name, each in jobs().items():
            started = time.perf_counter()
            await sandbox.run(each)
            first = time.perf_counter()
            for _ in range(JOBS):
                await sandbox.run(each)
            results[name] = (time.perf_counter() - first) / JOBS * 1000
            print(f"{name:8} {(first - started) * 1000:9.1f} {results[name]:9.1f}")
    print("RESULT", *(f"{name}_ms={value:.1f}" for name, value in results.items()))


asyncio.run(main())
