"""One party of bench/shardcast.py in a process of its own: origin, relay or client, driven by JSON lines.

Not a program for people. The parts are the daemon's own: store, shard server, fetcher.
"""

import asyncio
import json
import logging
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from shard_hosts import NETWORK, RUN, TRAINER, ShardHost, announce

from prime_protocol.constants import SHARD_BYTES
from prime_protocol.gossip import GossipKind, open_gossip, topic
from prime_protocol.ids import Digest, Step
from prime_runtime.shardcast.publish import publish_checkpoint


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def learn(host: ShardHost, frames: list[str]) -> None:
    for text in frames:
        kind_name, _, raw = text.partition(":")
        name = topic(NETWORK, RUN, GossipKind(kind_name))
        frame = bytes.fromhex(raw)
        host.fetcher.tell(open_gossip(name, frame, network=NETWORK, run=RUN, now_ms=host.clock.now_ms()))


async def publish(host: ShardHost, checkpoint: str, step: int) -> None:
    now_ms = host.clock.now_ms()
    made = await asyncio.to_thread(
        publish_checkpoint,
        host.store,
        Path(checkpoint),
        key=host.key,
        step=Step(step),
        sequence=host.sequence,
        now_ms=now_ms,
        keyframe=False,
        shard_bytes=SHARD_BYTES,
    )
    gossip = [announce(host, signed) for signed in made] + [host.record(*made)]
    say(
        root=str(made[0].root),
        manifest=str(made[0].digest),
        kind=made[0].manifest.kind,
        transport_bytes=made[0].manifest.transport_bytes,
        frames=[f"{each.kind}:{each.frame.hex()}" for each in gossip],
    )


async def obtain(host: ShardHost, root: str, manifest: str) -> None:
    """Say when others may fetch from here, and when it is all here."""
    task = asyncio.create_task(host.fetcher.obtain(Digest.parse(root)))
    digest = Digest.parse(manifest)
    while not task.done():
        stock = host.store.stocks.get(digest)
        if stock is not None and (stock.coming or stock.held):
            break
        await asyncio.sleep(0.001)
    record = host.record()
    say(frames=[f"{record.kind}:{record.frame.hex()}"])
    await task
    say(have=root)
    if host.fetcher._background is not None:
        await host.fetcher._background
    say(rested=True)


async def main(role: str, folder: Path) -> None:
    key = TRAINER if role == "origin" else None
    host = ShardHost(folder.parent, folder.name, is_relay=role == "relay", key=key)
    await host.start()
    say(url=host.url)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        learn(host, order.get("frames", []))
        if "publish" in order:
            await publish(host, order["publish"], order["step"])
        if "obtain" in order:
            await obtain(host, order["obtain"], order["manifest"])
    await host.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
