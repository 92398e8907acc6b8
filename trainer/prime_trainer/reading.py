"""A submission's file: read against its receipt, lease and step, and its graded rows made into groups. Pure."""

from collections.abc import Sequence

import numpy as np

from prime_protocol.errors import RemoteError
from prime_protocol.messages import StepFacts
from prime_protocol.receipts import SubmissionReceipt
from prime_protocol.rollout_file import read_rollouts
from prime_protocol.rollout_root import rollout_root
from prime_protocol.rollouts import Rollout, RolloutHeader, verify_derived, verify_header
from prime_protocol.tasks.family import Family
from prime_trainer.advantages import compute_advantages, length_reward
from prime_trainer.harvest import Group
from prime_trainer.listing import Accepted
from prime_trainer.packing import Sample
from prime_trainer.train_config import AdvantageConfig


def read_rows(
    data: bytes, row: Accepted, receipt: SubmissionReceipt, facts: StepFacts, family: Family
) -> tuple[Rollout, ...]:
    """The rows of a file that answers to its receipt, its lease and its step; RemoteError names what does not."""
    terms = facts.terms
    file = read_rollouts(data, terms.rollout_limits(row.first_slot, row.slots))
    header = RolloutHeader(
        run=receipt.run,
        step=receipt.step,
        checkpoint_root=receipt.checkpoint_root,
        lease=receipt.lease,
        node=receipt.node,
    )
    verify_header(file.header, header)
    if facts.beacon is None:
        raise RemoteError("beacon", f"of step {receipt.step} is not known, so nothing can have been made for it")
    verify_derived(file, facts.beacon, tasks_total=family.size, target_lengths=(), temperature=terms.temperature)
    if rollout_root(file) != receipt.rollout_root:
        raise RemoteError("rollout_root", "is not the root of the file's rows")
    return file.rows


def make_group(rows: Sequence[Rollout], rewards: Sequence[float], rule: AdvantageConfig) -> Group:
    """Tokens are copied, so that the file with all its proofs need not stay in memory."""
    rewards_G = np.array(rewards, np.float64)
    lengths_G = np.array(
        [length_reward(len(row.output_tokens), row.target_length, weight=rule.length_weight) for row in rows]
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
    return Group(rows[0].slot, rewards_G, samples)
