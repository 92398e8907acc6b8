"""Sends the agent's messages to the coordinator, and returns the reply, the refusal or the timeout as an event.

A file that an entry names is uploaded first. A final refusal of the file does not stop the entry, whose own answer
decides: a coordinator that already has the entry in its log refuses the file too.
"""

import asyncio
import logging
from contextlib import nullcontext
from typing import Any

from prime_node.agent.events import Event, ReplyReceived, Send, SendRefused, SendTimedOut
from prime_node.agent.outbox import is_final
from prime_node.storage.saved_state import UploadSpool
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import RulingGiven, Submitted, VerdictCommitted, VerdictGiven
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.messages import ENTRY_ENDPOINTS, HEARTBEAT, LEASE, UploadPurpose, UploadRequest
from prime_protocol.wire.rpc import Endpoint
from prime_runtime.clock import Clock
from prime_runtime.http import client as http_errors
from prime_runtime.http.client import HttpClient
from prime_runtime.http.config import ServerAddress
from prime_runtime.http.coordinator_api import upload_file

log = logging.getLogger(__name__)

KNOWN_ENDPOINTS: tuple[Endpoint[Any, Any], ...] = (HEARTBEAT, LEASE, *ENTRY_ENDPOINTS)
ENDPOINTS = {endpoint.request: endpoint for endpoint in KNOWN_ENDPOINTS}
SEND_MS = 15_000
"""Time for one message, including the HTTP client's retries. The agent retries by its own rules."""
UPLOAD_MS = 600_000
"""Time for a file: 100 MB on a line of 2 Mbit/s."""


class CoordinatorClient:
    """Also records whether the coordinator can be reached."""

    def __init__(self, client: HttpClient, server: ServerAddress, spool: UploadSpool, clock: Clock) -> None:
        self._client = client
        self._server = server
        self._spool = spool
        self._clock = clock
        self.problem = "nothing was sent yet"
        """Why the last message got no reply; empty where it got one."""
        self.last_reply_ms: int | None = None
        """When the last reply came, on the wall clock."""
        self._entry_lock = asyncio.Lock()
        """The log takes a key's entries only with rising sequence numbers: one at a time, over all runs."""
        self.uploaded_bytes = 0
        """Bytes of files, since this process started."""

    async def send(self, send: Send) -> Event:
        endpoint = ENDPOINTS[type(send.message)]
        try:
            if send.file is not None:
                await self._upload_file(send, send.file)
            async with self._entry_lock if endpoint in ENTRY_ENDPOINTS else nullcontext():
                answer = await self._client.call(
                    self._server, endpoint, send.message, run=send.run, deadline_ms=SEND_MS
                )
        except http_errors.CallRefused as error:
            self._record_reachability("")
            log.info("%s was refused: %s", endpoint.kind, error)
            return SendRefused(send.request, error.refusal)
        except (LocalError, RemoteError) as error:
            self._record_reachability(str(error))
            return SendTimedOut(send.request)
        self._record_reachability("")
        return ReplyReceived(send.request, answer.message)

    async def _upload_file(self, send: Send, digest: Digest) -> None:
        """The file that the entry names. Raises only where a retry may help."""
        assert send.run is not None, "files belong to runs"
        data = await asyncio.to_thread(self._spool.get, digest)
        if data is None:
            log.warning("the file %s is missing on this disk; sending its entry without it", digest)
            return
        upload = make_upload(send.message, digest, len(data))
        try:
            await upload_file(self._client, self._server, upload, data, run=send.run, deadline_ms=UPLOAD_MS)
        except http_errors.CallRefused as error:
            if not is_final(error.refusal):
                raise
            log.info("the coordinator refused the file %s: %s", digest, error)
            return
        self.uploaded_bytes += len(data)

    def _record_reachability(self, problem: str) -> None:
        if problem and problem != self.problem:
            log.warning("the coordinator does not answer: %s", problem)
        elif not problem:
            if self.problem and self.last_reply_ms is not None:
                log.info("the coordinator answers again")
            self.last_reply_ms = self._clock.now_ms()
        self.problem = problem


def make_upload(
    entry: Submitted | VerdictCommitted | VerdictGiven | RulingGiven, digest: Digest, size_bytes: int
) -> UploadRequest:
    """Rollouts for a lease, evidence for a submission."""
    lease = submission = None
    match entry:
        case Submitted(receipt=receipt):
            lease = receipt.lease
        case VerdictCommitted(submission=name) | RulingGiven(submission=name):
            submission = name
        case VerdictGiven(receipt=verdict):
            submission = verdict.submission
    purpose = UploadPurpose.EVIDENCE if lease is None else UploadPurpose.ROLLOUTS
    return UploadRequest(digest=digest, size_bytes=size_bytes, purpose=purpose, lease=lease, submission=submission)
