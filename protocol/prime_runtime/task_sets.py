"""Task sets opened by the text in a run's terms; the problem file of one that names it comes from the coordinator."""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from prime_protocol.constants import DATASET_BYTES_MAX
from prime_protocol.tasks.family import Grade, SandboxJob, Task, TaskFamily, TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_protocol.wire.ids import Digest
from prime_runtime.http.client import HttpClient, ServerAddress
from prime_runtime.http.coordinator_api import fetch_file
from prime_runtime.sandbox.sandbox import Sandbox

TASK_SETS_CACHED = 4
"""Task sets remembered: the present one, and those that are still judged."""


class TaskSetCache:
    """Opens each once."""

    def __init__(self, client: HttpClient, server: ServerAddress) -> None:
        self._client = client
        self._server = server
        self._families: OrderedDict[str, TaskFamily] = OrderedDict()

    async def open(self, task_set: str) -> TaskFamily:
        """RemoteError where the terms name no set that can be; LocalError where its problem file cannot be had."""
        if task_set not in self._families:
            spec = TaskSetSpec.parse(task_set)
            data = await self._fetch(spec.problem_file) if spec.problem_file else b""
            self._families[task_set] = await asyncio.to_thread(open_family, spec, data)
            if len(self._families) > TASK_SETS_CACHED:
                self._families.popitem(last=False)
        return self._families[task_set]

    async def _fetch(self, digest: Digest) -> bytes:
        return await fetch_file(self._client, self._server, f"/datasets/{digest}", digest, bytes_max=DATASET_BYTES_MAX)


async def grade_answers(family: TaskFamily, task: Task, answers: Sequence[str], sandbox: Sandbox) -> list[Grade]:
    """At once, or by way of jobs in the sandbox. LocalError where this machine cannot run one: that is no grade."""
    found = await asyncio.to_thread(lambda: [family.grade(task, answer) for answer in answers])

    async def finish(grade: Grade | SandboxJob) -> Grade:
        return grade if isinstance(grade, Grade) else family.grade_outcome(task, await sandbox.run(grade))

    return await asyncio.gather(*map(finish, found))
