"""Uptime is counted look by look, from the first that found a node."""

from pathlib import Path

import pytest
from ledger_world import World

from prime_explorer.attendance import Attendances
from prime_explorer.live import NothingLive
from prime_protocol.errors import LocalError
from prime_runtime.clock import SystemClock

ANN, BOB, CAT = (World().id(name) for name in ("ann", "bob", "cat"))


async def test_uptime_is_a_share_of_the_looks_since_the_first_that_found_a_node(tmp_path: Path) -> None:
    attendances = Attendances(tmp_path / "explorer/attendance.db", NothingLive(), SystemClock())
    assert await attendances.read([ANN]) == {}, "nobody looked yet"
    for online in ([ANN], [ANN, BOB], [BOB], [ANN, BOB]):
        attendances.count(online)
    assert await attendances.read([ANN, BOB, CAT]) == {str(ANN): 0.75, str(BOB): 1.0}
    again = Attendances(tmp_path / "explorer/attendance.db", NothingLive(), SystemClock())
    again.count([])
    assert await again.read([ANN]) == {str(ANN): 0.6}


async def test_a_broken_file_is_said_and_shows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "attendance.db"
    path.write_bytes(b"no database" * 1000)
    attendances = Attendances(path, NothingLive(), SystemClock())
    assert await attendances.read([ANN]) == {}
    with pytest.raises(LocalError, match="delete it"):
        attendances.count([ANN])
