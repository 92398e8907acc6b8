"""The demo's second half: two checkpoints travel from an origin to a relay and between nodes, over real sockets."""

import asyncio
from pathlib import Path

from prime_lab.attacks.relay_attacks import TRAINER, ShardHost
from prime_runtime.shardcast.upload_slots import UploadLimits
from support.shard_hosts import announce, introduce, obtain_all, read_checkpoint

NODES = 4


async def follow_weights(folder: Path, checkpoints: list[Path]) -> list[str]:
    """What a reader should know of it, a line each. Everything arrives bit-exact, or this fails."""
    # An origin with few slots, as on a home line: the nodes must get most from each other.
    origin = ShardHost(folder, "origin", key=TRAINER, uploads=UploadLimits(slots=2, address_slots=2))
    relay = ShardHost(folder, "relay", is_relay=True)
    nodes = [ShardHost(folder, f"node-{number}") for number in range(NODES)]
    hosts = [origin, relay, *nodes]
    for host in hosts:
        await host.start()
    lines = []
    for step, checkpoint in enumerate(checkpoints):
        before = [host.server.sent_shards for host in hosts]
        (signed,) = origin.publish(checkpoint, step)
        for host in hosts:
            host.fetcher.handle_gossip(announce(origin, signed))
        introduce(hosts, signed)
        began = asyncio.get_running_loop().time()
        await obtain_all(hosts[1:], signed)
        took_ms = 1000 * (asyncio.get_running_loop().time() - began)
        for node in nodes:
            assert read_checkpoint(node, signed) == read_checkpoint(origin, signed), "the weights must be bit-exact"
        sent = [host.server.sent_shards - count for host, count in zip(hosts, before, strict=True)]
        manifest = signed.manifest
        lines.append(
            f"step {step}, {manifest.kind}: {manifest.transport_bytes} bytes in {len(manifest.shards)} shards, "
            f"at {NODES} nodes and a relay after {took_ms:.0f} ms, bit-exact"
        )
        lines.append(f"  shards sent by the origin {sent[0]}, by the relay {sent[1]}, by nodes {sum(sent[2:])}")
    for host in hosts:
        await host.stop()
    return lines
