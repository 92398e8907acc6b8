"""A validator that judges without reading, an honest one that inspects it, and a worker: all real processes."""

from pathlib import Path
from typing import Any

from prime_lab.cheats.process import write_interpreter
from prime_lab.cheats.registry import LAZY
from prime_node.storage.journal import JobState
from prime_protocol.constants import BASIS_POINTS
from prime_protocol.proofs.read_proofs import is_read_proof_refuted
from prime_protocol.wire.ids import NodeId
from support.processes.coordinator import key_of
from support.processes.nodes import Network, Node, alter_checkpoint, running_network
from support.processes.swarm import run_command, until

STEPS_MAX = 8
"""Until the one that does not read is drawn: each file is judged by one of the two."""


async def test_who_does_not_read_is_found_out_and_not_paid_for_it(tmp_path: Path) -> None:
    terms = {"inspectors": (key_of("eye").node,), "slots_per_step": 2, "lag_max": 0}
    share = {"inspect_share": BASIS_POINTS}
    async with running_network(tmp_path, coordinator=share, **terms) as network:
        interpreter = write_interpreter(tmp_path / "lazy", LAZY)
        idler = await network.node("idler", "validator", "--engine-python", str(interpreter), engine="torch")
        eye = await network.node("eye", "validator", engine="torch")
        worker = await network.node("ann", "worker", engine="torch")
        step = 0
        while not await was_refuted(network, idler.node):
            assert step < STEPS_MAX, f"not inspected in {step} steps\n{eye.command.tail}"
            await until(lambda step=step: is_credited(worker, step), "credit", lambda: worker.command.tail)  # type: ignore[misc]
            step += 1
            weights = alter_checkpoint(network.checkpoint, tmp_path / f"next-{step}", share=0.001 * step)
            await network.publish(weights, step, "--delta")
        await anybody_sees_it(network, idler.node)
        paid, faults = await read_node(network, idler.node)
        assert (paid, faults > 0) == (0, True)
        assert (await read_node(network, eye.node))[1] == 0, "who reads what it judges has nothing to fear"
        for node in (worker, idler, eye):
            assert await node.command.stop() == 0, node.command.tail


def is_credited(worker: Node, step: int) -> bool:
    pieces = [piece for piece in worker.pieces() if piece.step == step]
    return bool(pieces) and all(piece.state in (JobState.CREDITED, JobState.PAID) for piece in pieces)


async def was_refuted(network: Network, idler: NodeId) -> bool:
    """Whether an inspection says so. What it says of others is that they had read."""
    given = {entry["receipt"]["submission"]: entry for entry in await network.entries("VerdictGiven")}
    seen = [(entry["submission"], each) for entry in await network.entries("Inspected") for each in entry["seen"]]
    found = False
    for name, each in seen:
        is_idler = each["reader"] == str(idler)
        assert is_read_proof_refuted(read_bytes(given[name]["read_proof"]), read_bytes(each["read_proof"])) == is_idler
        found = found or is_idler
    return found


async def anybody_sees_it(network: Network, idler: NodeId) -> None:
    """`prime-node audit` of a file that was accepted, by somebody who has the weights and nothing else."""
    verdicts = await network.entries("VerdictGiven")
    given = next(each["receipt"] for each in verdicts if each["receipt"]["validator"] == str(idler))
    name, step = given["submission"], (await find_step(network, given["submission"]))
    weights = network.checkpoint if step == 0 else network.folder / f"next-{step}"
    url, folder = network.coordinator.server.url, str(network.folder / "nobody")
    words = ("prime-node", "audit", name, "--coordinator", url, "--weights", str(weights), "--folder", folder)
    code, text = await run_command(*words, PRIME_ENGINE_ENGINE="torch")
    assert code == 0, text
    assert "accept: every check passes" in text
    assert "did not run the model: error" in text


async def find_step(network: Network, submission: str) -> int:
    async with network.api() as api:
        await api.wait_for_index()
        row = (await api.get(f"/submissions/{submission}"))["summary"]
    return int(row["step"])


def read_bytes(text: Any) -> bytes:
    return bytes.fromhex(str(text).removeprefix("0x"))


async def read_node(network: Network, node: NodeId) -> tuple[int, int]:
    async with network.api() as api:
        await api.wait_for_index()
        row = (await api.get(f"/nodes/{node}"))["summary"]
    return row["earned_nano"], row["faults"]
