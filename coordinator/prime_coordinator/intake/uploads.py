"""Files of nodes: who may upload one, where it goes, how a submission's file is checked, and which files are deleted.

A node uploads a file before an entry names it; until then the file counts for nothing. A rollout file that fails its
check goes to quarantine with the reason, and its sender is told. The checks themselves are in checks.py.
"""

import logging
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

from aiohttp import web

from prime_coordinator.config import IntakeConfig
from prime_coordinator.constants import (
    FINDING_BYTES_MAX,
    FINDINGS_UNFILED_MAX,
    QUARANTINE_FILES_MAX,
    RETRY_MS,
    UNCLAIMED_MS,
    UPLOADS_KNOWN_MAX,
    UPLOADS_PER_GRANT_MAX,
)
from prime_coordinator.core import Core
from prime_coordinator.intake.checker import CheckerPool, CheckJob
from prime_coordinator.intake.checks import ExpectedSubmission
from prime_coordinator.log.store import LogStore, QuarantinedFile
from prime_coordinator.retention.file_rows import ExpiredFile, StoredFile
from prime_coordinator.retention.file_table import FileTable
from prime_coordinator.retention.object_names import KIND_OF_PURPOSE, get_day, make_key
from prime_protocol.constants import DATASET_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import Submitted
from prime_protocol.ledger.findings import check_finding
from prime_protocol.ledger.limits import is_free
from prime_protocol.ledger.state import RunState
from prime_protocol.tasks.family import TaskSetSpec
from prime_protocol.wire.ids import Digest, NodeId
from prime_protocol.wire.messages import UploadPurpose, UploadReply, UploadRequest
from prime_protocol.wire.rpc import RefusalCode
from prime_runtime.clock import Clock
from prime_runtime.http.messages import RefusalError, read_body_chunks
from prime_runtime.http.server import Caller
from prime_runtime.objects.store import ObjectMissing, ObjectStore, content_key, verify_object
from prime_runtime.redaction import escape

log = logging.getLogger(__name__)


def check_upload(core: Core, caller: Caller, upload: UploadRequest, bytes_max: int) -> None:
    """Only a node that is about to name such a file in an entry may upload it."""
    if upload.size_bytes > bytes_max:
        raise RemoteError("size_bytes", f"is {upload.size_bytes}, the limit is {bytes_max}")
    if caller.run is None or caller.run not in core.state.runs:
        raise RemoteError("run", f"{caller.run} was not created here")
    run = core.state.runs[caller.run]
    if upload.purpose is UploadPurpose.EVIDENCE:
        _check_evidence(core, run, caller.sender, upload)
    elif upload.purpose is UploadPurpose.ROLLOUTS:
        lease = run.leases.get(upload.lease or 0)
        if lease is None or lease.node != caller.sender:
            _forbid(f"the lease {upload.lease} is not open, or not yours")
    elif caller.sender != run.terms.trainer:
        _forbid("you are not the run's trainer")


def get_about_ms(core: Core, caller: Caller, upload: UploadRequest, now_ms: int) -> int:
    """When the lease was granted that a file is about: its name has that day. For a manifest, which has none, now."""
    assert caller.run is not None, "check_upload refuses it"
    run = core.state.runs[caller.run]
    if upload.submission is not None:
        return run.submissions[upload.submission].leased_at_ms
    return now_ms if upload.lease is None else run.leases[upload.lease].granted_at_ms


def _make_key(upload: UploadRequest, about_ms: int) -> str:
    return make_key(KIND_OF_PURPOSE[upload.purpose], get_day(about_ms), upload.digest)


def _forbid(problem: str) -> NoReturn:
    raise RefusalError(RefusalCode.FORBIDDEN, "purpose", problem)


def _check_evidence(core: Core, run: RunState, sender: NodeId, upload: UploadRequest) -> None:
    """The evidence of a verdict or a ruling, or else of a finding that its sender can file."""
    assert upload.submission is not None, "evidence is about a submission"
    if is_judge(core, sender, upload.submission):
        return
    try:
        check_finding(core.state, run, sender, upload.submission)
    except RemoteError as error:
        _forbid(
            "you were not asked to judge that submission, or have given your verdict; "
            f"and you cannot file a finding: {error.field} {error.problem}"
        )
    # A bond may be zero. Then anyone can file, but keys cost nothing and the coordinator's disk does.
    if is_free(core.state, sender, sender):
        _forbid("too little value stands behind your account to store the evidence of a finding")
    if upload.size_bytes > FINDING_BYTES_MAX:
        raise RemoteError("size_bytes", f"is {upload.size_bytes}, the limit for a finding is {FINDING_BYTES_MAX}")


def is_judge(core: Core, sender: NodeId, submission: Digest) -> bool:
    """Whether a validator or an inspector is asked to decide this submission."""
    tasks = (*core.audits.tasks(sender), *core.inspections.list_rulings(sender))
    return any(task.submission == submission for task in tasks)


