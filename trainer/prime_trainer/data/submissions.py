"""Files of accepted submissions as training groups. Pure.

Acceptance is the coordinator's claim: the log rejects a checkpoint that names a submission which was not accepted. The
content of a submission needs no trust: its name is the digest of its receipt, and the receipt binds the file.
"""

from collections.abc import Sequence

import numpy as np

from prime_protocol.errors import RemoteError
from prime_protocol.rollouts.rollout import (
    Rollout,
)
from prime_protocol.rollouts.verify import make_header, verify_submission
from prime_protocol.tasks.family import TaskFamily
from prime_protocol.wire.ids import Slot
from prime_protocol.wire.messages import AcceptedSubmission, StepReply
from prime_trainer.config import AdvantageConfig
from prime_trainer.data.packing import Sample
from prime_trainer.data.rollout_buffer import RolloutGroup, compute_advantages, compute_length_reward


def read_submission(
    data: bytes, accepted: AcceptedSubmission, facts: StepReply, family: TaskFamily
) -> tuple[Rollout, ...]:
    """The rows of a file that answers to its receipt, its lease and its step; RemoteError names what does not."""
    receipt = accepted.receipt
    if facts.beacon is None:
        raise RemoteError("beacon", f"of step {receipt.step} is not known, so nothing can have been made for it")
    file = verify_submission(
        data,
        make_header(receipt),
        facts.terms.rollout_limits(Slot(accepted.first_slot), accepted.slots),
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
