"""Dishonest relays, between an honest origin and a node that wants the newest weights, on real sockets.

A ShardHost is the shard server and fetcher of a node, without the rest of the daemon. The node learns of the dishonest
relay first and requests shards from it; later it learns of the origin too. It must end with the origin's bytes.

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

from prime_lab.attacks.attack import Attack, AttackResult, AttackVerdict
from prime_lab.attacks.catalog import (
    RELAY_ATTACKS,
)
from prime_node.reverse.dialer import ReverseDialer
from prime_node.reverse.gateway import REVERSE_PATH, ReverseGateway
from prime_node.reverse.gateway_plan import LANES, OfferedWeights
from prime_node.weights.checkpoints import CheckpointFetcher
from prime_node.weights.connection import ConnectionPool
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
from prime_protocol.weights.transfer import REVERSE, ReverseOffer
from prime_protocol.wire.addresses import ServerUrl
from prime_protocol.wire.codec import encode
from prime_protocol.wire.envelope import seal_envelope
from prime_protocol.wire.ids import NetworkId, NodeId, RunId, Step
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import SystemClock
from prime_runtime.http.config import ListenConfig, ServerLimits
from prime_runtime.http.server import HttpServer
from prime_runtime.http.upgrade import request_upgrade
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
"""All hosts share one address."""


def make_key(name: str) -> WalletKey:
    return WalletKey.from_secret(hashlib.sha256(name.encode()).digest())


TRAINER = make_key("trainer")


def write_checkpoint(folder: Path, tensors: dict[str, bytes]) -> Path:
    """Write a checkpoint: a safetensors file of bf16 tensors, and a config file."""
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
    """One host: a shard store, its server and a fetcher."""

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
        is_private: bool = False,
    ) -> None:
        """`is_private`: others cannot connect to it, so it connects to those that it knows and serves them on that."""
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
        connections = ConnectionPool(allow_private=True)
        self.gateway = ReverseGateway(
            self.key.node, connections.make_connection, clock=self.clock, rng=random.Random(name)
        )
        connections.lanes = self.gateway
        self.fetcher = CheckpointFetcher(
            self.store,
            self.directory,
            node=self.key.node,
            clock=self.clock,
            rng=random.Random(name),
            limits=fetch or FetchLimits(),
            is_relay=is_relay,
            connections=connections,
        )
        self.dialer = self._make_dialer(name) if is_private else None
        self._tasks: list[asyncio.Task[None]] = []
        self.url = ""

    def _make_dialer(self, name: str) -> ReverseDialer:
        dialer = ReverseDialer(
            self.key,
            NETWORK,
            self.http,
            clock=self.clock,
            rng=random.Random(name),
            sequence=self.sequence,
            allow_private=True,
            list_gateways=self.directory.list_urls,
            read_offered=lambda: OfferedWeights(self.store.held_bytes, self.fetcher.received_bytes),
        )
        self.server.note_sent = dialer.note_sent
        return dialer

    @property
    def node(self) -> NodeId:
        return self.key.node

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url,) if self.url else ()

    async def start(self, host: str = "127.0.0.1") -> None:
        self.gateway.add_routes(self.http)
        self._tasks.append(asyncio.create_task(self.gateway.run()))
        if self.dialer is not None:
            await self.http.start_without_port()
            self._tasks.append(asyncio.create_task(self.dialer.run()))
            return
        port = await self.http.start(ListenConfig(host=host))
        self.url = f"http://{host}:{port}"

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.gateway.close()
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
            cache=self.kept,
        )

    def say(self, message: CheckpointAnnounced | ServingRecord) -> ReceivedGossip:
        now_ms = self.clock.now_ms()
        number = self.sequence.next(now_ms)
        frame = seal_gossip(self.key, message, network=NETWORK, run=RUN, sequence=number, now_ms=now_ms)
        kind = GossipKind.ANNOUNCED if isinstance(message, CheckpointAnnounced) else GossipKind.SERVING
        return open_gossip(get_topic(NETWORK, RUN, kind), frame, network=NETWORK, run=RUN, now_ms=now_ms)

    def announce(self, signed: SignedManifest) -> ReceivedGossip:
        return self.say(make_announcement(signed))

    def record(self, *manifests: SignedManifest) -> ReceivedGossip:
        """A serving record, of these manifests or of all that it holds."""
        offer = self.server.offer()
        named = tuple(signed.digest for signed in manifests) or offer.manifests
        depth = 0 if self.node == TRAINER.node else max(1, offer.depth)
        return self.say(ServingRecord(urls=self.urls, depth=depth, slots_free=offer.slots_free, manifests=named))

    def claim(self, signed: SignedManifest, url: str | None = None) -> ReceivedGossip:
        """A serving record of this manifest, true or not."""
        depth = 0 if self.node == TRAINER.node else 1
        return self.say(ServingRecord(urls=(url or self.url,), depth=depth, slots_free=8, manifests=(signed.digest,)))


LIAR_ONLY_S, WAIT_S = 8.0, 120.0
"""How long the node may know only the dishonest relay, and how long the whole attack may take."""
POLL_S = 0.05
TENSOR_BYTES = 600_000
UNREACHABLE_URL = "http://127.0.0.1:1"
LIMITS = FetchLimits(stall_ms=500, first_byte_ms=1_000)
"""Short timeouts: all hosts are on one machine."""


class FalseShardServer(ShardServer):
    """Claims every shard and holds none. Counts the requests."""

    def __init__(self, host: ShardHost, *, is_mute: bool) -> None:
        super().__init__(host.store, host.server.slots, clock=host.clock)
        self._is_mute = is_mute
        """Whether it never answers, instead of answering 404."""
        self._is_over = False
        self.told_absent = 0
        self.given_up = 0
        """Requests that the client cancelled while it waited."""

    def boast(self, signed: SignedManifest) -> None:
        shard_set = self.store.add(signed)
        shard_set.held = (1 << shard_set.shards) - 1

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
    """The hosts of one attack, and the two versions of the weights."""

    origin: ShardHost
    liar: ShardHost
    node: ShardHost
    old: SignedManifest
    new: SignedManifest
    stack: AsyncExitStack
    false_server: FalseShardServer | None = None
    """Serves for the relay if that claims shards that it lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayObservation:
    """What a node observed of the relay while it knew no other host, and what it has in the end."""

    corrupt: int = 0
    """Shards of another digest than the manifest names."""
    given_up: int = 0
    """Requests that it cancelled because no bytes came."""
    absent: int = 0
    """Requests that were answered with 404."""
    is_fooled: bool = False
    """Whether it accepted weights from the relay alone."""
    is_exact: bool = False
    """Whether it has the origin's bytes in the end."""

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks that named the relay; empty if the node never requested a shard from it."""
        counts = (("digest", self.corrupt), ("speed", self.given_up), ("absent", self.absent))
        return tuple(name for name, count in counts if count)


RelayBehavior = Callable[[RelayScenario], Awaitable[str]]
"""Prepares the dishonest relay and returns its URL."""


async def fetch_weights(scenario: RelayScenario, signed: SignedManifest) -> None:
    scenario.liar.fetcher.handle_gossip(scenario.origin.announce(signed))
    scenario.liar.fetcher.handle_gossip(scenario.origin.claim(signed))
    async with asyncio.timeout(WAIT_S):
        await scenario.liar.fetcher.ensure_checkpoint(signed.root)


async def serve_damaged_shards(scenario: RelayScenario) -> str:
    """Serve the right version with a flipped bit in every shard."""
    await fetch_weights(scenario, scenario.new)
    path = scenario.liar.store.shard_sets[scenario.new.digest].folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    for place in range(SHARD_BYTES // 2, len(data), SHARD_BYTES):
        data[place] ^= 1
    path.write_bytes(bytes(data))
    return scenario.liar.url


async def serve_stale_version(scenario: RelayScenario) -> str:
    """Serve the bytes of the previous version as those of the new one."""
    await fetch_weights(scenario, scenario.new)
    await fetch_weights(scenario, scenario.old)
    stocks = scenario.liar.store.shard_sets
    old = (stocks[scenario.old.digest].folder / "model.safetensors").read_bytes()
    (stocks[scenario.new.digest].folder / "model.safetensors").write_bytes(old)
    return scenario.liar.url


async def stall_requests(scenario: RelayScenario) -> str:
    """Claim every shard, accept every request and never answer."""
    return await start_false_server(scenario, is_mute=True)


async def claim_missing_shards(scenario: RelayScenario) -> str:
    """Claim every shard and hold none."""
    return await start_false_server(scenario, is_mute=False)


async def push_damaged_shards(scenario: RelayScenario) -> str:
    """Pretend to be behind a router: open lanes to the node, and serve damaged shards on them."""
    await serve_damaged_shards(scenario)
    liar, url = scenario.liar, ServerUrl.parse(scenario.node.url)
    for _ in range(LANES):
        now_ms = liar.clock.now_ms()
        frame = seal_envelope(
            liar.key,
            kind=REVERSE.kind,
            body=encode(ReverseOffer(gateway=scenario.node.node)),
            network=NETWORK,
            run=None,
            sequence=liar.sequence.next(now_ms),
            issued_at_ms=now_ms,
            life_ms=60_000,
        )
        upgraded = await request_upgrade(url.host, url.port, REVERSE_PATH, frame)
        liar.http.adopt(upgraded.transport, upgraded.rest)
        upgraded.transport.resume_reading()
    return UNREACHABLE_URL


async def start_false_server(scenario: RelayScenario, *, is_mute: bool) -> str:
    false_server = scenario.false_server = FalseShardServer(scenario.liar, is_mute=is_mute)
    false_server.boast(scenario.new)
    http = HttpServer(scenario.liar.key, NETWORK, clock=scenario.liar.clock, limits=UNLIMITED)
    false_server.add_routes(http)
    port = await http.start(ListenConfig(host="127.0.0.1"))
    scenario.stack.push_async_callback(http.stop)
    scenario.stack.callback(false_server.close)
    return f"http://127.0.0.1:{port}"


RELAY_BEHAVIORS: dict[str, RelayBehavior] = {
    "wrong-bytes": serve_damaged_shards,
    "stale-version": serve_stale_version,
    "stalls": stall_requests,
    "false-claim": claim_missing_shards,
    "wrong-lane": push_damaged_shards,
}


async def attack_weights(folder: Path) -> AsyncIterator[tuple[Attack, AttackResult]]:
    for attack in RELAY_ATTACKS:
        async with AsyncExitStack() as stack:
            scenario = await open_scenario(folder / attack.name, stack)
            yield attack, await run_scenario(scenario, RELAY_BEHAVIORS[attack.name])


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


def observe_relay(scenario: RelayScenario) -> RelayObservation:
    fetcher, false_server = scenario.node.fetcher, scenario.false_server
    return RelayObservation(
        corrupt=fetcher.corrupt + sum(transfer.corrupt for transfer in fetcher.list_transfers()),
        given_up=false_server.given_up if false_server else 0,
        absent=false_server.told_absent if false_server else 0,
    )


async def wait_until_observed(scenario: RelayScenario, task: "asyncio.Task[object]") -> RelayObservation:
    """Wait until a check names the relay, or until the time is over."""
    deadline_s = asyncio.get_running_loop().time() + LIAR_ONLY_S
    while (
        not (observed := observe_relay(scenario)).checks
        and not task.done()
        and asyncio.get_running_loop().time() < deadline_s
    ):
        await asyncio.sleep(POLL_S)
    return replace(observed, is_fooled=task.done())


async def run_scenario(scenario: RelayScenario, behavior: RelayBehavior) -> AttackResult:
    url = await behavior(scenario)
    fetcher = scenario.node.fetcher
    fetcher.handle_gossip(scenario.origin.announce(scenario.new))
    fetcher.handle_gossip(scenario.liar.claim(scenario.new, url))
    task = asyncio.create_task(fetcher.ensure_checkpoint(scenario.new.root))
    observed = await wait_until_observed(scenario, task)
    fetcher.handle_gossip(scenario.origin.claim(scenario.new))
    async with asyncio.timeout(WAIT_S):
        await task
    is_exact = read_weights(scenario.node, scenario.new) == read_weights(scenario.origin, scenario.new)
    return judge_observation(replace(observed, is_exact=is_exact))


def judge_observation(observed: RelayObservation) -> AttackResult:
    """Refused: the liar was asked, something named it, and its behavior is not in the weights."""
    stalled = f"{observed.given_up} requests given up, {observed.absent} without a shard"
    told = f"{observed.corrupt} shards of a wrong digest, {stalled}"
    is_caught = observed.is_exact and not observed.is_fooled and bool(observed.checks)
    return AttackResult(verdict=AttackVerdict.REFUSED if is_caught else None, checks=observed.checks, reason=told)
