"""Entries on their way, with the files they name: what goes first, what a refusal means, what is tried again."""

from pathlib import Path
from typing import Any

import pytest

from prime_node.agent.events import ReplyReceived, Send, SendRefused, SendTimedOut
from prime_node.coordinator_client import CoordinatorClient, make_upload
from prime_node.storage.saved_state import UploadSpool
from prime_protocol.ledger.entries import OUTCOME_NUMBER, Outcome, Submitted, VerdictGiven
from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.messages import EntryReply, UploadPurpose, UploadReply, UploadRequest
from prime_protocol.wire.rpc import Refusal, RefusalCode
from prime_protocol.wire.signing import Signature
from prime_protocol.wire.typed_data import SubmissionReceipt, VerdictReceipt
from prime_runtime.clock import SystemClock
from prime_runtime.http import client as http_errors
from prime_runtime.http.client import SignedReply, Unreachable
from prime_runtime.http.config import ServerAddress
from support.job_setup import KEY, NETWORK, RUN, digest

LOGGED = EntryReply(index=3, at_ms=4)
SIGNATURE = Signature(bytes(65))


def refusal(code: RefusalCode) -> http_errors.CallRefused:
    text = Refusal(code=code, field="purpose", problem="no", retry_after_ms=0, now_ms=0)
    return http_errors.CallRefused("refused", text)


class Line:
    """Takes what is sent, in order, and answers by a plan."""

    def __init__(self, upload: Any = None, entry: Any = None) -> None:
        self.upload, self.entry = upload, entry
        self.sent: list[str] = []

    async def call(self, server: ServerAddress, endpoint: Any, message: Any, **how: Any) -> SignedReply[Any]:
        if isinstance(message, UploadRequest):
            self.sent.append("file" if how.get("file") else "question")
            if self.upload is not None:
                raise self.upload
            return SignedReply(UploadReply(stored=False, url=""), b"", b"")
        self.sent.append("entry")
        if self.entry is not None:
            raise self.entry
        return SignedReply(LOGGED, b"", b"")


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
def spool(tmp_path: Path) -> UploadSpool:
    return UploadSpool(tmp_path / "files")


async def deliver(line: Line, spool: UploadSpool, file: Digest) -> Any:
    client = CoordinatorClient(line, ServerAddress("http://127.0.0.1:1", KEY.node), spool, SystemClock())  # type: ignore[arg-type]
    return await client.send(Send(1, submitted(file), RUN, file))


async def test_the_file_goes_before_the_entry_that_names_it(spool: UploadSpool) -> None:
    line = Line()
    assert await deliver(line, spool, spool.put(b"rows!")) == ReplyReceived(1, LOGGED)
    assert line.sent == ["question", "file", "entry"]


async def test_a_file_that_is_not_wanted_any_more_does_not_keep_its_entry_back(spool: UploadSpool) -> None:
    line = Line(upload=refusal(RefusalCode.FORBIDDEN))
    assert await deliver(line, spool, spool.put(b"rows!")) == ReplyReceived(1, LOGGED)
    assert line.sent == ["question", "entry"], "the entry may be in the log already, and then this is its answer"


async def test_a_file_that_is_gone_does_not_keep_its_entry_back_either(spool: UploadSpool) -> None:
    line = Line()
    assert await deliver(line, spool, digest("never written")) == ReplyReceived(1, LOGGED)
    assert line.sent == ["entry"]


async def test_a_busy_or_silent_coordinator_is_tried_again_before_the_entry_is_sent(spool: UploadSpool) -> None:
    file = spool.put(b"rows!")
    busy, silent = Line(upload=refusal(RefusalCode.OVERLOADED)), Line(upload=Unreachable("down"))
    event = await deliver(busy, spool, file)
    assert isinstance(event, SendRefused)
    assert event.refusal.code is RefusalCode.OVERLOADED
    assert await deliver(silent, spool, file) == SendTimedOut(1)
    assert (busy.sent, silent.sent) == (["question"], ["question"])


async def test_a_refused_entry_is_reported_with_its_refusal(spool: UploadSpool) -> None:
    event = await deliver(Line(entry=refusal(RefusalCode.MALFORMED)), spool, spool.put(b"rows!"))
    assert isinstance(event, SendRefused)
    assert event.refusal.field == "purpose"


def test_rollouts_are_for_a_lease_and_evidence_for_a_submission() -> None:
    receipt = VerdictReceipt(
        network=NETWORK,
        run=RUN,
        submission=digest("theirs"),
        validator=KEY.node,
        outcome=OUTCOME_NUMBER[Outcome.FRAUDULENT],
        evidence=digest("bundle"),
    )
    verdict = VerdictGiven(receipt=receipt, signature=SIGNATURE, outcome=Outcome.FRAUDULENT, reason="", metrics=())
    evidence = make_upload(verdict, digest("bundle"), 9)
    assert (evidence.purpose, evidence.lease, evidence.submission) == (UploadPurpose.EVIDENCE, None, digest("theirs"))
    rollouts = make_upload(submitted(digest("file")), digest("file"), 9)
    assert (rollouts.purpose, rollouts.lease, rollouts.submission) == (UploadPurpose.ROLLOUTS, 7, None)
