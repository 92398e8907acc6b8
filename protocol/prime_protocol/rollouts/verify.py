"""What every party checks about a submitted rollout file without a model: intake, validator and trainer alike.

A worker chooses nothing but its tokens. The run, the step, the lease, the checkpoint, the tasks and the temperature are
fixed by the log and the beacon before it starts, so a file that states another value is refused. Whether the tokens are
the model's is decided in prime_protocol.proofs.
"""

from dataclasses import fields

from prime_protocol.errors import RemoteError
from prime_protocol.ledger.randomness import compute_slot_task, compute_target_length
from prime_protocol.rollouts.file import read_rollouts
from prime_protocol.rollouts.rollout import RolloutFile, RolloutHeader, RolloutLimits, compute_rollout_root
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.typed_data import SubmissionReceipt


def verify_submission(
    data: bytes,
    header: RolloutHeader,
    limits: RolloutLimits,
    *,
    beacon: Digest,
    tasks_total: int,
    temperature: float,
    receipt: SubmissionReceipt | None = None,
) -> RolloutFile:
    """The file, if it answers exactly this lease; else RemoteError. With a receipt, its rows are the ones signed."""
    file = read_rollouts(data, limits)
    verify_header(file.header, header)
    verify_derived_values(file, beacon, tasks_total=tasks_total, target_lengths=(), temperature=temperature)
    if receipt is not None:
        root = compute_rollout_root(file)
        if root != receipt.rollout_root:
            raise RemoteError("receipt.rollout_root", f"is {receipt.rollout_root}, the rows have {root}")
    return file


def make_header(receipt: SubmissionReceipt) -> RolloutHeader:
    """The header that the file of this receipt must have."""
    return RolloutHeader(
        run=receipt.run,
        step=receipt.step,
        checkpoint_root=receipt.checkpoint_root,
        lease=receipt.lease,
        node=receipt.node,
    )


def verify_header(header: RolloutHeader, expected: RolloutHeader) -> None:
    """The file must answer the lease that it was sent for."""
    for field in fields(RolloutHeader):
        given, wanted = getattr(header, field.name), getattr(expected, field.name)
        if given != wanted:
            raise RemoteError(f"header.{field.name}", f"is {given}, the lease says {wanted}")


def verify_derived_values(
    file: RolloutFile, beacon: Digest, *, tasks_total: int, target_lengths: tuple[int, ...], temperature: float
) -> None:
    """Values that the worker may not choose must be those of the beacon and the run's terms."""
    for number, row in enumerate(file.rows):
        # Rows of a slot are adjacent, so its task and target are computed once.
        if number == 0 or row.slot != file.rows[number - 1].slot:
            task = compute_slot_task(beacon, row.slot, tasks_total)
            target = compute_target_length(beacon, row.slot, target_lengths)
        if row.task != task:
            raise RemoteError(f"rows[{number}].task", f"is {row.task}, slot {row.slot} has task {task}")
        if row.target_length != target:
            raise RemoteError(f"rows[{number}].target_length", f"is {row.target_length}, slot {row.slot} has {target}")
        if row.temperature != temperature:
            raise RemoteError(f"rows[{number}].temperature", f"is {row.temperature}, the run has {temperature}")
