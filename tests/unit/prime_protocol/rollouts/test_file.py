"""The rollout file: one accepted form, readable by any parquet library; anything else is refused by name."""

import base64
import io
import json
import tracemalloc
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prime_protocol.constants import ROLLOUT_FOOTER_BYTES_MAX, TOPLOC_PROOF_BYTES
from prime_protocol.errors import RemoteError
from prime_protocol.proofs.class_bounds import EngineClass
from prime_protocol.rollouts.file import read_rollouts, write_rollouts
from prime_protocol.rollouts.layout import encode_levels, encode_varint
from prime_protocol.rollouts.rollout import (
    RolloutLimits,
    compute_header_digest,
    compute_rollout_leaves,
    compute_rollout_root,
)
from prime_protocol.wire.ids import Slot
from support.rollout_examples import (
    HEADER,
    LIMITS,
    TEXTS,
    assemble,
    bent_file,
    honest_file,
    pages_of,
    pyarrow_table,
    rollout,
    rollouts,
    with_page,
)

H100 = EngineClass("nvidia-h100/vllm-0.33/flash-attn/bfloat16/tp1")
VECTOR = json.loads((Path(__file__).parents[3] / "vectors" / "rollouts.json").read_text())


def refusal(data: bytes, limits: RolloutLimits = LIMITS) -> RemoteError:
    with pytest.raises(RemoteError) as caught:
        read_rollouts(data, limits)
    return caught.value


def test_vector_agrees() -> None:
    data = base64.b64decode(VECTOR["file"])
    assert "0x" + sha256(data).hexdigest() == VECTOR["file_digest"]
    file = read_rollouts(data, RolloutLimits(**VECTOR["limits"]))
    assert str(compute_header_digest(file.header)) == VECTOR["header_digest"]
    assert [str(leaf) for leaf in compute_rollout_leaves(file.header, file.rows)] == VECTOR["leaves"]
    assert str(compute_rollout_root(file)) == VECTOR["rollout_root"]
    assert [row.output_tokens.tolist() for row in file.rows] == VECTOR["output_tokens"]
    assert write_rollouts(file.header, file.rows) == data
    known = VECTOR["format_2"]
    for name, wanted in ((EngineClass(known["engine"]), known["file_digest"]), (None, known["silent_digest"])):
        second = write_rollouts(file.header, file.rows, name, names_class=True)
        assert "0x" + sha256(second).hexdigest() == wanted


def test_what_was_written_is_read() -> None:
    file = read_rollouts(honest_file(), LIMITS)
    assert file.header == HEADER
    for row, written in zip(file.rows, rollouts(), strict=True):
        for name in ("slot", "sample", "task", "temperature", "target_length", "finish", "proofs"):
            assert getattr(row, name) == getattr(written, name)
        for name in ("prompt_tokens", "output_tokens", "output_logprobs"):
            assert np.array_equal(getattr(row, name), getattr(written, name))
            assert getattr(row, name).flags.aligned


def test_rows_that_were_read_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        read_rollouts(honest_file(), LIMITS).rows[0].output_tokens[0] = 5


def test_pyarrow_reads_the_same_columns() -> None:
    table = pyarrow_table(honest_file())
    assert table.schema.field("output_tokens").type == pa.list_(pa.field("element", pa.int32(), nullable=False))
    assert table.schema.field("output_logprobs").type == pa.list_(pa.field("element", pa.float32(), nullable=False))
    for row, got in zip(rollouts(), table.to_pylist(), strict=True):
        assert got["slot"] == row.slot
        assert got["target_length"] == (-1 if row.target_length is None else row.target_length)
        assert got["prompt_tokens"] == row.prompt_tokens.tolist()
        assert got["output_tokens"] == row.output_tokens.tolist()
        assert got["output_logprobs"] == row.output_logprobs.tolist()
        assert got["proofs"] == row.proofs
    assert table.schema.metadata[b"prime.run"] == b"demo"


