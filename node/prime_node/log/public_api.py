"""Parses the coordinator's public JSON about submissions, strictly, into values. Pure.

Nothing in it is signed. It can cost no money: an entry that rests on a false answer is refused by the log.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from prime_protocol.errors import RemoteError
from prime_protocol.wire import typed_data
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.signing import Signature
from prime_protocol.wire.typed_data import SubmissionReceipt

T = TypeVar("T")


def parse_answer(what: str, answer: Any, make: Callable[[Any], T]) -> T:
    """RemoteError: the answer does not match the coordinator's API schema."""
    try:
        return make(answer)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise RemoteError(what, f"does not match the coordinator's API schema ({error!r})") from None


def parse_evidence_digest(page: Mapping[str, Any]) -> Digest | None:
    """The evidence of the first validator that rejected a submission; None: no validator did."""
    rejected = next((row for row in page["rows"] if row["outcome"] != "accept"), None)
    return Digest.parse(rejected["evidence"]) if rejected else None


def parse_receipt(entry: Mapping[str, Any]) -> tuple[SubmissionReceipt, Signature]:
    """From the log entry of a submission. The caller verifies the signature."""
    body = entry["body"]
    return typed_data.parse_receipt(body["receipt"]), Signature.parse(body["signature"])
