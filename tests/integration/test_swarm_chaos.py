"""Origin, two relays, eight nodes, all real processes: things break in the middle, and everybody ends bit-exact."""

import asyncio
import signal
from pathlib import Path

from support.processes.swarm import (
    HERE,
    SHARD_BYTES,
    Command,
    Published,
    Relay,
    Swarm,
    make_checkpoint,
    running_swarm,
    until,
)

P2P = ("--p2p-listen", HERE)
NODE = ("--weights-build", "--upload-slots", "8", "--upload-address-slots", "8")
"""Everybody is on one address here."""
VALUES = 400_000
STEPS = 3


def count_held(node: Relay, published: Published) -> int:
    held = node.transported(published.manifests["keyframe"]) / ".held"
    return int.from_bytes(held.read_bytes()).bit_count() if held.exists() else 0


async def start_nodes(swarm: Swarm, numbers: range) -> list[Relay]:
    nodes = []
    for number in numbers:
        nodes.append(await swarm.relay(f"node-{number}", *NODE, *(P2P if number % 4 == 0 else ())))
    return nodes


async def test_everybody_ends_with_exact_weights_whatever_breaks(tmp_path: Path) -> None:
    checkpoints = [
        make_checkpoint(tmp_path / f"step-{step}", seed=step, values=VALUES, changed=0.01 * step)
        for step in range(STEPS)
    ]
    async with running_swarm(tmp_path, p2p=True) as swarm:
        first = await swarm.publish(checkpoints[0], 0)
        origin = await swarm.origin(
            *P2P, "--upload-slots", "8", "--upload-address-slots", "8", "--upload-bytes-per-s", "1500000"
        )
        doomed = await swarm.relay("doomed", *NODE[1:], *P2P)
        slow = await swarm.relay("slow", *NODE[1:], "--upload-bytes-per-s", "20000")
        nodes = await start_nodes(swarm, range(7))

        # A relay is killed, and a node killed and started again, each in the middle of its transfer.
        await until(lambda: count_held(doomed, first) > 5, "a few shards", lambda: doomed.command.tail)
        await doomed.command.kill()
        assert count_held(doomed, first) < VALUES * 4 // SHARD_BYTES, "it was killed in the middle"
        restarted = nodes[3]
        await until(lambda: count_held(restarted, first) > 2, "a few shards", lambda: restarted.command.tail)
        await restarted.command.kill()
        await restarted.command.start()
        for node in nodes:
            await node.until_built(first.root, checkpoints[0])
        await slow.until_held(first.root)

        others = [origin, *(node.command for node in nodes)]
        await check_liar(swarm, slow, others, first, checkpoints[0])
        await check_deltas(swarm, nodes, checkpoints)


async def check_liar(swarm: Swarm, liar: Relay, others: list[Command], first: Published, checkpoint: Path) -> None:
    """Every shard on a relay goes bad behind its back. A late joiner, with all others frozen, takes one, no second."""
    for path in liar.transported(first.manifests["keyframe"]).glob("*.safetensors"):
        data = bytearray(path.read_bytes())
        for place in range(0, len(data), SHARD_BYTES):
            data[place] ^= 1
        path.write_bytes(bytes(data))
    for command in others:
        command.signal(signal.SIGSTOP)
    late = await swarm.relay("late", *NODE)
    await late.until(lambda status: [row["corrupt"] for row in status["weights"]["transfers"]] == [1], "a wrong shard")
    for command in others:
        command.signal(signal.SIGCONT)
    status = await late.until_built(first.root, checkpoint)
    assert status["weights"]["corrupt"] == 1, "who sent a wrong shard is not asked for another"


async def check_deltas(swarm: Swarm, nodes: list[Relay], checkpoints: list[Path]) -> None:
    """A node sleeps through step 1 and finds the way from 0 to 2; another has lost its base and takes a keyframe."""
    sleeper, amnesiac = nodes[5], nodes[6]
    await sleeper.command.stop()
    await amnesiac.command.stop()
    await swarm.publish(checkpoints[1], 1, "--delta")
    last = await swarm.publish(checkpoints[2], 2, "--keyframe")
    assert set(last.manifests) == {"delta", "keyframe"}
    for folder in ("checkpoints", "transport", "manifests"):
        for path in sorted((amnesiac.folder / "weights" / folder).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    await asyncio.gather(sleeper.command.start(), amnesiac.command.start())
    for node in nodes:
        await node.until_built(last.root, checkpoints[2])
