"""Calibration files come from strangers: they are whole and signed, or refused by name."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from prime_node.calibration import files
from prime_node.calibration.files import (
    CalibrationFile,
    CalibrationHeader,
    CalibrationWriter,
    MeasuredEngine,
    MeasuredModel,
)
from prime_node.engine import frames
from prime_node.engine.interface import EngineFacts, TokenSequence
from prime_node.engine.measurement import ClaimedRow
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.proofs.tolerance import Precision
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.signing import WalletKey
from support.job_setup import KEY, VALIDATOR

FACTS = EngineFacts(
    engine="torch",
    device="cpu",
    precision="float32",
    hidden=64,
    vocabulary=32,
    context_max=128,
    version="2.13.0",
    attention="prime",
    device_model="cpu AVX2",
)
ENGINE = MeasuredEngine(facts=frames.encode_facts(FACTS), software=("torch 2.13.0",))
ROOT = Digest(bytes(32))
MODEL = MeasuredModel(
    weights=ROOT, model_files=ROOT, precision=Precision.FLOAT32, temperature=1.0, eos=(2,), tokens_max=40
)
HEADER = CalibrationHeader(author=KEY.node, made_at_ms=7, model=MODEL, writer=ENGINE, reader=None, source=None)


def make_claim(number: int, tokens: int = 4) -> ClaimedRow:
    output = np.arange(tokens, dtype=np.int32)
    sequence = TokenSequence(number=number, prompt=np.array([1], np.int32), output=output, seed=number)
    return ClaimedRow(sequence=sequence, logprobs=-np.ones(tokens, np.float32), proofs=b"proofs")


def write(path: Path, header: CalibrationHeader = HEADER, key: WalletKey = KEY, rows: int = 3) -> Path:
    with CalibrationWriter(path, header, key) as writer:
        for number in range(rows):
            writer.add_claim(make_claim(number))
    return path


def refusal(data: bytes, folder: Path) -> str:
    (folder / "changed").write_bytes(data)
    with pytest.raises(RemoteError) as caught:
        list(CalibrationFile.open(folder / "changed").iterate_claims())
    return str(caught.value)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = CalibrationFile.open(write(tmp_path / "a"))
    assert (file.header, file.rows) == (HEADER, 3)
    assert file.header.writer.engine_class == "cpu-avx2/torch-2.13/prime/float32/tp1"
    assert file.header.model.sampling.eos == {2}
    claims = list(file.iterate_claims())
    assert [claim.sequence.number for claim in claims] == [0, 1, 2]
    assert claims[1].logprobs.tolist() == [-1.0] * 4
    assert not list(tmp_path.glob("*.partial"))


def test_every_changed_byte_and_every_cut_is_refused(tmp_path: Path) -> None:
    data = write(tmp_path / "a", rows=1).read_bytes()
    for place in range(0, len(data), 7):
        assert refusal(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], tmp_path)
        assert refusal(data[:place], tmp_path)
    assert "signature" in refusal(data + b"\0", tmp_path)
    assert "no calibration file" in refusal(b"PAR1" + data, tmp_path)


def test_a_file_in_anothers_name_is_refused(tmp_path: Path) -> None:
    header = replace(HEADER, author=VALIDATOR.node)
    forged = write(tmp_path / "a", header, VALIDATOR).read_bytes()
    honest = write(tmp_path / "b").read_bytes()
    assert "is by" in refusal(honest[:-65] + forged[-65:], tmp_path)


def test_long_records_and_many_rows_are_refused_before_memory_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(tmp_path / "a").read_bytes()
    start = len(files.MAGIC)
    assert "the limit is 65536" in refusal(data[:start] + b"\xff\xff\xff\xff" + data[start + 4 :], tmp_path)
    rows = CalibrationFile.open(tmp_path / "a").begin
    assert "the limit is 67108864" in refusal(data[:rows] + b"\xff\xff\xff\xff" + data[rows + 4 :], tmp_path)
    monkeypatch.setattr(files, "ROWS_MAX", 2)
    assert "are more than 2" in refusal(data, tmp_path)
    with pytest.raises(LocalError, match="the most that a file may have"):
        write(tmp_path / "b")
    monkeypatch.setattr(files, "FILE_BYTES_MAX", 10)
    assert "the limit is 10" in refusal(data, tmp_path)


def test_a_signed_row_that_is_malformed_is_named(tmp_path: Path) -> None:
    with CalibrationWriter(tmp_path / "a", HEADER, KEY) as writer:
        writer._add(b"\xc0", 1)
    assert "rows[0]" in refusal((tmp_path / "a").read_bytes(), tmp_path)
    with CalibrationWriter(tmp_path / "b", HEADER, KEY) as writer:
        writer.add_claim(replace(make_claim(0), logprobs=np.zeros(3, np.float32)))
    assert "rows[0].logprobs" in refusal((tmp_path / "b").read_bytes(), tmp_path)


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    file = CalibrationFile.open(write(tmp_path / "a"))
    with CalibrationWriter(tmp_path / "a", HEADER, KEY) as writer:
        for number in range(3):
            writer.add_claim(make_claim(number + 5))
    with pytest.raises(LocalError, match="has changed while it was read"):
        list(file.iterate_claims())


def test_a_file_without_rows_is_not_kept_and_an_engine_without_a_class_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a", rows=0)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError, match="stopped"), CalibrationWriter(tmp_path / "a", HEADER, KEY) as writer:
        writer.add_claim(make_claim(0))
        raise RuntimeError("stopped")
    assert list(tmp_path.iterdir()) == []
    nameless = MeasuredEngine(facts=frames.encode_facts(replace(FACTS, version="")), software=())
    with pytest.raises(RemoteError, match="does not describe an engine"):
        _ = nameless.engine_class
    with pytest.raises(RemoteError, match="in files of measurements only"):
        replace(HEADER, source=Digest(sha256(b"x").digest()))
    with pytest.raises(LocalError, match="cannot read"):
        CalibrationFile.open(tmp_path / "nowhere")
