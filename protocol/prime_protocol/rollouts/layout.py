"""The parquet bytes of a rollout file around its values: page headers, repetition levels, the footer.

The file is ordinary parquet with one row group, one PLAIN uncompressed version-1 data page per column and no
statistics, so every byte that is not a value follows from the row lengths and the header. The writer emits these bytes
and the reader compares with them; neither knows any other form. Thrift's compact protocol is spoken here only.
"""

from collections.abc import Sequence
from dataclasses import dataclass

MAGIC = b"PAR1"
CREATED_BY = b"prime-swarm rollout writer 1"

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
"""Thrift compact type codes."""
INT32, INT64, FLOAT, DOUBLE, BYTE_ARRAY = 1, 2, 4, 5, 6
"""Parquet physical types."""
PLAIN, RLE = 0, 3
REQUIRED, REPEATED = 0, 2
CONVERTED_LIST = 3


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """A column of the schema. A list column holds required lists of required elements."""

    name: str
    physical: int
    is_list: bool = False

    @property
    def path(self) -> tuple[str, ...]:
        return (self.name, "list", "element") if self.is_list else (self.name,)


COLUMNS = (
    ColumnSchema("slot", INT64),
    ColumnSchema("sample", INT32),
    ColumnSchema("task", INT64),
    ColumnSchema("temperature", DOUBLE),
    ColumnSchema("target_length", INT32),
    ColumnSchema("finish", INT32),
    ColumnSchema("prompt_tokens", INT32, is_list=True),
    ColumnSchema("output_tokens", INT32, is_list=True),
    ColumnSchema("output_logprobs", FLOAT, is_list=True),
    ColumnSchema("proofs", BYTE_ARRAY),
)

HEADER_KEYS = ("format", "run", "step", "checkpoint", "lease", "node")
"""Keys of the footer's metadata, in order, each behind "prime."."""
CLASS_KEYS = (*HEADER_KEYS, "engine")
"""The same in format 2."""


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """Where one column's only page lies."""

    offset: int
    size: int
    """Page header and body, in bytes."""
    values: int
    """Elements of a list column, rows of any other."""


