"""Requests and replies: which entries others may send, which may be sent again, and that the page names them all."""

from dataclasses import fields
from pathlib import Path

import pytest

from prime_protocol import messages
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest
from prime_protocol.ledger import RULES, Author
from prime_protocol.messages import AUTHORED, ENTRY_ENDPOINTS, HEARTBEAT, LEASE, REPEATABLE, UPLOAD, Purpose, Upload

PAGE = (Path(__file__).parents[3] / "docs" / "protocol" / "messages.md").read_text()
NAME = Digest(bytes(32))


def test_everybodys_entries_have_an_endpoint_and_the_coordinators_have_none() -> None:
    free = {kind for kind, rule in RULES.items() if rule.author is Author.ANYONE}
    assert free - set(AUTHORED) == {kind for kind in free if kind.__name__ == "NetworkCreated"}
    assert set(AUTHORED) <= free


def test_only_what_is_harmless_twice_may_be_repeated_by_a_client() -> None:
    repeated = {endpoint.request for endpoint in ENTRY_ENDPOINTS if endpoint.is_idempotent}
    assert repeated == set(REPEATABLE)
    assert (HEARTBEAT.is_idempotent, LEASE.is_idempotent, UPLOAD.is_idempotent) == (True, False, True)


@pytest.mark.parametrize(
    "message",
    [messages.Heartbeat, messages.HeartbeatReply, messages.LeaseRequest, messages.LeaseReply, messages.AuditTask],
)
def test_the_page_names_every_field(message: type) -> None:
    missing = [field.name for field in fields(message) if f"`{field.name}`" not in PAGE]
    assert not missing


def test_the_page_names_every_entry_that_others_send() -> None:
    assert [kind.__name__ for kind in AUTHORED if f"`{kind.__name__}`" not in PAGE] == []


@pytest.mark.parametrize(
    ("purpose", "lease", "submission", "field"),
    [
        (Purpose.ROLLOUTS, None, None, "lease"),
        (Purpose.MANIFEST, 1, None, "lease"),
        (Purpose.EVIDENCE, None, None, "submission"),
        (Purpose.ROLLOUTS, 1, NAME, "submission"),
    ],
)
def test_an_upload_says_what_it_is_for(
    purpose: Purpose, lease: int | None, submission: Digest | None, field: str
) -> None:
    with pytest.raises(RemoteError) as caught:
        Upload(digest=NAME, size_bytes=1, purpose=purpose, lease=lease, submission=submission)
    assert caught.value.field == field


def test_each_purpose_has_its_form() -> None:
    Upload(digest=NAME, size_bytes=1, purpose=Purpose.ROLLOUTS, lease=0, submission=None)
    Upload(digest=NAME, size_bytes=1, purpose=Purpose.EVIDENCE, lease=None, submission=NAME)
    Upload(digest=NAME, size_bytes=1, purpose=Purpose.MANIFEST, lease=None, submission=None)
