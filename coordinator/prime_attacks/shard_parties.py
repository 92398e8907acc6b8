"""Shard servers and fetchers in one process, on real sockets: origin, relays and nodes without the rest of a daemon."""

import hashlib
import json
import random
import struct
from pathlib import Path
from typing import Any

from prime_node.shardcast.limits import FetchLimits
from prime_node.shardcast.weights import WeightsFetcher
from prime_protocol.gossip import Announced, Gossip, GossipKind, Serving, open_gossip, seal_gossip, topic
from prime_protocol.ids import NetworkId, NodeId, RunId, Step
from prime_protocol.signed_manifest import SignedManifest
from prime_protocol.signing import WalletKey
from prime_runtime.clock import SystemClock
from prime_runtime.http_limits import ServerLimits
from prime_runtime.http_listener import ListenConfig
from prime_runtime.http_server import HttpServer
from prime_runtime.sequence import Sequence
from prime_runtime.shardcast.directory import Directory
from prime_runtime.shardcast.publish import KeptMap, publish_checkpoint
from prime_runtime.shardcast.saying import make_announced
from prime_runtime.shardcast.serve import ShardServer
from prime_runtime.shardcast.slots import UploadLimits, UploadSlots
from prime_runtime.shardcast.store import ShardStore

NETWORK, RUN = NetworkId("devnet"), RunId("run-1")
SHARD_BYTES = 64 * 2**10
OPEN = ServerLimits(
    requests_per_address_max=1000,
    transfers_max=1000,
    transfers_per_address_max=1000,
    address_rate=10_000.0,
    address_burst=100_000,
)
"""Everybody is on one address here."""


def make_key(name: str) -> WalletKey:
    return WalletKey.from_secret(hashlib.sha256(name.encode()).digest())


TRAINER = make_key("trainer")


def write_checkpoint(folder: Path, tensors: dict[str, bytes]) -> Path:
    """A safetensors file of bf16 tensors, and a small file beside it."""
    header: dict[str, Any] = {}
    offset = 0
    for name, data in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [len(data) // 2], "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    head = json.dumps(header).encode()
    folder.mkdir(parents=True)
    body = struct.pack("<Q", len(head)) + head + b"".join(tensors.values())
    (folder / "model.safetensors").write_bytes(body)
    (folder / "config.json").write_text('{"model_type": "none"}')
    return folder


class ShardHost:
    """One party: a store with a server in front of it, and a fetcher behind it."""

    def __init__(
        self,
        folder: Path,
        name: str,
        *,
        is_relay: bool = False,
        uploads: UploadLimits | None = None,
        fetch: FetchLimits | None = None,
        limits: ServerLimits = OPEN,
        key: WalletKey | None = None,
    ) -> None:
        self.key = key or make_key(name)
        self.clock = SystemClock()
        self.sequence = Sequence()
        self.kept = KeptMap()
        self.store = ShardStore(folder / name, network=NETWORK, run=RUN, trainer=TRAINER.node)
        self.directory = Directory()
        slots = UploadSlots(uploads or UploadLimits(slots=8, address_slots=8))
        self.server = ShardServer(self.store, slots, clock=self.clock, directory=self.directory)
        self.http = HttpServer(self.key, NETWORK, clock=self.clock, limits=limits)
        self.server.add_routes(self.http)
        self.fetcher = WeightsFetcher(
            self.store,
            self.directory,
            node=self.key.node,
            clock=self.clock,
            dice=random.Random(name),
            limits=fetch or FetchLimits(),
            allow_private=True,
            is_relay=is_relay,
        )
        self.url = ""

    @property
    def node(self) -> NodeId:
        return self.key.node

    async def start(self, host: str = "127.0.0.1") -> None:
        port = await self.http.start(ListenConfig(host=host))
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        await self.fetcher.close()
        await self.http.stop()

    def publish(
        self, checkpoint: Path, step: int, *, keyframe: bool = False, shard_bytes: int = SHARD_BYTES
    ) -> tuple[SignedManifest, ...]:
        return publish_checkpoint(
            self.store,
            checkpoint,
            key=self.key,
            step=Step(step),
            sequence=self.sequence,
            now_ms=self.clock.now_ms(),
            keyframe=keyframe,
            shard_bytes=shard_bytes,
            kept=self.kept,
        )

    def say(self, message: Announced | Serving) -> Gossip:
        now_ms = self.clock.now_ms()
        number = self.sequence.next(now_ms)
        frame = seal_gossip(self.key, message, network=NETWORK, run=RUN, sequence=number, now_ms=now_ms, known_nodes=10)
        kind = GossipKind.ANNOUNCED if isinstance(message, Announced) else GossipKind.SERVING
        return open_gossip(topic(NETWORK, RUN, kind), frame, network=NETWORK, run=RUN, now_ms=now_ms)

    def announce(self, signed: SignedManifest) -> Gossip:
        return self.say(make_announced(signed))

    def record(self, *manifests: SignedManifest) -> Gossip:
        """Its serving record; without arguments, of what it has."""
        offer = self.server.offer()
        named = tuple(signed.digest for signed in manifests) or offer.manifests
        depth = 0 if self.node == TRAINER.node else max(1, offer.depth)
        return self.say(Serving(urls=(self.url,), depth=depth, slots_free=offer.slots_free, manifests=named))

    def claim(self, signed: SignedManifest, url: str | None = None) -> Gossip:
        """A serving record of that version, whether it has it or not."""
        depth = 0 if self.node == TRAINER.node else 1
        return self.say(Serving(urls=(url or self.url,), depth=depth, slots_free=8, manifests=(signed.digest,)))
