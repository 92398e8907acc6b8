"""The cheap checks that every rollout file gets before its submission may be logged. Pure.

They need no model: form, lease, slots, tasks, token counts and the root that the receipt promises. Prompts are compared
with each other; whether they say what the task says takes the model's tokenizer, which validators have, but not this.
A file that fails is its sender's error and costs it nothing but the lease.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from prime_protocol.entries import Submitted
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, RunId
from prime_protocol.receipts import SubmissionReceipt
from prime_protocol.rollout_file import read_rollouts
from prime_protocol.rollout_root import rollout_root
from prime_protocol.rollouts import RolloutFile, RolloutHeader, RolloutLimits, verify_derived, verify_header
from prime_protocol.state import RunState
from prime_protocol.tasks.family import Family
from prime_protocol.terms import RunTerms
from prime_protocol.units import context_tokens

EncodePrompt = Callable[[str], list[int]]
"""A task's prompt as the model's tokens; None where there is no tokenizer."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the log says a submission must answer to, taken while its lease is open."""

    header: RolloutHeader
    limits: RolloutLimits
    terms: RunTerms
    beacon: Digest


def expect(name: RunId, run: RunState, receipt: SubmissionReceipt) -> Expected:
    """From the open lease that the receipt names."""
    lease = run.leases.get(receipt.lease)
    if lease is None:
        raise RemoteError("receipt.lease", f"{receipt.lease} is not open")
    if receipt.step != lease.step:
        raise RemoteError("receipt.step", f"is {receipt.step}, the lease is for {lease.step}")
    beacon = run.checkpoints[lease.step].beacon
    assert beacon is not None, "nothing is leased before the beacon"
    terms = run.steps[lease.step].terms
    return Expected(
        header=RolloutHeader(
            run=name,
            step=lease.step,
            checkpoint_root=receipt.checkpoint_root,
            lease=receipt.lease,
            node=lease.node,
        ),
        limits=terms.rollout_limits(lease.first_slot, lease.slots),
        terms=terms,
        beacon=beacon,
    )


def check_file(
    data: bytes, entry: Submitted, expected: Expected, family: Family, encode_prompt: EncodePrompt | None
) -> RolloutFile:
    """Everything about a file that can be said without a model; RemoteError names what is wrong."""
    digest = Digest(sha256(data).digest())
    if digest != entry.receipt.file_digest or len(data) != entry.file_bytes:
        raise RemoteError("receipt.file_digest", f"is {entry.receipt.file_digest}, the file has {digest}")
    file = read_rollouts(data, expected.limits)
    verify_header(file.header, expected.header)
    verify_derived(
        file,
        expected.beacon,
        tasks_total=family.size,
        target_lengths=(),
        temperature=expected.terms.temperature,
    )
    root = rollout_root(file)
    if root != entry.receipt.rollout_root:
        raise RemoteError("receipt.rollout_root", f"is {entry.receipt.rollout_root}, the rows have {root}")
    check_counts(file, entry)
    check_prompts(file, family, encode_prompt)
    return file


def check_counts(file: RolloutFile, entry: Submitted) -> None:
    """Credit follows from these numbers, so they are counted, not believed."""
    outputs = sum(len(row.output_tokens) for row in file.rows)
    context = sum(context_tokens(len(row.prompt_tokens), len(row.output_tokens)) for row in file.rows)
    for field, claimed, counted in (
        ("output_tokens", entry.output_tokens, outputs),
        ("context_tokens", entry.context_tokens, context),
    ):
        if claimed != counted:
            raise RemoteError(field, f"is {claimed}, the file has {counted}")


def check_prompts(file: RolloutFile, family: Family, encode_prompt: EncodePrompt | None) -> None:
    """Every row asks what its task asks; without a tokenizer, what the first row of the same task asks."""
    wanted: dict[int, Any] = {}
    for number, row in enumerate(file.rows):
        if row.task not in wanted:
            wanted[row.task] = encode_prompt(family.make(row.task).prompt) if encode_prompt else row.prompt_tokens
        if not np.array_equal(row.prompt_tokens, wanted[row.task]):
            raise RemoteError(f"rows[{number}].prompt_tokens", f"are not the prompt of task {row.task}")