def test_pyarrow_reads_rows_past_every_varint_length() -> None:
    rows = [rollout(0, sample, prompt=1 + 130 * sample, output=1 + 20_000 * sample) for sample in range(3)]
    table = pyarrow_table(write_rollouts(HEADER, rows))
    assert table["output_tokens"].to_pylist() == [row.output_tokens.tolist() for row in rows]


def test_file_written_by_pyarrow_is_refused() -> None:
    table = pyarrow_table(honest_file())
    for codec in ("none", "zstd"):
        sink = io.BytesIO()
        pq.write_table(table, sink, compression=codec, use_dictionary=False, write_statistics=False)
        refusal(sink.getvalue())


def test_too_many_bytes_are_refused_before_anything_is_read() -> None:
    error = refusal(b"\0" * 101, replace(LIMITS, file_bytes_max=100))
    assert error.field == "file"


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1PAR", honest_file()[:-1], honest_file() + b"\0"])
def test_file_without_its_end_is_refused(data: bytes) -> None:
    assert refusal(data).field == "file"


def test_file_without_its_start_is_refused() -> None:
    assert refusal(b"QAR1" + honest_file()[4:]).field == "file"


@pytest.mark.parametrize("size", [ROLLOUT_FOOTER_BYTES_MAX + 1, 2**32 - 1, 6000])
def test_footer_size_that_cannot_be_is_refused(size: int) -> None:
    data = honest_file()
    assert refusal(data[:-8] + size.to_bytes(4, "little") + b"PAR1").field == "footer"


def test_bytes_between_columns_and_footer_are_refused() -> None:
    data = honest_file()
    footer_at = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    assert refusal(data[:footer_at] + b"hidden" + data[footer_at:]).field == "file"


def test_bytes_inside_the_footer_behind_its_end_are_refused() -> None:
    data = honest_file()
    size = int.from_bytes(data[-8:-4], "little") + 6
    assert refusal(data[:-8] + b"hidden" + size.to_bytes(4, "little") + b"PAR1").field == "footer"


def test_every_changed_byte_is_refused_or_is_another_value() -> None:
    """Only a change to a value may pass, and what passes has its own bytes: no byte of the file is free."""
    data = write_rollouts(HEADER, [rollout(10, 0, prompt=2, output=3)])
    limits = replace(LIMITS, slots=1, samples_per_slot=1)
    proofs_at = data.index(rollout(10, 0, prompt=2, output=3).proofs)
    for position in [*range(proofs_at + 4), *range(proofs_at + 254, len(data))]:
        changed = data[:position] + bytes([data[position] ^ 0x41]) + data[position + 1 :]
        try:
            file = read_rollouts(changed, limits)
        except RemoteError:
            continue
        assert write_rollouts(file.header, file.rows) == changed


def test_a_file_names_the_class_of_its_engine_where_the_terms_ask_for_it() -> None:
    named, silent = (write_rollouts(HEADER, rollouts(), each, names_class=True) for each in (H100, None))
    limits = replace(LIMITS, names_class=True)
    assert read_rollouts(named, limits).engine_class == H100
    assert read_rollouts(silent, limits).engine_class is None
    assert read_rollouts(honest_file(), LIMITS).engine_class is None
    assert compute_rollout_root(read_rollouts(named, limits)) == compute_rollout_root(
        read_rollouts(honest_file(), LIMITS)
    )
    assert refusal(named).field == refusal(honest_file(), limits).field == "header.format"
    metadata = pq.read_metadata(io.BytesIO(named)).metadata
    assert metadata[b"prime.engine"] == H100.encode()
    for change in (b"NVIDIA", b"nvidia "):
        assert refusal(named.replace(b"nvidia", change), limits).field in ("header.engine", "footer", "file")


def test_a_closed_run_takes_files_of_its_own_classes_only() -> None:
    limits = replace(LIMITS, names_class=True, classes=(H100,))
    assert read_rollouts(write_rollouts(HEADER, rollouts(), H100, names_class=True), limits).engine_class == H100
    for other in (None, EngineClass("nvidia-h200")):
        assert refusal(write_rollouts(HEADER, rollouts(), other, names_class=True), limits).field == "header.engine"


