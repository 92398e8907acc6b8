"""Requests and replies: which entries others may send, which may be sent again, and that the page names them all."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from prime_protocol.errors import RemoteError
from prime_protocol.ledger.replay import ENTRY_RULES, EntryAuthor
from prime_protocol.wire import messages
from prime_protocol.wire.ids import Digest, NodeId, Step
from prime_protocol.wire.messages import (
    AUTHORED_ENTRIES,
    ENTRY_ENDPOINTS,
    HEARTBEAT,
    IDEMPOTENT_ENTRIES,
    LEASE,
    UPLOAD,
    UploadPurpose,
    UploadRequest,
)

PAGE = (Path(__file__).parents[4] / "docs" / "protocol" / "messages.md").read_text()
NAME = Digest(bytes(32))


def test_everybodys_entries_have_an_endpoint_and_the_coordinators_have_none() -> None:
    free = {kind for kind, rule in ENTRY_RULES.items() if rule.author is EntryAuthor.ANYONE}
    assert free - set(AUTHORED_ENTRIES) == {kind for kind in free if kind.__name__ == "NetworkCreated"}
    assert set(AUTHORED_ENTRIES) <= free


def test_only_what_is_harmless_twice_may_be_repeated_by_a_client() -> None:
    repeated = {endpoint.request for endpoint in ENTRY_ENDPOINTS if endpoint.is_idempotent}
    assert repeated == set(IDEMPOTENT_ENTRIES)
    assert (HEARTBEAT.is_idempotent, LEASE.is_idempotent, UPLOAD.is_idempotent) == (True, False, True)


@pytest.mark.parametrize(
    "message",
    [
        messages.Heartbeat,
        messages.HeartbeatReply,
        messages.AccountStatus,
        messages.SubmissionUpdate,
        messages.LeaseRequest,
        messages.LeaseReply,
        messages.AuditTask,
        messages.RunRequest,
        messages.RunReply,
        messages.AcceptedSubmission,
    ],
)
def test_the_page_names_every_field(message: type) -> None:
    missing = [field.name for field in fields(message) if f"`{field.name}`" not in PAGE]
    assert not missing


def test_the_page_names_every_entry_that_others_send() -> None:
    assert [kind.__name__ for kind in AUTHORED_ENTRIES if f"`{kind.__name__}`" not in PAGE] == []


@pytest.mark.parametrize(
    ("purpose", "lease", "submission", "field"),
    [
        (UploadPurpose.ROLLOUTS, None, None, "lease"),
        (UploadPurpose.MANIFEST, 1, None, "lease"),
        (UploadPurpose.EVIDENCE, None, None, "submission"),
        (UploadPurpose.ROLLOUTS, 1, NAME, "submission"),
    ],
)
def test_an_upload_says_what_it_is_for(
    purpose: UploadPurpose, lease: int | None, submission: Digest | None, field: str
) -> None:
    with pytest.raises(RemoteError) as caught:
        UploadRequest(digest=NAME, size_bytes=1, purpose=purpose, lease=lease, submission=submission)
    assert caught.value.field == field


def test_each_purpose_has_its_form() -> None:
    UploadRequest(digest=NAME, size_bytes=1, purpose=UploadPurpose.ROLLOUTS, lease=0, submission=None)
    UploadRequest(digest=NAME, size_bytes=1, purpose=UploadPurpose.EVIDENCE, lease=None, submission=NAME)
    UploadRequest(digest=NAME, size_bytes=1, purpose=UploadPurpose.MANIFEST, lease=None, submission=None)


def test_an_audit_task_states_all_sums_or_none() -> None:
    facts = dict.fromkeys(("submission", "seed", "file_digest", "checkpoint_root"), NAME)
    numbers = dict.fromkeys(("round", "lease", "first_slot", "slots", "deadline_ms"), 1)
    task = messages.AuditTask(**facts, **numbers, node=NodeId(bytes(20)), step=Step(0), sums=(0, 1, 2, 3, 4, 5))
    assert task.sums[-1] == 5
    with pytest.raises(RemoteError, match="sums"):
        replace(task, sums=(1,))
