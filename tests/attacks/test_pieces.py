"""Pieces of the full gallery: what was made is not made again, and nothing is begun when the time is over."""

import math
from pathlib import Path

import numpy as np
import pytest

from prime_lab.attacks.study import OutOfTimeError, ResultCache, rebuild_row
from prime_node.engine.measurement import RowMeasurement
from prime_protocol.proofs.evidence import ReplayedChunk
from prime_protocol.proofs.toploc_verify import ChunkReport


def make_rows() -> list[RowMeasurement]:
    dice = np.random.default_rng(2)
    rows = []
    for number in range(5):
        spans = [
            ReplayedChunk(32, *dice.random(1), place * 32 + 3, *dice.random(2), place * 32 + 5, *dice.random(3))
            for place in range(number + 1)
        ]
        reports = [ChunkReport(128, *dice.integers(0, 9, 8).tolist()) for _ in spans]
        is_broken = number == 3
        rows.append(rebuild_row(number, spans, [] if is_broken else reports, -1.5, "modulus" if is_broken else ""))
    return rows


def test_a_piece_is_made_once_and_comes_back_as_it_was(tmp_path: Path) -> None:
    made = make_rows()
    pieces = ResultCache(tmp_path / "subject", math.inf)
    assert pieces.get("honest-0", lambda: made) == made
    late = ResultCache(tmp_path / "subject", -math.inf)
    assert late.get("honest-0", lambda: pytest.fail("it is there already")) == made


def test_nothing_is_begun_when_the_time_is_over_and_nothing_half_done_is_kept(tmp_path: Path) -> None:
    with pytest.raises(OutOfTimeError, match="honest-1"):
        ResultCache(tmp_path, -math.inf).get("honest-1", make_rows)

    def die() -> list[RowMeasurement]:
        raise KeyboardInterrupt

    pieces = ResultCache(tmp_path, math.inf)
    with pytest.raises(KeyboardInterrupt):
        pieces.get("honest-2", die)
    assert pieces.get("honest-2", make_rows) == make_rows()
