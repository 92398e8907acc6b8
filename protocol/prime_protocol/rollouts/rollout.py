"""The content of a rollout file as values: its header, its completions, its limits, and its Merkle root.

The root is one digest that binds a worker to every row of its file, and allows a proof of a single row. The tree is
that of the log (log/merkle.py); the worker signs the root in its receipt (wire/typed_data.py). The bytes of the file
are in layout.py and file.py. Rewards and advantages are not part of a file: no party accepts them from a worker.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from prime_protocol.constants import (
    OUTPUT_TOKENS_MAX,
    PROMPT_TOKENS_MAX,
    ROLLOUT_FILE_BYTES_MAX,
    ROLLOUT_ROWS_MAX,
    SAMPLES_MAX,
    SLOTS_MAX,
    TOPLOC_CHUNK_TOKENS,
    TOPLOC_PROOF_BYTES,
    VOCAB_SIZE_MAX,
)
from prime_protocol.errors import RemoteError
from prime_protocol.ledger.randomness import encode_u64
from prime_protocol.log.merkle import Frontier, compute_leaf_hash
from prime_protocol.proofs.class_bounds import EngineClass
from prime_protocol.wire.ids import Digest, NodeId, RunId, Sample, Slot, Step, digest_fields, frame_fields

if TYPE_CHECKING:
    # Settings and log entries need the limits, and `--help` must not wait for numpy.
    import numpy as np
    from numpy.typing import NDArray

NO_TARGET_LENGTH = -1
"""How the file writes that a completion has no target length."""


class FinishReason(IntEnum):
    """Why a completion ended, as the file writes it."""

    EOS = 0
    LENGTH = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutHeader:
    """What the file is an answer to. `verify_header` compares it with the lease."""

    run: RunId
    step: Step
    checkpoint_root: Digest
    lease: int
    node: NodeId


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollout:
    """One completion: a row of the file. The arrays are int32 and float32, little-endian."""

    slot: Slot
    sample: Sample
    task: int
    """Derived from the slot; `verify_derived` checks it."""
    temperature: float
    target_length: int | None
    finish: FinishReason
    prompt_tokens: "NDArray[np.int32]"
    output_tokens: "NDArray[np.int32]"
    output_logprobs: "NDArray[np.float32]"
    """Log-probability of each output token when it was chosen."""
    proofs: bytes
    """TOPLOC proofs end to end, one per 32 output tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class RolloutFile:
    """A file that passed the strict reader."""

    header: RolloutHeader
    rows: tuple[Rollout, ...]
    engine_class: EngineClass | None = None
    """Of the engine that generated it, as its worker says; None where it says none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutLimits:
    """What the run and the lease allow. The file must hold every sample of every slot of the lease, and no other.

    A worker could otherwise leave out the slots whose answers are long. The numbers come from the log, so a bad one is
    its author's fault.
    """

    first_slot: Slot
    slots: int
    samples_per_slot: int
    vocab_size: int
    prompt_tokens_max: int
    output_tokens_max: int
    file_bytes_max: int = ROLLOUT_FILE_BYTES_MAX
    names_class: bool = False
    """Whether the file is in format 2, which has room for the class of the engine."""
    classes: tuple[EngineClass, ...] = ()
    """The only ones allowed; empty: any, or none."""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("first_slot", 0, SLOTS_MAX - self.slots),
            ("samples_per_slot", 1, SAMPLES_MAX),
            ("rows", 1, ROLLOUT_ROWS_MAX),
            ("vocab_size", 1, VOCAB_SIZE_MAX),
            ("prompt_tokens_max", 1, PROMPT_TOKENS_MAX),
            ("output_tokens_max", 1, OUTPUT_TOKENS_MAX),
            ("file_bytes_max", 1, ROLLOUT_FILE_BYTES_MAX),
        ):
            if not least <= getattr(self, name) <= most:
                raise RemoteError(f"limits.{name}", f"is {getattr(self, name)}, allowed is {least} to {most}")

    @property
    def rows(self) -> int:
        return self.slots * self.samples_per_slot


def compute_proofs_bytes(output_tokens: int) -> int:
    """Bytes of all proofs of a completion: the last chunk may be short, its proof is not."""
    return -(-output_tokens // TOPLOC_CHUNK_TOKENS) * TOPLOC_PROOF_BYTES


def compute_header_digest(header: RolloutHeader) -> Digest:
    """What binds each leaf to run, step, checkpoint, lease and node."""
    return digest_fields(
        "rollout-header/1",
        header.run.encode(),
        encode_u64(header.step),
        header.checkpoint_root,
        encode_u64(header.lease),
        header.node,
    )


def compute_rollout_leaf(header: Digest, row: Rollout) -> Digest:
    """The leaf of one row. Every field has one encoding and a length before it."""
    return compute_leaf_hash(
        frame_fields(
            "rollout/1",
            header,
            encode_u64(row.slot),
            encode_u64(row.sample),
            encode_u64(row.task),
            struct.pack(">d", row.temperature),
            b"" if row.target_length is None else encode_u64(row.target_length),
            bytes([row.finish]),
            row.prompt_tokens.astype("<i4").tobytes(),
            row.output_tokens.astype("<i4").tobytes(),
            row.output_logprobs.astype("<f4").tobytes(),
            row.proofs,
        )
    )


def compute_rollout_leaves(header: RolloutHeader, rows: Iterable[Rollout]) -> list[Digest]:
    """The leaves in the order of the file: what an inclusion proof is built from."""
    bound = compute_header_digest(header)
    return [compute_rollout_leaf(bound, row) for row in rows]


def compute_rollout_root(file: RolloutFile) -> Digest:
    return Frontier().append_many(compute_rollout_leaves(file.header, file.rows)).root()
