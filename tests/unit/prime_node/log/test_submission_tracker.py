"""What the public log says of this node's work, and what follows: journal, files, appeals, stake."""

from pathlib import Path
from typing import Any

import pytest

from prime_node.agent.events import Event, SlashReported, StakeMissing
from prime_node.log import public_api as public_log
from prime_node.log.public_api import NodeAccount, RunSnapshot, SubmissionStatus
from prime_node.log.submission_tracker import FOLLOW_MS, LATE_MS, SubmissionTracker, compute_missing_stake, derive_state
from prime_node.storage.journal import JobRecord, JobState, Journal
from prime_node.storage.saved_state import UploadSpool
from prime_protocol.errors import RemoteError
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN, SubmissionReceipt, compute_receipt_id
from prime_runtime.http.coordinator_api import NotFound
from support.job_setup import KEY, NETWORK, RUN, digest

S = JobState
START_MS = 1_800_000_000_000


class Clock:
    now = START_MS

    def now_ms(self) -> int:
        return self.now

    def monotonic_ms(self) -> int:
        return self.now


class Api:
    """Answers by path, as the coordinator's JSON does; what is missing is not known."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []

    async def get(self, path: str, **query: str) -> Any:
        self.asked.append(path)
        if path not in self.answers:
            raise NotFound(path)
        return self.answers[path]


class TrackerSetup:
    """Outcomes over a journal with one piece, and the coordinator's side of it."""

    def __init__(self, folder: Path, *, stakes: bool = False) -> None:
        self.clock, self.api = Clock(), Api()
        self.events: list[Event] = []
        self.journal, self.spool = Journal(folder / "journal.db"), UploadSpool(folder / "files")
        self.tracker = SubmissionTracker(
            "http://127.0.0.1:1",
            None,
            node=KEY.node,
            run=RUN,
            domain=EMBEDDED_DOMAIN,
            journal=self.journal,
            spool=self.spool,
            stakes=stakes,
            post_event=self.events.append,
            clock=self.clock,  # type: ignore[arg-type]
        )
        self.run(unpaid=[0])
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

    def run(self, unpaid: list[int], stake_min: int = 100) -> None:
        steps = [{"step": step, "paid": False} for step in unpaid] + [{"step": 99, "paid": True}]
        self.api.answers[f"/runs/{RUN}"] = {"terms": {"stake_min_nano": stake_min}, "steps": steps}

    def node(self, **changes: int) -> None:
        numbers = {"stake_nano": 0, "earned_nano": 0, "fraudulent": 0, **changes}
        self.api.answers[f"/nodes/{KEY.node}"] = {
            "summary": numbers,
            "owner_balance_nano": changes.get("balance", 0),
            "standings": [{"run": RUN, "standing": "unstaked", "works": False, "way_out": "its owner stakes enough"}],
        }

    def submission(self, progress: str, *, verdicts: int = 0, credited: bool = False) -> None:
        row = {"submission": str(self.name), "step": 0, "progress": progress, "verdicts": verdicts}
        self.api.answers["/submissions"] = {"rows": [{**row, "credited": credited}], "next": None}

    def verdicts(self, outcome: str, reason: str) -> None:
        row = {"outcome": outcome, "reason": reason, "evidence": str(digest("bundle"))}
        self.api.answers["/verdicts"] = {"rows": [{**row, "outcome": "accept", "reason": ""}, row], "next": None}

    async def poll_once(self) -> JobRecord:
        await self.tracker.poll(self.api)  # type: ignore[arg-type]
        record = self.journal.get_by_lease(RUN, 0)
        assert record is not None
        return record

    @property
    def has_file(self) -> bool:
        return any((self.spool._folder).iterdir())


@pytest.fixture
def setup(tmp_path: Path) -> TrackerSetup:
    return TrackerSetup(tmp_path)


async def test_a_submission_is_tracked_until_paid_and_its_file_kept_until_accepted(
    setup: TrackerSetup,
) -> None:
    seen = []
    for progress, verdicts, credited, unpaid in (
        ("waiting", 0, False, [0]),
        ("auditing", 0, False, [0]),
        ("auditing", 1, False, [0]),
        ("accepted", 1, False, [0]),
        ("accepted", 1, True, [0]),
        ("accepted", 1, True, []),
    ):
        setup.submission(progress, verdicts=verdicts, credited=credited)
        setup.run(unpaid)
        seen.append(((await setup.poll_once()).state, setup.has_file))
    assert seen == [
        (S.RECEIVED, True),
        (S.RECEIVED, True),
        (S.CHECKED, True),
        (S.ACCEPTED, False),
        (S.CREDITED, False),
        (S.PAID, False),
    ]
    asked = len(setup.api.asked)
    await setup.poll_once()
    assert "/submissions" not in setup.api.asked[asked:], "what is over is not asked for any more"


async def test_a_soft_rejection_ends_with_the_validators_reason(setup: TrackerSetup) -> None:
    setup.submission("invalid", verdicts=1)
    setup.verdicts("invalid", "the file is not in order")
    record = await setup.poll_once()
    assert (record.state, record.is_open, setup.has_file) == (S.REJECTED, False, False)
    assert record.reason == f"invalid: the file is not in order; evidence {digest('bundle')}"


