"""Publish a checkpoint: into the store, then its manifest to the coordinator, then the entry in the log.

Each step may be done again: after a crash the same command goes on, and publishes nothing twice.
"""

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

from prime_protocol.entries import CheckpointPublished
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip_guard import GossipGuard
from prime_protocol.ids import Digest, Step
from prime_protocol.manifest import Kind
from prime_protocol.messages import ENTRY_ENDPOINTS, Logged, Purpose, Upload
from prime_protocol.signed_manifest import SignedManifest
from prime_protocol.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.gossip_voice import Voice
from prime_runtime.http_client import HttpClient, open_client
from prime_runtime.lock import lock_file
from prime_runtime.records_client import RecordsClient
from prime_runtime.sending_files import send_file
from prime_runtime.sequence import Sequence
from prime_runtime.shardcast.publish import publish_checkpoint
from prime_runtime.shardcast.retention import choose_removable
from prime_runtime.shardcast.saying import make_announced
from prime_runtime.shardcast.store import ShardStore
from prime_trainer.config import PublishConfig

LOCK_NAME = "publish.lock"
(PUBLISHED,) = (endpoint for endpoint in ENTRY_ENDPOINTS if endpoint.request is CheckpointPublished)


@dataclass(frozen=True, slots=True)
class Publication:
    """What was published, for people."""

    made: tuple[SignedManifest, ...]
    named: SignedManifest
    """The one that the log names."""
    logged: Logged
    announced: bool
    """The coordinator has passed it on; else the origin will."""
    removed: int


def choose_keyframe(step: Step, *, forced: bool | None, every: int) -> bool:
    """As asked for; else with every so many steps, the first one included."""
    return forced if forced is not None else step % every == 0


def read_trained_on(path: Path | None) -> tuple[Digest, ...]:
    """Names of submissions, one to a line; empty lines do not count."""
    if path is None:
        return ()
    try:
        lines = path.read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise LocalError(f"cannot read {path}: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(Digest.parse(line))
        except RemoteError as error:
            raise LocalError(f"{path}, submission {number}: {error.problem}") from None
    return tuple(found)


def name_one(made: tuple[SignedManifest, ...]) -> SignedManifest:
    """The keyframe where there is one: whoever has nothing can begin with it."""
    return min(made, key=lambda signed: signed.manifest.kind is not Kind.KEYFRAME)


async def publish(
    config: PublishConfig,
    key: WalletKey,
    checkpoint: Path,
    step: Step,
    *,
    keyframe: bool,
    trained_on: tuple[Digest, ...],
    clock: Clock,
) -> Publication:
    """All of it, or LocalError or RemoteError; what was done by then is found done the next time."""
    sequence = Sequence.shared()
    # A thread, since hashing takes a while and a trainer's loop has others to serve.
    store, made = await asyncio.to_thread(
        fill_store, config, key, checkpoint, step, sequence=sequence, keyframe=keyframe, now_ms=clock.now_ms()
    )
    named = name_one(made)
    entry = CheckpointPublished(step=step, root=named.root, manifest=named.digest, trained_on=trained_on)
    async with open_client(
        key=key,
        network=config.network_id,
        clock=clock,
        dice=random.Random(),
        limits=config.client,
        authority=config.authority,
    ) as client:
        upload = Upload(
            digest=named.digest,
            size_bytes=len(named.frame),
            purpose=Purpose.MANIFEST,
            lease=None,
            submission=None,
        )
        await send_file(client, config.server, upload, named.frame, run=config.run_id)
        logged = (await client.call(config.server, PUBLISHED, entry, run=config.run_id)).message
        announced = await announce(config, key, client, sequence, made, clock)
    return Publication(made, named, logged, announced, retire(store, config.keep))


def fill_store(
    config: PublishConfig,
    key: WalletKey,
    checkpoint: Path,
    step: Step,
    *,
    sequence: Sequence,
    keyframe: bool,
    now_ms: int,
) -> tuple[ShardStore, tuple[SignedManifest, ...]]:
    """The checkpoint's shards and signed manifests into the store."""
    store = ShardStore(config.store, network=config.network_id, run=config.run_id, trainer=key.node)
    with lock_file(config.store / LOCK_NAME, "publish", advice="give --store a folder"):
        made = publish_checkpoint(
            store,
            checkpoint,
            key=key,
            step=step,
            sequence=sequence,
            now_ms=now_ms,
            keyframe=keyframe,
            shard_bytes=config.shard_bytes,
        )
    return store, made


async def announce(
    config: PublishConfig,
    key: WalletKey,
    client: HttpClient,
    sequence: Sequence,
    made: tuple[SignedManifest, ...],
    clock: Clock,
) -> bool:
    """Once, so that nodes hear of it at once also where the coordinator's host is the origin."""
    guard = GossipGuard(config.network_id, is_trainer=lambda run, node: node == key.node)
    records = RecordsClient(
        client,
        config.server,
        network=config.network_id,
        run=config.run_id,
        clock=clock,
        guard=guard,
        hear=lambda gossip: None,
    )
    voice = Voice(key, config.network_id, guard, clock=clock, sequence=sequence, ways=(records.share,))
    for signed in made:
        await voice.say(config.run_id, make_announced(signed))
    return not voice.failures


def retire(store: ShardStore, keep: int) -> int:
    """Remove versions that nobody needs any more; how many."""
    doomed = choose_removable([stock.signed for stock in store.stocks.values()], versions=keep)
    for digest in doomed:
        store.remove(digest)
    return len(doomed)
