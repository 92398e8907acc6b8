"""Limits of a rollout file, and what the worker may not choose."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from prime_protocol.constants import ROLLOUT_FILE_BYTES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.randomness import compute_slot_task, compute_target_length
from prime_protocol.rollouts.rollout import (
    RolloutFile,
    RolloutHeader,
    compute_proofs_bytes,
)
from prime_protocol.rollouts.verify import verify_derived_values, verify_header
from prime_protocol.wire.ids import Digest, NodeId, RunId, Step
from support.rollout_examples import HEADER, LIMITS, rollouts

BEACON = Digest(sha256(b"beacon").digest())
TARGETS = (16, 32, 64)


def derived_file() -> RolloutFile:
    return RolloutFile(
        HEADER,
        tuple(
            replace(
                row,
                task=compute_slot_task(BEACON, row.slot, 50),
                target_length=compute_target_length(BEACON, row.slot, TARGETS),
            )
            for row in rollouts()
        ),
    )


def verify(file: RolloutFile) -> None:
    verify_derived_values(file, BEACON, tasks_total=50, target_lengths=TARGETS, temperature=1.0)


@pytest.mark.parametrize(("tokens", "proofs"), [(1, 1), (31, 1), (32, 1), (33, 2), (64, 2), (65, 3)])
def test_a_proof_stands_for_up_to_32_tokens(tokens: int, proofs: int) -> None:
    assert compute_proofs_bytes(tokens) == 258 * proofs


@pytest.mark.parametrize(
    "changes",
    [
        {"first_slot": -1},
        {"first_slot": 2**32 - 2},
        {"slots": 0},
        {"slots": 40_000},
        {"samples_per_slot": 0},
        {"samples_per_slot": 1025},
        {"vocab_size": 0},
        {"vocab_size": 2**20 + 1},
        {"prompt_tokens_max": 0},
        {"output_tokens_max": 2**20 + 1},
        {"file_bytes_max": ROLLOUT_FILE_BYTES_MAX + 1},
    ],
)
def test_limits_beyond_the_constants_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RemoteError, match=r"limits\."):
        replace(LIMITS, **changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run", RunId("other")),
        ("step", Step(8)),
        ("checkpoint_root", Digest(bytes(32))),
        ("lease", 42),
        ("node", NodeId(bytes(20))),
    ],
)
def test_header_of_another_lease_is_refused_by_name(name: str, value: Any) -> None:
    verify_header(HEADER, HEADER)
    header: RolloutHeader = replace(HEADER, **{name: value})
    with pytest.raises(RemoteError) as caught:
        verify_header(header, HEADER)
    assert caught.value.field == f"header.{name}"


def test_file_that_follows_the_beacon_is_accepted() -> None:
    verify(derived_file())


@pytest.mark.parametrize(
    ("name", "value"), [("task", 51), ("target_length", 17), ("target_length", None), ("temperature", 0.9)]
)
@pytest.mark.parametrize("row", [0, 3, 5])
def test_what_the_worker_chose_itself_is_refused_by_name(name: str, value: Any, row: int) -> None:
    file = derived_file()
    rows = list(file.rows)
    rows[row] = replace(rows[row], **{name: value})
    with pytest.raises(RemoteError) as caught:
        verify(RolloutFile(HEADER, tuple(rows)))
    assert caught.value.field == f"rows[{row}].{name}"
