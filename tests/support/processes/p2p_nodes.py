"""Parts for tests of the libp2p half: nodes on loopback, a host that speaks raw libp2p, waiting on conditions."""

import asyncio
import gc
import time
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import trio
from multiaddr import Multiaddr

from prime_protocol.errors import LocalError
from prime_protocol.gossip.guard import GossipAccepted, GossipGuard, GossipRejected
from prime_protocol.gossip.messages import (
    MESSAGE_KINDS,
    TOPIC_KINDS,
    CheckpointAnnounced,
    HeadSeen,
    ServingRecord,
    get_topic,
    seal_gossip,
)
from prime_protocol.wire.ids import NodeId, RunId
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import SystemClock
from prime_runtime.gossip.config import P2PConfig
from prime_runtime.gossip.libp2p.node import P2PNode
from prime_runtime.gossip.libp2p.trio_thread import TrioThread
from support.gossip_network import NETWORK, RUN, announced, is_trainer, wallet

WAIT_S = 60.0
"""How long a condition may take on a machine that is busy with other tests. It takes a second on an idle one."""
CALL_MS = 60_000
HERE = "/ip4/127.0.0.1/tcp/0"
TRAINER = 1
"""Number of the node whose key may announce."""


async def eventually(condition: Callable[[], bool], what: str = "the condition") -> float:
    """Wait until it holds; how many seconds that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < WAIT_S, f"{what} did not come true in {WAIT_S} s"
        await asyncio.sleep(0.01)
    return time.monotonic() - began


class SpeakingNode(P2PNode):
    """A node that seals and publishes messages of its own, as GossipPublisher does in a program."""

    async def publish(self, run: RunId, message: CheckpointAnnounced | ServingRecord | HeadSeen) -> bytes:
        """The frame. LocalError: this node may not send the message. One that comes too soon is sealed, not sent."""
        state, kind = self.state, MESSAGE_KINDS[type(message)]
        now_ms = state.clock.now_ms()
        frame = seal_gossip(
            state.key,
            message,
            network=state.network,
            run=run,
            sequence=state.sequence.next(now_ms),
            now_ms=now_ms,
        )
        verdict = state.guard.validate(get_topic(state.network, run, kind), frame, run=run, now_ms=now_ms)
        if isinstance(verdict, GossipRejected):
            raise LocalError(f"this node may not gossip that: {verdict.reason}")
        if isinstance(verdict, GossipAccepted):
            await self.publish_frame(run, kind, frame)
        else:
            state.counts.messages_ignored += 1
        return frame


def make_node(
    number: int, *bootstrap: str, is_trainer: Callable[[RunId, NodeId], bool] = is_trainer, **config: Any
) -> SpeakingNode:
    settings = {"listen": HERE, "connections_per_address_max": 500, "exchange_ms": 1_000, "restart_ms": 20} | config
    return SpeakingNode(
        wallet(number),
        NETWORK,
        P2PConfig(bootstrap=bootstrap, **settings),
        clock=SystemClock(),
        guard=GossipGuard(NETWORK, is_trainer=is_trainer),
    )


async def stop_all(nodes: Iterable[SpeakingNode]) -> None:
    """Stop them, and let go here of sockets that libp2p left open when a dial was cut short: not in a later test."""
    await asyncio.gather(*(node.stop() for node in nodes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@asynccontextmanager
async def started(*nodes: SpeakingNode) -> AsyncIterator[None]:
    """Start them in order, joined to the run; stop them all at the end."""
    try:
        for node in nodes:
            await node.start()
            await node.join(RUN)
        yield
    finally:
        await stop_all(nodes)


@asynccontextmanager
async def line(*numbers: int, **config: Any) -> AsyncIterator[list[SpeakingNode]]:
    """Nodes of which each knows the one before it, and none dials another: messages pass through all of them."""
    nodes: list[SpeakingNode] = []
    try:
        for number in numbers:
            bootstrap = nodes[-1].status().addresses if nodes else ()
            nodes.append(make_node(number, *bootstrap, peers_target=1, **config))
            await nodes[-1].start()
            await nodes[-1].join(RUN)
            if len(nodes) > 1:
                await meshed(nodes[-2], nodes[-1])
        yield nodes
    finally:
        await stop_all(nodes)


@asynccontextmanager
async def witnessed(**config: Any) -> AsyncIterator[tuple[SpeakingNode, SpeakingNode]]:
    """A victim that may announce, and an honest witness that hears it."""
    victim = make_node(TRAINER, **config)
    await victim.start()
    witness = make_node(2, address_of(victim), peers_target=1)
    async with started(witness):
        await victim.join(RUN)
        await meshed(victim, witness)
        yield victim, witness
    await victim.stop()


def address_of(node: SpeakingNode) -> str:
    return node.status().addresses[0]


def in_mesh(node: SpeakingNode, other: SpeakingNode) -> bool:
    """The node passes every kind of message on to the other."""
    session = node._session
    if session is None:
        return False
    meshes = list(session.gossiping.router.mesh.values())
    return len(meshes) == len(TOPIC_KINDS) and all(
        other.state.key.peer_id() in map(str, tuple(mesh)) for mesh in meshes
    )


async def meshed(one: SpeakingNode, other: SpeakingNode) -> None:
    await eventually(lambda: in_mesh(one, other) and in_mesh(other, one), "a mesh between two nodes")


async def inside(node: SpeakingNode, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Run something in the node's trio thread."""
    assert node._thread is not None
    return await node._thread.call(function, *args, timeout_ms=CALL_MS)


