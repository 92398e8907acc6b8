"""Publish a checkpoint: into the store, then its manifest to the coordinator, then the entry in the log.

Each step may be done again: after a crash the same command goes on, and publishes nothing twice.

Checkpoints on their way out, while the next step is learnt: a bf16 copy, its delta, the log.

Everything follows from the checkpoint on disk. A trainer that was killed makes the same copy again, finds in the store
what it had put there, and sends the same entry, which the log takes once.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip.guard import GossipGuard
from prime_protocol.ledger.entries import CheckpointPublished
from prime_protocol.weights.manifest import ManifestKind, SignedManifest
from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.messages import ENTRY_ENDPOINTS, EntryReply, UploadPurpose, UploadRequest
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.gossip.transport import GossipHttpClient, GossipPublisher
from prime_runtime.http.client import HttpClient, Unreachable, open_client
from prime_runtime.http.coordinator_api import upload_file
from prime_runtime.keys import SequenceCounter
from prime_runtime.lock import hold_process_lock
from prime_runtime.shardcast.announcer import make_announcement
from prime_runtime.shardcast.publish import publish_checkpoint
from prime_runtime.shardcast.store import ShardStore, choose_removable
from prime_trainer.checkpoints import (
    MODEL,
    WEIGHTS,
    TrainState,
    copy_model_files,
    list_file_tensors,
    verify_checkpoint,
    write_tensors,
)
from prime_trainer.config import PublishConfig, TrainConfig
from prime_trainer.data.collector import wait_for_first

log = logging.getLogger(__name__)


PUBLISH_LOCK_NAME = "publish.lock"
(CHECKPOINT_PUBLISHED,) = (endpoint for endpoint in ENTRY_ENDPOINTS if endpoint.request is CheckpointPublished)


@dataclass(frozen=True, slots=True)
class Publication:
    """What was published, for people."""

    made: tuple[SignedManifest, ...]
    named: SignedManifest
    """The one that the log names."""
    logged: EntryReply
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


def choose_manifest(made: tuple[SignedManifest, ...]) -> SignedManifest:
    """The keyframe where there is one: whoever has nothing can begin with it."""
    return min(made, key=lambda signed: signed.manifest.kind is not ManifestKind.KEYFRAME)


async def publish_step(
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
    sequence = SequenceCounter.shared()
    # A thread, since hashing takes a while and a trainer's loop has others to serve.
    store, made = await asyncio.to_thread(
        write_to_store, config, key, checkpoint, step, sequence=sequence, keyframe=keyframe, now_ms=clock.now_ms()
    )
    named = choose_manifest(made)
    entry = CheckpointPublished(step=step, root=named.root, manifest=named.digest, trained_on=trained_on)
    async with open_client(
        key=key,
        network=config.network_id,
        clock=clock,
        limits=config.client,
        authority=config.authority,
    ) as client:
        upload = UploadRequest(
            digest=named.digest,
            size_bytes=len(named.frame),
            purpose=UploadPurpose.MANIFEST,
            lease=None,
            submission=None,
        )
        await upload_file(client, config.server, upload, named.frame, run=config.run_id)
        logged = (await client.call(config.server, CHECKPOINT_PUBLISHED, entry, run=config.run_id)).message
        announced = await announce(config, key, client, sequence, made, clock)
    return Publication(made, named, logged, announced, remove_old_versions(store, config.keep))


def write_to_store(
    config: PublishConfig,
    key: WalletKey,
    checkpoint: Path,
    step: Step,
    *,
    sequence: SequenceCounter,
    keyframe: bool,
    now_ms: int,
) -> tuple[ShardStore, tuple[SignedManifest, ...]]:
    """The checkpoint's shards and signed manifests into the store."""
    store = ShardStore(config.store, network=config.network_id, run=config.run_id, trainer=key.node)
    with hold_process_lock(config.store / PUBLISH_LOCK_NAME, "publish", advice="give --store a folder"):
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
    sequence: SequenceCounter,
    made: tuple[SignedManifest, ...],
    clock: Clock,
) -> bool:
    """Once, so that nodes hear of it at once also where the coordinator's host is the origin."""
    guard = GossipGuard(config.network_id, is_trainer=lambda run, node: node == key.node)
    records = GossipHttpClient(
        client,
        config.server,
        network=config.network_id,
        run=config.run_id,
        clock=clock,
        guard=guard,
        hear=lambda gossip: None,
    )
    voice = GossipPublisher(key, config.network_id, guard, clock=clock, sequence=sequence, ways=(records.send,))
    for signed in made:
        await voice.publish(config.run_id, make_announcement(signed))
    return not voice.failures


