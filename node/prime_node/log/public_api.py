"""Parses the coordinator's public JSON about this node and its work, strictly, into values. Pure.

Nothing in it is signed. It is shown to the owner and advances the journal. It can cost no money: an entry that rests
on a false answer is refused by the log.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from prime_protocol.errors import RemoteError
from prime_protocol.wire import typed_data
from prime_protocol.wire.ids import Digest, RunId
from prime_protocol.wire.signing import Signature
from prime_protocol.wire.typed_data import SubmissionReceipt

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionStatus:
    """A submission, as the coordinator lists it."""

    submission: Digest
    step: int
    progress: str
    verdicts: int
    credited: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAccount:
    """This node's account in the ledger."""

    standing: str
    may_work: bool
    remedy: str
    stake_nano: int
    balance_nano: int
    """The owner's balance; the node is its own owner unless another one has delegated to it."""
    earned_nano: int
    fraudulent: int
    """Submissions that were found dishonest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """The run's terms and steps, as far as stake and pay depend on them."""

    stake_min_nano: int
    unpaid_steps: frozenset[int]
    """Steps that are not fully audited and paid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedSlash:
    """A slash of this node's stake."""

    progress: str
    appeal_until_ms: int | None


def parse_answer(what: str, answer: Any, make: Callable[[Any], T]) -> T:
    """RemoteError: the answer does not match the coordinator's API schema."""
    try:
        return make(answer)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise RemoteError(what, f"does not match the coordinator's API schema ({error!r})") from None


def parse_submission(row: Mapping[str, Any]) -> SubmissionStatus:
    return SubmissionStatus(
        submission=Digest.parse(row["submission"]),
        step=int(row["step"]),
        progress=str(row["progress"]),
        verdicts=int(row["verdicts"]),
        credited=row["credited"] is True,
    )


def parse_submissions(page: Mapping[str, Any]) -> tuple[list[SubmissionStatus], str | None]:
    """One page, and the cursor of the next."""
    return [parse_submission(row) for row in page["rows"]], parse_cursor(page)


def parse_cursor(page: Mapping[str, Any]) -> str | None:
    """Of the next page; None: this is the last."""
    cursor = page["next"]
    return None if cursor is None else str(cursor)


def parse_node(detail: Mapping[str, Any], run: RunId) -> NodeAccount:
    summary = detail["summary"]
    standing = {row["run"]: row for row in detail["standings"]}[run]
    return NodeAccount(
        standing=str(standing["standing"]),
        may_work=standing["works"] is True,
        remedy=str(standing["way_out"]),
        stake_nano=int(summary["stake_nano"]),
        balance_nano=int(detail["owner_balance_nano"]),
        earned_nano=int(summary["earned_nano"]),
        fraudulent=int(summary["fraudulent"]),
    )


def parse_run(detail: Mapping[str, Any]) -> RunSnapshot:
    return RunSnapshot(
        stake_min_nano=int(detail["terms"]["stake_min_nano"]),
        unpaid_steps=frozenset(int(row["step"]) for row in detail["steps"] if row["paid"] is not True),
    )


def parse_slash(row: Mapping[str, Any]) -> LoggedSlash:
    until_ms = row["appeal_until_ms"]
    return LoggedSlash(progress=str(row["progress"]), appeal_until_ms=None if until_ms is None else int(until_ms))


def parse_rejection_reason(page: Mapping[str, Any]) -> str:
    """Why a submission was rejected: the first reason that a validator gave, and its evidence."""
    rows = [row for row in page["rows"] if row["outcome"] != "accept"]
    if not rows:
        return "no quorum of validators accepted it"
    row = next((row for row in rows if row["reason"]), rows[0])
    return f"{row['outcome']}: {row['reason'] or 'no reason was given'}; evidence {row['evidence']}"


def parse_evidence_digest(page: Mapping[str, Any]) -> Digest | None:
    """The evidence of the first validator that rejected a submission; None: no validator did."""
    rejected = next((row for row in page["rows"] if row["outcome"] != "accept"), None)
    return Digest.parse(rejected["evidence"]) if rejected else None


def parse_receipt(page: Mapping[str, Any]) -> tuple[SubmissionReceipt, Signature]:
    """From the log entry of a submission. The caller verifies the signature."""
    body = page["rows"][0]["body"]
    return typed_data.parse_receipt(body["receipt"]), Signature.parse(body["signature"])
