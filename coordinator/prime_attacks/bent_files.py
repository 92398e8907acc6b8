"""Rollout files bent by hand: what a worker writes that has an honest file, and wants another. Pure.

Each maker takes what an honest worker has and gives the bytes that are sent, with what is said of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from prime_devnet import forgery
from prime_protocol.constants import ROLLOUT_FILE_BYTES_MAX, TOPLOC_PROOF_BYTES
from prime_protocol.ids import Digest, NodeId, Slot, Step
from prime_protocol.rollout_file import FRAME_BYTES, header_texts, write_rollouts
from prime_protocol.rollout_layout import FOOTER_END, MAGIC, Chunk, footer_metadata, footer_start, page_header, varint
from prime_protocol.rollouts import Finish, Rollout, RolloutHeader, proofs_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Honest:
    """What a cheater starts from."""

    header: RolloutHeader
    rows: Sequence[Rollout]
    others: Sequence[Rollout]
    """Honest rows of other slots, as they stand in public files of the same step."""
    other_step: Sequence[Rollout]
    """Honest rows of the same slots in another step."""
    known: forgery.Known
    """What the hidden states of the other rows tell of the model."""
    hidden: int
    eos: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What arrives."""

    data: bytes
    more_tokens: int = 0
    """Claimed beyond what the file has."""


Make = Callable[[Honest], Sent]


def write(honest: Honest, rows: Sequence[Rollout]) -> Sent:
    return Sent(data=write_rollouts(honest.header, rows))


def each(change: Callable[[Honest, Rollout], Rollout]) -> Make:
    """The same change to every row."""
    return lambda honest: write(honest, [change(honest, row) for row in honest.rows])


def first(change: Callable[[Honest, Rollout], Rollout]) -> Make:
    """The change to one row only."""
    return lambda honest: write(honest, [change(honest, honest.rows[0]), *honest.rows[1:]])


def header(**changes: object) -> Make:
    return lambda honest: Sent(data=write_rollouts(replace(honest.header, **changes), honest.rows))  # type: ignore[arg-type]


# --- Proofs ---------------------------------------------------------------------------------------------------------


def forge(make: forgery.Forge) -> Make:
    """Proofs made without running the model on these tokens."""

    def bend(honest: Honest) -> Sent:
        known, hidden = honest.known, honest.hidden
        rows = [
            replace(row, proofs=forgery.forge_row(make, known, tokens=len(row.output_tokens), hidden=hidden))
            for row in honest.rows
        ]
        return write(honest, rows)

    return bend


def replay(pick: Callable[[Honest], Sequence[Rollout]]) -> Make:
    """Each row gets the proofs of another one that has as many of them."""

    def bend(honest: Honest) -> Sent:
        proofs = forgery.replay([row.proofs for row in honest.rows], [row.proofs for row in pick(honest)])
        return write(honest, [replace(row, proofs=each) for row, each in zip(honest.rows, proofs, strict=True)])

    return bend


def swap(honest: Honest, row: Rollout) -> Rollout:
    return replace(row, proofs=forgery.swap(row.proofs, tokens=len(row.output_tokens), hidden=honest.hidden))


# --- Values ---------------------------------------------------------------------------------------------------------


def easier(honest: Honest, row: Rollout) -> Rollout:
    prompt = row.prompt_tokens.copy()
    prompt[1:-1] = prompt[1]
    if np.array_equal(prompt, row.prompt_tokens):
        prompt[1] = (prompt[1] + 1) % 10
    return replace(row, prompt_tokens=prompt)


def go_on(honest: Honest, row: Rollout) -> Rollout:
    """An end token in the middle, and the rest of the answer behind it."""
    tokens = row.output_tokens.copy()
    tokens[0] = honest.eos
    return replace(row, output_tokens=tokens) if len(tokens) > 1 else row


