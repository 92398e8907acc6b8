"""Deltas without their bases, all real processes: one that comes too early waits, and who has nothing walks back."""

import asyncio
import re
import shutil
from pathlib import Path
from typing import Any

from support.processes.swarm import Command, Published, Relay, Swarm, make_checkpoint, running_swarm

NODE = ("--weights-build", "--upload-slots", "8", "--upload-address-slots", "8")
"""It builds what it fetches, and serves it."""


async def test_a_delta_before_its_base_and_a_node_without_any_end_exact_with_no_keyframe_of_that_step(
    tmp_path: Path,
) -> None:
    checkpoints = [make_checkpoint(tmp_path / f"step-{step}", seed=step, changed=0.05 * step) for step in range(3)]
    async with running_swarm(tmp_path) as swarm:
        first = await swarm.publish(checkpoints[0], 0)
        origin, behind = await swarm.origin(), await swarm.relay("behind", *NODE)
        await behind.until_built(first.root, checkpoints[0])
        await asyncio.gather(origin.stop(), behind.command.stop())

        deltas = await publish_deltas(swarm, checkpoints[1:])
        behind = await check_early(swarm, deltas, checkpoints[2])
        await check_newcomer(swarm, behind, [first, *deltas], checkpoints[2])


async def publish_deltas(swarm: Swarm, checkpoints: list[Path]) -> list[Published]:
    """Steps 1 and 2 as deltas alone. The coordinator forgets in between what was announced: only step 2 is told."""
    before = await swarm.publish(checkpoints[0], 1, "--delta")
    await swarm.coordinator.kill()
    await swarm.coordinator.start()
    last = await swarm.publish(checkpoints[1], 2, "--delta")
    assert [set(each.manifests) for each in (before, last)] == [{"delta"}] * 2, "nobody can fetch a keyframe of them"
    return [before, last]


async def check_early(swarm: Swarm, deltas: list[Published], checkpoint: Path) -> Relay:
    """A node at step 0 holds all of step 2's delta before it hears of step 1, and fetches those two and no more."""
    before, last = deltas
    mirror = swarm.folder / "mirror"
    origin = await swarm.origin("--store", str(mirror))
    put(swarm.store, mirror, last)
    node = await swarm.relay("behind", *NODE)
    await node.until_held(last.root, "delta")
    wanted = {"step": 2, "root": last.root}
    status = await node.until(lambda status: status["weights"]["wanted"] == wanted, "word of step 2")
    assert list_held(status) == [(2, "delta"), (0, "keyframe")]
    assert not node.built(last.root).exists(), "there is no way there yet"

    put(swarm.store, mirror, before)
    status = await node.until_built(last.root, checkpoint)
    assert list_held(status) == [(2, "delta"), (1, "delta"), (0, "keyframe")]
    assert await origin.stop() == 0, origin.tail
    assert list_served(origin) == [(2, "delta"), (1, "delta")], "in this order, and nothing else"
    assert count_sent(origin) == sum(count_shards(each) for each in deltas), "each shard of the deltas once"
    return node


async def check_newcomer(swarm: Swarm, server: Relay, way: list[Published], checkpoint: Path) -> None:
    """Without any base, and with the origin gone: the nearest keyframe and the deltas after it, each byte once."""
    assert (await server.status())["upload"]["sent_bytes"] == 0
    newcomer = await swarm.relay("newcomer", *NODE)
    status = await newcomer.until_built(way[-1].root, checkpoint)
    assert list_held(status) == [(2, "delta"), (1, "delta"), (0, "keyframe")]
    whole = sum(row["total_bytes"] for row in status["weights"]["held"])
    await server.until(lambda status: status["upload"]["sent_bytes"] >= whole, "its own count of what it sent")
    sent = server.last["upload"]
    assert (sent["sent_bytes"], sent["sent_shards"]) == (whole, sum(count_shards(each) for each in way))


def put(store: Path, mirror: Path, published: Published) -> None:
    """What one delta is made of, the manifest last and under its name at once, as the trainer writes it."""
    name = published.manifests["delta"].removeprefix("0x")
    shutil.copytree(store / "transport" / name, mirror / "transport" / name)
    draft = shutil.copy(store / "manifests" / name, mirror / "manifests" / f"{name}.draft")
    Path(draft).rename(mirror / "manifests" / name)


def list_held(status: dict[str, Any]) -> list[tuple[int, str]]:
    return [(row["step"], row["kind"]) for row in status["weights"]["held"]]


def list_served(origin: Command) -> list[tuple[int, str]]:
    """Step and kind of what it found in its store since it runs, in order."""
    found = re.findall(r"serving step (\d+): (\w+)", "\n".join(origin.lines))
    return [(int(step), kind) for step, kind in found]


def count_sent(origin: Command) -> int:
    """By its last word."""
    return int(re.findall(r"(\d+) shards were sent", "\n".join(origin.lines))[-1])


def count_shards(published: Published) -> int:
    return sum(int(number) for number in re.findall(r"bytes in (\d+) shards", published.text))
