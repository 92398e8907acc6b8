"""The cheap checks: an honest file passes, and every bend of it is refused by the name of what is wrong."""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest

from prime_coordinator.intake.checks import ExpectedSubmission, get_expected_submission, verify_rollout_file
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import Submitted
from prime_protocol.ledger.randomness import compute_slot_task
from prime_protocol.ledger.rewards import count_context_tokens
from prime_protocol.rollouts.file import read_rollouts, write_rollouts
from prime_protocol.rollouts.rollout import (
    FinishReason,
    Rollout,
    RolloutHeader,
    compute_proofs_bytes,
    compute_rollout_root,
)
from prime_protocol.tasks.family import TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_protocol.wire.ids import Digest, Sample, Slot, Step
from support.ledger_network import RUN, TERMS, World, digest

FAMILY = open_family(TaskSetSpec.parse(TERMS.task_set))


def encode_prompt(text: str) -> list[int]:
    return [ord(letter) % TERMS.vocabulary for letter in text][: TERMS.prompt_tokens_max]


class Answer:
    """A lease in a world, and the honest rows for it."""

    def __init__(self) -> None:
        self.world = World.started()
        self.lease = self.world.lease("ann", 3, 2)
        held = self.world.run.leases[self.lease]
        checkpoint = self.world.run.checkpoints[held.step]
        assert checkpoint.beacon is not None
        self.header = RolloutHeader(
            run=RUN, step=held.step, checkpoint_root=checkpoint.root, lease=self.lease, node=held.node
        )
        self.rows = [self.row(checkpoint.beacon, slot, sample) for slot in held.slot_range() for sample in range(2)]

    def row(self, beacon: Digest, slot: int, sample: int) -> Rollout:
        task = compute_slot_task(beacon, Slot(slot), FAMILY.size)
        tokens = 5 + slot + sample
        return Rollout(
            slot=Slot(slot),
            sample=Sample(sample),
            task=task,
            temperature=1.0,
            target_length=None,
            finish=FinishReason.EOS,
            prompt_tokens=np.array(encode_prompt(FAMILY.make(task).prompt), np.int32),
            output_tokens=np.arange(tokens, dtype=np.int32),
            output_logprobs=-np.ones(tokens, np.float32),
            proofs=bytes(compute_proofs_bytes(tokens)),
        )

    def expected(self, entry: Submitted) -> ExpectedSubmission:
        return get_expected_submission(RUN, self.world.run, entry.receipt)

    def make(self, **receipt: object) -> tuple[bytes, Submitted]:
        """The file of the present rows, and the entry that goes with it."""
        data = write_rollouts(self.header, self.rows)
        limits = self.expected(self.world.answer(self.lease)).limits
        honest = {
            "file_digest": Digest(sha256(data).digest()),
            "rollout_root": compute_rollout_root(read_rollouts(data, limits)),
        }
        entry = self.world.answer(self.lease, **honest | receipt)
        outputs = [len(row.output_tokens) for row in self.rows]
        context = sum(count_context_tokens(len(row.prompt_tokens), len(row.output_tokens)) for row in self.rows)
        return data, replace(entry, file_bytes=len(data), output_tokens=sum(outputs), context_tokens=context)

    def check(self, data: bytes, entry: Submitted) -> None:
        verify_rollout_file(data, entry, self.expected(entry), FAMILY, encode_prompt)


def refused(answer: Answer, data: bytes, entry: Submitted) -> str:
    with pytest.raises(RemoteError) as caught:
        answer.check(data, entry)
    return caught.value.field


def test_an_honest_file_passes_and_so_does_its_entry() -> None:
    answer = Answer()
    data, entry = answer.make()
    answer.check(data, entry)
    verify_rollout_file(data, entry, answer.expected(entry), FAMILY, None)
    answer.world.write("ann", entry)


@pytest.mark.parametrize("field", ["output_tokens", "context_tokens"])
def test_what_credit_is_counted_by_is_counted_and_not_believed(field: str) -> None:
    answer = Answer()
    data, entry = answer.make()
    assert refused(answer, data, replace(entry, **{field: getattr(entry, field) + 1})) == field


def test_the_bytes_are_those_of_the_receipt() -> None:
    answer = Answer()
    data, entry = answer.make()
    assert refused(answer, data + b"x", entry) == "receipt.file_digest"
    assert refused(answer, data, replace(entry, file_bytes=1)) == "receipt.file_digest"
    assert refused(answer, data, answer.make(rollout_root=digest("other"))[1]) == "receipt.rollout_root"


BENDS: dict[str, Callable[[Rollout], Rollout]] = {
    "task": lambda row: replace(row, task=row.task + 1),
    "temperature": lambda row: replace(row, temperature=0.5),
    "target_length": lambda row: replace(row, target_length=3),
    "prompt_tokens": lambda row: replace(row, prompt_tokens=row.prompt_tokens[::-1].copy()),
}


@pytest.mark.parametrize("bend", BENDS)
def test_a_worker_chooses_nothing(bend: str) -> None:
    answer = Answer()
    answer.rows[1] = BENDS[bend](answer.rows[1])
    assert bend in refused(answer, *answer.make())


def test_without_a_tokenizer_the_samples_of_a_slot_must_still_have_one_prompt() -> None:
    answer = Answer()
    answer.rows[1] = BENDS["prompt_tokens"](answer.rows[1])
    data, entry = answer.make()
    with pytest.raises(RemoteError, match="are not the prompt of task") as caught:
        verify_rollout_file(data, entry, answer.expected(entry), FAMILY, None)
    assert caught.value.field == "rows[1].prompt_tokens"


def test_a_file_for_another_lease_or_node_is_refused() -> None:
    answer = Answer()
    _, entry = answer.make()
    for header in (replace(answer.header, lease=99), replace(answer.header, node=answer.world.id("bob"))):
        data = write_rollouts(header, answer.rows)
        receipt = {"file_digest": Digest(sha256(data).digest()), "rollout_root": entry.receipt.rollout_root}
        forged = replace(answer.world.answer(answer.lease, **receipt), file_bytes=len(data))
        with pytest.raises(RemoteError):
            answer.check(data, forged)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1"])
def test_garbage_is_its_senders_error(data: bytes) -> None:
    answer = Answer()
    entry = answer.world.answer(answer.lease, file_digest=Digest(sha256(data).digest()))
    with pytest.raises(RemoteError):
        answer.check(data, replace(entry, file_bytes=len(data)))


def test_a_receipt_matches_an_open_lease_and_its_step() -> None:
    answer = Answer()
    _, entry = answer.make()
    with pytest.raises(RemoteError) as caught:
        answer.expected(replace(entry, receipt=replace(entry.receipt, step=Step(9))))
    assert caught.value.field == "receipt.step"
    with pytest.raises(RemoteError) as caught:
        answer.expected(replace(entry, receipt=replace(entry.receipt, lease=99)))
    assert caught.value.field == "receipt.lease"
