"""Shard servers and fetchers in one process, on real sockets: origin, relays and nodes without the rest of a daemon.

Relays that lie, between an honest origin and a node that wants the newest weights.

The node hears of the liar first and asks it; later it hears of the origin too. It must end with the origin's bytes.
"""

import asyncio
import hashlib
import json
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from prime_lab.attacks.catalog import RELAY_ATTACKS, Attack, AttackResult, AttackVerdict
from prime_node.weights.checkpoints import CheckpointFetcher
from prime_node.weights.events import FetchLimits
from prime_protocol.gossip.messages import (
    CheckpointAnnounced,
    GossipKind,
    ReceivedGossip,
    ServingRecord,
    get_topic,
    open_gossip,
    seal_gossip,
)
from prime_protocol.weights.manifest import ManifestKind, SignedManifest
from prime_protocol.wire.ids import NetworkId, NodeId, RunId, Step
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import SystemClock
from prime_runtime.http.config import ListenConfig, ServerLimits
from prime_runtime.http.server import HttpServer
from prime_runtime.keys import SequenceCounter
from prime_runtime.shardcast.announcer import make_announcement
from prime_runtime.shardcast.directory import ServerDirectory
from prime_runtime.shardcast.publish import BaseCache, publish_checkpoint
from prime_runtime.shardcast.server import ShardServer
from prime_runtime.shardcast.store import ShardStore
from prime_runtime.shardcast.upload_slots import UploadLimits, UploadSlots

