"""Forged rollout files: each forger takes honest work and returns the bytes that a dishonest worker sends. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from prime_lab.cheats import proof_forgery as forgery
from prime_protocol.constants import ROLLOUT_FILE_BYTES_MAX, TOPLOC_PROOF_BYTES
from prime_protocol.rollouts.file import TRAILER_BYTES, format_metadata, write_rollouts
from prime_protocol.rollouts.layout import (
    FOOTER_END,
    MAGIC,
    ColumnChunk,
    encode_footer_start,
    encode_page_header,
    encode_varint,
)
from prime_protocol.rollouts.rollout import FinishReason, Rollout, RolloutHeader, compute_proofs_bytes
from prime_protocol.wire.ids import Digest, NodeId, Slot, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class HonestWork:
    """The honest work that a forger starts from."""

    header: RolloutHeader
    rows: Sequence[Rollout]
    others: Sequence[Rollout]
    """Honest rows of other slots, from public files of the same step."""
    other_step: Sequence[Rollout]
    """Honest rows of the same slots in another step."""
    known: forgery.ModelStatistics
    """Statistics of the model, from the hidden states of the other rows."""
    hidden: int
    context: int
    """Tokens of the model's context."""
    eos: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SentFile:
    """A file as the coordinator receives it."""

    data: bytes
    more_tokens: int = 0
    """Tokens that the worker claims in excess of the file's."""


FileForger = Callable[[HonestWork], SentFile]


def write_file(honest: HonestWork, rows: Sequence[Rollout]) -> SentFile:
    return SentFile(data=write_rollouts(honest.header, rows))


def change_each_row(change: Callable[[HonestWork, Rollout], Rollout]) -> FileForger:
    """The same change to every row."""
    return lambda honest: write_file(honest, [change(honest, row) for row in honest.rows])


def change_first_row(change: Callable[[HonestWork, Rollout], Rollout]) -> FileForger:
    """The change to one row only."""
    return lambda honest: write_file(honest, [change(honest, honest.rows[0]), *honest.rows[1:]])


def change_last_row(change: Callable[[HonestWork, Rollout], Rollout]) -> FileForger:
    """The change to the row that is read last."""
    return lambda honest: write_file(honest, [*honest.rows[:-1], change(honest, honest.rows[-1])])


def change_header(**changes: object) -> FileForger:
    return lambda honest: SentFile(data=write_rollouts(replace(honest.header, **changes), honest.rows))  # type: ignore[arg-type]


# --- Proofs ---------------------------------------------------------------------------------------------------------


def forge_proofs(make: forgery.ProofForger) -> FileForger:
    """Proofs built without running the model on these tokens."""

    def bend(honest: HonestWork) -> SentFile:
        known, hidden = honest.known, honest.hidden
        rows = [
            replace(row, proofs=forgery.forge_row(make, known, tokens=len(row.output_tokens), hidden=hidden))
            for row in honest.rows
        ]
        return write_file(honest, rows)

    return bend


def replay_proofs_of(pick: Callable[[HonestWork], Sequence[Rollout]]) -> FileForger:
    """Give each row as many proofs of other rows."""

    def bend(honest: HonestWork) -> SentFile:
        proofs = forgery.replay_proofs([row.proofs for row in honest.rows], [row.proofs for row in pick(honest)])
        return write_file(honest, [replace(row, proofs=each) for row, each in zip(honest.rows, proofs, strict=True)])

    return bend


def swap_row_proofs(honest: HonestWork, row: Rollout) -> Rollout:
    return replace(
        row, proofs=forgery.swap_first_proofs(row.proofs, tokens=len(row.output_tokens), hidden=honest.hidden)
    )


# --- Values ---------------------------------------------------------------------------------------------------------


def simplify_prompt(honest: HonestWork, row: Rollout) -> Rollout:
    prompt = row.prompt_tokens.copy()
    prompt[1:-1] = prompt[1]
    if np.array_equal(prompt, row.prompt_tokens):
        prompt[1] = (prompt[1] + 1) % 10
    return replace(row, prompt_tokens=prompt)


