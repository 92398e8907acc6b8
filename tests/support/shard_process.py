"""Origin, relay or client in a process of its own, driven by JSON lines: for benchmarks and tests of many parties.

Not a program for people. The parts are the daemon's own: store, shard server, fetcher.
"""

import argparse
import asyncio
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from prime_lab.attacks.relay_attacks import NETWORK, RUN, TRAINER, ShardHost
from prime_protocol.constants import SHARD_BYTES
from prime_protocol.gossip.messages import GossipKind, ServingRecord, get_topic, open_gossip
from prime_protocol.wire.ids import Digest, Step
from prime_runtime.shardcast.publish import publish_checkpoint
from prime_runtime.shardcast.upload_slots import UploadLimits
from support.shard_hosts import announce


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def learn(host: ShardHost, frames: list[str]) -> None:
    for text in frames:
        kind_name, _, raw = text.partition(":")
        name = get_topic(NETWORK, RUN, GossipKind(kind_name))
        frame = bytes.fromhex(raw)
        host.fetcher.handle_gossip(open_gossip(name, frame, network=NETWORK, run=RUN, now_ms=host.clock.now_ms()))


async def publish(host: ShardHost, checkpoint: str, step: int, shard_bytes: int) -> None:
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
        shard_bytes=shard_bytes,
        cache=host.kept,
    )
    gossip = [announce(host, signed) for signed in made] + [host.record(*made)]
    say(
        root=str(made[0].root),
        manifest=str(made[0].digest),
        kind=made[0].manifest.kind,
        shards=len(made[0].manifest.shards),
        transport_bytes=made[0].manifest.transport_bytes,
        frames=[f"{each.kind}:{each.frame.hex()}" for each in gossip],
    )


async def obtain(host: ShardHost, root: str, manifest: str) -> None:
    """Say when others may fetch from here, and when it is all here."""
    began_s = time.process_time()
    task = asyncio.create_task(host.fetcher.ensure_checkpoint(Digest.parse(root)))
    digest = Digest.parse(manifest)
    while not task.done():
        stock = host.store.shard_sets.get(digest)
        if stock is not None and (stock.coming or stock.held):
            break
        await asyncio.sleep(0.001)
    record = host.record()
    say(frames=[f"{record.kind}:{record.frame.hex()}"])
    await task
    depth = host.store.shard_sets[digest].depth if digest in host.store.shard_sets else 0
    say(
        have=root,
        depth=depth,
        sent_shards=host.server.sent_shards,
        refused=host.server.refused,
        cpu_s=time.process_time() - began_s,
        connected=host.dialer.puncher.connected if host.dialer is not None else 0,
    )
    if host.fetcher._background is not None:
        await host.fetcher._background
    say(rested=True)


async def main(args: argparse.Namespace) -> None:
    key = TRAINER if args.role == "origin" else None
    uploads = UploadLimits(slots=args.slots, address_slots=args.address_slots)
    host = ShardHost(
        args.folder.parent,
        args.folder.name,
        is_relay=args.role == "relay",
        key=key,
        uploads=uploads,
        is_private=args.private,
    )
    await host.start(args.host)
    say(url=host.url)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        learn(host, order.get("frames", []))
        if "publish" in order:
            await publish(host, order["publish"], order["step"], order.get("shard_bytes", SHARD_BYTES))
        if "rest" in order:
            host.kept.release()
            say(rested=True)
        if "serve" in order:
            record = host.say(
                ServingRecord(
                    urls=(host.url,), depth=1, slots_free=args.slots, manifests=(Digest.parse(order["serve"]),)
                )
            )
            say(frames=[f"{record.kind}:{record.frame.hex()}"])
        if "obtain" in order:
            await obtain(host, order["obtain"], order["manifest"])
    await host.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["origin", "relay", "client"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--private", action="store_true", help="behind a router: serve by connections to others")
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--address-slots", type=int, default=8)
    asyncio.run(main(parser.parse_args()))
