"""A coordinator whose log breaks a rule, and nodes that follow it, all real processes: a validator finds it."""

import json
from pathlib import Path

from support.processes.cheating_coordinator_main import HURRY, MINT
from support.processes.nodes import running_network
from support.processes.swarm import run_command, until


async def test_a_validator_finds_a_broken_rule_accuses_and_stops_until_it_is_acknowledged(tmp_path: Path) -> None:
    async with running_network(tmp_path, program="cheating_coordinator_main.py") as network:
        validator = await network.node("judge", "validator", "--replay-niceness", "0")
        worker = await network.node("ann", "worker")
        status = await validator.until(
            lambda status: status["replay"]["size"] > 5 and status["replay"]["size"] == status["replay"]["head_size"],
            "a replay of all that is signed",
        )
        assert (status["replay"]["broken"], status["accusations"]["is_stopped"]) == ("", False)
        folder = ("--folder", str(validator.folder))
        code, text = await run_command("prime-node", "status", *folder)
        assert (code, "rules kept" in text) == (0, True), text
        await worker.until(lambda status: status["coordinator"]["is_reachable"], "a reply")

        (network.coordinator.config.folder / MINT).touch()
        status = await validator.until(lambda status: bool(status["accusations"]["kept"]), "an accusation")
        (row,) = status["accusations"]["kept"]
        assert (row["is_own"], row["rule"]) == (True, "ledger")
        assert "reference" in row["problem"]
        assert status["owner"]["hold"].startswith("THE COORDINATOR BROKE A RULE")
        status = await validator.until(lambda status: status["coordinator"]["activity"] == "draining", "no more work")
        code, text = await run_command("prime-node", "status", *folder)
        assert (code, "BREAKS A RULE" in text) == (3, True), text

        # The worker replays nothing: it hears of it by gossip, as a claim of the validator.
        told = await worker.until(lambda status: bool(status["accusations"]["claims"]), "the claim")
        (claim,) = told["accusations"]["claims"]
        assert (claim["accusers"], claim["answer"]) == ([str(validator.node)], "unknown")
        assert not told["accusations"]["is_stopped"]
        await until(lambda: any("ACCUSES THIS LOG" in line for line in network.coordinator.lines), "a line of its own")

        assert await validator.command.stop() == 3, validator.command.tail
        code, text = await run_command("prime-node", "accusations", "--json", *folder)
        (listed,) = json.loads(text)
        assert (code, listed["index"], listed["is_acknowledged"]) == (3, row["index"], False)
        await validator.command.start()
        status = await validator.until(lambda status: status["accusations"]["is_stopped"], "it still stops")
        assert status["replay"] is not None
        code, text = await run_command("prime-node", "accusations", "acknowledge", *folder)
        assert (code, text) == (0, "1 acknowledged; the node takes work again")
        status = await validator.until(lambda status: status["owner"]["hold"] == "", "work")
        assert (await run_command("prime-node", "accusations", *folder))[0] == 0
        assert await validator.command.stop() == 0, validator.command.tail


async def test_a_validator_finds_an_entry_with_a_wrong_time(tmp_path: Path) -> None:
    async with running_network(tmp_path, program="cheating_coordinator_main.py") as network:
        validator = await network.node("judge", "validator", "--replay-niceness", "0")
        await validator.until(lambda status: status["replay"]["size"] > 5, "a replay")
        (network.coordinator.config.folder / HURRY).touch()
        status = await validator.until(lambda status: bool(status["accusations"]["kept"]), "an accusation")
        (row,) = status["accusations"]["kept"]
        assert (row["rule"], "LogRecord.at_ms" in row["problem"]) == ("clock", True), row
