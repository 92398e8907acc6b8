"""What the coordinator says of this node's work, and what follows: journal, files, appeals, stake."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prime_node.agent.events import Event, PendingEntry, SlashReported, StakeMissing
from prime_node.log import public_api as public_log
from prime_node.log.restores import Restore
from prime_node.log.submission_tracker import (
    FOLLOW_MS,
    LATE_MS,
    UNKNOWN_REASON,
    SubmissionTracker,
    compute_missing_stake,
)
from prime_node.log.tree_heads import LossNoticed
from prime_node.storage.journal import JobRecord, JobState, Journal
from prime_node.storage.saved_state import UploadSpool
from prime_protocol.constants import LEASE_MS_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.messages import AccountStatus, HeartbeatReply, NodeCommand, SubmissionUpdate
from prime_protocol.wire.messages import SubmissionStage as Stage
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, SubmissionReceipt, compute_receipt_id
from support.job_setup import KEY, NETWORK, RUN, digest
from support.ledger_network import ACCOUNT

S = JobState
START_MS = 1_800_000_000_000


class Clock:
    now = START_MS

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now


class TrackerSetup:
    """A tracker over a journal with one job, and the coordinator's side of it."""

    def __init__(self, folder: Path, *, stakes: bool = False) -> None:
        self.clock = Clock()
        self.events: list[Event] = []
        self.number = 0
        self.journal, self.spool = Journal(folder / "journal.db"), UploadSpool(folder / "files")
        self.tracker = SubmissionTracker(
            "http://127.0.0.1:1",
            None,
            run=RUN,
            domain=EMBEDDED_DOMAIN,
            journal=self.journal,
            spool=self.spool,
            stakes=stakes,
            post_event=self.events.append,
            clock=self.clock,  # type: ignore[arg-type]
        )
        file = self.spool.put(b"rollouts")
        self.name = digest("submission")
        self.journal.add(
            JobRecord(
                run=RUN,
                lease=0,
                step=0,
                first_slot=0,
                slots=1,
                deadline_ms=START_MS + 60_000,
                started_ms=START_MS,
                state=S.PRODUCED,
                submission=self.name,
                file=file,
            ),
            START_MS,
        )

    def hear(
        self, stage: Stage | None = None, reason: str = "", appeal_until_ms: int = 0, account: AccountStatus = ACCOUNT
    ) -> JobRecord:
        """A heartbeat reply, with an update about the submission unless `stage` is None."""
        self.number += 1
        update = SubmissionUpdate(
            number=self.number,
            submission=self.name,
            stage=stage or Stage.RECEIVED,
            reason=reason,
            appeal_until_ms=appeal_until_ms,
        )
        reply = HeartbeatReply(
            now_ms=self.clock.now,
            next_heartbeat_ms=10_000,
            head=b"",
            weights=None,
            lag_max=1,
            leases=(),
            audits=(),
            command=NodeCommand.NONE,
            version_min=1,
            upgrade_by_ms=0,
            account=account,
            updates=(update,) if stage else (),
        )
        self.tracker.apply_reply(reply)
        record = self.journal.get_by_lease(RUN, 0)
        assert record is not None
        return record

    @property
    def has_file(self) -> bool:
        return any((self.spool._folder).iterdir())


@pytest.fixture
def setup(tmp_path: Path) -> TrackerSetup:
    return TrackerSetup(tmp_path)


def test_a_submission_is_tracked_until_paid_and_its_file_kept_until_accepted(setup: TrackerSetup) -> None:
    stages = (Stage.RECEIVED, Stage.CHECKED, Stage.ACCEPTED, Stage.CREDITED, Stage.PAID)
    seen = [(setup.hear(stage).state, setup.has_file) for stage in stages]
    assert seen == [
        (S.RECEIVED, True),
        (S.CHECKED, True),
        (S.ACCEPTED, False),
        (S.CREDITED, False),
        (S.PAID, False),
    ]
    assert not setup.journal.list_open(RUN)
    assert setup.hear(Stage.CREDITED).state is S.PAID, "an update that comes again changes nothing"


