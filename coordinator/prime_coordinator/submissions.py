"""A worker's submission on its way into the log: its file is fetched and checked before the entry may count.

A file that fails goes into quarantine, with the reason, and its sender is told. The checks themselves are in intake.py.
"""

import logging
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from prime_coordinator.checker import CheckJob
from prime_coordinator.checkers import Checkers
from prime_coordinator.config import IntakeConfig
from prime_coordinator.constants import QUARANTINE_FILES_MAX
from prime_coordinator.intake import Expected
from prime_coordinator.store import LogStore, Refused
from prime_coordinator.uploads import file_key
from prime_protocol.entries import Submitted
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.tasks.spec import TaskSetSpec
from prime_runtime.clock import Clock
from prime_runtime.http_server import Caller
from prime_runtime.objects import ObjectMissing, ObjectStore, content_key
from prime_runtime.redaction import escape

log = logging.getLogger(__name__)
QUARANTINE = "quarantine"
DATASETS = "datasets"
"""Problem files, put there by the operator under their digests."""
DATASET_BYTES_MAX = 2**30


class BadFile(RemoteError):
    """The file was looked at and refused. That costs its sender something; a file that is missing does not."""


class Submissions:
    """Fetches and checks."""

    def __init__(
        self, checkers: Checkers, objects: ObjectStore, store: LogStore, *, clock: Clock, config: IntakeConfig
    ) -> None:
        self._checkers = checkers
        self._objects = objects
        self._store = store
        self._clock = clock
        self._config = config

    async def check(self, caller: Caller, entry: Submitted, expected: Expected) -> None:
        """Return when the entry's file is there and good; RemoteError if it is not there, BadFile if it is not good."""
        key = file_key(entry.receipt.file_digest)
        await self._check_size(key, entry)
        try:
            await self._check_content(key, entry, expected)
        except RemoteError as error:
            await self._set_aside(caller, entry, error)
            raise BadFile(error.field, error.problem) from None

    async def _check_size(self, key: str, entry: Submitted) -> None:
        try:
            size_bytes = await self._objects.size(key)
        except ObjectMissing:
            raise RemoteError("receipt.file_digest", "names no file that was uploaded; send it first") from None
        if size_bytes != entry.file_bytes:
            raise RemoteError("file_bytes", f"is {entry.file_bytes}, the file has {size_bytes}")

    async def _check_content(self, key: str, entry: Submitted, expected: Expected) -> None:
        dataset = TaskSetSpec.parse(expected.terms.task_set).problem_file
        async with self._on_disk(key, self._config.upload_bytes_max) as path:
            if dataset is None:
                await self._checkers.check(CheckJob(path, entry, expected, None))
                return
            try:
                async with self._on_disk(content_key(DATASETS, dataset), DATASET_BYTES_MAX) as problems:
                    await self._checkers.check(CheckJob(path, entry, expected, problems))
            except ObjectMissing:
                problem = f"the object store has no {DATASETS}/{dataset}; put the run's problem file there"
                raise LocalError(problem) from None

    @asynccontextmanager
    async def _on_disk(self, key: str, bytes_max: int) -> AsyncIterator[Path]:
        """An object as a file: where it lies, or a copy while it is needed."""
        path = self._objects.local_path(key)
        if path is not None:
            if not path.exists():
                raise ObjectMissing(f"there is no {key}")
            yield path
            return
        with tempfile.NamedTemporaryFile(prefix="prime-check-") as copy:
            async for chunk in self._objects.stream(key, bytes_max=bytes_max):
                copy.write(chunk)
            copy.flush()
            yield Path(copy.name)

    async def _set_aside(self, caller: Caller, entry: Submitted, error: RemoteError) -> None:
        digest = entry.receipt.file_digest
        log.info("refused the file of %s: %s", caller.sender, error, extra={"file": digest})
        await self._store.add_refused(
            Refused(
                digest=str(digest),
                at_ms=self._clock.now_ms(),
                node=str(caller.sender),
                run=str(caller.run),
                lease=entry.receipt.lease,
                field=escape(error.field),
                problem=escape(error.problem),
            )
        )
        if await self._store.is_subject(digest):
            return  # another entry stands on it
        key = file_key(digest)
        if await self._count_kept() < QUARANTINE_FILES_MAX:
            chunks = self._objects.stream(key, bytes_max=self._config.upload_bytes_max)
            await self._objects.put(content_key(QUARANTINE, digest), chunks, bytes_max=self._config.upload_bytes_max)
        await self._objects.delete(key)

    async def _count_kept(self) -> int:
        count = 0
        async for _ in self._objects.list(QUARANTINE):
            count += 1
        return count
