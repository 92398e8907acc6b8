"""One number, one definition: the node, the explorer and the offline check say the same about the same work."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp

from prime_node.storage.journal import JobState
from prime_protocol.ledger.entries import RunFunded
from prime_protocol.ledger.rewards import compute_units
from support.processes.coordinator import FUND, party
from support.processes.nodes import TERMS, Network, Node, alter_checkpoint, running_network
from support.processes.swarm import run_command, until

DONE = (JobState.CREDITED, JobState.PAID)


async def ask(network: Network, path: str) -> Any:
    """A page of the explorer as JSON, as soon as there is an index (else 503) that has read so far (else 404)."""
    url = f"{network.coordinator.server.url}/api/v1{path}"
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(url) as answer:
                if answer.status == 200:
                    return await answer.json()
                assert answer.status in (404, 503), await answer.text()
            await asyncio.sleep(0.2)


async def test_rollouts_pages_and_log_verify_agree(tmp_path: Path) -> None:
    async with running_network(tmp_path) as network:
        async with party(network.coordinator, "sponsor") as sponsor:
            await sponsor.write(RunFunded(amount_nano=FUND))
        worker: Node = await network.node("ann", "worker")
        validator: Node = await network.node("val", "validator")
        slots = TERMS["slots_per_step"]
        await until(
            lambda: sum(piece.slots for piece in worker.pieces() if piece.state in DONE) >= slots,
            "a step that is credited",
            lambda: worker.command.tail,
        )
        await network.publish(alter_checkpoint(network.checkpoint, tmp_path / "step-1", share=0.01), 1)
        paid = "a step that is paid"
        await until(lambda: JobState.PAID in {piece.state for piece in worker.pieces()}, paid, lambda: "")
        assert await worker.command.stop() == 0
        code, text = await run_command("prime-node", "rollouts", "--json", "--folder", str(worker.folder))
        assert code == 0, text
        made = {row["submission"]: row for row in json.loads(text) if row["submission"]}

        mirror = network.coordinator.config.folder / "mirror"
        code, text = await run_command("prime-coordinator", "log", "verify", str(mirror), "--json")
        assert code == 0, text
        checked = json.loads(text)
        (address,) = [name for name, node in checked["nodes"].items() if node["roles"] == ["worker"]]
        books = checked["nodes"][address]
        while (page := await ask(network, f"/nodes/{address}"))["summary"]["units"] < books["units"]:
            await asyncio.sleep(0.2)
        listed = (await ask(network, f"/submissions?node={address}"))["submissions"]["rows"]
        assert await validator.command.stop() == 0

    rows = {row["submission"]: row for row in listed}
    done = {name: piece for name, piece in made.items() if piece["state"] in ("credited", "paid")}
    assert done
    for name, piece in done.items():
        row = rows[name]
        assert (row["step"], row["lease"], row["first_slot"], row["slots"]) == tuple(
            piece[field] for field in ("step", "lease", "first_slot", "slots")
        )
        assert (row["output_tokens"], row["slots"] * row["samples"]) == (piece["output_tokens"], piece["rows"])
        assert row["units"] is not None
        assert piece["state"] == "credited" or row["paid_idx"] is not None
    credited = [row for row in rows.values() if row["units"] is not None]
    assert books["units"] == page["summary"]["units"] == sum(row["units"] for row in credited)
    assert books["settled"]["accept"] == page["summary"]["accepted"] == len(credited) >= len(done)
    assert (
        books["earned_nano"] == page["summary"]["earned_nano"] == sum(each["amount_nano"] for each in page["payouts"])
    )
    assert books["earned_nano"] > 0
    assert all(row["units"] == least_units(row["output_tokens"]) for row in credited), (
        "a token is a unit in these terms"
    )


def least_units(tokens: int) -> int:
    return compute_units(output_tokens=tokens, context_tokens=0, per_token=10**9, per_context_token=0)