def say_length(honest: Honest, row: Rollout) -> Rollout:
    count = max(1, len(row.output_tokens) // 2)
    return cut(replace(row, finish=Finish.LENGTH), count)


def cut(row: Rollout, count: int) -> Rollout:
    tokens = row.output_tokens[:count].copy()
    tokens[tokens == tokens.max()] = 0
    return replace(
        row,
        output_tokens=tokens,
        output_logprobs=row.output_logprobs[:count],
        proofs=row.proofs[: proofs_size(count)],
    )


def with_token(token: int) -> Callable[[Honest, Rollout], Rollout]:
    def change(honest: Honest, row: Rollout) -> Rollout:
        tokens = row.output_tokens.copy()
        tokens[0] = token
        return replace(row, output_tokens=tokens)

    return change


def with_logprob(value: float) -> Callable[[Honest, Rollout], Rollout]:
    def change(honest: Honest, row: Rollout) -> Rollout:
        logprobs = row.output_logprobs.copy()
        logprobs[0] = value
        return replace(row, output_logprobs=logprobs)

    return change


def take_others(honest: Honest) -> Sent:
    """Rows of another lease, under the header of this one."""
    return write(honest, honest.others[: len(honest.rows)])


def take_other_step(honest: Honest) -> Sent:
    return write(honest, honest.other_step)


def drop_samples(honest: Honest) -> Sent:
    return write(honest, honest.rows[:-1])


# --- Bytes ----------------------------------------------------------------------------------------------------------


def add_rewards(honest: Honest) -> Sent:
    """A column that the schema does not have, behind the others."""
    data = write_rollouts(honest.header, honest.rows)
    footer = int.from_bytes(data[-FRAME_BYTES : -len(MAGIC)], "little")
    at = len(data) - FRAME_BYTES - footer
    body = np.ones(len(honest.rows), "<f8").tobytes()
    return Sent(data=data[:at] + page_header(len(honest.rows), len(body)) + body + data[at:])


def claim_huge_list(honest: Honest) -> Sent:
    """The footer says that the prompts have 2^40 elements."""
    chunks = [Chunk(4, 64, 2**40 if number == 6 else len(honest.rows)) for number in range(10)]
    return frame(honest, b"\0" * 640, chunks)


def claim_huge_page(honest: Honest) -> Sent:
    return frame(honest, page_header(2**40, 2**40) + b"\0" * 600, [Chunk(4, 64, len(honest.rows))] * 10)


def frame(honest: Honest, body: bytes, chunks: list[Chunk]) -> Sent:
    footer = footer_start(chunks, len(honest.rows)) + footer_metadata(header_texts(honest.header)) + FOOTER_END
    return Sent(data=MAGIC + body + footer + len(footer).to_bytes(4, "little") + MAGIC)


def retype(honest: Honest) -> Sent:
    """Output tokens written as floats, twice as wide as they may be."""
    data = write_rollouts(honest.header, honest.rows)
    return Sent(data=data.replace(b"output_tokens", b"output_tokenz", 1).replace(varint(2 * 1), varint(2 * 5), 1))


def claim_footer(honest: Honest) -> Sent:
    data = write_rollouts(honest.header, honest.rows)
    return Sent(data=data[:-FRAME_BYTES] + (2**31).to_bytes(4, "little") + MAGIC)


def grow(honest: Honest) -> Sent:
    return Sent(data=MAGIC + bytes(ROLLOUT_FILE_BYTES_MAX) + MAGIC)


def make_noise(honest: Honest) -> Sent:
    return Sent(data=np.random.default_rng(1).bytes(4096))


def cut_file(honest: Honest) -> Sent:
    data = write_rollouts(honest.header, honest.rows)
    return Sent(data=data[: len(data) // 2])


def break_modulus(honest: Honest, row: Rollout) -> Rollout:
    return replace(row, proofs=b"\0\0" + row.proofs[2:])


MAKERS: dict[str, Make] = {
    "constant-proof": forge(forgery.make_constant),
    "low-degree-proof": forge(forgery.make_low_degree),
    "dressed-constant-proof": forge(forgery.make_dressed),
    "learned-proof": forge(forgery.make_learned),
    "replayed-proof": replay(lambda honest: [*honest.rows[1:], honest.rows[0]]),
    "replayed-step-proof": replay(lambda honest: honest.other_step),
    "swapped-chunks": each(swap),
    "missing-chunk": first(lambda honest, row: replace(row, proofs=row.proofs[:-TOPLOC_PROOF_BYTES])),
    "extra-chunk": first(lambda honest, row: replace(row, proofs=row.proofs + row.proofs[:TOPLOC_PROOF_BYTES])),
    "edited-prompt": first(easier),
    "same-edited-prompt": each(easier),
    "after-the-end": each(go_on),
    "cut-for-length": each(say_length),
    "cherry-picked-slots": each(lambda honest, row: replace(row, slot=Slot(row.slot + 1))),
    "cherry-picked-tasks": each(lambda honest, row: replace(row, task=row.task + 1)),
    "dropped-samples": drop_samples,
    "stated-temperature": each(lambda honest, row: replace(row, temperature=row.temperature / 2)),
    "forged-rewards": add_rewards,
    "inflated-count": lambda honest: replace(write(honest, honest.rows), more_tokens=100),
    "copied-file": header(node=NodeId(bytes(range(20)))),
    "copied-rows": take_others,
    "two-leases": header(lease=2**20),
    "replayed-step": header(step=Step(2**20)),
    "replayed-rows": take_other_step,
    "other-checkpoint": header(checkpoint_root=Digest(bytes(32))),
    "bomb-list": claim_huge_list,
    "bomb-page": claim_huge_page,
    "bomb-footer": claim_footer,
    "huge-file": grow,
    "wrong-type": retype,
    "unknown-token": first(with_token(2**30)),
    "negative-token": first(with_token(-1)),
    "not-a-number": first(with_logprob(float("nan"))),
    "positive-logprob": first(with_logprob(0.5)),
    "broken-modulus": each(break_modulus),
    "noise": make_noise,
    "cut-file": cut_file,
}
