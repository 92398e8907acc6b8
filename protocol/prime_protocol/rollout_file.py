"""Writing a rollout file, and reading one from a stranger.

The reader is ours and accepts exactly what the writer emits (docs/decisions/0003-rollout-file-reader.md): it compares
every byte that is not a value, and allocates no more than the file's own size again. What the values may be is in
rollout_checks.py.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from prime_protocol.constants import ROLLOUT_FOOTER_BYTES_MAX, ROLLOUT_FORMAT_VERSION
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NodeId, RunId, Step
from prime_protocol.rollout_checks import Columns, check_columns
from prime_protocol.rollout_layout import (
    BYTE_ARRAY,
    COLUMNS,
    FOOTER_END,
    HEADER_KEYS,
    MAGIC,
    METADATA_HEAD,
    Chunk,
    Column,
    footer_metadata,
    footer_start,
    levels,
    metadata_key,
    page_header,
)
from prime_protocol.rollout_pages import DTYPES, Cursor, peek_varint, read_flat, read_lists, read_proofs
from prime_protocol.rollouts import (
    NO_TARGET,
    Finish,
    Rollout,
    RolloutFile,
    RolloutHeader,
    RolloutLimits,
    proofs_size,
)

Parsed = TypeVar("Parsed")

FRAME_BYTES = 4 + len(MAGIC)
"""The footer's size and the magic word at the end of the file."""
UINT = re.compile(r"0|[1-9][0-9]{0,19}")


def write_rollouts(header: RolloutHeader, rows: Sequence[Rollout]) -> bytes:
    """The file of these rows, always the same bytes. Read it back before sending: the writer judges no values."""
    parts, chunks, offset = [MAGIC], [], len(MAGIC)
    for column in COLUMNS:
        values, body = page_body(column, rows)
        page = page_header(values, len(body)) + body
        chunks.append(Chunk(offset, len(page), values))
        parts.append(page)
        offset += len(page)
    footer = footer_start(chunks, len(rows)) + footer_metadata(header_texts(header)) + FOOTER_END
    return b"".join([*parts, footer, len(footer).to_bytes(4, "little"), MAGIC])


def page_body(column: Column, rows: Sequence[Rollout]) -> tuple[int, bytes]:
    """How many values a column's page has, and its bytes."""
    items = [getattr(row, column.name) for row in rows]
    if column.name == "proofs":
        return len(rows), b"".join(len(proofs).to_bytes(4, "little") + proofs for proofs in items)
    if column.name == "target_length":
        items = [NO_TARGET if item is None else item for item in items]
    if not column.is_list:
        return len(rows), np.array(items, DTYPES[column.physical]).tobytes()
    assert all(item.dtype == DTYPES[column.physical] for item in items)
    assert all(len(item) for item in items), "an empty list has no encoding here"
    lengths = [len(item) for item in items]
    return sum(lengths), levels(lengths) + b"".join(item.tobytes() for item in items)


def header_texts(header: RolloutHeader) -> tuple[str, ...]:
    """The values of HEADER_KEYS."""
    version, step, lease = str(ROLLOUT_FORMAT_VERSION), str(header.step), str(header.lease)
    return version, str(header.run), step, str(header.checkpoint_root), lease, str(header.node)


def read_rollouts(data: bytes, limits: RolloutLimits) -> RolloutFile:
    """The file, or RemoteError. Everything is bounded before it is decoded."""
    if len(data) > limits.file_bytes_max:
        raise RemoteError("file", f"is {len(data)} bytes, the limit is {limits.file_bytes_max}")
    cursor = Cursor(data, len(data) - FRAME_BYTES - footer_size(data))
    cursor.expect(MAGIC, "file")
    columns, chunks = read_columns(cursor, limits.rows)
    if cursor.position != cursor.end:
        raise RemoteError("file", f"has {cursor.end - cursor.position} bytes between its columns and its footer")
    cursor.expect(footer_start(chunks, limits.rows), "footer")
    header = read_header(cursor)
    if cursor.position != len(data) - FRAME_BYTES:
        raise RemoteError("footer", f"has {len(data) - FRAME_BYTES - cursor.position} bytes behind its end")
    check_columns(columns, limits)
    return RolloutFile(header, split_rows(columns))


