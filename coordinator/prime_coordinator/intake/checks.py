"""What is checked before an entry is logged: registration limits, repeats, rollout files without a model. Pure.

There is no whitelist: stake, version and delegation are checked when work is granted. A sender that got no reply sends
the same entry again in a new envelope; `find_repeat` finds it from the state, also after a restart, until the ledger
drops the step. A rollout file that fails its checks is its sender's error and costs it nothing but the lease.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from prime_coordinator.constants import (
    ADDRESS_GROUP_MS,
    FREE_ENTRIES_PARTS,
    NODES_PER_ADDRESS_GROUP_MAX,
    NODES_PER_OWNER_MAX,
)
from prime_protocol.constants import FREE_BURST_MS
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import (
    CheckpointPublished,
    Delegated,
    FindingFiled,
    Inspected,
    NodeRegistered,
    RulingGiven,
    StepMeasured,
    Submitted,
    VerdictCommitted,
    VerdictGiven,
)
from prime_protocol.ledger.limits import drop_expired, is_free
from prime_protocol.ledger.rewards import count_context_tokens
from prime_protocol.ledger.state import LedgerState, LogPosition, RunState
from prime_protocol.ledger.terms import RunTerms
from prime_protocol.rollouts.rollout import (
    RolloutFile,
    RolloutHeader,
    RolloutLimits,
)
from prime_protocol.rollouts.verify import verify_submission
from prime_protocol.tasks.family import TaskFamily
from prime_protocol.wire.envelope import Payload
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_protocol.wire.messages import EntryReply
from prime_protocol.wire.typed_data import SubmissionReceipt, compute_receipt_id


class Admission:
    """Limits registrations per owner and per address range, on top of the ledger's limits per key and owner.

    The counts per address are lost at a restart.
    """

    def __init__(self, state: LedgerState) -> None:
        self._state = state
        self._owned: Counter[NodeId] = Counter(state.owners.values())
        self._recent: deque[tuple[int, str]] = deque()
        self._groups: Counter[str] = Counter()
        self._free_until_ms: dict[str, int] = {}
        """When an address range's part of the budget of free entries is whole again; whole ones are left out."""

    def check(self, sender: NodeId, entry: Any, address_group: str, now_ms: int) -> None:
        """Refuse entries over the limits. They are counted once they are logged: see `logged`."""
        self._expire(now_ms)
        if not isinstance(entry, NodeRegistered | Delegated):
            return
        if sender not in self._state.nodes:
            self._check_newcomer(address_group)
        owner = self._state.owners.get(sender, sender)
        if isinstance(entry, Delegated):
            owner = entry.delegation.owner
            self._check_owner(sender, owner)
        if is_free(self._state, owner, sender):
            self._check_free(address_group, now_ms)

    def _check_newcomer(self, address_group: str) -> None:
        """A known node may always return."""
        if self._groups[address_group] >= NODES_PER_ADDRESS_GROUP_MAX:
            problem = f"{NODES_PER_ADDRESS_GROUP_MAX} nodes joined from your network; try again in an hour"
            raise RemoteError("Payload.sender", problem, retry_after_ms=ADDRESS_GROUP_MS)

    def _check_free(self, address_group: str, now_ms: int) -> None:
        """One address range must not use up the budget that newcomers from all others need."""
        wait_ms = self._free_until_ms.get(address_group, 0) - now_ms - FREE_BURST_MS
        if wait_ms > 0:
            problem = f"too many free entries came from your network; try again in {-(-wait_ms // 1000)} s"
            raise RemoteError("Payload.sender", problem, retry_after_ms=wait_ms)

    def _check_owner(self, node: NodeId, owner: NodeId) -> None:
        if self._state.owners.get(node) != owner and self._owned[owner] >= NODES_PER_OWNER_MAX:
            raise RemoteError("delegation.owner", f"{owner} already has {NODES_PER_OWNER_MAX} nodes")

    def charge_free(self, address_group: str, free_ms: int, now_ms: int) -> None:
        """An entry from this address range has used so much of the budget of free entries."""
        if free_ms > 0:
            until_ms = max(now_ms, self._free_until_ms.pop(address_group, 0))
            self._free_until_ms[address_group] = until_ms + free_ms * FREE_ENTRIES_PARTS
            drop_expired(self._free_until_ms, now_ms)

    def logged(self, node: NodeId, old_owner: NodeId | None, address_group: str, now_ms: int) -> None:
        """Update the counts after an entry that may have changed a node's owner."""
        owner = self._state.owners.get(node)
        if old_owner == owner or owner is None:
            return
        self._owned[owner] += 1
        if old_owner is None:
            self._groups[address_group] += 1
            self._recent.append((now_ms, address_group))
            return
        self._owned[old_owner] -= 1
        if not self._owned[old_owner]:
            del self._owned[old_owner]

    def _expire(self, now_ms: int) -> None:
        while self._recent and now_ms - self._recent[0][0] >= ADDRESS_GROUP_MS:
            _, group = self._recent.popleft()
            self._groups[group] -= 1
            if not self._groups[group]:
                del self._groups[group]


def find_repeat(state: LedgerState, payload: Payload, entry: Any) -> EntryReply | None:
    """The position of this same entry of this sender in the log, if it is there."""
    position = _find_position(state, payload, entry)
    if position is None or position.body != Digest(sha256(payload.body).digest()):
        return None
    return EntryReply(index=position.index, at_ms=position.at_ms)


