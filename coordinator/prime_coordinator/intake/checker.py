"""The process that checks rollout files, apart from the coordinator: a hostile file can cost it memory or its life.

    python -m prime_coordinator.intake.checker MEMORY_MB

A job comes in as a length and a pickle, from the coordinator alone. The answer goes out as one line of JSON.

The coordinator's side of the checking processes: a few of them, one job each, killed and replaced when they hang.
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
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import Submitted
from prime_protocol.tasks.family import TaskFamily, TaskSetSpec
from prime_protocol.tasks.registry import open_family

log = logging.getLogger(__name__)


LENGTH_BYTES = 4
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


@lru_cache(maxsize=4)
def _get_family(task_set: str, dataset: Path | None) -> TaskFamily:
    return open_family(TaskSetSpec.parse(task_set), dataset.read_bytes() if dataset else b"")


def run_check(job: CheckJob) -> dict[str, str]:
    """Empty when the file is good; else the field and the problem."""
    try:
        family = _get_family(job.expected.terms.task_set, job.dataset)
        verify_rollout_file(job.path.read_bytes(), job.entry, job.expected, family, None)
    except RemoteError as error:
        return {"field": error.field, "problem": error.problem}
    except MemoryError:
        return {"field": "file", "problem": "needs more memory than a check may use"}
    return {}


def serve_jobs(jobs: BinaryIO, answers: BinaryIO) -> None:
    """Until the coordinator closes the pipe."""
    while head := jobs.read(LENGTH_BYTES):
        job = pickle.loads(jobs.read(int.from_bytes(head, "big")))
        assert isinstance(job, CheckJob)
        answers.write(json.dumps(run_check(job)).encode() + b"\n")
        answers.flush()


def main(argv: list[str]) -> int:
    memory_bytes = int(argv[1]) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    serve_jobs(sys.stdin.buffer, sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    # As the module of its own name: a job is unpickled as one of its classes, not of __main__'s.
    serve_coordinator = main

    sys.exit(serve_coordinator(sys.argv))


RESULT_BYTES_MAX = 64 * 1024


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
        """Return when the file is good; RemoteError names what is wrong with it, also when no check could end."""
        process = await self._idle.get()
        is_whole = False
        try:
            process = process or await self._start()
            async with asyncio.timeout(self._check_ms / 1000):
                found = await self._ask(process, job)
            is_whole = True
        except TimeoutError:
            raise RemoteError("file", f"could not be checked within {self._check_ms} ms") from None
        except (OSError, ValueError, asyncio.IncompleteReadError):
            raise RemoteError("file", "could not be checked: the checking process died over it") from None
        finally:
            if not is_whole and process is not None:
                log.warning("the checking process %d did not end its job and is replaced", process.pid)
                self._end(process)
            self._idle.put_nowait(process if is_whole else None)
        if found:
            raise RemoteError(str(found.get("field", "file")), str(found.get("problem", "is bad")))

    async def close(self) -> None:
        """End every process."""
        for process in list(self._all):
            self._end(process)
            await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "prime_coordinator.intake.checker",
            str(self._memory_mb),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=RESULT_BYTES_MAX,
        )
        self._all = {known for known in self._all if known.returncode is None} | {process}
        return process

    async def _ask(self, process: asyncio.subprocess.Process, job: CheckJob) -> dict[str, str]:
        assert process.stdin is not None
        assert process.stdout is not None
        raw = pickle.dumps(job)
        process.stdin.write(len(raw).to_bytes(LENGTH_BYTES, "big") + raw)
        await process.stdin.drain()
        found = json.loads(await process.stdout.readuntil(b"\n"))
        assert isinstance(found, dict)
        return found

    def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            process.kill()
