"""Parts for tests of weights on their way, around the hosts that the gallery of attacks uses too."""

import asyncio
import random

from prime_lab.attacks.relay_attacks import (
    ShardHost,
)
from prime_protocol.gossip.messages import ReceivedGossip
from prime_protocol.weights.manifest import SignedManifest


def make_tensors(seed: int, *, tensors: int = 4, size: int = 300_000) -> dict[str, bytes]:
    dice = random.Random(seed)
    return {f"layer.{index}.weight": dice.randbytes(size) for index in range(tensors)}


def change(tensors: dict[str, bytes], seed: int, share: float = 0.01) -> dict[str, bytes]:
    """Some values moved to a neighbour."""
    dice = random.Random(seed)
    changed = {}
    for name, data in tensors.items():
        raw = bytearray(data)
        for _ in range(int(len(raw) / 2 * share)):
            place = 2 * dice.randrange(len(raw) // 2)
            raw[place] = (raw[place] + 1) % 256
        changed[name] = bytes(raw)
    return changed


def announce(origin: ShardHost, signed: SignedManifest) -> ReceivedGossip:
    return origin.announce(signed)


def introduce(hosts: list[ShardHost], *signed: SignedManifest) -> None:
    """Everybody hears everybody's record, as gossip would bring it."""
    for host in hosts:
        for other in hosts:
            if other is not host:
                host.fetcher.handle_gossip(other.record(*signed))


async def obtain_all(hosts: list[ShardHost], signed: SignedManifest, timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        await asyncio.gather(*(host.fetcher.ensure_checkpoint(signed.root) for host in hosts))


def read_checkpoint(host: ShardHost, signed: SignedManifest) -> dict[str, bytes]:
    folder = host.store.checkpoint_path(signed.root)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".")}