def test_an_update_about_a_submission_of_another_journal_is_passed_over(setup: TrackerSetup) -> None:
    setup.name = digest("another")
    assert setup.hear(Stage.PAID).state is S.PRODUCED


def test_a_soft_rejection_ends_with_the_validators_reason(setup: TrackerSetup) -> None:
    record = setup.hear(Stage.INVALID, "invalid: the file is not in order")
    assert (record.state, record.is_open, setup.has_file) == (S.REJECTED, False, False)
    assert record.reason == "invalid: the file is not in order"
    assert setup.hear(Stage.INVALID, "another").reason == "invalid: the file is not in order"


def test_a_rejection_without_a_reason_says_where_to_find_it(setup: TrackerSetup) -> None:
    assert setup.hear(Stage.INVALID).reason == UNKNOWN_REASON


def test_a_slash_is_appealed_while_it_can_be_and_then_written_down(setup: TrackerSetup) -> None:
    record = setup.hear(Stage.FRAUDULENT, "margin of row 3")
    assert (record.state, record.is_open, setup.has_file) == (S.REJECTED, True, True)
    assert (record.reason, setup.events) == ("margin of row 3", [])
    setup.hear(Stage.FRAUDULENT, "margin of row 3", START_MS + 9)
    assert setup.events == [SlashReported(setup.name, START_MS + 9, is_own=True)]
    record = setup.hear(Stage.SLASHED)
    assert (record.state, record.is_open, setup.has_file) == (S.SLASHED, False, False)
    assert record.reason == "margin of row 3"


def test_an_overturned_slash_leaves_an_accepted_job(setup: TrackerSetup) -> None:
    setup.hear(Stage.FRAUDULENT, "margin of row 3")
    record = setup.hear(Stage.CREDITED)
    assert (record.state, record.reason) == (S.CREDITED, "")


def test_what_the_log_does_not_have_after_its_deadline_will_never_be_there(setup: TrackerSetup) -> None:
    assert setup.hear().state is S.PRODUCED
    setup.clock.now = START_MS + 60_000 + LATE_MS + 1
    record = setup.hear()
    assert (record.state, setup.has_file) == (S.REFUSED, False)
    assert "before its lease's deadline" in record.reason


def test_nothing_is_followed_for_ever(setup: TrackerSetup) -> None:
    setup.hear(Stage.RECEIVED)
    setup.clock.now = START_MS + FOLLOW_MS + 1
    record = setup.hear()
    assert (record.state, record.is_open) == (S.RECEIVED, False)


def test_stake_is_asked_for_once_the_balance_is_there(tmp_path: Path) -> None:
    setup = TrackerSetup(tmp_path, stakes=True)
    for balance, stake in ((50, 0), (150, 0), (50, 100)):
        account = replace(ACCOUNT, balance_nano=balance, stake_nano=stake)
        setup.hear(account=account)
        setup.hear(account=account)
    assert setup.events == [StakeMissing(100), StakeMissing(0)]
    assert setup.tracker.account == account


def test_a_node_that_was_found_dishonest_puts_up_no_more_by_itself() -> None:
    account = replace(ACCOUNT, stake_nano=40, balance_nano=100)
    assert compute_missing_stake(account) == 60
    assert compute_missing_stake(replace(account, fraudulent=1)) == 0


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (public_log.parse_receipt, {"body": {}}),
        (public_log.parse_evidence_digest, []),
    ],
)
def test_an_answer_of_another_form_is_an_error_that_says_so(make: Any, answer: Any) -> None:
    with pytest.raises(RemoteError, match="does not match the coordinator's API schema"):
        public_log.parse_answer("answer", answer, make)


