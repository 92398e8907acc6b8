"""Submissions as the coordinator lists them, and their files as training groups. Pure.

The coordinator's public JSON is parsed strictly, but it is not signed. Acceptance is the coordinator's claim: the log
rejects a checkpoint that names a submission which was not accepted. The content of a submission needs no trust: its
name is the digest of its receipt, and the receipt binds the file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from prime_protocol.errors import RemoteError
from prime_protocol.rollouts.rollout import (
    Rollout,
)
from prime_protocol.rollouts.verify import make_header, verify_submission
from prime_protocol.tasks.family import TaskFamily
from prime_protocol.wire.ids import Digest, NodeId, RunId, Slot
from prime_protocol.wire.messages import StepReply
from prime_protocol.wire.strict_json import parse_json
from prime_protocol.wire.typed_data import SubmissionReceipt, compute_receipt_id, parse_receipt
from prime_trainer.config import AdvantageConfig
from prime_trainer.data.packing import Sample
from prime_trainer.data.rollout_buffer import RolloutGroup, compute_advantages, compute_length_reward

T = TypeVar("T")

API_ROOT = "/api/v1"
PAGE_ROWS = 200
RESPONSE_BYTES_MAX = 4 * 2**20
"""Limit of one page of JSON. The coordinator's pages stay below half of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRunInfo:
    """What the trainer needs to know about a run."""

    trainer: NodeId
    model_files: Digest
    lag_max: int
    latest_step: int
    """Newest published step; -1 before the first one."""
    slots_done: Mapping[int, int]
    """Credited slots by step."""
    is_exhausted: bool
    """Every slot of the newest step is credited, so the step yields no more work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedSubmission:
    """A submission that is accepted and credited, and not trained on yet."""

    name: Digest
    first_slot: Slot
    slots: int


def parse_response(what: str, raw: bytes, make: Callable[[Any], T]) -> T:
    """Parse a response; RemoteError where it differs from the documented form."""
    try:
        return make(parse_json(what, raw))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise RemoteError(what, f"does not have the documented form ({error!r})") from None


def parse_run(detail: Mapping[str, Any]) -> TrainerRunInfo:
    terms, latest = detail["terms"], parse_int(detail["summary"]["latest_step"], low=-1)
    done = {parse_int(row["step"]): parse_int(row["slots_done"]) for row in detail["steps"]}
    slots = {parse_int(row["step"]): parse_int(row["slots"]) for row in detail["steps"]}
    return TrainerRunInfo(
        trainer=NodeId.parse(terms["trainer"]),
        model_files=Digest.parse(terms["model_files"]),
        lag_max=parse_int(terms["lag_max"]),
        latest_step=latest,
        slots_done=done,
        is_exhausted=latest in done and done[latest] >= slots[latest],
    )


def parse_accepted(page: Mapping[str, Any]) -> tuple[list[AcceptedSubmission], str | None]:
    """The submissions of a page that may be trained on, and the cursor of the next page.

    The speculative twin of a slow lease may be accepted too, with the same answers. Only one of them is credited.
    """
    found = [
        AcceptedSubmission(
            name=Digest.parse(row["submission"]),
            first_slot=Slot(parse_int(row["first_slot"])),
            slots=parse_int(row["slots"]),
        )
        for row in page["rows"]
        if row["progress"] == "accepted" and row["credited"] is True and row["trained_into"] is None
    ]
    cursor = page["next"]
    return found, None if cursor is None else str(cursor)


def parse_receipts(page: Mapping[str, Any], run: RunId) -> tuple[dict[Digest, SubmissionReceipt], str | None]:
    """What workers signed, by the name that follows from it, and the cursor of the next page.

    A name is the digest of its receipt, so a receipt that was changed on the way has another one.
    """
    found = {}
    for row in page["rows"]:
        receipt = parse_receipt(row["body"]["receipt"])
        if receipt.run == run:
            found[compute_receipt_id(receipt)] = receipt
    cursor = page["next"]
    return found, None if cursor is None else str(cursor)


def parse_int(value: Any, *, low: int = 0) -> int:
    # `type is`, because bool is a subclass of int: isinstance would accept JSON's true.
    if type(value) is not int or not low <= value < 2**63:
        raise ValueError(f"{value!r} is not an integer from {low} to 2^63 - 1")
    return value


def make_list_path(what: str, cursor: str | None, **filters: object) -> str:
    """The path of one page of a list."""
    words = {**filters, "limit": PAGE_ROWS, **({"cursor": cursor} if cursor else {})}
    return f"{API_ROOT}/{what}?" + "&".join(f"{name}={value}" for name, value in words.items())


def read_submission(
    data: bytes, row: AcceptedSubmission, receipt: SubmissionReceipt, facts: StepReply, family: TaskFamily
) -> tuple[Rollout, ...]:
    """The rows of a file that answers to its receipt, its lease and its step; RemoteError names what does not."""
    if facts.beacon is None:
        raise RemoteError("beacon", f"of step {receipt.step} is not known, so nothing can have been made for it")
    file = verify_submission(
        data,
        make_header(receipt),
        facts.terms.rollout_limits(row.first_slot, row.slots),
        beacon=facts.beacon,
        tasks_total=family.size,
        temperature=facts.terms.temperature,
        receipt=receipt,
    )
    return file.rows


def make_rollout_group(rows: Sequence[Rollout], rewards: Sequence[float], rule: AdvantageConfig) -> RolloutGroup:
    """Compute advantages and copy the tokens, so that the file with its proofs can be freed."""
    rewards_G = np.array(rewards, np.float64)
    lengths_G = np.array(
        [compute_length_reward(len(row.output_tokens), row.target_length, weight=rule.length_weight) for row in rows]
    )
    advantages_G = compute_advantages(rewards_G, lengths_G, scale_max=rule.scale_max)
    samples = tuple(
        Sample(
            prompt_tokens=row.prompt_tokens.copy(),
            output_tokens=row.output_tokens.copy(),
            sampled_logprobs=row.output_logprobs.copy(),
            advantage=float(advantage),
            temperature=row.temperature,
        )
        for row, advantage in zip(rows, advantages_G, strict=True)
    )
    return RolloutGroup(rows[0].slot, rewards_G, samples)