async def test_a_slash_is_appealed_while_it_can_be_and_then_written_down(setup: TrackerSetup) -> None:
    setup.submission("fraudulent", verdicts=1)
    setup.verdicts("fraudulent", "margin of row 3")
    record = await setup.poll_once()
    assert (record.state, record.is_open, setup.has_file) == (S.REJECTED, True, True)
    assert "margin of row 3" in record.reason
    slash = {"progress": "proposed", "appeal_until_ms": START_MS + 9}
    setup.api.answers[f"/slashes/{setup.name}"] = slash
    await setup.poll_once()
    assert setup.events == [SlashReported(setup.name, START_MS + 9, is_own=True)]
    setup.api.answers[f"/slashes/{setup.name}"] = {"progress": "executed", "appeal_until_ms": None}
    record = await setup.poll_once()
    assert (record.state, record.is_open, setup.has_file) == (S.SLASHED, False, False)
    assert "margin of row 3" in record.reason


async def test_an_overturned_slash_leaves_an_accepted_job(setup: TrackerSetup) -> None:
    setup.submission("fraudulent", verdicts=1)
    setup.verdicts("fraudulent", "margin of row 3")
    await setup.poll_once()
    setup.submission("accepted", verdicts=4, credited=True)
    record = await setup.poll_once()
    assert (record.state, record.reason) == (S.CREDITED, "")


async def test_what_the_log_does_not_have_after_its_deadline_will_never_be_there(setup: TrackerSetup) -> None:
    setup.api.answers["/submissions"] = {"rows": [], "next": None}
    assert (await setup.poll_once()).state is S.PRODUCED
    setup.clock.now = START_MS + 60_000 + LATE_MS + 1
    record = await setup.poll_once()
    assert (record.state, setup.has_file) == (S.REFUSED, False)
    assert "before its lease's deadline" in record.reason


async def test_nothing_is_followed_for_ever(setup: TrackerSetup) -> None:
    setup.submission("waiting")
    await setup.poll_once()
    setup.api.answers["/submissions"] = {"rows": [], "next": None}
    setup.clock.now = START_MS + FOLLOW_MS + 1
    record = await setup.poll_once()
    assert (record.state, record.is_open) == (S.RECEIVED, False)


async def test_stake_is_asked_for_once_the_balance_is_there(tmp_path: Path) -> None:
    setup = TrackerSetup(tmp_path, stakes=True)
    setup.submission("waiting")
    await setup.poll_once()
    assert setup.events == [], "the log does not know this node yet"
    for balance, stake in ((50, 0), (150, 0), (50, 100)):
        setup.node(balance=balance, stake_nano=stake)
        await setup.poll_once()
        await setup.poll_once()
    assert setup.events == [StakeMissing(100), StakeMissing(0)]
    assert setup.tracker.account is not None
    assert (setup.tracker.account.standing, setup.tracker.account.may_work) == ("unstaked", False)


def test_a_node_that_was_found_dishonest_puts_up_no_more_by_itself() -> None:
    node = NodeAccount(
        standing="", may_work=False, remedy="", stake_nano=40, balance_nano=100, earned_nano=0, fraudulent=0
    )
    run = RunSnapshot(stake_min_nano=100, unpaid_steps=frozenset())
    assert compute_missing_stake(node, run) == 60
    slashed = NodeAccount(**{name: getattr(node, name) for name in NodeAccount.__slots__} | {"fraudulent": 1})
    assert compute_missing_stake(slashed, run) == 0


def test_an_unknown_progress_counts_as_received() -> None:
    seen = SubmissionStatus(submission=digest("x"), step=0, progress="in orbit", verdicts=0, credited=False)
    assert derive_state(seen, frozenset()) is S.RECEIVED


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (public_log.parse_submissions, {"rows": [{}], "next": None}),
        (public_log.parse_submissions, []),
        (public_log.parse_run, {"terms": {}, "steps": []}),
        (lambda answer: public_log.parse_node(answer, RUN), {"summary": {}, "standings": None}),
        (public_log.parse_receipt, {"rows": []}),
        (public_log.parse_slash, {"progress": "x", "appeal_until_ms": "soon"}),
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
    found, signature = public_log.parse_receipt({"rows": [{"body": body}]})
    assert (found, len(signature)) == (receipt, 65)
    assert compute_receipt_id(found) == compute_receipt_id(receipt)


def test_the_evidence_of_a_submission_is_that_of_its_first_rejection() -> None:
    row = {"outcome": "accept", "evidence": str(digest("metrics"))}
    assert public_log.parse_evidence_digest({"rows": []}) is None
    assert public_log.parse_evidence_digest({"rows": [row]}) is None
    bad = {"outcome": "fraudulent", "evidence": str(digest("bundle"))}
    assert public_log.parse_evidence_digest({"rows": [row, bad]}) == Digest(digest("bundle"))