def test_a_receipt_comes_out_of_the_public_log_as_it_went_in() -> None:
    receipt = SubmissionReceipt(
        network=NETWORK,
        run=RUN,
        step=3,  # type: ignore[arg-type]
        lease=4,
        node=KEY.node,
        checkpoint_root=digest("root"),
        file_digest=digest("file"),
        rollout_root=digest("rows"),
    )
    plain = {name: getattr(receipt, name) for name in SubmissionReceipt.__slots__}
    body = {
        "receipt": {name: value if isinstance(value, int) else str(value) for name, value in plain.items()},
        "signature": "0x" + "11" * 65,
    }
    found, signature = public_log.parse_receipt({"body": body})
    assert (found, len(signature)) == (receipt, 65)
    assert compute_receipt_id(found) == compute_receipt_id(receipt)


def test_the_evidence_of_a_submission_is_that_of_its_first_rejection() -> None:
    row = {"outcome": "accept", "evidence": str(digest("metrics"))}
    assert public_log.parse_evidence_digest({"rows": []}) is None
    assert public_log.parse_evidence_digest({"rows": [row]}) is None
    bad = {"outcome": "fraudulent", "evidence": str(digest("bundle"))}
    assert public_log.parse_evidence_digest({"rows": [row, bad]}) == Digest(digest("bundle"))


# --- A restored coordinator -------------------------------------------------------------------------------------------


def note_loss(setup: TrackerSetup, since_ms: int = START_MS) -> list[PendingEntry]:
    loss = LossNoticed(Restore(size=7, at_ms=START_MS, leaf_hash=digest("leaf")), 9, since_ms)
    return setup.tracker.list_lost(loss, NETWORK, KEY)


def acknowledge(setup: TrackerSetup) -> JobRecord:
    """A submission that a receipt can be made of again."""
    record = JobRecord(
        run=RUN,
        lease=1,
        step=3,
        first_slot=0,
        slots=1,
        deadline_ms=START_MS + 60_000,
        started_ms=START_MS,
        state=S.PRODUCED,
        submission=digest("sent"),
        file=setup.spool.put(b"more rollouts"),
        checkpoint_root=digest("root"),
        rollout_root=digest("rows"),
    )
    setup.journal.add(record, START_MS)
    return setup.journal.advance(record, S.RECEIVED, START_MS)


def test_what_a_restore_may_have_lost_is_sent_again_with_its_file(setup: TrackerSetup) -> None:
    assert note_loss(setup) == [], "what was not acknowledged is still being sent"
    record = acknowledge(setup)
    (pending,) = note_loss(setup)
    receipt = pending.entry.receipt
    assert (receipt.lease, receipt.step, receipt.file_digest) == (1, 3, record.file)
    assert pending.file == record.file
    assert note_loss(setup, START_MS + 2 * LEASE_MS_MAX) == [], "the log has it"
    assert setup.spool.has(receipt.file_digest)
    setup.spool.remove(receipt.file_digest)
    assert note_loss(setup)[0].file is None


def test_a_lost_submission_is_named_with_the_time_of_the_restore(setup: TrackerSetup) -> None:
    acknowledge(setup)
    note_loss(setup)
    record = setup.journal.get_by_lease(RUN, 1)
    assert record is not None
    setup.tracker.record_refused(record, "receipt.lease: 1 is not open")
    lost = setup.journal.get_by_lease(RUN, 1)
    assert lost is not None
    assert (lost.state, lost.is_open) == (S.LOST, False)
    assert lost.reason == (
        "lost in a restore of the coordinator at 2027-01-15 08:00:00 UTC; sent again and refused: receipt.lease: 1 is"
        " not open"
    )
    assert note_loss(setup) == [], "it is not sent a third time"


def test_a_refused_repeat_without_a_restore_changes_nothing(setup: TrackerSetup) -> None:
    record = acknowledge(setup)
    setup.tracker.record_refused(record, "receipt.lease: 1 is not open")
    assert setup.journal.get_by_lease(RUN, 1) == record