def continue_after_end(honest: HonestWork, row: Rollout) -> Rollout:
    """Put an end token at the start, and keep the rest of the answer."""
    tokens = row.output_tokens.copy()
    tokens[0] = honest.eos
    return replace(row, output_tokens=tokens) if len(tokens) > 1 else row


def claim_length_limit(honest: HonestWork, row: Rollout) -> Rollout:
    count = max(1, len(row.output_tokens) // 2)
    return truncate_row(replace(row, finish=FinishReason.LENGTH), count)


def truncate_row(row: Rollout, count: int) -> Rollout:
    tokens = row.output_tokens[:count].copy()
    tokens[tokens == tokens.max()] = 0
    return replace(
        row,
        output_tokens=tokens,
        output_logprobs=row.output_logprobs[:count],
        proofs=row.proofs[: compute_proofs_bytes(count)],
    )


def exceed_context(honest: HonestWork, row: Rollout) -> Rollout:
    """Repeat the answer until the row is longer than the model's context."""
    times = honest.context // len(row.output_tokens) + 1
    tokens = np.tile(np.where(row.output_tokens == honest.eos, 0, row.output_tokens), times)
    proofs = row.proofs[:TOPLOC_PROOF_BYTES] * (compute_proofs_bytes(len(tokens)) // TOPLOC_PROOF_BYTES)
    logprobs = np.tile(row.output_logprobs, times)
    return replace(
        row, finish=FinishReason.LENGTH, output_tokens=tokens.astype(np.int32), output_logprobs=logprobs, proofs=proofs
    )


def halve_logprobs(honest: HonestWork, row: Rollout) -> Rollout:
    return replace(row, output_logprobs=row.output_logprobs / np.float32(2))


def with_token(token: int) -> Callable[[HonestWork, Rollout], Rollout]:
    def change(honest: HonestWork, row: Rollout) -> Rollout:
        tokens = row.output_tokens.copy()
        tokens[0] = token
        return replace(row, output_tokens=tokens)

    return change


def with_logprob(value: float) -> Callable[[HonestWork, Rollout], Rollout]:
    def change(honest: HonestWork, row: Rollout) -> Rollout:
        logprobs = row.output_logprobs.copy()
        logprobs[0] = value
        return replace(row, output_logprobs=logprobs)

    return change


def take_others(honest: HonestWork) -> SentFile:
    """Rows of another lease, under the header of this one."""
    return write_file(honest, honest.others[: len(honest.rows)])


def take_other_step(honest: HonestWork) -> SentFile:
    return write_file(honest, honest.other_step)


def drop_samples(honest: HonestWork) -> SentFile:
    return write_file(honest, honest.rows[:-1])


# --- Bytes ----------------------------------------------------------------------------------------------------------


def add_rewards(honest: HonestWork) -> SentFile:
    """Append a column that the schema does not have."""
    data = write_rollouts(honest.header, honest.rows)
    footer = int.from_bytes(data[-TRAILER_BYTES : -len(MAGIC)], "little")
    at = len(data) - TRAILER_BYTES - footer
    body = np.ones(len(honest.rows), "<f8").tobytes()
    return SentFile(data=data[:at] + encode_page_header(len(honest.rows), len(body)) + body + data[at:])


def claim_huge_list(honest: HonestWork) -> SentFile:
    """The footer says that the prompts have 2^40 elements."""
    chunks = [ColumnChunk(4, 64, 2**40 if number == 6 else len(honest.rows)) for number in range(10)]
    return build_file(honest, b"\0" * 640, chunks)


def claim_huge_page(honest: HonestWork) -> SentFile:
    return build_file(
        honest, encode_page_header(2**40, 2**40) + b"\0" * 600, [ColumnChunk(4, 64, len(honest.rows))] * 10
    )


def build_file(honest: HonestWork, body: bytes, chunks: list[ColumnChunk]) -> SentFile:
    footer = (
        encode_footer_start(chunks, len(honest.rows))
        + format_metadata(honest.header, None, names_class=False)
        + FOOTER_END
    )
    return SentFile(data=MAGIC + body + footer + len(footer).to_bytes(4, "little") + MAGIC)


def write_wrong_type(honest: HonestWork) -> SentFile:
    """Output tokens written as floats, twice as wide as they may be."""
    data = write_rollouts(honest.header, honest.rows)
    return SentFile(
        data=data.replace(b"output_tokens", b"output_tokenz", 1).replace(encode_varint(2 * 1), encode_varint(2 * 5), 1)
    )


def claim_huge_footer(honest: HonestWork) -> SentFile:
    data = write_rollouts(honest.header, honest.rows)
    return SentFile(data=data[:-TRAILER_BYTES] + (2**31).to_bytes(4, "little") + MAGIC)


def make_oversized_file(honest: HonestWork) -> SentFile:
    return SentFile(data=MAGIC + bytes(ROLLOUT_FILE_BYTES_MAX) + MAGIC)


def make_noise(honest: HonestWork) -> SentFile:
    return SentFile(data=np.random.default_rng(1).bytes(4096))


def truncate_file(honest: HonestWork) -> SentFile:
    data = write_rollouts(honest.header, honest.rows)
    return SentFile(data=data[: len(data) // 2])


def break_modulus(honest: HonestWork, row: Rollout) -> Rollout:
    return replace(row, proofs=b"\0\0" + row.proofs[2:])


FILE_FORGERS: dict[str, FileForger] = {
    "constant-proof": forge_proofs(forgery.make_constant),
    "low-degree-proof": forge_proofs(forgery.make_low_degree),
    "dressed-constant-proof": forge_proofs(forgery.make_full_degree_constant),
    "learned-proof": forge_proofs(forgery.make_learned),
    "replayed-proof": replay_proofs_of(lambda honest: [*honest.rows[1:], honest.rows[0]]),
    "replayed-step-proof": replay_proofs_of(lambda honest: honest.other_step),
    "swapped-chunks": change_each_row(swap_row_proofs),
    "missing-chunk": change_first_row(lambda honest, row: replace(row, proofs=row.proofs[:-TOPLOC_PROOF_BYTES])),
    "extra-chunk": change_first_row(
        lambda honest, row: replace(row, proofs=row.proofs + row.proofs[:TOPLOC_PROOF_BYTES])
    ),
    "edited-prompt": change_first_row(simplify_prompt),
    "same-edited-prompt": change_each_row(simplify_prompt),
    "after-the-end": change_each_row(continue_after_end),
    "cut-for-length": change_each_row(claim_length_limit),
    "cherry-picked-slots": change_each_row(lambda honest, row: replace(row, slot=Slot(row.slot + 1))),
    "cherry-picked-tasks": change_each_row(lambda honest, row: replace(row, task=row.task + 1)),
    "dropped-samples": drop_samples,
    "stated-temperature": change_each_row(lambda honest, row: replace(row, temperature=row.temperature / 2)),
    "forged-rewards": add_rewards,
    "inflated-count": lambda honest: replace(write_file(honest, honest.rows), more_tokens=100),
    "copied-file": change_header(node=NodeId(bytes(range(20)))),
    "copied-rows": take_others,
    "two-leases": change_header(lease=2**20),
    "replayed-step": change_header(step=Step(2**20)),
    "replayed-rows": take_other_step,
    "other-checkpoint": change_header(checkpoint_root=Digest(bytes(32))),
    "bomb-list": claim_huge_list,
    "bomb-page": claim_huge_page,
    "bomb-footer": claim_huge_footer,
    "huge-file": make_oversized_file,
    "wrong-type": write_wrong_type,
    "unknown-token": change_first_row(with_token(2**30)),
    "negative-token": change_first_row(with_token(-1)),
    "not-a-number": change_first_row(with_logprob(float("nan"))),
    "positive-logprob": change_first_row(with_logprob(0.5)),
    "broken-modulus": change_each_row(break_modulus),
    "noise": make_noise,
    "cut-file": truncate_file,
    "over-context": change_first_row(exceed_context),
    "big-file": change_last_row(halve_logprobs),
}
