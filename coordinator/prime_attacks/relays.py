"""Relays that lie, between an honest origin and a node that wants the newest weights.

The node hears of the liar first and asks it; later it hears of the origin too. It must end with the origin's bytes.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from aiohttp import web

from prime_attacks.gallery import RELAYS, Attack, Outcome, Verdict
from prime_attacks.shard_parties import NETWORK, OPEN, SHARD_BYTES, TRAINER, ShardHost, write_checkpoint
from prime_node.shardcast.limits import FetchLimits
from prime_protocol.manifest import Kind
from prime_protocol.signed_manifest import SignedManifest
from prime_runtime.http_listener import ListenConfig
from prime_runtime.http_server import HttpServer
from prime_runtime.shardcast.serve import ShardServer

LURE_S, WAIT_S = 8.0, 120.0
"""How long the node may be alone with the liar, and how long the whole may take."""
LOOK_S = 0.05
TENSOR_BYTES = 600_000
LIMITS = FetchLimits(stall_ms=500, first_byte_ms=1_000)
"""Everybody is on one machine: short patience."""


class Boaster(ShardServer):
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
                await asyncio.sleep(LOOK_S)
            self.given_up += not self._is_over
        else:
            self.told_absent += 1
        return web.Response(status=404)

    def close(self) -> None:
        self._is_over = True
        super().close()


@dataclass(slots=True)
class Stage:
    """Who takes part."""

    origin: ShardHost
    liar: ShardHost
    node: ShardHost
    old: SignedManifest
    new: SignedManifest
    stack: AsyncExitStack
    boaster: Boaster | None = None
    """Serves in the liar's name where it lies about what it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
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


Lie = Callable[[Stage], Awaitable[str]]
"""What the liar does; the URL it serves under."""


async def fetch(stage: Stage, signed: SignedManifest) -> None:
    stage.liar.fetcher.tell(stage.origin.announce(signed))
    stage.liar.fetcher.tell(stage.origin.claim(signed))
    async with asyncio.timeout(WAIT_S):
        await stage.liar.fetcher.obtain(signed.root)


async def damage(stage: Stage) -> str:
    """Has the right version, with a bit flipped in every shard."""
    await fetch(stage, stage.new)
    path = stage.liar.store.stocks[stage.new.digest].folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    for place in range(SHARD_BYTES // 2, len(data), SHARD_BYTES):
        data[place] ^= 1
    path.write_bytes(bytes(data))
    return stage.liar.url


async def stay_behind(stage: Stage) -> str:
    """Has the version before, and puts its bytes where those of the new one belong."""
    await fetch(stage, stage.new)
    await fetch(stage, stage.old)
    stocks = stage.liar.store.stocks
    old = (stocks[stage.old.digest].folder / "model.safetensors").read_bytes()
    (stocks[stage.new.digest].folder / "model.safetensors").write_bytes(old)
    return stage.liar.url


async def stall(stage: Stage) -> str:
    """Claims every shard, takes every request for one and never says a word."""
    return await boast(stage, is_mute=True)


async def claim_falsely(stage: Stage) -> str:
    """Claims every shard and has none."""
    return await boast(stage, is_mute=False)


async def boast(stage: Stage, *, is_mute: bool) -> str:
    boaster = stage.boaster = Boaster(stage.liar, is_mute=is_mute)
    boaster.boast(stage.new)
    http = HttpServer(stage.liar.key, NETWORK, clock=stage.liar.clock, limits=OPEN)
    boaster.add_routes(http)
    port = await http.start(ListenConfig(host="127.0.0.1"))
    stage.stack.push_async_callback(http.stop)
    stage.stack.callback(boaster.close)
    return f"http://127.0.0.1:{port}"


LIES: dict[str, Lie] = {
    "wrong-bytes": damage,
    "stale-version": stay_behind,
    "stalls": stall,
    "false-claim": claim_falsely,
}


async def attack_weights(folder: Path) -> AsyncIterator[tuple[Attack, Outcome]]:
    for attack in RELAYS:
        async with AsyncExitStack() as stack:
            stage = await set_up(folder / attack.name, stack)
            yield attack, await play(stage, LIES[attack.name])


async def set_up(folder: Path, stack: AsyncExitStack) -> Stage:
    origin, liar, node = (
        ShardHost(folder, "origin", key=TRAINER, fetch=LIMITS),
        ShardHost(folder, "liar", fetch=LIMITS),
        ShardHost(folder, "node", fetch=LIMITS),
    )
    for party in (origin, liar, node):
        await party.start()
        stack.push_async_callback(party.stop)
    return Stage(origin, liar, node, publish(origin, folder, 0), publish(origin, folder, 1), stack)


def publish(origin: ShardHost, folder: Path, step: int) -> SignedManifest:
    """A checkpoint of one tensor, as a keyframe."""
    tensors = {"w": random.Random(step).randbytes(TENSOR_BYTES)}
    published = origin.publish(write_checkpoint(folder / f"step{step}", tensors), step, keyframe=True)
    return next(signed for signed in published if signed.manifest.kind is Kind.KEYFRAME)


def read_weights(host: ShardHost, signed: SignedManifest) -> bytes:
    return (host.store.checkpoint_path(signed.root) / "model.safetensors").read_bytes()


def look(stage: Stage) -> Seen:
    fetcher, boaster = stage.node.fetcher, stage.boaster
    return Seen(
        corrupt=fetcher.corrupt + sum(transfer.corrupt for transfer in fetcher.transfers()),
        given_up=boaster.given_up if boaster else 0,
        absent=boaster.told_absent if boaster else 0,
    )


async def until_seen(stage: Stage, task: "asyncio.Task[object]") -> Seen:
    """Until the liar was asked and found out, or for so long."""
    deadline_s = asyncio.get_running_loop().time() + LURE_S
    while not (seen := look(stage)).checks and not task.done() and asyncio.get_running_loop().time() < deadline_s:
        await asyncio.sleep(LOOK_S)
    return replace(seen, is_fooled=task.done())


async def play(stage: Stage, lie: Lie) -> Outcome:
    url = await lie(stage)
    fetcher = stage.node.fetcher
    fetcher.tell(stage.origin.announce(stage.new))
    fetcher.tell(stage.liar.claim(stage.new, url))
    task = asyncio.create_task(fetcher.obtain(stage.new.root))
    seen = await until_seen(stage, task)
    fetcher.tell(stage.origin.claim(stage.new))
    async with asyncio.timeout(WAIT_S):
        await task
    is_exact = read_weights(stage.node, stage.new) == read_weights(stage.origin, stage.new)
    return judge(replace(seen, is_exact=is_exact))


def judge(seen: Seen) -> Outcome:
    """Refused: the liar was asked, something named it, and its lie is not in the weights."""
    told = f"{seen.corrupt} shards of a wrong digest, {seen.given_up} requests given up, {seen.absent} without a shard"
    is_caught = seen.is_exact and not seen.is_fooled and bool(seen.checks)
    return Outcome(verdict=Verdict.REFUSED if is_caught else None, checks=seen.checks, reason=told)