def remove_old_versions(store: ShardStore, keep: int) -> int:
    """Remove versions that nobody needs any more; how many."""
    doomed = choose_removable([stock.signed for stock in store.shard_sets.values()], versions=keep)
    for digest in doomed:
        store.remove(digest)
    return len(doomed)


RETRY_MS = 1_000
RETRY_MS_MAX = 60_000
"""Between two tries to reach the coordinator, doubling."""


class CheckpointPublisher:
    """Publishes one checkpoint at a time."""

    def __init__(
        self,
        config: TrainConfig,
        key: WalletKey,
        clock: Clock,
        stop: asyncio.Event,
        tell: Callable[[Path, TrainState], None],
    ) -> None:
        self._config = config
        self._on_published = tell
        """Called when a checkpoint stands in the log."""
        self._key = key
        self._clock = clock
        self._stop = stop
        """Set when this fails, or by others: then an unreachable coordinator is not waited for."""
        self._task: asyncio.Task[None] | None = None
        self.published = Step(-1)
        """The last step that stands in the log."""
        self.problem = ""

    def start(self, checkpoint: Path, position: TrainState) -> None:
        """In the background."""
        assert self._task is None or self._task.done(), "one at a time"
        self._task = asyncio.create_task(self._publish(checkpoint, position))

    async def wait(self) -> None:
        """Until the last one is out; LocalError or RemoteError if it cannot be."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _publish(self, checkpoint: Path, position: TrainState) -> None:
        try:
            await asyncio.to_thread(verify_model_files, checkpoint)
            copy = await asyncio.to_thread(make_bf16_copy, checkpoint / MODEL, self._config.folder / "outgoing")
            done = await self._publish_with_retries(copy, position)
        except (LocalError, RemoteError, OSError):
            self._stop.set()
            raise
        shutil.rmtree(copy, ignore_errors=True)
        self.published, self.problem = position.step, ""
        sizes = ", ".join(f"{each.manifest.kind} of {each.manifest.transport_bytes} bytes" for each in done.made)
        log.info("step %d is published as %s, entry %d of the log", position.step, sizes, done.logged.index)
        self._on_published(checkpoint, position)

    async def _publish_with_retries(self, copy: Path, position: TrainState) -> Publication:
        """Again and again while the coordinator cannot be reached."""
        config, wait_ms = self._config, RETRY_MS
        while True:
            try:
                return await publish_step(
                    config,
                    self._key,
                    copy,
                    position.step,
                    keyframe=choose_keyframe(position.step, forced=None, every=config.keyframe_every),
                    trained_on=position.trained_on,
                    clock=self._clock,
                )
            except Unreachable as error:
                self.problem = str(error)
                log.warning("step %d is not published yet: %s", position.step, error)
                if self._stop.is_set():
                    raise LocalError(
                        f"step {position.step} is not published; the next start does it: {error}"
                    ) from None
            await wait_for_first(self._clock.sleep_ms(wait_ms), self._stop.wait())
            wait_ms = min(RETRY_MS_MAX, 2 * wait_ms)


def verify_model_files(checkpoint: Path) -> None:
    """What is published is what was learnt: LocalError where the disk says something else by now."""
    try:
        verify_checkpoint(checkpoint, MODEL)
    except RemoteError as error:
        raise LocalError(
            f"the checkpoint {checkpoint} was damaged before it was published: {error}; start again: the trainer goes "
            "on from the one before"
        ) from None


def make_bf16_copy(model: Path, target: Path) -> Path:
    """The model folder as it is published, in bf16; always the same bytes for the same checkpoint."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    copy_model_files(model, target)
    with safe_open(model / WEIGHTS, "pt") as file:
        write_tensors(target / WEIGHTS, list_file_tensors(file, torch.bfloat16))
    return target
