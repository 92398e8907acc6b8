"""Hostile calibration files, and hostile text of tables of engine classes."""

from pathlib import Path

import pytest

from fuzz.harness import assert_survives
from prime_node.calibration.files import CalibrationFile
from prime_protocol.proofs.class_bounds import format_class_bounds, parse_class_bounds
from prime_protocol.proofs.tolerance import Tolerance
from unit.prime_node.calibration.test_files import write

pytestmark = pytest.mark.fuzz
LINES = b"gpu-a/x > gpu-b/x: margin_max=0.25 noise_typical=0.5\ngpu-b/x > gpu-b/x:\ngpu-c"


def test_no_calibration_file_breaks_its_reader(tmp_path: Path) -> None:
    honest = write(tmp_path / "honest").read_bytes()

    def read(data: bytes) -> None:
        path = tmp_path / "hostile"
        path.write_bytes(data)
        list(CalibrationFile.open(path).iterate_claims())
        assert data == honest, "only what its author signed is read"

    assert_survives(read, [honest], seed=1)


def test_no_text_breaks_the_table_of_classes() -> None:
    def read(data: bytes) -> None:
        table = parse_class_bounds(data.decode("latin-1").split("\n"), Tolerance())
        assert parse_class_bounds(format_class_bounds(table, Tolerance()), Tolerance()) == table

    assert_survives(read, [LINES], seed=2)
