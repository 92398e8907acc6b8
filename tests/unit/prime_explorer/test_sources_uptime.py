"""Uptime is counted look by look, from the first that found a node."""

from pathlib import Path

import pytest

from prime_explorer.sources import UptimeCounter
from prime_protocol.errors import LocalError
from prime_runtime.clock import SystemClock
from support.ledger_network import World

ANN, BOB, CAT = (World().id(name) for name in ("ann", "bob", "cat"))


async def test_uptime_is_a_share_of_the_looks_since_the_first_that_found_a_node(tmp_path: Path) -> None:
    uptime = UptimeCounter(tmp_path / "explorer/uptime.db", None, SystemClock())
    assert await uptime.get_uptime([ANN]) == {}, "nobody looked yet"
    for online in ([ANN], [ANN, BOB], [BOB], [ANN, BOB]):
        uptime.record_sample(online)
    assert await uptime.get_uptime([ANN, BOB, CAT]) == {str(ANN): 0.75, str(BOB): 1.0}
    again = UptimeCounter(tmp_path / "explorer/uptime.db", None, SystemClock())
    again.record_sample([])
    assert await again.get_uptime([ANN]) == {str(ANN): 0.6}


async def test_a_broken_file_is_said_and_shows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "uptime.db"
    path.write_bytes(b"no database" * 1000)
    uptime = UptimeCounter(path, None, SystemClock())
    assert await uptime.get_uptime([ANN]) == {}
    with pytest.raises(LocalError, match="delete it"):
        uptime.record_sample([ANN])
