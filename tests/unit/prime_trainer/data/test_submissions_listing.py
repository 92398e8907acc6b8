"""The coordinator's JSON, read strictly: what may be learnt from, and nothing that is not as it is described."""

import json
from hashlib import sha256
from typing import Any

import pytest

from prime_protocol.errors import RemoteError
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step
from prime_protocol.wire.typed_data import SubmissionReceipt, compute_receipt_id
from prime_trainer.data.submissions import (
    AcceptedSubmission,
    make_list_path,
    parse_accepted,
    parse_receipts,
    parse_response,
    parse_run,
)

RUN = RunId("demo")


def digest(text: str) -> Digest:
    return Digest(sha256(text.encode()).digest())


def accepted_row(name: str = "a", **changes: Any) -> dict[str, Any]:
    row = {
        "submission": str(digest(name)),
        "progress": "accepted",
        "credited": True,
        "trained_into": None,
        "first_slot": 4,
        "slots": 2,
    }
    return row | changes


def run_detail(**changes: Any) -> dict[str, Any]:
    steps = [
        {"step": 4, "slots": 8, "slots_done": 8},
        {"step": 5, "slots": 8, "slots_done": 7},
    ]
    terms = {"trainer": "0x" + "22" * 20, "model_files": str(digest("files")), "lag_max": 2}
    return {"summary": {"latest_step": 5}, "terms": terms, "steps": steps} | changes


def raw(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_run_tells_its_trainer_its_lag_and_what_is_left_to_do() -> None:
    seen = parse_response("run", raw(run_detail()), parse_run)
    assert (seen.latest_step, seen.lag_max, seen.slots_done, seen.is_exhausted) == (5, 2, {4: 8, 5: 7}, False)
    assert parse_response("run", raw(run_detail(summary={"latest_step": 4})), parse_run).is_exhausted
    fresh = parse_response("run", raw(run_detail(summary={"latest_step": -1}, steps=[])), parse_run)
    assert (fresh.latest_step, fresh.is_exhausted) == (-1, False)


@pytest.mark.parametrize(
    "changes",
    [
        {"credited": False},  # a twin of it was credited, with the same answers
        {"progress": "invalid"},
        {"progress": "waiting"},
        {"trained_into": 3},
        {"credited": 1},
    ],
)
def test_only_what_is_accepted_credited_and_not_trained_on_is_taken(changes: dict[str, Any]) -> None:
    page = {"rows": [accepted_row("a", **changes), accepted_row("b")], "next": None}
    rows, cursor = parse_response("page", raw(page), parse_accepted)
    assert rows == [AcceptedSubmission(name=digest("b"), first_slot=4, slots=2)]
    assert cursor is None


@pytest.mark.parametrize(
    "page",
    [
        {},
        {"rows": [], "more": None},
        {"rows": [accepted_row(submission="0x12")], "next": None},
        {"rows": [accepted_row(slots=True)], "next": None},
        {"rows": [accepted_row(slots=-1)], "next": None},
        {"rows": [accepted_row(first_slot=1.5)], "next": None},
        {"rows": ["a"], "next": None},
        [],
    ],
)
def test_page_of_another_form_is_the_coordinator_s_error(page: Any) -> None:
    with pytest.raises(RemoteError):
        parse_response("page", raw(page), parse_accepted)


def test_receipts_are_found_by_the_name_that_follows_from_them() -> None:
    receipt = SubmissionReceipt(
        network=NetworkId("devnet"),
        run=RUN,
        step=Step(5),
        lease=7,
        node=NodeId(bytes(range(20))),
        checkpoint_root=digest("root"),
        file_digest=digest("file"),
        rollout_root=digest("rows"),
    )
    body = {name: str(getattr(receipt, name)) for name in SubmissionReceipt.__slots__} | {"step": 5, "lease": 7}
    changed = body | {"file_digest": str(digest("another file"))}
    foreign = body | {"run": "another"}
    page = {"rows": [{"body": {"receipt": each}} for each in (body, changed, foreign)], "next": "12"}
    found, cursor = parse_response("page", raw(page), lambda value: parse_receipts(value, RUN))
    assert found.pop(compute_receipt_id(receipt)) == receipt
    assert len(found) == 1, "the changed one has another name"
    assert cursor == "12"


def test_pages_are_asked_for_with_their_filters() -> None:
    assert make_list_path("submissions", None, run=RUN, step=3) == "/api/v1/submissions?run=demo&step=3&limit=200"
    assert make_list_path("log/entries", "9", kind="Submitted").endswith("kind=Submitted&limit=200&cursor=9")
