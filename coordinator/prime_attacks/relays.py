"""Relays that lie, between an honest origin and a node that wants the newest weights.

The node hears of the liar first and asks it; later it hears of the origin too. It must end with the origin's bytes.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from prime_attacks.gallery import RELAYS, Attack, Outcome, Verdict
from prime_attacks.shard_parties import SHARD_BYTES, TRAINER, ShardHost, write_checkpoint
from prime_node.shardcast.limits import FetchLimits
from prime_protocol.manifest import Kind
from prime_protocol.signed_manifest import SignedManifest

LURE_S, WAIT_S = 8.0, 120.0
"""How long the node may be alone with the liar, and how long the whole may take."""
LOOK_S = 0.05
TENSOR_BYTES = 600_000
LIMITS = FetchLimits(stall_ms=500, first_byte_ms=1_000)
"""Everybody is on one machine: short patience."""


@dataclass(slots=True)
class Stage:
    """Who takes part."""

    origin: ShardHost
    liar: ShardHost
    node: ShardHost
    old: SignedManifest
    new: SignedManifest
    stack: AsyncExitStack
    asked: int = field(default=0)
    """Connections that a liar with a server of its own took."""


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
    """Takes every connection and never says a word."""
    held: list[asyncio.StreamWriter] = []

    def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stage.asked += 1
        held.append(writer)

    async def end() -> None:
        server.close()
        for writer in held:
            writer.transport.abort()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    stage.stack.push_async_callback(end)
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def claim_falsely(stage: Stage) -> str:
    """Claims the new version and has nothing."""
    return stage.liar.url


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
            yield attack, await play(stage, LIES[attack.name], attack)


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


async def until_seen(stage: Stage, task: "asyncio.Task[object]") -> None:
    """Until the liar was asked and found out, or for so long."""
    deadline_s = asyncio.get_running_loop().time() + LURE_S
    while asyncio.get_running_loop().time() < deadline_s and not task.done():
        if stage.node.fetcher.corrupt or stage.asked:
            return
        await asyncio.sleep(LOOK_S)


async def play(stage: Stage, lie: Lie, attack: Attack) -> Outcome:
    url = await lie(stage)
    fetcher = stage.node.fetcher
    fetcher.tell(stage.origin.announce(stage.new))
    fetcher.tell(stage.liar.claim(stage.new, url))
    task = asyncio.create_task(fetcher.obtain(stage.new.root))
    await until_seen(stage, task)
    is_fooled = task.done()
    fetcher.tell(stage.origin.claim(stage.new))
    async with asyncio.timeout(WAIT_S):
        await task
    is_exact = read_weights(stage.node, stage.new) == read_weights(stage.origin, stage.new)
    told = f"{fetcher.corrupt} shards refused, {stage.asked} connections held; then the origin's bytes"
    is_caught = is_exact and not is_fooled
    return Outcome(verdict=Verdict.REFUSED if is_caught else None, checks=attack.caught_by, reason=told)