def test_every_cut_is_refused() -> None:
    data = write_rollouts(HEADER, [rollout(10, 0, prompt=2, output=3)])
    limits = replace(LIMITS, slots=1, samples_per_slot=1)
    for end in range(len(data) - 8):
        refusal(data[:end], limits)
        refusal(data[:end] + data[-8:], limits)


@pytest.mark.parametrize(
    ("place", "text", "field"),
    [
        (0, "2", "header.format"),
        (0, "3", "header.format"),
        (1, "Demo", "header.run"),
        (1, "", "header.run"),
        (2, "07", "header.step"),
        (2, str(2**64), "header.step"),
        (2, "-1", "header.step"),
        (3, "0x00", "header.checkpoint"),
        (3, str(HEADER.checkpoint_root).upper(), "header.checkpoint"),
        (4, "4 1", "header.lease"),
        (4, "\u0664", "header.lease"),
        (5, str(HEADER.node) + "0", "header.node"),
    ],
)
def test_header_value_in_another_form_is_refused_by_name(place: int, text: str, field: str) -> None:
    texts = (*TEXTS[:place], text, *TEXTS[place + 1 :])
    assert refusal(assemble(pages_of(honest_file()), texts=texts)).field == field


def test_header_value_of_a_huge_size_is_refused() -> None:
    data = honest_file()
    at = data.index(b"prime.run") + len("prime.run") + 1
    assert refusal(data[:at] + b"\xff\xff\xff\xff\x0f" + data[at + 5 :]).field.startswith("header.")
    assert refusal(data[:at] + b"\xff\xff\xff\xff\xff" + data[at + 5 :]).field == "header.run"


def test_page_header_in_another_form_is_refused() -> None:
    data = honest_file()
    # The first page header: type, sizes, then the data page header with values and encodings.
    for position in (4, 5, 6, 8, 10, 11, 13, 15, 17, 19):
        changed = data[:position] + bytes([data[position] ^ 2]) + data[position + 1 :]
        assert refusal(changed).field.startswith("slot")


def test_page_that_is_larger_than_the_file_is_refused() -> None:
    data = honest_file()
    head = (
        b"\x15\x00\x15"
        + encode_varint(2**31 - 2)
        + b"\x15"
        + encode_varint(2**31 - 2)
        + b"\x2c\x15\x0c\x15\x00\x15\x06\x15\x06\x00\x00"
    )
    assert refusal(data[:4] + head + data[25:]).field == "slot.page_header"


def test_flat_column_with_another_count_is_refused() -> None:
    assert refusal(with_page("sample", bytes(4 * 7), values=7)).field == "sample"
    assert refusal(with_page("sample", bytes(4 * 7), values=6)).field == "sample"
    assert refusal(with_page("sample", b"", values=0)).field == "sample"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff\xff\xff\xff",
        encode_levels([1, 1, 5, 12, 3, 2]) + bytes(4 * 23),
        encode_levels([1, 1, 5, 12, 4]) + bytes(4 * 23),
        encode_levels([1, 1, 5, 12, 3, 1, 1]) + bytes(4 * 24),
        b"\x02\0\0\0" + b"\x0c\0" + b"\x02\0\0\0" + b"\x0c\1" + bytes(4 * 6),
        b"\x02\0\0\0" + b"\x2e\1" + b"\x02\0\0\0" + b"\x2e\1" + bytes(4 * 23),
        b"\x40\0\0\0" + b"\0\0" * 32 + bytes(4 * 23),
        b"\x80\0\0\0" + b"\0\0" * 64 + bytes(4 * 23),
        b"\x05\0\0\0" + b"\xff" * 5 + bytes(4 * 23),
    ],
)
def test_levels_that_do_not_give_the_lists_are_refused(body: bytes) -> None:
    assert refusal(with_page("prompt_tokens", body)).field.startswith("prompt_tokens")