class UploadReceiver:
    """Receives files, or names the URL to upload them to."""

    def __init__(
        self, core: Core, objects: ObjectStore, files: FileTable, *, clock: Clock, config: IntakeConfig
    ) -> None:
        self._core = core
        self._objects = objects
        self._files = files
        self._clock = clock
        self._config = config
        self._counts: OrderedDict[tuple[str, NodeId, object], int] = OrderedDict()
        self._unfiled: dict[NodeId, dict[Digest, int]] = {}
        """Submissions about which an account uploaded evidence and filed no finding yet, with the time."""
        self._verified: OrderedDict[Digest, None] = OrderedDict()
        """Objects in a bucket whose bytes were compared with their digest."""

    async def get_target(self, caller: Caller, upload: UploadRequest) -> UploadReply:
        """Where to send this file; nowhere if the store has it. A key that exists is never presigned."""
        check_upload(self._core, caller, upload, self._config.upload_bytes_max)
        about_ms = get_about_ms(self._core, caller, upload, self._clock.now_ms())
        if await self._find_stored(upload, about_ms) is not None:
            return UploadReply(stored=True, url="")
        if not await self._presign(_make_key(upload, about_ms), upload):
            return UploadReply(stored=False, url="")
        self._count(caller, upload)
        file = await self._announce(upload, about_ms)  # it may have another name from an earlier announcement
        return UploadReply(stored=False, url=await self._presign(file.key, upload))

    async def _presign(self, key: str, upload: UploadRequest) -> str:
        """Empty if the store cannot."""
        expires_s = max(1, self._config.upload_ms // 1000)
        return await self._objects.presign_put(key, digest=upload.digest, expires_s=expires_s) or ""

    async def receive(self, caller: Caller, upload: UploadRequest, request: web.Request) -> UploadReply:
        """Stream the file to the store; it is kept only if its digest and size are as announced."""
        check_upload(self._core, caller, upload, self._config.upload_bytes_max)
        if request.match_info["digest"] != str(upload.digest):
            raise RemoteError("digest", "is not the one in the path")
        about_ms = get_about_ms(self._core, caller, upload, self._clock.now_ms())
        if await self._find_stored(upload, about_ms) is not None:
            return UploadReply(stored=True, url="")
        self._count(caller, upload)
        file = await self._announce(upload, about_ms)
        chunks = read_body_chunks(
            request, bytes_max=upload.size_bytes, read_ms=self._config.upload_ms, clock=self._clock
        )
        await self._objects.put(
            file.key,
            chunks,
            bytes_max=self._config.upload_bytes_max,
            size_bytes=upload.size_bytes,
            digest=upload.digest,
        )
        return UploadReply(stored=True, url="")

    async def forget_unfiled(self) -> None:
        """Evidence of findings that were not filed is deleted by now, so it counts no longer."""
        horizon_ms = self._clock.now_ms() - UNCLAIMED_MS
        for account, waiting in list(self._unfiled.items()):
            self._unfiled[account] = {name: at_ms for name, at_ms in waiting.items() if at_ms >= horizon_ms}
            if not self._unfiled[account]:
                del self._unfiled[account]

    async def _announce(self, upload: UploadRequest, about_ms: int) -> StoredFile:
        """The row exists before the object does, so no crash leaves an object that nothing finds."""
        return await self._files.announce(
            upload.digest,
            KIND_OF_PURPOSE[upload.purpose],
            size_bytes=upload.size_bytes,
            about_ms=about_ms,
            now_ms=self._clock.now_ms(),
        )

    async def _find_stored(self, upload: UploadRequest, about_ms: int) -> StoredFile | None:
        """The file, if the store has it, verified. It is kept for as long as after an upload."""
        found = await self._files.find(upload.digest)
        if isinstance(found, ExpiredFile) and found.is_pending:
            problem = "is being deleted; send it again in a moment"
            raise RefusalError(RefusalCode.OVERLOADED, "digest", problem, retry_after_ms=RETRY_MS)
        # Without a row the object may still be there: after a restore from a mirror beside a bucket.
        key = found.key if isinstance(found, StoredFile) else _make_key(upload, about_ms)
        if not await self._is_stored(key, upload):
            return None
        return await self._announce(upload, about_ms)

    async def _is_stored(self, key: str, upload: UploadRequest) -> bool:
        """The store has this file, verified.

        A folder verifies what it writes. A bucket receives uploads directly, and one that ignores the signed checksum
        may hold other bytes: those are deleted, so that the honest file can take the key.
        """
        digest = upload.digest
        try:
            if self._objects.local_path(key) is not None or digest in self._verified:
                return await self._objects.size(key) == upload.size_bytes
            await verify_object(
                self._objects,
                key,
                bytes_max=self._config.upload_bytes_max,
                size_bytes=upload.size_bytes,
                digest=digest,
            )
        except ObjectMissing:
            return False
        except RemoteError as error:
            log.warning("deleted an upload that is not what was announced: %s", error)
            await self._objects.delete(key)
            return False
        self._verified[digest] = None
        if len(self._verified) > UPLOADS_KNOWN_MAX:
            self._verified.popitem(last=False)
        return True

    def record_finding(self, account: NodeId, submission: Digest) -> None:
        """The log has the finding, so its evidence is paid for with the bond."""
        self._unfiled.get(account, {}).pop(submission, None)

    def _count_unfiled(self, account: NodeId, submission: Digest) -> None:
        waiting = self._unfiled.setdefault(account, {})
        if submission not in waiting and len(waiting) >= FINDINGS_UNFILED_MAX:
            problem = f"is evidence of another finding; file those about {', '.join(map(str, waiting))} first"
            raise RefusalError(RefusalCode.FORBIDDEN, "digest", problem)
        waiting[submission] = self._clock.now_ms()

    def _count(self, caller: Caller, upload: UploadRequest) -> None:
        """A lease, an audit task or a finding entitles to a few files only, so that no account can fill the disk."""
        if upload.submission is not None and not is_judge(self._core, caller.sender, upload.submission):
            self._count_unfiled(caller.sender, upload.submission)
        if upload.purpose is UploadPurpose.MANIFEST:
            return
        grant = (str(caller.run), caller.sender, upload.submission or upload.lease)
        count = self._counts.pop(grant, 0) + 1
        self._counts[grant] = count
        if len(self._counts) > UPLOADS_KNOWN_MAX:
            self._counts.popitem(last=False)
        if count > UPLOADS_PER_GRANT_MAX:
            raise RefusalError(RefusalCode.FORBIDDEN, "digest", f"is upload {count} for one lease or audit")


QUARANTINE_PREFIX = "quarantine"
DATASETS_PREFIX = "datasets"
"""Problem files, which the operator stores under their digests."""


class BadFile(RemoteError):
    """The file was checked and refused. That counts against its sender; a missing file does not."""


class SubmissionVerifier:
    """Fetches a submission's file and has it checked."""

    def __init__(
        self,
        checkers: CheckerPool,
        objects: ObjectStore,
        store: LogStore,
        files: FileTable,
        *,
        clock: Clock,
        config: IntakeConfig,
    ) -> None:
        self._checkers = checkers
        self._objects = objects
        self._store = store
        self._files = files
        self._clock = clock
        self._config = config

    async def check(self, caller: Caller, entry: Submitted, expected: ExpectedSubmission) -> None:
        """Return if the entry's file is good. RemoteError: it is missing. BadFile: it is bad. LocalError: our fault."""
        file = await self._files.find(entry.receipt.file_digest)
        if not isinstance(file, StoredFile):
            raise RemoteError("receipt.file_digest", "names no uploaded file; upload it first")
        await self._check_size(file.key, entry)
        try:
            await self._check_content(file.key, entry, expected)
        except RemoteError as error:
            await self._quarantine(caller, entry, file.key, error)
            raise BadFile(error.field, error.problem) from None

    async def _check_size(self, key: str, entry: Submitted) -> None:
        try:
            size_bytes = await self._objects.size(key)
        except ObjectMissing:
            raise RemoteError("receipt.file_digest", "names no uploaded file; upload it first") from None
        if size_bytes != entry.file_bytes:
            raise RemoteError("file_bytes", f"is {entry.file_bytes}, the file has {size_bytes}")

    async def _check_content(self, key: str, entry: Submitted, expected: ExpectedSubmission) -> None:
        dataset = TaskSetSpec.parse(expected.terms.task_set).problem_file
        async with self._on_disk(key, self._config.upload_bytes_max) as path:
            if dataset is None:
                await self._checkers.check(CheckJob(path, entry, expected, None))
                return
            try:
                async with self._on_disk(content_key(DATASETS_PREFIX, dataset), DATASET_BYTES_MAX) as problems:
                    await self._checkers.check(CheckJob(path, entry, expected, problems))
            except ObjectMissing:
                problem = f"the object store has no {DATASETS_PREFIX}/{dataset}: store the run's problem file there"
                raise LocalError(problem) from None

    @asynccontextmanager
    async def _on_disk(self, key: str, bytes_max: int) -> AsyncIterator[Path]:
        """An object as a local file: its own path, or a temporary copy."""
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

    async def _quarantine(self, caller: Caller, entry: Submitted, key: str, error: RemoteError) -> None:
        digest = entry.receipt.file_digest
        log.info("refused the file of %s: %s", caller.sender, error, extra={"file": digest})
        await self._store.add_refused(
            QuarantinedFile(
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
            return  # another entry names it
        if await self._count_kept() < QUARANTINE_FILES_MAX:
            chunks = self._objects.stream(key, bytes_max=self._config.upload_bytes_max)
            await self._objects.put(
                content_key(QUARANTINE_PREFIX, digest), chunks, bytes_max=self._config.upload_bytes_max
            )
        await self._objects.delete(key)
        await self._files.remove(digest)

    async def _count_kept(self) -> int:
        count = 0
        async for _ in self._objects.list(QUARANTINE_PREFIX):
            count += 1
        return count