NETWORK, RUN = NetworkId("devnet"), RunId("run-1")
SHARD_BYTES = 64 * 2**10
UNLIMITED = ServerLimits(
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
        limits: ServerLimits = UNLIMITED,
        key: WalletKey | None = None,
    ) -> None:
        self.key = key or make_key(name)
        self.clock = SystemClock()
        self.sequence = SequenceCounter()
        self.kept = BaseCache()
        self.store = ShardStore(folder / name, network=NETWORK, run=RUN, trainer=TRAINER.node)
        self.directory = ServerDirectory()
        slots = UploadSlots(uploads or UploadLimits(slots=8, address_slots=8))
        self.server = ShardServer(self.store, slots, clock=self.clock, directory=self.directory)
        self.http = HttpServer(self.key, NETWORK, clock=self.clock, limits=limits)
        self.server.add_routes(self.http)
        self.fetcher = CheckpointFetcher(
            self.store,
            self.directory,
            node=self.key.node,
            clock=self.clock,
            rng=random.Random(name),
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

    def say(self, message: CheckpointAnnounced | ServingRecord) -> ReceivedGossip:
        now_ms = self.clock.now_ms()
        number = self.sequence.next(now_ms)
        frame = seal_gossip(self.key, message, network=NETWORK, run=RUN, sequence=number, now_ms=now_ms, known_nodes=10)
        kind = GossipKind.ANNOUNCED if isinstance(message, CheckpointAnnounced) else GossipKind.SERVING
        return open_gossip(get_topic(NETWORK, RUN, kind), frame, network=NETWORK, run=RUN, now_ms=now_ms)

    def announce(self, signed: SignedManifest) -> ReceivedGossip:
        return self.say(make_announcement(signed))

    def record(self, *manifests: SignedManifest) -> ReceivedGossip:
        """Its serving record; without arguments, of what it has."""
        offer = self.server.offer()
        named = tuple(signed.digest for signed in manifests) or offer.manifests
        depth = 0 if self.node == TRAINER.node else max(1, offer.depth)
        return self.say(ServingRecord(urls=(self.url,), depth=depth, slots_free=offer.slots_free, manifests=named))

    def claim(self, signed: SignedManifest, url: str | None = None) -> ReceivedGossip:
        """A serving record of that version, whether it has it or not."""
        depth = 0 if self.node == TRAINER.node else 1
        return self.say(ServingRecord(urls=(url or self.url,), depth=depth, slots_free=8, manifests=(signed.digest,)))


LIAR_ONLY_S, WAIT_S = 8.0, 120.0
"""How long the node may be alone with the liar, and how long the whole may take."""
POLL_S = 0.05
TENSOR_BYTES = 600_000
LIMITS = FetchLimits(stall_ms=500, first_byte_ms=1_000)
"""Everybody is on one machine: short patience."""


class FalseShardServer(ShardServer):
    """Says that it has every shard of what it was told of, and has none. Counts who asks."""

    def __init__(self, host: ShardHost, *, is_mute: bool) -> None:
        super().__init__(host.store, host.server.slots, clock=host.clock)
        self._is_mute = is_mute
        """It answers nothing at all, rather than that there is nothing."""
        self._is_over = False
        self.told_absent = 0
        self.given_up = 0
        """Requests that their sender broke off while it was still being kept waiting."""

    def boast(self, signed: SignedManifest) -> None:
        stock = self.store.add(signed)
        stock.held = (1 << stock.shards) - 1

    async def get_shard(self, request: web.Request) -> web.StreamResponse:
        if self._is_mute:
            while not self._is_over and request.transport is not None:
                await asyncio.sleep(POLL_S)
            self.given_up += not self._is_over
        else:
            self.told_absent += 1
        return web.Response(status=404)

    def close(self) -> None:
        self._is_over = True
        super().close()


@dataclass(slots=True)
class RelayScenario:
    """Who takes part."""

    origin: ShardHost
    liar: ShardHost
    node: ShardHost
    old: SignedManifest
    new: SignedManifest
    stack: AsyncExitStack
    boaster: FalseShardServer | None = None
    """Serves in the liar's name where it lies about what it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayObservation:
    """What a node saw of the liar while it knew nobody else, and what it has in the end."""

    corrupt: int = 0
    """Shards of another digest than the manifest names."""
    given_up: int = 0
    """Requests that it broke off because nothing came."""
    absent: int = 0
    """Requests that were answered with nothing."""
    is_fooled: bool = False
    """It took the liar's word for the weights."""
    is_exact: bool = False
    """It has the origin's bytes in the end."""

    @property
    def checks(self) -> tuple[str, ...]:
        """What named the liar; nothing where it was never asked."""
        counts = (("digest", self.corrupt), ("speed", self.given_up), ("absent", self.absent))
        return tuple(name for name, count in counts if count)


RelayBehavior = Callable[[RelayScenario], Awaitable[str]]
"""What the liar does; the URL it serves under."""


async def fetch_weights(stage: RelayScenario, signed: SignedManifest) -> None:
    stage.liar.fetcher.handle_gossip(stage.origin.announce(signed))
    stage.liar.fetcher.handle_gossip(stage.origin.claim(signed))
    async with asyncio.timeout(WAIT_S):
        await stage.liar.fetcher.ensure_checkpoint(signed.root)


async def serve_damaged_shards(stage: RelayScenario) -> str:
    """Has the right version, with a bit flipped in every shard."""
    await fetch_weights(stage, stage.new)
    path = stage.liar.store.shard_sets[stage.new.digest].folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    for place in range(SHARD_BYTES // 2, len(data), SHARD_BYTES):
        data[place] ^= 1
    path.write_bytes(bytes(data))
    return stage.liar.url


async def serve_stale_version(stage: RelayScenario) -> str:
    """Has the version before, and puts its bytes where those of the new one belong."""
    await fetch_weights(stage, stage.new)
    await fetch_weights(stage, stage.old)
    stocks = stage.liar.store.shard_sets
    old = (stocks[stage.old.digest].folder / "model.safetensors").read_bytes()
    (stocks[stage.new.digest].folder / "model.safetensors").write_bytes(old)
    return stage.liar.url


async def stall_requests(stage: RelayScenario) -> str:
    """Claims every shard, takes every request for one and never says a word."""
    return await start_false_server(stage, is_mute=True)


async def claim_missing_shards(stage: RelayScenario) -> str:
    """Claims every shard and has none."""
    return await start_false_server(stage, is_mute=False)


async def start_false_server(stage: RelayScenario, *, is_mute: bool) -> str:
    boaster = stage.boaster = FalseShardServer(stage.liar, is_mute=is_mute)
    boaster.boast(stage.new)
    http = HttpServer(stage.liar.key, NETWORK, clock=stage.liar.clock, limits=UNLIMITED)
    boaster.add_routes(http)
    port = await http.start(ListenConfig(host="127.0.0.1"))
    stage.stack.push_async_callback(http.stop)
    stage.stack.callback(boaster.close)
    return f"http://127.0.0.1:{port}"


RELAY_BEHAVIORS: dict[str, RelayBehavior] = {
    "wrong-bytes": serve_damaged_shards,
    "stale-version": serve_stale_version,
    "stalls": stall_requests,
    "false-claim": claim_missing_shards,
}


async def attack_weights(folder: Path) -> AsyncIterator[tuple[Attack, AttackResult]]:
    for attack in RELAY_ATTACKS:
        async with AsyncExitStack() as stack:
            stage = await open_scenario(folder / attack.name, stack)
            yield attack, await run_scenario(stage, RELAY_BEHAVIORS[attack.name])


async def open_scenario(folder: Path, stack: AsyncExitStack) -> RelayScenario:
    origin, liar, node = (
        ShardHost(folder, "origin", key=TRAINER, fetch=LIMITS),
        ShardHost(folder, "liar", fetch=LIMITS),
        ShardHost(folder, "node", fetch=LIMITS),
    )
    for party in (origin, liar, node):
        await party.start()
        stack.push_async_callback(party.stop)
    return RelayScenario(origin, liar, node, publish(origin, folder, 0), publish(origin, folder, 1), stack)


def publish(origin: ShardHost, folder: Path, step: int) -> SignedManifest:
    """A checkpoint of one tensor, as a keyframe."""
    tensors = {"w": random.Random(step).randbytes(TENSOR_BYTES)}
    published = origin.publish(write_checkpoint(folder / f"step{step}", tensors), step, keyframe=True)
    return next(signed for signed in published if signed.manifest.kind is ManifestKind.KEYFRAME)


def read_weights(host: ShardHost, signed: SignedManifest) -> bytes:
    return (host.store.checkpoint_path(signed.root) / "model.safetensors").read_bytes()


def observe_relay(stage: RelayScenario) -> RelayObservation:
    fetcher, boaster = stage.node.fetcher, stage.boaster
    return RelayObservation(
        corrupt=fetcher.corrupt + sum(transfer.corrupt for transfer in fetcher.list_transfers()),
        given_up=boaster.given_up if boaster else 0,
        absent=boaster.told_absent if boaster else 0,
    )


async def wait_until_observed(stage: RelayScenario, task: "asyncio.Task[object]") -> RelayObservation:
    """Until the liar was asked and found out, or for so long."""
    deadline_s = asyncio.get_running_loop().time() + LIAR_ONLY_S
    while (
        not (seen := observe_relay(stage)).checks and not task.done() and asyncio.get_running_loop().time() < deadline_s
    ):
        await asyncio.sleep(POLL_S)
    return replace(seen, is_fooled=task.done())


async def run_scenario(stage: RelayScenario, lie: RelayBehavior) -> AttackResult:
    url = await lie(stage)
    fetcher = stage.node.fetcher
    fetcher.handle_gossip(stage.origin.announce(stage.new))
    fetcher.handle_gossip(stage.liar.claim(stage.new, url))
    task = asyncio.create_task(fetcher.ensure_checkpoint(stage.new.root))
    seen = await wait_until_observed(stage, task)
    fetcher.handle_gossip(stage.origin.claim(stage.new))
    async with asyncio.timeout(WAIT_S):
        await task
    is_exact = read_weights(stage.node, stage.new) == read_weights(stage.origin, stage.new)
    return judge_observation(replace(seen, is_exact=is_exact))


def judge_observation(seen: RelayObservation) -> AttackResult:
    """Refused: the liar was asked, something named it, and its lie is not in the weights."""
    told = f"{seen.corrupt} shards of a wrong digest, {seen.given_up} requests given up, {seen.absent} without a shard"
    is_caught = seen.is_exact and not seen.is_fooled and bool(seen.checks)
    return AttackResult(verdict=AttackVerdict.REFUSED if is_caught else None, checks=seen.checks, reason=told)