async def receive_step(node: SpeakingNode, step: int) -> None:
    """Until this step's announcement has come; others before it are passed over."""
    async with asyncio.timeout(WAIT_S):
        while True:
            message = (await node.receive()).message
            if isinstance(message, CheckpointAnnounced) and message.step == step:
                return


class Stranger:
    """A host with the library's own face, for doing what no honest node would. It runs in a trio thread of its own."""

    def __init__(self, key: WalletKey, security: dict[Any, Any] | None = None) -> None:
        self.key = key
        self._security = security
        self._thread: TrioThread | None = None
        self._nursery: trio.Nursery | None = None
        self.host: Any = None

    async def __aenter__(self) -> "Stranger":
        self._thread = TrioThread()
        await self._thread.start(self._main)
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._thread is not None
        await self._thread.stop(CALL_MS)

    async def _main(self, ready: Callable[[], None], stopping: trio.Event) -> None:
        from libp2p import new_host
        from libp2p.crypto.secp256k1 import create_new_key_pair
        from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
        from libp2p.network.config import ConnectionConfig
        from libp2p.security.noise.transport import PROTOCOL_ID, Transport

        pair = create_new_key_pair(self.key.secret())
        self.host = new_host(
            key_pair=pair,
            sec_opt=self._security or {PROTOCOL_ID: Transport(pair, noise_privkey=create_noise_key_pair().private_key)},
            connection_config=ConnectionConfig(min_connections=0, low_watermark=0),
        )
        async with self.host.run([Multiaddr(HERE)]), trio.open_nursery() as self._nursery:
            ready()
            await stopping.wait()
            self._nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await self.host.close()

    def start_soon(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """In the trio thread: something that goes on beside everything else, until the stranger leaves."""
        assert self._nursery is not None
        self._nursery.start_soon(function, *args)

    async def do(self, function: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """`await function(stranger, ...)` in the trio thread."""
        assert self._thread is not None
        return await self._thread.call(function, self, *args, timeout_ms=CALL_MS)

    async def connect(self, address: str) -> Any:
        """In the trio thread: the muxed connection to a node."""
        place, _, peer = address.rpartition("/p2p/")
        connection = await self.host.get_network().dial_addr(Multiaddr(place), peer_id(peer))
        return connection.muxed_conn

    async def open(self, address: str, protocol: str) -> Any:
        """In the trio thread: a stream to a node."""
        peer = address.rpartition("/p2p/")[2]
        if not self.host.get_network().get_connections(peer_id(peer)):
            await self.connect(address)
        return await self.host.new_stream(peer_id(peer), [protocol])


async def read_to_end(stream: Any) -> bytes:
    """In the trio thread: what the other side says until it ends the stream, in order or not."""
    from libp2p.exceptions import BaseLibp2pError

    told = b""
    with trio.fail_after(30):
        try:
            while more := await stream.read(4096):
                told += more
        except BaseLibp2pError:
            pass
    return told


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def port_of(node: SpeakingNode) -> int:
    return int(address_of(node).split("/")[4])


def peer_id(text: str) -> Any:
    from libp2p.peer.id import ID

    return ID.from_base58(text)


async def assert_unharmed(victim: SpeakingNode, witness: SpeakingNode, step: int = 900) -> str:
    """The victim never restarted, still gossips with those who were there, and lets a newcomer in; how long it took."""
    assert victim.status().restarts == 0, victim.status().last_error
    began_s = time.monotonic()
    await victim.publish(RUN, announced(step))
    await receive_step(witness, step)
    heard_s = time.monotonic() - began_s
    newcomer = make_node(step, address_of(victim), peers_target=1)
    began_s = time.monotonic()
    async with started(newcomer):
        await meshed(victim, newcomer)
        joined_s = time.monotonic() - began_s
    assert victim.status().restarts == 0, victim.status().last_error
    assert victim.status().is_running
    return f"an honest peer hears it in {1000 * heard_s:.0f} ms, a newcomer is in its mesh in {1000 * joined_s:.0f} ms"
