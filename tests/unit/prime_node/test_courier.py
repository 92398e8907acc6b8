"""Entries on their way, with the files they name: what goes first, what a refusal means, what is tried again."""

from pathlib import Path
from typing import Any

import pytest
from work_scene import KEY, NETWORK, RUN, digest

from prime_node.courier import Courier, describe_upload
from prime_node.events import Refused, ReplyReceived, Send, TimedOut
from prime_node.shelf import Shelf
from prime_protocol.entries import OUTCOME_NUMBER, Outcome, Submitted, VerdictGiven
from prime_protocol.exchange import Refusal, RefusalCode
from prime_protocol.ids import Digest, Step
from prime_protocol.messages import Logged, Purpose, Upload, UploadReply
from prime_protocol.receipts import SubmissionReceipt, VerdictReceipt
from prime_protocol.signing import Signature
from prime_runtime import http_errors
from prime_runtime.clock import SystemClock
from prime_runtime.http_client import Answer, Server
from prime_runtime.http_errors import Unreachable

LOGGED = Logged(index=3, at_ms=4)
SIGNATURE = Signature(bytes(65))


def refusal(code: RefusalCode) -> http_errors.Refused:
    text = Refusal(code=code, field="purpose", problem="no", retry_after_ms=0, now_ms=0)
    return http_errors.Refused("refused", text)


class Line:
    """Takes what is sent, in order, and answers by a plan."""

    def __init__(self, upload: Any = None, entry: Any = None) -> None:
        self.upload, self.entry = upload, entry
        self.sent: list[str] = []

    async def call(self, server: Server, endpoint: Any, message: Any, **how: Any) -> Answer[Any]:
        if isinstance(message, Upload):
            self.sent.append("file" if how.get("file") else "question")
            if self.upload is not None:
                raise self.upload
            return Answer(UploadReply(stored=False, url=""), b"", b"")
        self.sent.append("entry")
        if self.entry is not None:
            raise self.entry
        return Answer(LOGGED, b"", b"")


def submitted(file: Digest) -> Submitted:
    receipt = SubmissionReceipt(
        network=NETWORK,
        run=RUN,
        step=Step(0),
        lease=7,
        node=KEY.node,
        checkpoint_root=digest("root"),
        file_digest=file,
        rollout_root=digest("rows"),
    )
    return Submitted(receipt=receipt, signature=SIGNATURE, file_bytes=5, output_tokens=1, context_tokens=1)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "files")


async def deliver(line: Line, shelf: Shelf, file: Digest) -> Any:
    courier = Courier(line, Server("http://127.0.0.1:1", KEY.node), shelf, SystemClock())  # type: ignore[arg-type]
    return await courier.deliver(Send(1, submitted(file), RUN, file))


async def test_the_file_goes_before_the_entry_that_names_it(shelf: Shelf) -> None:
    line = Line()
    assert await deliver(line, shelf, shelf.put(b"rows!")) == ReplyReceived(1, LOGGED)
    assert line.sent == ["question", "file", "entry"]


async def test_a_file_that_is_not_wanted_any_more_does_not_keep_its_entry_back(shelf: Shelf) -> None:
    line = Line(upload=refusal(RefusalCode.FORBIDDEN))
    assert await deliver(line, shelf, shelf.put(b"rows!")) == ReplyReceived(1, LOGGED)
    assert line.sent == ["question", "entry"], "the entry may be in the log already, and then this is its answer"


async def test_a_file_that_is_gone_does_not_keep_its_entry_back_either(shelf: Shelf) -> None:
    line = Line()
    assert await deliver(line, shelf, digest("never written")) == ReplyReceived(1, LOGGED)
    assert line.sent == ["entry"]


async def test_a_busy_or_silent_coordinator_is_tried_again_before_the_entry_is_sent(shelf: Shelf) -> None:
    file = shelf.put(b"rows!")
    busy, silent = Line(upload=refusal(RefusalCode.OVERLOADED)), Line(upload=Unreachable("down"))
    event = await deliver(busy, shelf, file)
    assert isinstance(event, Refused)
    assert event.refusal.code is RefusalCode.OVERLOADED
    assert await deliver(silent, shelf, file) == TimedOut(1)
    assert (busy.sent, silent.sent) == (["question"], ["question"])


async def test_an_entry_that_is_refused_is_told_as_it_was(shelf: Shelf) -> None:
    event = await deliver(Line(entry=refusal(RefusalCode.MALFORMED)), shelf, shelf.put(b"rows!"))
    assert isinstance(event, Refused)
    assert event.refusal.field == "purpose"


def test_rollouts_are_for_a_lease_and_evidence_for_a_submission() -> None:
    receipt = VerdictReceipt(
        network=NETWORK,
        run=RUN,
        submission=digest("theirs"),
        validator=KEY.node,
        outcome=OUTCOME_NUMBER[Outcome.HARD],
        evidence=digest("bundle"),
    )
    verdict = VerdictGiven(receipt=receipt, signature=SIGNATURE, outcome=Outcome.HARD, reason="", metrics=())
    evidence = describe_upload(verdict, digest("bundle"), 9)
    assert (evidence.purpose, evidence.lease, evidence.submission) == (Purpose.EVIDENCE, None, digest("theirs"))
    rollouts = describe_upload(submitted(digest("file")), digest("file"), 9)
    assert (rollouts.purpose, rollouts.lease, rollouts.submission) == (Purpose.ROLLOUTS, 7, None)