def _find_position(state: LedgerState, payload: Payload, entry: Any) -> LogPosition | None:
    if isinstance(entry, NodeRegistered):
        node = state.nodes.get(payload.sender)
        return node.registered if node and node.version == payload.version else None
    if isinstance(entry, Delegated):
        is_in_force = state.owners.get(payload.sender) == entry.delegation.owner
        return state.nodes[payload.sender].delegated if is_in_force else None
    run = state.runs.get(payload.run) if payload.run is not None else None
    return _find_in_run(run, payload, entry) if run else None


def _find_in_run(run: RunState, payload: Payload, entry: Any) -> LogPosition | None:
    match entry:
        case Submitted(receipt=receipt):
            submission = run.submissions.get(compute_receipt_id(receipt))
            return submission.position if submission and submission.node == payload.sender else None
        case VerdictCommitted(submission=name):
            awaited = run.submissions.get(name)
            rounds = awaited.rounds if awaited else []
            return next((each.committed[payload.sender] for each in rounds if payload.sender in each.committed), None)
        case VerdictGiven(receipt=receipt):
            judged = run.submissions.get(receipt.submission)
            rounds = judged.rounds if judged else []
            return next((each.positions[payload.sender] for each in rounds if payload.sender in each.positions), None)
        case Inspected(submission=name):
            inspected = run.submissions.get(name)
            return inspected.inspected.get(payload.sender) if inspected else None
        case RulingGiven(submission=name):
            ruled = run.submissions.get(name)
            return ruled.rulings.get(payload.sender) if ruled else None
        case FindingFiled(submission=name):
            finding = run.findings.get(name)
            return finding.position if finding and finding.finder == payload.sender else None
        case CheckpointPublished(step=step):
            checkpoint = run.checkpoints.get(step)
            return checkpoint.position if checkpoint and payload.sender == run.terms.trainer else None
        case StepMeasured(step=step):
            measured = run.checkpoints.get(step)
            return measured.measured if measured and payload.sender == run.terms.trainer else None
        case _:
            return None


EncodePrompt = Callable[[str], list[int]]
"""Encodes a task's prompt with the model's tokenizer."""


@dataclass(frozen=True, slots=True)
class ExpectedSubmission:
    """What the log requires of a submission, read while its lease is open."""

    header: RolloutHeader
    limits: RolloutLimits
    terms: RunTerms
    beacon: Digest


def get_expected_submission(name: RunId, run: RunState, receipt: SubmissionReceipt) -> ExpectedSubmission:
    """From the open lease that the receipt names."""
    lease = run.leases.get(receipt.lease)
    if lease is None:
        raise RemoteError("receipt.lease", f"{receipt.lease} is not open")
    if receipt.step != lease.step:
        raise RemoteError("receipt.step", f"is {receipt.step}, the lease is for {lease.step}")
    beacon = run.checkpoints[lease.step].beacon
    assert beacon is not None, "no lease is granted before the beacon"
    terms = run.steps[lease.step].terms
    return ExpectedSubmission(
        header=RolloutHeader(
            run=name,
            step=lease.step,
            checkpoint_root=run.checkpoints[lease.checkpoint_step].root,
            lease=receipt.lease,
            node=lease.node,
        ),
        limits=terms.rollout_limits(lease.first_slot, lease.slots),
        terms=terms,
        beacon=beacon,
    )


def verify_rollout_file(
    data: bytes, entry: Submitted, expected: ExpectedSubmission, family: TaskFamily, encode_prompt: EncodePrompt | None
) -> RolloutFile:
    """Every check of a file that needs no model; RemoteError names what is wrong."""
    digest = Digest(sha256(data).digest())
    if digest != entry.receipt.file_digest or len(data) != entry.file_bytes:
        raise RemoteError("receipt.file_digest", f"is {entry.receipt.file_digest}, the file has {digest}")
    file = verify_submission(
        data,
        expected.header,
        expected.limits,
        beacon=expected.beacon,
        tasks_total=family.size,
        temperature=expected.terms.temperature,
        receipt=entry.receipt,
    )
    verify_counts(file, entry)
    verify_prompts(file, family, encode_prompt)
    return file


def verify_counts(file: RolloutFile, entry: Submitted) -> None:
    """Credit depends on these numbers, so they are counted, not trusted."""
    outputs = sum(len(row.output_tokens) for row in file.rows)
    context = sum(count_context_tokens(len(row.prompt_tokens), len(row.output_tokens)) for row in file.rows)
    for field, claimed, counted in (
        ("output_tokens", entry.output_tokens, outputs),
        ("context_tokens", entry.context_tokens, context),
    ):
        if claimed != counted:
            raise RemoteError(field, f"is {claimed}, the file has {counted}")


def verify_prompts(file: RolloutFile, family: TaskFamily, encode_prompt: EncodePrompt | None) -> None:
    """Every row has its task's prompt; without a tokenizer, the prompt of the first row of the same task."""
    wanted: dict[int, Any] = {}
    for number, row in enumerate(file.rows):
        if row.task not in wanted:
            wanted[row.task] = encode_prompt(family.make(row.task).prompt) if encode_prompt else row.prompt_tokens
        if not np.array_equal(row.prompt_tokens, wanted[row.task]):
            raise RemoteError(f"rows[{number}].prompt_tokens", f"are not the prompt of task {row.task}")
