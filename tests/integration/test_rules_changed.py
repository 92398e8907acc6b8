"""A network changes its rules while it runs: the log goes on as one, and a node of an older version says what to do."""

import json
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from prime_coordinator.config import LogWriterConfig
from prime_coordinator.home import CoordinatorHome
from prime_coordinator.intervals import IntervalsConfig
from prime_node.status.alerts import list_alerts
from support.processes.coordinator import CoordinatorProcess, make_folder, party, publish, read_entries, running
from support.processes.swarm import Swarm, run_command, until

INTERVALS = IntervalsConfig(heartbeat_ms=300, head_ms=100, tick_ms=50)
TESTS = Path(__file__).parents[1]
OLD_VERSION = {"PYTHONPATH": f"{TESTS / 'support/processes/old_version'}:{TESTS}"}
NOTICE_MS = 2_000
CHANGE_S = 15.0
"""From the announcement to the change in the first test: two commands and a restart, on a busy machine."""
WAIT_S = 20
"""From the announcement to the change: a node has to join and hear of it meanwhile."""


async def open_network(folder: Path) -> Any:
    settings = {"intervals": INTERVALS, "rules": 1, "rules_notice_ms": NOTICE_MS}
    return await make_folder(folder, books=LogWriterConfig(head_ms=100), settings=settings)


async def announce(coordinator: CoordinatorProcess, wait_s: float) -> tuple[int, str]:
    where = ("--folder", str(coordinator.config.folder), "--url", coordinator.server.url)
    return await run_command(
        *("prime-coordinator", "rules", "announce", "--release", "0.2.0", "--in-hours", str(wait_s / 3600), *where)
    )


def has_alert(status: dict[str, Any], *words: str) -> bool:
    return any(all(word in text for word in words) for text in list_alerts(status))


async def test_a_log_goes_on_under_other_rules_over_a_restart_and_verifies_as_one(tmp_path: Path) -> None:
    config = await open_network(tmp_path / "coordinator")
    async with running(config) as coordinator, party(coordinator, "trainer") as trainer:
        trainer.rules = 1
        await publish(trainer, 0)
        code, text = await announce(coordinator, 0.1)
        assert (code, "from_ms" in text) == (1, True), text
        code, text = await announce(coordinator, CHANGE_S)
        assert (code, "the log follows rules 2 from" in text) == (0, True), text
        change_s = time.monotonic() + CHANGE_S
        where = ("--folder", str(config.folder), "--url", coordinator.server.url)
        code, text = await run_command("prime-coordinator", "rules", "show", *where)
        assert (code, text.startswith("1; 2 from")) == (0, True), text
        async with aiohttp.ClientSession() as session, session.get(coordinator.server.url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        assert {"prime_coordinator_rules 1.0", "prime_coordinator_rules_announced 2.0"} <= set(lines)
        assert "prime_coordinator_rules_change_time_seconds 0.0" not in lines
        await publish(trainer, 1)
        assert await coordinator.stop() == 0
        await coordinator.start()
        await until(lambda: time.monotonic() > change_s, "the change")
        trainer.rules = 2
        await publish(trainer, 2)
        assert await coordinator.stop() == 0
    steps = read_entries(config, "CheckpointPublished")
    assert [entry["step"] for entry in steps] == [0, 1, 2]
    code, text = await run_command("prime-coordinator", "log", "verify", str(CoordinatorHome(config.folder).mirror))
    assert (code, "every signature, author, rule and tile is valid" in text) == (0, True), text
    code, text = await run_command(
        "prime-coordinator", "log", "verify", str(CoordinatorHome(config.folder).mirror), **OLD_VERSION
    )
    assert (code, "upgrade prime-swarm to version 0.2.0 or later" in text) == (1, True), text


async def test_a_node_of_an_older_version_warns_ahead_and_then_stops_without_an_accusation(tmp_path: Path) -> None:
    config = await open_network(tmp_path / "coordinator")
    async with running(config) as coordinator, AsyncExitStack() as stack:
        swarm = Swarm(tmp_path, coordinator, stack)
        node = await swarm.relay("old", "--replay-mode", "on", "--replay-niceness", "0", **OLD_VERSION)
        await node.until(lambda status: bool(status["replay"]["size"]), "a replay")
        code, text = await announce(coordinator, WAIT_S)
        assert code == 0, text
        status = await node.until(
            lambda status: has_alert(status, "follows rules 2", "prime-swarm>=0.2.0"), "a warning"
        )
        assert (status["replay"]["problem"], status["coordinator"]["is_outdated"]) == ("", False)
        status = await node.until(lambda status: status["coordinator"]["is_outdated"], "the change")
        assert has_alert(status, "outdated", "pip install --upgrade")
        async with party(coordinator, "trainer") as trainer:
            await publish(trainer, 0)
        wanted = "upgrade prime-swarm to version 0.2.0 or later"
        status = await node.until(lambda status: wanted in status["replay"]["problem"], "a stop that says what to do")
        assert (status["accusations"]["kept"], status["accusations"]["is_stopped"]) == ([], False), json.dumps(status)
        assert await node.command.stop() == 0, node.command.tail
