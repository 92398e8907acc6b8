"""Honest rollout files for tests, and the ways to bend one."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from prime_protocol.rollouts.file import PageCursor, write_rollouts
from prime_protocol.rollouts.layout import (
    COLUMNS,
    FOOTER_END,
    HEADER_KEYS,
    MAGIC,
    ColumnChunk,
    encode_footer_metadata,
    encode_footer_start,
    encode_page_header,
)
from prime_protocol.rollouts.rollout import FinishReason, Rollout, RolloutHeader, RolloutLimits, compute_proofs_bytes
from prime_protocol.wire.ids import Digest, NodeId, RunId, Sample, Slot, Step

HEADER = RolloutHeader(
    run=RunId("demo"),
    step=Step(7),
    checkpoint_root=Digest(bytes(range(32))),
    lease=41,
    node=NodeId(bytes(range(20))),
)
TEXTS = ("1", "demo", "7", str(HEADER.checkpoint_root), "41", str(HEADER.node))
LIMITS = RolloutLimits(
    first_slot=Slot(10),
    slots=3,
    samples_per_slot=2,
    vocab_size=1000,
    prompt_tokens_max=12,
    output_tokens_max=70,
)


def rollout(slot: int, sample: int, *, prompt: int, output: int, seed: int = 0) -> Rollout:
    dice = np.random.default_rng([slot, sample, seed])
    return Rollout(
        slot=Slot(slot),
        sample=Sample(sample),
        task=3 * slot,
        temperature=1.0,
        target_length=None if slot % 2 else 64,
        finish=FinishReason.LENGTH if output == 70 else FinishReason.EOS,
        prompt_tokens=dice.integers(0, 1000, prompt, dtype=np.int32),
        output_tokens=dice.integers(0, 1000, output, dtype=np.int32),
        output_logprobs=-dice.random(output, dtype=np.float32),
        proofs=dice.bytes(compute_proofs_bytes(output)),
    )


def rollouts() -> list[Rollout]:
    """Six rows: lists of one element, neighbours of one element, a full last chunk and a short one."""
    shapes = [(1, 1), (1, 1), (5, 32), (12, 33), (3, 70), (1, 2)]
    return [
        rollout(10 + number // 2, number % 2, prompt=prompt, output=output)
        for number, (prompt, output) in enumerate(shapes)
    ]


def honest_file() -> bytes:
    return write_rollouts(HEADER, rollouts())


def bent_file(row: int, **changes: Any) -> bytes:
    """The honest file with other values in one row."""
    rows = rollouts()
    rows[row] = replace(rows[row], **changes)
    return write_rollouts(HEADER, rows)


def pages_of(data: bytes) -> dict[str, tuple[int, bytes]]:
    """Values and body of each column's page."""
    cursor = PageCursor(data, len(data))
    cursor.position = len(MAGIC)
    pages = {}
    for column in COLUMNS:
        values, body = cursor.page(column.name)
        pages[column.name] = (values, bytes(body))
    return pages


def assemble(pages: dict[str, tuple[int, bytes]], rows: int = 6, texts: tuple[str, ...] = TEXTS) -> bytes:
    """A file whose headers and footer agree with the given pages, whatever these hold."""
    data, chunks = MAGIC, []
    for values, body in pages.values():
        page = encode_page_header(values, len(body)) + body
        chunks.append(ColumnChunk(len(data), len(page), values))
        data += page
    footer = encode_footer_start(chunks, rows) + encode_footer_metadata(HEADER_KEYS, texts) + FOOTER_END
    return data + footer + len(footer).to_bytes(4, "little") + MAGIC


def with_page(name: str, body: bytes, values: int | None = None) -> bytes:
    """The honest file with another page in one column."""
    pages = pages_of(honest_file())
    pages[name] = (pages[name][0] if values is None else values, body)
    return assemble(pages)


def pyarrow_table(data: bytes) -> pa.Table:
    """What pyarrow reads. With pre_buffer, version 26.0.1 was seen to abort the process at exit."""
    return pq.ParquetFile(io.BytesIO(data), pre_buffer=False).read(use_threads=False)
