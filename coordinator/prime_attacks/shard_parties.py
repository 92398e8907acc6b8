"""An origin, relays and a node of the weights' tree in one process, on real sockets, with their real servers."""

import hashlib
import json
import random
import struct
from pathlib import Path

from prime_node.shardcast.limits import FetchLimits
from prime_node.shardcast.weights import WeightsFetcher
from prime_protocol.gossip import Announced, Gossip, GossipKind, Serving, open_gossip, seal_gossip, topic
from prime_protocol.ids import NetworkId, RunId, Step
from prime_protocol.manifest import Kind
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

NETWORK, RUN = NetworkId("gallery"), RunId("attacked")
SHARD_BYTES = 64 * 2**10
TENSOR_BYTES = 600_000
OPEN = ServerLimits(
    requests_per_address_max=1000,
    transfers_max=1000,
    transfers_per_address_max=1000,
    address_rate=10_000.0,
    address_burst=100_000,
)
LIMITS = FetchLimits(stall_ms=500, first_byte_ms=1_000)
"""Everybody is on one machine: one address for all, and short patience."""


def make_key(name: str) -> WalletKey:
    return WalletKey.from_secret(hashlib.sha256(f"gallery {name}".encode()).digest())


TRAINER = make_key("trainer")


def write_weights(folder: Path, seed: int) -> Path:
    """A checkpoint of one tensor."""
    data = random.Random(seed).randbytes(TENSOR_BYTES)
    head = json.dumps({"w": {"dtype": "BF16", "shape": [len(data) // 2], "data_offsets": [0, len(data)]}}).encode()
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    (folder / "config.json").write_text('{"model_type": "none"}')
    return folder


class ShardParty:
    """A store with a server in front of it and a fetcher behind it."""

    def __init__(self, folder: Path, name: str, *, key: WalletKey | None = None) -> None:
        self.key = key or make_key(name)
        self.clock = SystemClock()
        self.store = ShardStore(folder / name, network=NETWORK, run=RUN, trainer=TRAINER.node)
        directory = Directory()
        slots = UploadSlots(UploadLimits(slots=8, address_slots=8))
        self.server = ShardServer(self.store, slots, clock=self.clock, directory=directory)
        self._http = HttpServer(self.key, NETWORK, clock=self.clock, limits=OPEN)
        self.server.add_routes(self._http)
        self.fetcher = WeightsFetcher(
            self.store,
            directory,
            node=self.key.node,
            clock=self.clock,
            dice=random.Random(name),
            limits=LIMITS,
            allow_private=True,
        )
        self._sequence = Sequence()
        self._kept = KeptMap()
        self.url = ""

    async def start(self) -> None:
        self.url = f"http://127.0.0.1:{await self._http.start(ListenConfig(host='127.0.0.1'))}"

    async def stop(self) -> None:
        await self.fetcher.close()
        await self._http.stop()

    def publish(self, checkpoint: Path, step: int) -> SignedManifest:
        published = publish_checkpoint(
            self.store,
            checkpoint,
            key=self.key,
            step=Step(step),
            sequence=self._sequence,
            now_ms=self.clock.now_ms(),
            keyframe=True,
            shard_bytes=SHARD_BYTES,
            kept=self._kept,
        )
        return next(signed for signed in published if signed.manifest.kind is Kind.KEYFRAME)

    def announce(self, signed: SignedManifest) -> Gossip:
        return self._say(make_announced(signed), GossipKind.ANNOUNCED)

    def claim(self, signed: SignedManifest, url: str | None = None) -> Gossip:
        """A serving record of that version, whether it has it or not."""
        depth = 0 if self.key is TRAINER else 1
        record = Serving(urls=(url or self.url,), depth=depth, slots_free=8, manifests=(signed.digest,))
        return self._say(record, GossipKind.SERVING)

    def _say(self, message: Announced | Serving, kind: GossipKind) -> Gossip:
        now_ms = self.clock.now_ms()
        frame = seal_gossip(
            self.key,
            message,
            network=NETWORK,
            run=RUN,
            sequence=self._sequence.next(now_ms),
            now_ms=now_ms,
            known_nodes=4,
        )
        return open_gossip(topic(NETWORK, RUN, kind), frame, network=NETWORK, run=RUN, now_ms=now_ms)

    def read(self, signed: SignedManifest) -> bytes:
        return (self.store.checkpoint_path(signed.root) / "model.safetensors").read_bytes()
