"""Parts for tests of weights on their way, around the hosts that the gallery of attacks uses too."""

import asyncio
import random

from prime_attacks.shard_parties import NETWORK as NETWORK
from prime_attacks.shard_parties import OPEN as OPEN
from prime_attacks.shard_parties import RUN as RUN
from prime_attacks.shard_parties import SHARD_BYTES as SHARD_BYTES
from prime_attacks.shard_parties import TRAINER as TRAINER
from prime_attacks.shard_parties import ShardHost
from prime_attacks.shard_parties import make_key as make_key
from prime_attacks.shard_parties import write_checkpoint as write_checkpoint
from prime_protocol.gossip import Gossip
from prime_protocol.signed_manifest import SignedManifest


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


def announce(origin: ShardHost, signed: SignedManifest) -> Gossip:
    return origin.announce(signed)


def introduce(hosts: list[ShardHost], *signed: SignedManifest) -> None:
    """Everybody hears everybody's record, as gossip would bring it."""
    for host in hosts:
        for other in hosts:
            if other is not host:
                host.fetcher.tell(other.record(*signed))


async def obtain_all(hosts: list[ShardHost], signed: SignedManifest, timeout_s: float = 30) -> None:
    async with asyncio.timeout(timeout_s):
        await asyncio.gather(*(host.fetcher.obtain(signed.root) for host in hosts))


def read_checkpoint(host: ShardHost, signed: SignedManifest) -> dict[str, bytes]:
    folder = host.store.checkpoint_path(signed.root)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".")}
