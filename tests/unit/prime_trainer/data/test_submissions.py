"""From an accepted submission to groups: what does not answer to its receipt, lease and step is refused by name."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import LeaseGranted
from prime_protocol.rollouts.file import read_rollouts, write_rollouts
from prime_protocol.rollouts.rollout import RolloutHeader, RolloutLimits, compute_rollout_root
from prime_protocol.tasks.family import TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Slot, Step
from prime_protocol.wire.messages import AcceptedSubmission, CheckpointRef, StepReply
from prime_protocol.wire.typed_data import SubmissionReceipt
from prime_trainer.config import AdvantageConfig
from prime_trainer.data.submissions import make_rollout_group, read_submission
from support.ledger_network import TERMS as USUAL
from support.processes.trainer import TERMS, make_rows

WANTED = replace(USUAL, **TERMS)
FAMILY = open_family(TaskSetSpec.parse(WANTED.task_set))
BEACON, ROOT, NODE = Digest(bytes([7] * 32)), Digest(bytes([8] * 32)), NodeId(bytes([9] * 20))
LEASE = LeaseGranted(
    lease=5,
    node=NODE,
    step=Step(3),
    checkpoint_step=Step(3),
    first_slot=Slot(1),
    slots=2,
    deadline_ms=1,
    speculative=False,
)
HEADER = RolloutHeader(run=RunId("demo"), step=Step(3), checkpoint_root=ROOT, lease=5, node=NODE)
FACTS = StepReply(
    terms=WANTED, beacon=BEACON, weights=CheckpointRef(step=Step(3), root=ROOT, manifest=ROOT, beacon=BEACON)
)


def make_file(**changes: Any) -> tuple[bytes, SubmissionReceipt]:
    """A good one, with the receipt that its worker signed; a header that was changed is in both."""
    header = replace(HEADER, **changes)
    data = write_rollouts(header, make_rows(LEASE, BEACON, WANTED))
    limits = RolloutLimits(
        first_slot=Slot(1),
        slots=2,
        samples_per_slot=4,
        vocab_size=32,
        prompt_tokens_max=16,
        output_tokens_max=8,
    )
    receipt = SubmissionReceipt(
        network=NetworkId("devnet"),
        run=header.run,
        step=header.step,
        lease=header.lease,
        node=header.node,
        checkpoint_root=header.checkpoint_root,
        file_digest=Digest(sha256(data).digest()),
        rollout_root=compute_rollout_root(read_rollouts(data, limits)),
    )
    return data, receipt


def listed(receipt: SubmissionReceipt, **changes: Any) -> AcceptedSubmission:
    return AcceptedSubmission(number=1, receipt=receipt, **{"first_slot": Slot(1), "slots": 2, **changes})


def test_good_file_gives_its_rows_group_by_group() -> None:
    data, receipt = make_file()
    rows = read_submission(data, listed(receipt), FACTS, FAMILY)
    assert [row.slot for row in rows] == [1] * 4 + [2] * 4
    group = make_rollout_group(rows[:4], [1.0, 0.0, 0.0, 0.0], AdvantageConfig())
    assert [sample.advantage for sample in group.samples] == [0.75, -0.25, -0.25, -0.25]
    assert all(sample.output_tokens.base is None for sample in group.samples), "the file can go"
    np.testing.assert_array_equal(group.samples[2].sampled_logprobs, rows[2].output_logprobs)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ("lease", "header.lease"),
        ("slots", "rows"),
        ("root", "receipt.rollout_root"),
        ("beacon", "rows"),
        ("no beacon", "beacon"),
        ("bytes", "footer"),
    ],
)
def test_what_does_not_answer_to_its_receipt_is_refused(wrong: str, field: str) -> None:
    data, receipt = make_file()
    row, facts = listed(receipt), FACTS
    match wrong:
        case "lease":
            row = listed(replace(receipt, lease=6))
        case "slots":
            row = listed(receipt, first_slot=Slot(2))
        case "root":
            row = listed(replace(receipt, rollout_root=ROOT))
        case "beacon":
            facts = replace(facts, beacon=ROOT)
        case "no beacon":
            facts = replace(facts, beacon=None)
        case "bytes":
            data = data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]
    with pytest.raises(RemoteError) as refused:
        read_submission(data, row, facts, FAMILY)
    assert refused.value.field.startswith(field), refused.value


def test_target_length_costs_where_there_is_one() -> None:
    data, receipt = make_file()
    rows = [replace(row, target_length=6) for row in read_submission(data, listed(receipt), FACTS, FAMILY)[:4]]
    assert [len(row.output_tokens) for row in rows] == [5, 6, 7, 4]
    group = make_rollout_group(rows, [1.0, 0.0, 1.0, 0.0], AdvantageConfig(length_weight=0.1))
    assert [sample.advantage for sample in group.samples] == pytest.approx([0.5, -0.4, 0.5, -0.6])
