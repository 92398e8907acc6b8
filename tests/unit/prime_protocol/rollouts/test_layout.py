"""Parquet bytes around the values, against what the specification says and what pyarrow finds in them."""

import io

import pyarrow.parquet as pq
import pytest

from prime_protocol.rollouts.layout import COLUMNS, encode_levels, encode_list, encode_page_header, encode_varint
from support.rollout_examples import honest_file


@pytest.mark.parametrize(
    ("number", "encoded"), [(0, "00"), (127, "7f"), (128, "8001"), (16383, "ff7f"), (2**32 - 1, "ffffffff0f")]
)
def test_varint_is_shortest_leb128(number: int, encoded: str) -> None:
    assert encode_varint(number).hex() == encoded


def test_page_header_is_these_bytes() -> None:
    assert encode_page_header(6, 48).hex() == "15001560" + "1560" + "2c150c150015061506" + "0000"


def test_list_head_has_a_short_and_a_long_form() -> None:
    assert encode_list(5, [b"x"] * 14)[:1].hex() == "e5"
    assert encode_list(5, [b"x"] * 15)[:2].hex() == "f50f"


def test_levels_are_maximal_runs() -> None:
    # Lists of 1, 1, 3 and 1 elements: 0 0 0 1 1 0, all defined.
    assert encode_levels([1, 1, 3, 1]).hex() == "06000000" + "0600" + "0401" + "0200" + "02000000" + "0c01"
    assert encode_levels([2]).hex() == "04000000" + "0200" + "0201" + "02000000" + "0401"


def test_pyarrow_finds_one_plain_uncompressed_page_per_column_and_no_statistics() -> None:
    metadata = pq.ParquetFile(io.BytesIO(honest_file())).metadata
    assert (metadata.num_rows, metadata.num_row_groups, metadata.num_columns) == (6, 1, len(COLUMNS))
    offset = 4
    for number, column in enumerate(COLUMNS):
        chunk = metadata.row_group(0).column(number)
        assert chunk.path_in_schema == ".".join(column.path)
        assert (chunk.compression, chunk.encodings) == ("UNCOMPRESSED", ("PLAIN", "RLE"))
        assert chunk.statistics is None
        assert not chunk.has_dictionary_page
        assert chunk.data_page_offset == offset
        offset += chunk.total_compressed_size
