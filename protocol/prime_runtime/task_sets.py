"""The one place where programs open the task set that a run's terms name, and grade answers to its tasks.

The families themselves are pure and live in prime_protocol.tasks. This module fetches or reads their problem files and
runs the sandbox jobs that some grades need.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from prime_protocol.constants import DATASET_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.tasks.family import Grade, SandboxJob, Task, TaskFamily, TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_protocol.wire.ids import Digest
from prime_runtime.files import write_atomic

if TYPE_CHECKING:
    from prime_runtime.http.client import HttpClient
    from prime_runtime.http.config import ServerAddress
    from prime_runtime.sandbox.sandbox import Sandbox

log = logging.getLogger(__name__)

TASK_SETS_CACHED = 4
"""Open task sets in memory: that of the current step, and those of steps that are still audited."""


def open_task_set(task_set: str, problem_file: Path | None = None) -> TaskFamily:
    """With a problem file on this machine. LocalError: the caller chose the task set and the file, so it is at fault.

    Slow for a large file: use a thread.
    """
    try:
        return open_family(TaskSetSpec.parse(task_set), problem_file.read_bytes() if problem_file else b"")
    except (RemoteError, OSError, MemoryError) as error:
        raise LocalError(f"the task set {task_set} cannot be opened: {error}") from None


class TaskSetCache:
    """Opens each task set once. Problem files come from the coordinator and are kept in `folder`, if given."""

    def __init__(self, client: "HttpClient", server: "ServerAddress", folder: Path | None = None) -> None:
        self._client = client
        self._server = server
        self._folder = folder
        self._families: OrderedDict[str, TaskFamily] = OrderedDict()

    async def open(self, task_set: str) -> TaskFamily:
        """RemoteError: the terms name no valid task set. LocalError: its problem file cannot be fetched."""
        if task_set not in self._families:
            spec = TaskSetSpec.parse(task_set)
            data = await self._read(spec.problem_file) if spec.problem_file else b""
            self._families[task_set] = await asyncio.to_thread(open_family, spec, data)
            if len(self._families) > TASK_SETS_CACHED:
                self._families.popitem(last=False)
        return self._families[task_set]

    async def _read(self, digest: Digest) -> bytes:
        path = self._folder / digest.hex() if self._folder else None
        if path is not None and path.exists():
            data = await asyncio.to_thread(path.read_bytes)
            if sha256(data).digest() == digest:
                return data
            log.warning("the problem file %s on this disk is damaged; fetching it again", digest)
        # The coordinator's checker opens task sets in small processes; those need no HTTP client.
        from prime_runtime.http.coordinator_api import fetch_file

        data = await fetch_file(self._client, self._server, f"/datasets/{digest}", digest, bytes_max=DATASET_BYTES_MAX)
        if path is not None:
            await asyncio.to_thread(write_atomic, path, data)
        return data


async def grade_answers(family: TaskFamily, task: Task, answers: Sequence[str], sandbox: "Sandbox") -> list[Grade]:
    """LocalError where this machine cannot run a sandbox job: that says nothing about the answer."""
    found = await asyncio.to_thread(lambda: [family.grade(task, answer) for answer in answers])

    async def finish(grade: Grade | SandboxJob) -> Grade:
        return grade if isinstance(grade, Grade) else family.grade_outcome(task, await sandbox.run(grade))

    return await asyncio.gather(*map(finish, found))
