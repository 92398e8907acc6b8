"""The strict reader and writer of rollout files.

A file comes from a stranger. The reader accepts exactly what the writer emits
(docs/decisions/0003-rollout-file-reader.md): it compares every byte that is not a value with what layout.py emits,
checks the values one column at a time, and allocates no more than the size of the file again. That is cheap enough for
every file. Whether the file fits its lease is decided in verify.py, whether its tokens are the model's in
prime_protocol.proofs.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from prime_protocol.constants import (
    OUTPUT_TOKENS_MAX,
    PERMUTATION_SIZE_MAX,
    ROLLOUT_FOOTER_BYTES_MAX,
    ROLLOUT_FORMAT_VERSION,
    TEMPERATURE_MAX,
    TEMPERATURE_MIN,
)
from prime_protocol.errors import RemoteError, explain_version
from prime_protocol.proofs.class_bounds import EngineClass
from prime_protocol.rollouts.layout import (
    BYTE_ARRAY,
    CLASS_KEYS,
    COLUMNS,
    DOUBLE,
    FLOAT,
    FOOTER_END,
    HEADER_KEYS,
    INT32,
    INT64,
    MAGIC,
    ColumnChunk,
    ColumnSchema,
    encode_footer_metadata,
    encode_footer_start,
    encode_levels,
    encode_metadata_head,
    encode_metadata_key,
    encode_page_header,
)
from prime_protocol.rollouts.rollout import (
    NO_TARGET_LENGTH,
    FinishReason,
    Rollout,
    RolloutFile,
    RolloutHeader,
    RolloutLimits,
    compute_proofs_bytes,
)
from prime_protocol.wire.ids import Digest, NodeId, RunId, Step

DTYPES = {INT32: "<i4", INT64: "<i8", FLOAT: "<f4", DOUBLE: "<f8"}

LIST_LEVEL_BYTES_MAX = 12
"""Repetition levels of one list: a run for its first element and one for the others, each a number and a byte."""


@dataclass(frozen=True, slots=True, eq=False)
class ListColumn:
    """A list column: the elements of all rows end to end, and how many each row has."""

    values: NDArray[Any]
    lengths: list[int]

    def split(self) -> list[NDArray[Any]]:
        """A view for each row."""
        views, start = [], 0
        for length in self.lengths:
            views.append(self.values[start : start + length])
            start += length
        return views


class PageCursor:
    """A position in the file that only moves past bytes it has verified."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, end: int) -> None:
        self.data = data
        self.end = end
        """Where the pages must stop and the footer starts."""
        self.position = 0

    def expect(self, wanted: bytes, field: str) -> None:
        after = self.position + len(wanted)
        if self.data[self.position : after] != wanted:
            raise RemoteError(field, f"at byte {self.position} is not in the one accepted form")
        self.position = after

    def page(self, field: str) -> tuple[int, memoryview]:
        """The number of values and the body of the page that starts here; the cursor moves past it."""
        # Three bytes come before the size, which stands twice with one byte between, then two before the values.
        # They are read without checks, because the whole header is compared afterwards.
        size, after = decode_varint(self.data, self.position + 3, field)
        values, _ = decode_varint(self.data, 2 * after - self.position, field)
        self.expect(encode_page_header(values // 2, size // 2), f"{field}.page_header")
        start, self.position = self.position, self.position + size // 2
        if self.position > self.end:
            raise RemoteError(f"{field}.page_header", f"states {size // 2} bytes, {self.end - start} are left")
        return values // 2, memoryview(self.data)[start : self.position]


def decode_varint(data: bytes | memoryview, position: int, field: str) -> tuple[int, int]:
    """An unsigned LEB128 number of at most 5 bytes, and the position behind it."""
    number = 0
    for offset, byte in enumerate(data[position : position + 5]):
        number |= (byte & 0x7F) << 7 * offset
        if byte < 0x80:
            return number, position + offset + 1
    raise RemoteError(field, f"at byte {position} is no number of at most 5 bytes")


def read_flat_column(cursor: PageCursor, column: ColumnSchema, rows: int) -> NDArray[Any]:
    """A column with one value per row."""
    values, body = cursor.page(column.name)
    check_count(column.name, values, rows)
    return decode_plain_values(column, body, values)


def read_list_column(cursor: PageCursor, column: ColumnSchema, rows: int) -> ListColumn:
    """A column with one list per row."""
    values, body = cursor.page(column.name)
    lengths = decode_list_lengths(column.name, body, rows)
    check_count(column.name, values, sum(lengths))
    return ListColumn(decode_plain_values(column, body[len(encode_levels(lengths)) :], values), lengths)


def read_toploc_column(cursor: PageCursor, column: ColumnSchema, sizes: list[int]) -> list[bytes]:
    """A column with one byte string per row, each of the size it must have."""
    values, body = cursor.page(column.name)
    check_count(column.name, values, len(sizes))
    wanted = sum(sizes) + 4 * len(sizes)
    if len(body) != wanted:
        raise RemoteError(column.name, f"has {len(body)} bytes, the output tokens need {wanted}")
    proofs, position = [], 0
    for number, size in enumerate(sizes):
        stated = int.from_bytes(body[position : position + 4], "little")
        if stated != size:
            raise RemoteError(f"rows[{number}].{column.name}", f"has {stated} bytes, the output tokens need {size}")
        proofs.append(bytes(body[position + 4 : position + 4 + size]))
        position += 4 + size
    return proofs


def check_count(field: str, values: int, wanted: int) -> None:
    if values != wanted:
        raise RemoteError(field, f"has {values} values, expected {wanted}")


def decode_plain_values(column: ColumnSchema, body: memoryview, values: int) -> NDArray[Any]:
    """A copy of a PLAIN page's values, because a page may start at an address no tensor library accepts."""
    dtype = np.dtype(DTYPES[column.physical])
    if len(body) != values * dtype.itemsize:
        raise RemoteError(column.name, f"has {len(body)} bytes for {values} values of {dtype.itemsize} bytes")
    array = np.frombuffer(body, dtype).copy()
    array.flags.writeable = False
    return array


def decode_list_lengths(field: str, body: memoryview, rows: int) -> list[int]:
    """The length of each list, from levels in exactly the form that `levels` gives them."""
    size = int.from_bytes(body[:4], "little")
    if size > rows * LIST_LEVEL_BYTES_MAX:
        raise RemoteError(field, f"has {size} bytes of repetition levels for {rows} lists")
    lengths: list[int] = []
    position = 4
    while position < min(4 + size, len(body)):
        count, position = decode_varint(body, position, field)
        # Whatever is wrong with a run shows when the levels are made again from the lengths.
        if lengths and bytes(body[position : position + 1]) == b"\1":
            lengths[-1] += count // 2
        elif count // 2 <= rows - len(lengths):
            lengths += [1] * (count // 2)
        else:
            raise RemoteError(field, f"has more than {rows} lists")
        position += 1
    check_count(f"{field}.lists", len(lengths), rows)
    encoded = encode_levels(lengths)
    if body[: len(encoded)] != encoded:
        raise RemoteError(field, "has levels that are not in the one accepted form")
    return lengths


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutColumns:
    """The decoded columns, in the order of the file."""

    slot: NDArray[np.int64]
    sample: NDArray[np.int32]
    task: NDArray[np.int64]
    temperature: NDArray[np.float64]
    target_length: NDArray[np.int32]
    finish: NDArray[np.int32]
    prompt_tokens: ListColumn
    output_tokens: ListColumn
    output_logprobs: ListColumn
    proofs: list[bytes]


def check_columns(columns: RolloutColumns, limits: RolloutLimits) -> None:
    """Refuse the first value that no honest file has, and name its row."""
    slots, samples = np.divmod(np.arange(limits.rows), limits.samples_per_slot)
    refuse_rows("slot", columns.slot, columns.slot != slots + limits.first_slot)
    refuse_rows("sample", columns.sample, columns.sample != samples)
    refuse_rows("task", columns.task, (columns.task < 0) | (columns.task >= PERMUTATION_SIZE_MAX))
    refuse_rows("temperature", columns.temperature, ~is_allowed_temperature(columns.temperature))
    lengths = columns.target_length
    refuse_rows(
        "target_length", lengths, (lengths != NO_TARGET_LENGTH) & ((lengths < 1) | (lengths > OUTPUT_TOKENS_MAX))
    )
    refuse_rows("finish", columns.finish, ~np.isin(columns.finish, list(FinishReason)))
    check_lengths("prompt_tokens", columns.prompt_tokens, limits.prompt_tokens_max)
    check_lengths("output_tokens", columns.output_tokens, limits.output_tokens_max)
    check_tokens("prompt_tokens", columns.prompt_tokens, limits.vocab_size)
    check_tokens("output_tokens", columns.output_tokens, limits.vocab_size)
    check_logprobs(columns)


def refuse_rows(field: str, values: NDArray[Any], wrong: NDArray[np.bool_]) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        raise RemoteError(f"rows[{row}].{field}", f"may not be {values[row]}")


def is_allowed_temperature(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Greedy or in range; not -0.0, which would be a second way to write 0."""
    greedy = (values == 0) & ~np.signbit(values)
    allowed: NDArray[np.bool_] = greedy | ((values >= TEMPERATURE_MIN) & (values <= TEMPERATURE_MAX))
    return allowed


def check_lengths(field: str, lists: ListColumn, tokens_max: int) -> None:
    longest = max(lists.lengths)
    if longest > tokens_max:
        raise RemoteError(
            f"rows[{lists.lengths.index(longest)}].{field}", f"has {longest} tokens, the limit is {tokens_max}"
        )


def check_tokens(field: str, lists: ListColumn, vocab_size: int) -> None:
    if lists.values.min() < 0 or lists.values.max() >= vocab_size:
        refuse_element(field, lists, (lists.values < 0) | (lists.values >= vocab_size))


def check_logprobs(columns: RolloutColumns) -> None:
    """One per output token, finite and not above 0."""
    lists = columns.output_logprobs
    if lists.lengths != columns.output_tokens.lengths:
        pairs = zip(lists.lengths, columns.output_tokens.lengths, strict=True)
        row = next(number for number, (given, wanted) in enumerate(pairs) if given != wanted)
        raise RemoteError(f"rows[{row}].output_logprobs", f"has {lists.lengths[row]} values, expected one per token")
    # A NaN makes both comparisons false.
    if not (lists.values.min() > -np.inf and lists.values.max() <= 0):
        refuse_element("output_logprobs", lists, ~(np.isfinite(lists.values) & (lists.values <= 0)))


def refuse_element(field: str, lists: ListColumn, wrong: NDArray[np.bool_]) -> None:
    """Name the row and the place of the first wrong element."""
    element = int(wrong.argmax())
    row = int(np.searchsorted(np.cumsum(lists.lengths), element, side="right"))
    place = element - sum(lists.lengths[:row])
    raise RemoteError(f"rows[{row}].{field}[{place}]", f"may not be {lists.values[element]}")


Parsed = TypeVar("Parsed")

TRAILER_BYTES = 4 + len(MAGIC)
"""The footer's size and the magic word at the end of the file."""
UINT = re.compile(r"0|[1-9][0-9]{0,19}")


FORMAT_KEYS = {"1": HEADER_KEYS, str(ROLLOUT_FORMAT_VERSION): CLASS_KEYS}
"""The metadata of each format."""


def write_rollouts(
    header: RolloutHeader,
    rows: Sequence[Rollout],
    engine_class: EngineClass | None = None,
    *,
    names_class: bool = False,
) -> bytes:
    """The file of these rows, always the same bytes. Read it back before sending: the writer judges no values.

    `names_class`: in format 2, as the run's terms have it; then `engine_class` is that of the engine, if it is known.
    """
    parts, chunks, offset = [MAGIC], [], len(MAGIC)
    for column in COLUMNS:
        values, body = encode_page_body(column, rows)
        page = encode_page_header(values, len(body)) + body
        chunks.append(ColumnChunk(offset, len(page), values))
        parts.append(page)
        offset += len(page)
    metadata = format_metadata(header, engine_class, names_class=names_class)
    footer = encode_footer_start(chunks, len(rows)) + metadata + FOOTER_END
    return b"".join([*parts, footer, len(footer).to_bytes(4, "little"), MAGIC])


def encode_page_body(column: ColumnSchema, rows: Sequence[Rollout]) -> tuple[int, bytes]:
    """How many values a column's page has, and its bytes."""
    items = [getattr(row, column.name) for row in rows]
    if column.name == "proofs":
        return len(rows), b"".join(len(proofs).to_bytes(4, "little") + proofs for proofs in items)
    if column.name == "target_length":
        items = [NO_TARGET_LENGTH if item is None else item for item in items]
    if not column.is_list:
        return len(rows), np.array(items, DTYPES[column.physical]).tobytes()
    assert all(item.dtype == DTYPES[column.physical] for item in items)
    assert all(len(item) for item in items), "an empty list has no encoding here"
    lengths = [len(item) for item in items]
    return sum(lengths), encode_levels(lengths) + b"".join(item.tobytes() for item in items)


def format_metadata(header: RolloutHeader, engine_class: EngineClass | None, *, names_class: bool) -> bytes:
    assert names_class or engine_class is None, "format 1 has no room for a class"
    version = str(ROLLOUT_FORMAT_VERSION) if names_class else "1"
    step, lease = str(header.step), str(header.lease)
    values = [version, str(header.run), step, str(header.checkpoint_root), lease, str(header.node)]
    if names_class:
        values.append(engine_class or "")
    return encode_footer_metadata(FORMAT_KEYS[version], values)


def read_rollouts(data: bytes, limits: RolloutLimits) -> RolloutFile:
    """The file, or RemoteError. Everything is bounded before it is decoded."""
    if len(data) > limits.file_bytes_max:
        raise RemoteError("file", f"is {len(data)} bytes, the limit is {limits.file_bytes_max}")
    cursor = PageCursor(data, len(data) - TRAILER_BYTES - read_footer_size(data))
    cursor.expect(MAGIC, "file")
    columns, chunks = read_columns(cursor, limits.rows)
    if cursor.position != cursor.end:
        raise RemoteError("file", f"has {cursor.end - cursor.position} bytes between its columns and its footer")
    cursor.expect(encode_footer_start(chunks, limits.rows), "footer")
    header, engine_class = read_header(cursor, limits)
    if cursor.position != len(data) - TRAILER_BYTES:
        raise RemoteError("footer", f"has {len(data) - TRAILER_BYTES - cursor.position} bytes behind its end")
    check_columns(columns, limits)
    return RolloutFile(header, split_rows(columns), engine_class)


def read_footer_size(data: bytes) -> int:
    """The size the footer states, when it and the magic words are possible."""
    if len(data) < TRAILER_BYTES or not data.endswith(MAGIC):
        raise RemoteError("file", "does not end like a parquet file")
    size = int.from_bytes(data[-TRAILER_BYTES : -len(MAGIC)], "little")
    if size > min(ROLLOUT_FOOTER_BYTES_MAX, len(data) - TRAILER_BYTES):
        raise RemoteError("footer", f"is {size} bytes of {len(data)}, the limit is {ROLLOUT_FOOTER_BYTES_MAX}")
    return size


def read_columns(cursor: PageCursor, rows: int) -> tuple[RolloutColumns, list[ColumnChunk]]:
    """Every column in the order of the file, and where each was found."""
    found: dict[str, Any] = {}
    chunks = []
    for column in COLUMNS:
        start = cursor.position
        if column.physical == BYTE_ARRAY:
            sizes = [compute_proofs_bytes(length) for length in found["output_tokens"].lengths]
            found[column.name], values = read_toploc_column(cursor, column, sizes), rows
        elif column.is_list:
            found[column.name] = lists = read_list_column(cursor, column, rows)
            values = len(lists.values)
        else:
            found[column.name], values = read_flat_column(cursor, column, rows), rows
        chunks.append(ColumnChunk(start, cursor.position - start, values))
    return RolloutColumns(**found), chunks


def read_header(cursor: PageCursor, limits: RolloutLimits) -> tuple[RolloutHeader, EngineClass | None]:
    """The header, from the footer's metadata; then the rest of the footer must be what the writer makes of it."""
    texts: dict[str, str] = {}
    keys = CLASS_KEYS if limits.names_class else HEADER_KEYS
    position = cursor.position + len(encode_metadata_head(keys))
    for key in keys:
        size, start = decode_varint(cursor.data, position + len(encode_metadata_key(key)), f"header.{key}")
        # Latin-1 never fails; the patterns of the values admit ASCII only.
        texts[key] = cursor.data[start : start + size].decode("latin-1")
        position = start + size + 1
        if key == "format":
            check_format_version(texts, keys)
    header, engine_class = parse_header(texts), parse_engine_class(texts, limits)
    cursor.expect(format_metadata(header, engine_class, names_class=limits.names_class) + FOOTER_END, "footer")
    return header, engine_class


def check_format_version(texts: dict[str, str], keys: Sequence[str]) -> None:
    """RemoteError: the file has another format than the run's terms ask for."""
    if FORMAT_KEYS.get(texts["format"]) == keys:
        return
    found = parse_header_field("format", parse_uint, texts)
    if texts["format"] in FORMAT_KEYS:
        raise RemoteError("header.format", f"is {found}, the run's terms ask for the other format")
    raise RemoteError("header.format", explain_version(found, ROLLOUT_FORMAT_VERSION))


def parse_header(texts: dict[str, str]) -> RolloutHeader:
    return RolloutHeader(
        run=parse_header_field("run", RunId, texts),
        step=Step(parse_header_field("step", parse_uint, texts)),
        checkpoint_root=parse_header_field("checkpoint", Digest.parse, texts),
        lease=parse_header_field("lease", parse_uint, texts),
        node=parse_header_field("node", NodeId.parse, texts),
    )


def parse_engine_class(texts: dict[str, str], limits: RolloutLimits) -> EngineClass | None:
    """None: the worker names none. RemoteError where the run wants one of its own."""
    found = parse_header_field("engine", EngineClass, texts) if texts.get("engine") else None
    if limits.classes and found not in limits.classes:
        raise RemoteError("header.engine", f"is {found or 'empty'}, the run has bounds for other classes only")
    return found


def parse_header_field(key: str, parse: Callable[[str], Parsed], texts: dict[str, str]) -> Parsed:
    """The parsed value, or an error that names the header's field instead of its type."""
    try:
        return parse(texts[key])
    except RemoteError as error:
        raise RemoteError(f"header.{key}", error.problem) from None


def parse_uint(text: str) -> int:
    if not UINT.fullmatch(text) or int(text) >= 2**64:
        raise RemoteError("uint", "must be a decimal number below 2^64 without leading zeros")
    return int(text)


def split_rows(columns: RolloutColumns) -> tuple[Rollout, ...]:
    """The rows of checked columns. Token arrays are views of the columns' arrays."""
    rows = zip(
        columns.slot.tolist(),
        columns.sample.tolist(),
        columns.task.tolist(),
        columns.temperature.tolist(),
        [None if length == NO_TARGET_LENGTH else length for length in columns.target_length.tolist()],
        [FinishReason(number) for number in columns.finish.tolist()],
        columns.prompt_tokens.split(),
        columns.output_tokens.split(),
        columns.output_logprobs.split(),
        columns.proofs,
        strict=True,
    )
    names = [column.name for column in COLUMNS]
    return tuple(Rollout(**dict(zip(names, row, strict=True))) for row in rows)
