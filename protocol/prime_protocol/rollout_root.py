"""The rollout root: one digest that holds a worker to every row of its file, and lets a single row be proven.

The tree is the log's (merkle.py). Where the root is signed is in receipts.py.
"""

import struct
from collections.abc import Iterable

from prime_protocol.beacon import u64
from prime_protocol.digests import digest_fields, frame_fields
from prime_protocol.ids import Digest
from prime_protocol.merkle import Frontier, leaf_hash
from prime_protocol.rollouts import Rollout, RolloutFile, RolloutHeader


def header_digest(header: RolloutHeader) -> Digest:
    """What binds each leaf to run, step, checkpoint, lease and node."""
    return digest_fields(
        "rollout-header/1",
        header.run.encode(),
        u64(header.step),
        header.checkpoint_root,
        u64(header.lease),
        header.node,
    )


def rollout_leaf(header: Digest, row: Rollout) -> Digest:
    """The leaf of one row. Every field has one encoding and a length before it."""
    return leaf_hash(
        frame_fields(
            "rollout/1",
            header,
            u64(row.slot),
            u64(row.sample),
            u64(row.task),
            struct.pack(">d", row.temperature),
            b"" if row.target_length is None else u64(row.target_length),
            bytes([row.finish]),
            row.prompt_tokens.astype("<i4").tobytes(),
            row.output_tokens.astype("<i4").tobytes(),
            row.output_logprobs.astype("<f4").tobytes(),
            row.proofs,
        )
    )


def rollout_leaves(header: RolloutHeader, rows: Iterable[Rollout]) -> list[Digest]:
    """The leaves in the order of the file: what an inclusion proof is built from."""
    bound = header_digest(header)
    return [rollout_leaf(bound, row) for row in rows]


def rollout_root(file: RolloutFile) -> Digest:
    return Frontier().append_many(rollout_leaves(file.header, file.rows)).root()
