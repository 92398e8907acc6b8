"""The process that checks rollout files, apart from the coordinator: a hostile file can cost it memory or its life.

    python -m prime_coordinator.checker MEMORY_MB

A job comes in as a length and a pickle, from the coordinator alone. The answer goes out as one line of JSON.
"""

import json
import os
import pickle
import resource
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from prime_coordinator.intake import Expected, check_file
from prime_protocol.entries import Submitted
from prime_protocol.errors import RemoteError
from prime_protocol.tasks.family import Family
from prime_protocol.tasks.registry import open_family
from prime_protocol.tasks.spec import TaskSetSpec

LENGTH_BYTES = 4
NICENESS = 5
"""Checks can wait; heartbeats cannot."""


@dataclass(frozen=True, slots=True)
class CheckJob:
    """One file to check."""

    path: Path
    entry: Submitted
    expected: Expected
    dataset: Path | None
    """The problem file, for task sets that name one."""


@lru_cache(maxsize=4)
def _family(task_set: str, dataset: Path | None) -> Family:
    return open_family(TaskSetSpec.parse(task_set), dataset.read_bytes() if dataset else b"")


def answer(job: CheckJob) -> dict[str, str]:
    """Empty when the file is good; else the field and the problem."""
    try:
        family = _family(job.expected.terms.task_set, job.dataset)
        check_file(job.path.read_bytes(), job.entry, job.expected, family, None)
    except RemoteError as error:
        return {"field": error.field, "problem": error.problem}
    except MemoryError:
        return {"field": "file", "problem": "needs more memory than a check may use"}
    return {}


def serve(jobs: BinaryIO, answers: BinaryIO) -> None:
    """Until the coordinator closes the pipe."""
    while head := jobs.read(LENGTH_BYTES):
        job = pickle.loads(jobs.read(int.from_bytes(head, "big")))
        assert isinstance(job, CheckJob)
        answers.write(json.dumps(answer(job)).encode() + b"\n")
        answers.flush()


def main(argv: list[str]) -> int:
    memory_bytes = int(argv[1]) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    serve(sys.stdin.buffer, sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    # As the module of its own name: a job is unpickled as one of its classes, not of __main__'s.
    from prime_coordinator.checker import main as serve_coordinator

    sys.exit(serve_coordinator(sys.argv))