def encode_varint(number: int) -> bytes:
    """Unsigned LEB128, shortest form."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def encode_integer(delta: int, kind: int, number: int) -> bytes:
    """A thrift integer field, `delta` after the field before it. Zigzag: all our integers are 0 or more."""
    return bytes([delta << 4 | kind]) + encode_varint(2 * number)


def encode_text(raw: bytes) -> bytes:
    return encode_varint(len(raw)) + raw


def encode_field(delta: int, kind: int, body: bytes) -> bytes:
    return bytes([delta << 4 | kind]) + body


def encode_list(kind: int, items: Sequence[bytes]) -> bytes:
    head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + encode_varint(len(items))
    return head + b"".join(items)


def encode_page_header(values: int, body_size: int) -> bytes:
    """PageHeader: DATA_PAGE, both sizes, then DataPageHeader: values, PLAIN, RLE levels."""
    sizes = encode_integer(1, I32, 0) + encode_integer(1, I32, body_size) + encode_integer(1, I32, body_size)
    data = (
        encode_integer(1, I32, values)
        + encode_integer(1, I32, PLAIN)
        + encode_integer(1, I32, RLE)
        + encode_integer(1, I32, RLE)
    )
    return sizes + encode_field(2, STRUCT, data + b"\0") + b"\0"


def encode_levels(lengths: Sequence[int]) -> bytes:
    """Repetition levels, then definition levels, of lists that are never empty; each behind its size in bytes.

    A list of n elements is one 0 and n-1 times 1. Runs are maximal and never bit-packed, so there is one encoding.
    """
    runs = bytearray()
    zeros = 0
    for length in lengths:
        zeros += 1
        if length > 1:
            runs += encode_varint(2 * zeros) + b"\0" + encode_varint(2 * (length - 1)) + b"\1"
            zeros = 0
    if zeros:
        runs += encode_varint(2 * zeros) + b"\0"
    definition = encode_varint(2 * sum(lengths)) + b"\1"
    return b"".join(len(part).to_bytes(4, "little") + part for part in (bytes(runs), definition))


def encode_footer_start(chunks: Sequence[ColumnChunk], rows: int) -> bytes:
    """FileMetaData up to the key-value metadata: version, schema, rows, the row group."""
    columns = [encode_column_chunk(column, chunk) for column, chunk in zip(COLUMNS, chunks, strict=True)]
    total = encode_integer(1, I64, sum(chunk.size for chunk in chunks))
    group = encode_field(1, LIST, encode_list(STRUCT, columns)) + total + encode_integer(1, I64, rows) + b"\0"
    schema = [encode_schema_element(b"schema", children=len(COLUMNS))]
    for column in COLUMNS:
        schema += encode_column_schema(column)
    return (
        encode_integer(1, I32, 1)
        + encode_field(1, LIST, encode_list(STRUCT, schema))
        + encode_integer(1, I64, rows)
        + encode_field(1, LIST, encode_list(STRUCT, [group]))
    )


def encode_footer_metadata(keys: Sequence[str], values: Sequence[str]) -> bytes:
    """The key-value metadata, with its field and list heads."""
    pairs = [
        encode_metadata_key(key) + encode_text(value.encode()) + b"\0" for key, value in zip(keys, values, strict=True)
    ]
    return encode_metadata_head(keys) + b"".join(pairs)


def encode_metadata_head(keys: Sequence[str]) -> bytes:
    return encode_field(1, LIST, bytes([len(keys) << 4 | STRUCT]))


FOOTER_END = encode_field(1, BINARY, encode_text(CREATED_BY)) + b"\0"


def encode_metadata_key(key: str) -> bytes:
    """A KeyValue up to the length of its value."""
    return encode_field(1, BINARY, encode_text(b"prime." + key.encode())) + bytes([1 << 4 | BINARY])


def encode_schema_element(
    name: bytes, *, physical: int | None = None, repetition: int | None = None, children: int = 0, converted: int = 0
) -> bytes:
    """A SchemaElement: 1 type, 3 repetition, 4 name, 5 children, 6 converted type. The root has no repetition."""
    encoded, last = b"", 0
    for number, value in ((1, physical), (3, repetition)):
        if value is not None:
            encoded += encode_integer(number - last, I32, value)
            last = number
    encoded += encode_field(4 - last, BINARY, encode_text(name))
    if children:
        encoded += encode_integer(1, I32, children)
    if converted:
        encoded += encode_integer(1, I32, converted)
    return encoded + b"\0"


def encode_column_schema(column: ColumnSchema) -> list[bytes]:
    name = column.name.encode()
    if not column.is_list:
        return [encode_schema_element(name, physical=column.physical, repetition=REQUIRED)]
    return [
        encode_schema_element(name, repetition=REQUIRED, children=1, converted=CONVERTED_LIST),
        encode_schema_element(b"list", repetition=REPEATED, children=1),
        encode_schema_element(b"element", physical=column.physical, repetition=REQUIRED),
    ]


def encode_column_chunk(column: ColumnSchema, chunk: ColumnChunk) -> bytes:
    """A ColumnChunk: 2 file offset (0, as the format now asks), 3 ColumnMetaData with fields 1 to 7 and 9."""
    path = [encode_text(part.encode()) for part in column.path]
    metadata = (
        encode_integer(1, I32, column.physical)
        + encode_field(1, LIST, encode_list(I32, [encode_varint(2 * PLAIN), encode_varint(2 * RLE)]))
        + encode_field(1, LIST, encode_list(BINARY, path))
        + encode_integer(1, I32, 0)
        + encode_integer(1, I64, chunk.values)
        + encode_integer(1, I64, chunk.size)
        + encode_integer(1, I64, chunk.size)
        + encode_integer(2, I64, chunk.offset)
        + b"\0"
    )
    return encode_integer(2, I64, 0) + encode_field(1, STRUCT, metadata) + b"\0"
