"""Files that nodes send before they name them in an entry: who may send one, where to, and what nobody claimed.

A file counts for nothing until an entry names it. What is in it is looked at in submissions.py.
"""

import logging
from collections import OrderedDict

from aiohttp import web

from prime_coordinator.config import IntakeConfig
from prime_coordinator.constants import UNCLAIMED_MS, UPLOADS_KNOWN_MAX, UPLOADS_PER_WORD_MAX
from prime_coordinator.core import Core
from prime_coordinator.store import LogStore
from prime_protocol.errors import RemoteError
from prime_protocol.exchange import RefusalCode
from prime_protocol.ids import Digest, NodeId
from prime_protocol.messages import Purpose, Upload, UploadReply
from prime_protocol.state import RunState
from prime_runtime.clock import Clock
from prime_runtime.http_body import RefuseRequest, body_chunks
from prime_runtime.http_server import Caller
from prime_runtime.objects import ObjectMissing, ObjectStore, content_key

log = logging.getLogger(__name__)
FILES = "files"
"""Where in the object store the files of nodes lie."""


def file_key(digest: Digest) -> str:
    return content_key(FILES, digest)


def check_upload(core: Core, caller: Caller, upload: Upload, bytes_max: int) -> None:
    """Only who is about to name such a file in an entry may send it."""
    if upload.size_bytes > bytes_max:
        raise RemoteError("size_bytes", f"is {upload.size_bytes}, the limit is {bytes_max}")
    if caller.run is None or caller.run not in core.state.runs:
        raise RemoteError("run", f"{caller.run} was not created here")
    run = core.state.runs[caller.run]
    if not _is_entitled(core, run, caller.sender, upload):
        reasons = {
            Purpose.ROLLOUTS: f"the lease {upload.lease} is not open, or not yours",
            Purpose.EVIDENCE: "you have not been drawn to judge that submission, or have judged it",
            Purpose.MANIFEST: "you are not the run's trainer",
        }
        raise RefuseRequest(RefusalCode.FORBIDDEN, "purpose", reasons[upload.purpose])


def _is_entitled(core: Core, run: RunState, sender: NodeId, upload: Upload) -> bool:
    match upload.purpose:
        case Purpose.ROLLOUTS:
            lease = run.leases.get(upload.lease or 0)
            return lease is not None and lease.node == sender
        case Purpose.EVIDENCE:
            return any(task.submission == upload.submission for task in core.audits.tasks(sender))
        case Purpose.MANIFEST:
            return sender == run.terms.trainer


class Uploads:
    """Takes files in, or says where they go."""

    def __init__(
        self, core: Core, objects: ObjectStore, store: LogStore, *, clock: Clock, config: IntakeConfig
    ) -> None:
        self._core = core
        self._objects = objects
        self._store = store
        self._clock = clock
        self._config = config
        self._counts: OrderedDict[tuple[str, NodeId, object], int] = OrderedDict()
        self._recent: dict[Digest, int] = {}

    async def place(self, caller: Caller, upload: Upload) -> UploadReply:
        """Where this file goes; nowhere, if it is there."""
        check_upload(self._core, caller, upload, self._config.upload_bytes_max)
        key = file_key(upload.digest)
        if await self._has(key, upload.size_bytes):
            return UploadReply(stored=True, url="")
        url = await self._objects.presign_put(key, expires_s=max(1, self._config.upload_ms // 1000))
        if url:
            self._count(caller, upload)
        return UploadReply(stored=False, url=url or "")

    async def receive(self, caller: Caller, upload: Upload, request: web.Request) -> UploadReply:
        """The file itself, streamed to the store; kept only if it is what was announced."""
        check_upload(self._core, caller, upload, self._config.upload_bytes_max)
        if request.match_info["digest"] != str(upload.digest):
            raise RemoteError("digest", "is not the one in the path")
        if await self._has(file_key(upload.digest), upload.size_bytes):
            return UploadReply(stored=True, url="")
        self._count(caller, upload)
        chunks = body_chunks(request, bytes_max=upload.size_bytes, read_ms=self._config.upload_ms, clock=self._clock)
        await self._objects.put(
            file_key(upload.digest),
            chunks,
            bytes_max=self._config.upload_bytes_max,
            size_bytes=upload.size_bytes,
            digest=upload.digest,
        )
        return UploadReply(stored=True, url="")

    async def sweep(self) -> int:
        """Delete files that no entry has named for a day; how many."""
        horizon_ms, deleted = self._clock.now_ms() - UNCLAIMED_MS, 0
        self._recent = {digest: at_ms for digest, at_ms in self._recent.items() if at_ms >= horizon_ms}
        async for listed in self._objects.list(FILES):
            digest = Digest(bytes.fromhex(listed.key.rpartition("/")[2]))
            if digest not in self._recent and not await self._store.is_subject(digest):
                await self._objects.delete(listed.key)
                deleted += 1
        if deleted:
            log.info("deleted %d files that no entry names", deleted)
        return deleted

    async def _has(self, key: str, size_bytes: int) -> bool:
        try:
            return await self._objects.size(key) == size_bytes
        except ObjectMissing:
            return False

    def _count(self, caller: Caller, upload: Upload) -> None:
        """One word of the coordinator is good for a few files, so that nobody fills the disk with it."""
        self._recent[upload.digest] = self._clock.now_ms()
        if upload.purpose is Purpose.MANIFEST:
            return
        word = (str(caller.run), caller.sender, upload.submission or upload.lease)
        count = self._counts.pop(word, 0) + 1
        self._counts[word] = count
        if len(self._counts) > UPLOADS_KNOWN_MAX:
            self._counts.popitem(last=False)
        if count > UPLOADS_PER_WORD_MAX:
            raise RefuseRequest(RefusalCode.FORBIDDEN, "digest", f"is upload {count} for one lease or audit")
