"""Tracks this node's submissions in the public log until each is final, and watches its stake.

It advances the journal, removes files that are no longer needed, and tells the agent about a slash to appeal or about
missing stake. It polls often while something changes, and seldom otherwise. A supervised part of the daemon.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from prime_node.agent.events import Event, SlashReported, StakeMissing
from prime_node.log import public_api as public_log
from prime_node.log.public_api import NodeAccount, RunSnapshot, SubmissionStatus
from prime_node.storage.journal import JobRecord, JobState, Journal
from prime_node.storage.saved_state import UploadSpool
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_protocol.wire.signing import Signature
from prime_protocol.wire.typed_data import Domain, SubmissionReceipt, verify_document
from prime_runtime.clock import Clock, wait_until_set
from prime_runtime.http.coordinator_api import JsonClient, NotFound, open_json_client

log = logging.getLogger(__name__)

POLL_MS = 2_000
POLL_MS_MAX = 60_000
"""Between two polls; doubling while nothing changes."""
PAGE_ROWS = 100
PAGES_MAX = 10
"""Pages of submissions per poll. Older ones are final, or come up once newer ones are."""
LATE_MS = 60_000
"""After a lease's deadline: a submission that is not in the log by then never will be."""
FOLLOW_MS = 30 * 24 * 3_600_000
"""How long a submission is tracked at most."""

S = JobState


def derive_state(seen: SubmissionStatus, unpaid: frozenset[int]) -> JobState:
    """The state of a job, from what the log shows of its submission."""
    if seen.credited:
        return S.CREDITED if seen.step in unpaid else S.PAID
    return {
        "waiting": S.RECEIVED,
        "auditing": S.CHECKED if seen.verdicts else S.RECEIVED,
        "accepted": S.ACCEPTED,
        "invalid": S.REJECTED,
        "fraudulent": S.REJECTED,
    }.get(seen.progress, S.RECEIVED)


def compute_missing_stake(node: NodeAccount, run: RunSnapshot) -> int:
    """What the node should stake by itself; 0 where it cannot, or has been found fraudulent: then its owner decides."""
    missing = run.stake_min_nano - node.stake_nano
    return missing if 0 < missing <= node.balance_nano and not node.fraudulent else 0