def footer_size(data: bytes) -> int:
    """The size the footer states, when it and the magic words are possible."""
    if len(data) < FRAME_BYTES or not data.endswith(MAGIC):
        raise RemoteError("file", "does not end like a parquet file")
    size = int.from_bytes(data[-FRAME_BYTES : -len(MAGIC)], "little")
    if size > min(ROLLOUT_FOOTER_BYTES_MAX, len(data) - FRAME_BYTES):
        raise RemoteError("footer", f"is {size} bytes of {len(data)}, the limit is {ROLLOUT_FOOTER_BYTES_MAX}")
    return size


def read_columns(cursor: Cursor, rows: int) -> tuple[Columns, list[Chunk]]:
    """Every column in the order of the file, and where each was found."""
    found: dict[str, Any] = {}
    chunks = []
    for column in COLUMNS:
        start = cursor.position
        if column.physical == BYTE_ARRAY:
            sizes = [proofs_size(length) for length in found["output_tokens"].lengths]
            found[column.name], values = read_proofs(cursor, column, sizes), rows
        elif column.is_list:
            found[column.name] = lists = read_lists(cursor, column, rows)
            values = len(lists.values)
        else:
            found[column.name], values = read_flat(cursor, column, rows), rows
        chunks.append(Chunk(start, cursor.position - start, values))
    return Columns(**found), chunks


def read_header(cursor: Cursor) -> RolloutHeader:
    """The header, from the footer's metadata; then the rest of the footer must be what the writer makes of it."""
    texts: dict[str, str] = {}
    position = cursor.position + len(METADATA_HEAD)
    for key in HEADER_KEYS:
        size, start = peek_varint(cursor.data, position + len(metadata_key(key)), f"header.{key}")
        # Latin-1 never fails; the patterns of the values admit ASCII only.
        texts[key] = cursor.data[start : start + size].decode("latin-1")
        position = start + size + 1
    header = parse_header(texts)
    cursor.expect(footer_metadata(header_texts(header)) + FOOTER_END, "footer")
    return header


def parse_header(texts: dict[str, str]) -> RolloutHeader:
    if texts["format"] != str(ROLLOUT_FORMAT_VERSION):
        raise RemoteError("header.format", f"must be {ROLLOUT_FORMAT_VERSION}")
    return RolloutHeader(
        run=parse_text("run", RunId, texts),
        step=Step(parse_text("step", parse_uint, texts)),
        checkpoint_root=parse_text("checkpoint", Digest.parse, texts),
        lease=parse_text("lease", parse_uint, texts),
        node=parse_text("node", NodeId.parse, texts),
    )


def parse_text(key: str, parse: Callable[[str], Parsed], texts: dict[str, str]) -> Parsed:
    """The parsed value, or an error that names the header's field instead of its type."""
    try:
        return parse(texts[key])
    except RemoteError as error:
        raise RemoteError(f"header.{key}", error.problem) from None


def parse_uint(text: str) -> int:
    if not UINT.fullmatch(text) or int(text) >= 2**64:
        raise RemoteError("uint", "must be a decimal number below 2^64 without leading zeros")
    return int(text)


def split_rows(columns: Columns) -> tuple[Rollout, ...]:
    """The rows of checked columns. Token arrays are views of the columns' arrays."""
    rows = zip(
        columns.slot.tolist(),
        columns.sample.tolist(),
        columns.task.tolist(),
        columns.temperature.tolist(),
        [None if length == NO_TARGET else length for length in columns.target_length.tolist()],
        [Finish(number) for number in columns.finish.tolist()],
        columns.prompt_tokens.split(),
        columns.output_tokens.split(),
        columns.output_logprobs.split(),
        columns.proofs,
        strict=True,
    )
    names = [column.name for column in COLUMNS]
    return tuple(Rollout(**dict(zip(names, row, strict=True))) for row in rows)
