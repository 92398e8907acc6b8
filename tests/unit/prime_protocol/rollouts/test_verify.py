"""verify_submission: what intake, validator and trainer check about a file without a model."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from prime_protocol.errors import RemoteError
from prime_protocol.ledger.randomness import compute_slot_task
from prime_protocol.rollouts.file import write_rollouts
from prime_protocol.rollouts.rollout import RolloutFile, compute_rollout_root
from prime_protocol.rollouts.verify import make_header, verify_submission
from prime_protocol.wire.ids import Digest, NetworkId
from prime_protocol.wire.typed_data import SubmissionReceipt
from support.rollout_examples import HEADER, LIMITS, rollouts

BEACON = Digest(sha256(b"beacon").digest())
ROWS = tuple(
    replace(row, task=compute_slot_task(BEACON, row.slot, 50), target_length=None, temperature=1.0)
    for row in rollouts()
)
DATA = write_rollouts(HEADER, ROWS)
RECEIPT = SubmissionReceipt(
    network=NetworkId("main"),
    run=HEADER.run,
    step=HEADER.step,
    lease=HEADER.lease,
    node=HEADER.node,
    checkpoint_root=HEADER.checkpoint_root,
    file_digest=Digest(sha256(DATA).digest()),
    rollout_root=compute_rollout_root(RolloutFile(HEADER, ROWS)),
)


def verify(**changes: Any) -> RolloutFile:
    honest: dict[str, Any] = {
        "header": HEADER,
        "limits": LIMITS,
        "beacon": BEACON,
        "tasks_total": 50,
        "temperature": 1.0,
        "receipt": RECEIPT,
    }
    return verify_submission(DATA, **honest | changes)


def test_an_honest_file_passes_with_and_without_its_receipt() -> None:
    assert make_header(RECEIPT) == HEADER
    assert verify().header == verify(receipt=None).header == HEADER


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"header": replace(HEADER, lease=HEADER.lease + 1)}, "header.lease"),
        ({"beacon": Digest(bytes(32))}, "rows[0].task"),
        ({"temperature": 0.5}, "rows[0].temperature"),
        ({"receipt": replace(RECEIPT, rollout_root=Digest(bytes(32)))}, "receipt.rollout_root"),
    ],
)
def test_a_file_of_another_lease_beacon_temperature_or_root_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(RemoteError) as refused:
        verify(**changes)
    assert refused.value.field == field
