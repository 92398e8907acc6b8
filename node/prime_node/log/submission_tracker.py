"""Tracks this node's submissions until each is final, and watches its stake, by the coordinator's heartbeat replies.

It advances the journal, removes files that are no longer needed, and tells the agent about a slash to appeal or about
missing stake. The journal is on disk before the next heartbeat confirms the updates.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from prime_node.agent.events import Event, PendingEntry, SlashReported, StakeMissing
from prime_node.log import public_api as public_log
from prime_node.log.replay import format_utc
from prime_node.log.tree_heads import LossNoticed
from prime_node.storage.journal import JobRecord, JobState, Journal
from prime_node.storage.saved_state import UploadSpool
from prime_protocol.constants import LEASE_MS_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.ledger.entries import Submitted
from prime_protocol.wire.ids import Digest, NetworkId, RunId, Step
from prime_protocol.wire.messages import AccountStatus, HeartbeatReply, SubmissionStage, SubmissionUpdate
from prime_protocol.wire.signing import Signature, WalletKey
from prime_protocol.wire.typed_data import Domain, SubmissionReceipt, sign_document, verify_document
from prime_runtime.clock import Clock
from prime_runtime.http.coordinator_api import JsonClient, open_json_client

log = logging.getLogger(__name__)

RESENT = "sent again, because the coordinator restored its log at "
"""And when, in a journal row's reason."""
RESEND_MS = 24 * 3_600_000
"""How long a submission is sent again until the coordinator answers: a row must not stay undecided."""
LATE_MS = 60_000
"""After a lease's deadline: a submission that is not in the log by then never will be."""
FOLLOW_MS = 30 * 24 * 3_600_000
"""How long a submission is tracked at most."""

S = JobState
JOB_STATES = {
    SubmissionStage.RECEIVED: S.RECEIVED,
    SubmissionStage.CHECKED: S.CHECKED,
    SubmissionStage.ACCEPTED: S.ACCEPTED,
    SubmissionStage.CREDITED: S.CREDITED,
    SubmissionStage.PAID: S.PAID,
    SubmissionStage.INVALID: S.REJECTED,
    SubmissionStage.FRAUDULENT: S.REJECTED,
    SubmissionStage.SLASHED: S.SLASHED,
}
UNKNOWN_REASON = "the coordinator has restarted since the verdict; `prime-node rollouts` shows what the log says"


def compute_missing_stake(account: AccountStatus) -> int:
    """What the node should stake by itself; 0 where it cannot, or has been found fraudulent: then its owner decides."""
    missing = account.stake_min_nano - account.stake_nano
    return missing if 0 < missing <= account.balance_nano and not account.fraudulent else 0


class SubmissionTracker:
    """The submissions of one node."""

    def __init__(
        self,
        url: str,
        authority: Path | None,
        *,
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
        self._run = run
        self._domain = domain
        self._journal = journal
        self._spool = spool
        self._stakes = stakes
        """Whether this node stakes for itself."""
        self._post_event = post_event
        self._clock = clock
        self._stake_asked = 0
        self.account: AccountStatus | None = None
        """This node's account, as of the last heartbeat."""

    def apply_reply(self, reply: HeartbeatReply) -> None:
        """Follow what the coordinator says about this node's account and submissions."""
        self.account = reply.account
        if self._stakes:
            missing = compute_missing_stake(reply.account)
            if missing != self._stake_asked:
                self._stake_asked = missing
                self._post_event(StakeMissing(missing))
        for update in reply.updates:
            record = self._journal.get_by_submission(update.submission)
            if record is not None:
                self._remove_settled_file(self._apply_update(record, update))
        for record in self._journal.list_open(self._run):
            self._remove_settled_file(self._give_up_if_late(record))

    def list_lost(self, loss: LossNoticed, network: NetworkId, key: WalletKey) -> list[PendingEntry]:
        """Submissions that a restore of the coordinator may have lost, to be sent again.

        The coordinator answers with the place of those that it has, takes those whose lease is still open, and refuses
        the others: these are lost.
        """
        now_ms, resent = self._clock.now_ms(), []
        for record in self._journal.list_acknowledged_since(self._run, loss.since_ms - LEASE_MS_MAX):
            if record.checkpoint_root is None or record.file is None or record.rollout_root is None:
                continue
            reason = f"{RESENT}{format_utc(loss.restore.at_ms)}"
            self._journal.advance(record, record.state, now_ms, reason=reason)
            receipt = SubmissionReceipt(
                network=network,
                run=self._run,
                step=Step(record.step),
                lease=record.lease,
                node=key.node,
                checkpoint_root=record.checkpoint_root,
                file_digest=record.file,
                rollout_root=record.rollout_root,
            )
            entry = Submitted(
                receipt=receipt,
                signature=sign_document(key, receipt, self._domain),
                file_bytes=record.file_bytes,
                output_tokens=record.output_tokens,
                context_tokens=record.context_tokens,
            )
            file = record.file if self._spool.has(record.file) else None
            resent.append(PendingEntry(entry, self._run, now_ms + RESEND_MS, file))
        return resent[::-1]

    def record_refused(self, record: JobRecord, reason: str) -> None:
        """A final refusal: of a submission that was acknowledged before, it says that a restore has lost it."""
        now_ms = self._clock.now_ms()
        if record.state is S.PRODUCED:
            self._journal.advance(record, S.REFUSED, now_ms, reason=reason)
        elif record.reason.startswith(RESENT):
            when = record.reason.removeprefix(RESENT)
            reason = f"lost in a restore of the coordinator at {when}; sent again and refused: {reason}"
            log.error("submission %s is %s", record.submission, reason)
            self._journal.advance(record, S.LOST, now_ms, reason=reason)

    def _apply_update(self, record: JobRecord, update: SubmissionUpdate) -> JobRecord:
        now_ms, state = self._clock.now_ms(), JOB_STATES[update.stage]
        if state not in (S.REJECTED, S.SLASHED):
            return self._journal.advance(record, state, now_ms)
        reason = record.reason or update.reason or UNKNOWN_REASON
        if update.stage is SubmissionStage.INVALID:
            return self._journal.advance(record, state, now_ms, reason=reason, is_open=False)
        if record.state not in (S.REJECTED, S.SLASHED):
            log.error("submission %s was found fraudulent: %s", update.submission, reason)
        if update.appeal_until_ms:
            self._post_event(SlashReported(update.submission, update.appeal_until_ms, is_own=True))
        return self._journal.advance(record, state, now_ms, reason=reason, is_open=state is S.REJECTED)

    def _give_up_if_late(self, record: JobRecord) -> JobRecord:
        """It came too late for its lease, or it is too old to be tracked."""
        now_ms = self._clock.now_ms()
        if record.submission and record.state is S.PRODUCED and now_ms > record.deadline_ms + LATE_MS:
            reason = "it was not in the log before its lease's deadline"
            return self._journal.advance(record, S.REFUSED, now_ms, reason=reason)
        if record.submission and now_ms > record.started_ms + FOLLOW_MS:
            return self._journal.advance(record, record.state, now_ms, is_open=False)
        return record

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
    page = await api.get(f"/submissions/{submission}")
    index = public_log.parse_answer("submission", page, lambda view: int(view["summary"]["idx"]))
    receipt, signature = public_log.parse_answer("entry", await api.get(f"/log/{index}"), public_log.parse_receipt)
    verify_document(receipt, signature, signer=receipt.node, domain=domain)
    return receipt, signature
