"""Rollout files are checked in processes of their own: a hostile file can exhaust memory or crash its reader.

    python -m prime_coordinator.intake.checker MEMORY_MB

`CheckerPool` is the coordinator's side: a few processes, one job each, killed and replaced when they hang. A job is a
length and a pickle (only the coordinator writes to the pipe); the result is one line of JSON. The rules that a file
must meet are in checks.py.
"""

import asyncio
import json
import logging
import os
import pickle
import resource
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from prime_coordinator.intake.checks import ExpectedSubmission, verify_rollout_file
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import Submitted
from prime_runtime.task_sets import open_task_set

log = logging.getLogger(__name__)

LENGTH_BYTES = 4
RESULT_BYTES_MAX = 64 * 1024
NICENESS = 5
"""Checks can wait; heartbeats cannot."""


@dataclass(frozen=True, slots=True)
class CheckJob:
    """One file to check."""

    path: Path
    entry: Submitted
    expected: ExpectedSubmission
    dataset: Path | None
    """The problem file, for task sets that name one."""


# --- The checking process ---------------------------------------------------------------------------------------------


_open_cached = lru_cache(maxsize=4)(open_task_set)
"""LocalError if it cannot be opened: the operator chose the task set and its problem file, not the worker."""


def run_check(job: CheckJob) -> dict[str, str]:
    """Empty if the file is good; `field` and `problem` if the worker is at fault, `local` if the operator is."""
    try:
        family = _open_cached(job.expected.terms.task_set, job.dataset)
        verify_rollout_file(job.path.read_bytes(), job.entry, job.expected, family, None)
    except LocalError as error:
        return {"local": str(error)}
    except RemoteError as error:
        return {"field": error.field, "problem": error.problem}
    except MemoryError:
        return {"field": "file", "problem": "needs more memory than a check may use"}
    return {}


def serve_jobs(jobs: BinaryIO, results: BinaryIO) -> None:
    """Run jobs until the coordinator closes the pipe."""
    while head := jobs.read(LENGTH_BYTES):
        job = pickle.loads(jobs.read(int.from_bytes(head, "big")))
        assert isinstance(job, CheckJob)
        results.write(json.dumps(run_check(job)).encode() + b"\n")
        results.flush()


def main(argv: list[str]) -> int:
    memory_bytes = int(argv[1]) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    serve_jobs(sys.stdin.buffer, sys.stdout.buffer)
    return 0


# --- The coordinator's side -------------------------------------------------------------------------------------------


class CheckerPool:
    """Hands jobs to processes. A process that dies or takes too long fails its file, never the coordinator."""

    def __init__(self, *, count: int, check_ms: int, memory_mb: int) -> None:
        self._check_ms = check_ms
        self._memory_mb = memory_mb
        self._idle: asyncio.LifoQueue[asyncio.subprocess.Process | None] = asyncio.LifoQueue()
        self._all: set[asyncio.subprocess.Process] = set()
        for _ in range(count):
            self._idle.put_nowait(None)

    async def check(self, job: CheckJob) -> None:
        """Return if the file is good. RemoteError: the file is bad or its check did not end. LocalError: our fault."""
        process = await self._idle.get()
        is_reusable = False
        try:
            process = process or await self._start()
            async with asyncio.timeout(self._check_ms / 1000):
                result = await self._run(process, job)
            is_reusable = True
        except TimeoutError:
            raise RemoteError("file", f"could not be checked within {self._check_ms} ms") from None
        except (OSError, ValueError, asyncio.IncompleteReadError):
            raise RemoteError("file", "could not be checked: the checking process died on it") from None
        finally:
            if not is_reusable and process is not None:
                log.warning("checking process %d did not finish its job; it is replaced", process.pid)
                self._kill(process)
            self._idle.put_nowait(process if is_reusable else None)
        if "local" in result:
            raise LocalError(result["local"])
        if result:
            raise RemoteError(str(result.get("field", "file")), str(result.get("problem", "is bad")))

    async def close(self) -> None:
        """End every process."""
        for process in list(self._all):
            self._kill(process)
            await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "prime_coordinator.intake.checker", str(self._memory_mb)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=RESULT_BYTES_MAX,
        )
        self._all = {known for known in self._all if known.returncode is None} | {process}
        return process

    async def _run(self, process: asyncio.subprocess.Process, job: CheckJob) -> dict[str, str]:
        assert process.stdin is not None
        assert process.stdout is not None
        raw = pickle.dumps(job)
        process.stdin.write(len(raw).to_bytes(LENGTH_BYTES, "big") + raw)
        await process.stdin.drain()
        result = json.loads(await process.stdout.readuntil(b"\n"))
        assert isinstance(result, dict)
        return result

    def _kill(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            process.kill()


if __name__ == "__main__":
    # Run under the module's own name: jobs are pickled with the classes of that module, not with those of __main__.
    from prime_coordinator.intake import checker

    sys.exit(checker.main(sys.argv))