class SubmissionTracker:
    """The submissions of one node."""

    def __init__(
        self,
        url: str,
        authority: Path | None,
        *,
        node: NodeId,
        run: RunId,
        domain: Domain,
        journal: Journal,
        spool: UploadSpool,
        stakes: bool,
        post_event: Callable[[Event], None],
        clock: Clock,
    ) -> None:
        self._url = url
        self._authority = authority
        self._node = node
        self._run = run
        self._domain = domain
        self._journal = journal
        self._spool = spool
        self._stakes = stakes
        """Whether this node stakes for itself."""
        self._post_event = post_event
        self._clock = clock
        self._wakeup = asyncio.Event()
        self._stake_asked = 0
        self.account: NodeAccount | None = None
        """This node's account, as of the last poll."""
        self.problem = ""

    def poll_soon(self) -> None:
        """An entry of this node has just been logged."""
        self._wakeup.set()

    async def run(self) -> None:
        wait_ms = POLL_MS
        async with open_json_client(self._url, self._authority) as api:
            while True:
                try:
                    changed = await self.poll(api)
                    self.problem = ""
                except (LocalError, RemoteError) as error:
                    self.problem, changed = str(error), False
                    log.debug("cannot read the public log: %s", error)
                wait_ms = POLL_MS if changed else min(POLL_MS_MAX, 2 * wait_ms)
                if await wait_until_set(self._wakeup, wait_ms):
                    self._wakeup.clear()
                    wait_ms = POLL_MS

    # --- One poll ---------------------------------------------------------------------------------------------------

    async def poll(self, api: JsonClient) -> bool:
        """Whether anything changed."""
        run = public_log.parse_answer("run", await api.get(f"/runs/{self._run}"), public_log.parse_run)
        changed = await self._poll_node(api, run)
        records = {record.submission: record for record in self._journal.list_open(self._run) if record.submission}
        if not records:
            return changed
        seen = await self._list_submissions(api, set(records))
        for name, record in records.items():
            assert name is not None
            moved = await self._advance_record(api, record, seen.get(name), run)
            if moved != record:
                changed = True
                self._remove_settled_file(moved)
        return changed

    async def _poll_node(self, api: JsonClient, run: RunSnapshot) -> bool:
        try:
            answer = await api.get(f"/nodes/{self._node}")
        except NotFound:
            return True  # its registration is not in the log yet
        node = public_log.parse_answer("node", answer, lambda detail: public_log.parse_node(detail, self._run))
        changed, self.account = node != self.account, node
        if self._stakes:
            missing = compute_missing_stake(node, run)
            if missing != self._stake_asked:
                self._stake_asked = missing
                self._post_event(StakeMissing(missing))
        return changed

    async def _list_submissions(self, api: JsonClient, wanted: set[Digest | None]) -> dict[Digest, SubmissionStatus]:
        found: dict[Digest, SubmissionStatus] = {}
        query = {"node": str(self._node), "run": str(self._run), "limit": str(PAGE_ROWS)}
        for _ in range(PAGES_MAX):
            page = await api.get("/submissions", **query)
            rows, cursor = public_log.parse_answer("submissions", page, public_log.parse_submissions)
            found |= {row.submission: row for row in rows}
            if cursor is None or wanted <= found.keys():
                break
            query["cursor"] = cursor
        return found

    async def _advance_record(
        self, api: JsonClient, record: JobRecord, seen: SubmissionStatus | None, run: RunSnapshot
    ) -> JobRecord:
        now_ms = self._clock.now_ms()
        if seen is None:
            return self._handle_unlisted(record, now_ms)
        state = derive_state(seen, run.unpaid_steps)
        if state is not S.REJECTED:
            return self._journal.advance(record, state, now_ms)
        if seen.progress == "fraudulent":
            return await self._track_slash(api, record, now_ms)
        if record.state is not S.REJECTED or record.is_open:
            reason = record.reason or await self._fetch_rejection_reason(api, seen.submission)
            return self._journal.advance(record, S.REJECTED, now_ms, reason=reason, is_open=False)
        return record

    def _handle_unlisted(self, record: JobRecord, now_ms: int) -> JobRecord:
        """The log does not list it: not yet, or too late, or it is too old to be tracked."""
        if record.state is S.PRODUCED and now_ms > record.deadline_ms + LATE_MS:
            return self._journal.advance(
                record, S.REFUSED, now_ms, reason="it was not in the log before its lease's deadline"
            )
        if now_ms > record.started_ms + FOLLOW_MS:
            return self._journal.advance(record, record.state, now_ms, is_open=False)
        return record

    async def _track_slash(self, api: JsonClient, record: JobRecord, now_ms: int) -> JobRecord:
        name = record.submission
        assert name is not None
        if record.state is not S.REJECTED:
            reason = await self._fetch_rejection_reason(api, name)
            log.error("submission %s was found fraudulent: %s", name, reason)
            record = self._journal.advance(record, S.REJECTED, now_ms, reason=reason, is_open=True)
        try:
            slash = public_log.parse_answer("slash", await api.get(f"/slashes/{name}"), public_log.parse_slash)
        except NotFound:
            return record  # the slash is not proposed yet
        if slash.progress == "proposed" and slash.appeal_until_ms is not None:
            self._post_event(SlashReported(name, slash.appeal_until_ms, is_own=True))
        if slash.progress == "executed":
            return self._journal.advance(record, S.SLASHED, now_ms, reason=record.reason)
        return record

    async def _fetch_rejection_reason(self, api: JsonClient, submission: Digest) -> str:
        page = await api.get("/verdicts", submission=str(submission))
        return public_log.parse_answer("verdicts", page, public_log.parse_rejection_reason)

    def _remove_settled_file(self, record: JobRecord) -> None:
        """Once a submission is final its file is not needed here: the coordinator has it."""
        is_settled = record.state in (S.ACCEPTED, S.CREDITED, S.PAID) or not record.is_open
        if record.file is not None and is_settled:
            self._spool.remove(record.file)

    # --- Receipts for evidence --------------------------------------------------------------------------------------

    async def fetch_receipt_or_none(self, submission: Digest) -> tuple[SubmissionReceipt, Signature] | None:
        """A worker's signed receipt, from the public log."""
        try:
            async with open_json_client(self._url, self._authority) as api:
                return await fetch_receipt(api, submission, self._domain)
        except (LocalError, RemoteError) as error:
            log.info("cannot fetch the receipt of %s: %s", submission, error)
            return None


async def fetch_receipt(api: JsonClient, submission: Digest, domain: Domain) -> tuple[SubmissionReceipt, Signature]:
    """A worker's receipt from the public log, with a valid signature. The caller compares its id."""
    page = await api.get("/log/entries", kind="Submitted", subject=str(submission))
    receipt, signature = public_log.parse_answer("entries", page, public_log.parse_receipt)
    verify_document(receipt, signature, signer=receipt.node, domain=domain)
    return receipt, signature
