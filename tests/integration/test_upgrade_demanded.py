"""A run that asks for a newer protocol version by a date: a node says so in time, and waits afterwards, alive."""

import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from prime_coordinator.config import LogWriterConfig
from prime_coordinator.intervals import IntervalsConfig
from prime_node.status.alerts import list_alerts
from prime_protocol.constants import PROTOCOL_VERSION
from support.processes.coordinator import make_folder, running
from support.processes.swarm import Swarm

INTERVALS = IntervalsConfig(heartbeat_ms=300, head_ms=100, tick_ms=50)
HOUR_MS = 3_600_000


def has_trouble(status: dict[str, Any], *words: str) -> bool:
    return any(all(word in text for word in words) for text in list_alerts(status))


@pytest.mark.parametrize(
    ("in_ms", "words"), [(HOUR_MS, ("works until", "--upgrade")), (-1_000, ("too old for the run", "--upgrade"))]
)
async def test_a_node_tells_the_deadline_and_does_not_end_when_it_has_passed(
    in_ms: int, words: tuple[str, ...], tmp_path: Path
) -> None:
    planned = {"version_next": PROTOCOL_VERSION + 1, "upgrade_by_ms": int(1000 * time.time()) + in_ms}
    books, settings = LogWriterConfig(head_ms=100), {"intervals": INTERVALS}
    config = await make_folder(tmp_path / "coordinator", books=books, settings=settings, **planned)
    async with running(config) as coordinator, AsyncExitStack() as stack:
        node = await Swarm(tmp_path, coordinator, stack).relay("old")
        await node.until(lambda status: has_trouble(status, *words), " ".join(words))
        assert await node.command.stop() == 0, node.command.tail