def test_bit_packed_levels_are_refused_though_parquet_allows_them() -> None:
    # Six lists of one element as one bit-packed group of eight levels.
    packed = b"\x02\0\0\0" + b"\x03\0" + b"\x02\0\0\0" + b"\x0c\1" + bytes(4 * 6)
    data = with_page("prompt_tokens", packed, values=6)
    assert pyarrow_table(data)["prompt_tokens"].to_pylist() == [[0]] * 6
    assert refusal(data).field.startswith("prompt_tokens")


def test_missing_or_surplus_proof_is_refused() -> None:
    proofs = rollouts()[3].proofs
    assert refusal(bent_file(3, proofs=proofs[:-TOPLOC_PROOF_BYTES])).field == "proofs"
    assert refusal(bent_file(3, proofs=proofs + bytes(TOPLOC_PROOF_BYTES))).field == "proofs"
    assert refusal(bent_file(3, proofs=b"")).field == "proofs"


def test_proof_moved_to_the_neighbour_is_refused() -> None:
    rows = rollouts()
    rows[2], rows[3] = replace(rows[2], proofs=rows[3].proofs), replace(rows[3], proofs=rows[2].proofs)
    assert refusal(write_rollouts(HEADER, rows)).field == "rows[2].proofs"


def test_proofs_with_another_count_are_refused() -> None:
    _, body = pages_of(honest_file())["proofs"]
    assert refusal(with_page("proofs", body, values=5)).field == "proofs"


def test_file_for_other_slots_is_refused() -> None:
    assert refusal(honest_file(), replace(LIMITS, first_slot=Slot(11))).field == "rows[0].slot"
    assert refusal(honest_file(), replace(LIMITS, slots=4)).field == "slot"
    assert refusal(honest_file(), replace(LIMITS, slots=2)).field == "slot"
    assert refusal(honest_file(), replace(LIMITS, slots=2, samples_per_slot=3)).field == "rows[2].slot"


def test_writer_refuses_an_array_of_another_type() -> None:
    row = rollouts()[0]
    with pytest.raises(AssertionError):
        write_rollouts(HEADER, [replace(row, output_tokens=row.output_tokens.astype(np.int64))])


def test_writer_refuses_an_empty_list() -> None:
    with pytest.raises(AssertionError, match="empty"):
        write_rollouts(HEADER, [replace(rollouts()[0], prompt_tokens=np.zeros(0, np.int32))])


def bombs() -> dict[str, bytes]:
    """Small or dull files that would make a general reader allocate or loop."""
    million = 2**20
    endless = with_page("prompt_tokens", (2 * million).to_bytes(4, "little") + b"\0\0" * million)
    run = b"\x07\0\0\0" + b"\x0c\0" + encode_varint(2 * (2**32 - 1)) + b"\1"
    return {
        "runs of nothing": endless,
        "a run of 2^32 levels": with_page(
            "prompt_tokens", run + b"\x06\0\0\0" + encode_varint(2**33) + b"\1", values=2**30
        ),
        "2^30 rows": with_page("slot", bytes(48), values=2**30),
        "2^30 tokens": with_page("output_tokens", encode_levels([2**30] + [1] * 5), values=2**30 + 5),
        "a string of 4 GiB": with_page("proofs", b"\xff\xff\xff\xff" + bytes(2000)),
    }


@pytest.mark.parametrize("name", bombs())
def test_bomb_is_refused_within_the_memory_of_its_own_size(name: str) -> None:
    data = bombs()[name]
    tracemalloc.start()
    try:
        refusal(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(data) + 200_000


def test_honest_file_is_read_within_twice_its_size() -> None:
    rows = [rollout(0, sample, prompt=1000, output=20_000) for sample in range(8)]
    data = write_rollouts(HEADER, rows)
    limits = RolloutLimits(
        first_slot=Slot(0),
        slots=1,
        samples_per_slot=8,
        vocab_size=1000,
        prompt_tokens_max=2000,
        output_tokens_max=20_000,
    )
    tracemalloc.start()
    try:
        read_rollouts(data, limits)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.2 * len(data)
