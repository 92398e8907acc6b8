"""What the coordinator's public JSON says of a run and its submissions, read strictly into values. Pure.

The JSON is not signed. That a submission was accepted is the coordinator's word, and the log will refuse a checkpoint
that names one which was not. What was submitted follows from the submission's name, which is a digest of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NetworkId, NodeId, RunId, Slot, Step
from prime_protocol.json_text import parse_json
from prime_protocol.receipts import SubmissionReceipt, receipt_id

T = TypeVar("T")

ROOT = "/api/v1"
PAGE_ROWS = 200
ANSWER_BYTES_MAX = 4 * 2**20
"""Of one page of JSON. The coordinator keeps them below half of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeen:
    """A run, as far as its trainer needs to know."""

    trainer: NodeId
    model_files: Digest
    lag_max: int
    latest: int
    """Newest published step; -1 before the first."""
    done: Mapping[int, int]
    """Slots that are credited, by step."""
    is_exhausted: bool
    """Every slot of the newest step is credited: no more work will come of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A submission that was accepted and credited, and was not trained on."""

    name: Digest
    first_slot: Slot
    slots: int


def read(what: str, raw: bytes, make: Callable[[Any], T]) -> T:
    """RemoteError where the answer is not of the form that the coordinator describes."""
    try:
        return make(parse_json(what, raw))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise RemoteError(what, f"is not as the coordinator's description says ({error!r})") from None


def to_run(detail: Mapping[str, Any]) -> RunSeen:
    terms, latest = detail["terms"], whole(detail["summary"]["latest_step"], low=-1)
    done = {whole(row["step"]): whole(row["slots_done"]) for row in detail["steps"]}
    slots = {whole(row["step"]): whole(row["slots"]) for row in detail["steps"]}
    return RunSeen(
        trainer=NodeId.parse(terms["trainer"]),
        model_files=Digest.parse(terms["model_files"]),
        lag_max=whole(terms["lag_max"]),
        latest=latest,
        done=done,
        is_exhausted=latest in done and done[latest] >= slots[latest],
    )


def to_accepted(page: Mapping[str, Any]) -> tuple[list[Accepted], str | None]:
    """Those of a page that may be learnt from, and the cursor of the next page.

    A twin of a slow lease may be accepted too, with the same answers. Only one of them is credited.
    """
    found = [
        Accepted(
            name=Digest.parse(row["submission"]),
            first_slot=Slot(whole(row["first_slot"])),
            slots=whole(row["slots"]),
        )
        for row in page["rows"]
        if row["progress"] == "accepted" and row["credited"] is True and row["trained_into"] is None
    ]
    cursor = page["next"]
    return found, None if cursor is None else str(cursor)


def to_receipts(page: Mapping[str, Any], run: RunId) -> tuple[dict[Digest, SubmissionReceipt], str | None]:
    """What workers signed, by the name that follows from it, and the cursor of the next page.

    A name is the digest of its receipt, so a receipt that was changed on the way has another one.
    """
    found = {}
    for row in page["rows"]:
        facts = row["body"]["receipt"]
        receipt = SubmissionReceipt(
            network=NetworkId(facts["network"]),
            run=RunId(facts["run"]),
            step=Step(whole(facts["step"])),
            lease=whole(facts["lease"]),
            node=NodeId.parse(facts["node"]),
            checkpoint_root=Digest.parse(facts["checkpoint_root"]),
            file_digest=Digest.parse(facts["file_digest"]),
            rollout_root=Digest.parse(facts["rollout_root"]),
        )
        if receipt.run == run:
            found[receipt_id(receipt)] = receipt
    cursor = page["next"]
    return found, None if cursor is None else str(cursor)


def whole(value: Any, *, low: int = 0) -> int:
    # `type is`, because JSON's true is an int to isinstance.
    if type(value) is not int or not low <= value < 2**63:
        raise ValueError(f"{value!r} is not a whole number from {low} on")
    return value


def list_path(what: str, cursor: str | None, **filters: object) -> str:
    """Of a page of the public JSON."""
    words = {**filters, "limit": PAGE_ROWS, **({"cursor": cursor} if cursor else {})}
    return f"{ROOT}/{what}?" + "&".join(f"{name}={value}" for name, value in words.items())
