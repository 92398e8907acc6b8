"""Publishes checkpoints: shards into the store, the manifest to the coordinator, then the entry in the log.

Every part may be repeated. A trainer that was killed computes the same weights again from the batch on disk, finds its
shards in the store, and sends the same entry, which the log accepts once. The trainer publishes in the background while
it trains the next steps.
"""

import asyncio
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.gossip.guard import GossipGuard
from prime_protocol.ledger.entries import CheckpointPublished, SubmissionsListed
from prime_protocol.ledger.versions.lineage import make_checkpoint_entries
from prime_protocol.ledger.versions.upgrades import choose_version
from prime_protocol.weights.manifest import ManifestKind, SignedManifest
from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.messages import ENTRY_ENDPOINTS, RUN, EntryReply, RunRequest, UploadPurpose, UploadRequest
from prime_protocol.wire.signing import WalletKey
from prime_runtime.clock import Clock
from prime_runtime.gossip.transport import GossipHttpClient, GossipPublisher
from prime_runtime.http.client import HttpClient, Unreachable
from prime_runtime.http.coordinator_api import upload_file
from prime_runtime.keys import SequenceCounter
from prime_runtime.lock import hold_process_lock
from prime_runtime.shardcast.announcer import make_announcement
from prime_runtime.shardcast.publish import publish_checkpoint
from prime_runtime.shardcast.store import ShardStore, choose_removable
from prime_trainer.checkpoints import TrainState
from prime_trainer.config import PublishConfig, TrainConfig
from prime_trainer.data.collector import wait_for_first

log = logging.getLogger(__name__)

PUBLISH_LOCK_NAME = "publish.lock"
RETRY_MS = 1_000
RETRY_MS_MAX = 60_000
"""Pause between two tries to reach the coordinator; it doubles each time."""
(CHECKPOINT_PUBLISHED,) = (endpoint for endpoint in ENTRY_ENDPOINTS if endpoint.request is CheckpointPublished)
(SUBMISSIONS_LISTED,) = (endpoint for endpoint in ENTRY_ENDPOINTS if endpoint.request is SubmissionsListed)


@dataclass(frozen=True, slots=True)
class Publication:
    """What was published, for the command's output."""

    made: tuple[SignedManifest, ...]
    named: SignedManifest
    """The manifest that the log entry names."""
    logged: EntryReply
    announced: bool
    """The coordinator relayed the announcement; otherwise the origin repeats it."""
    removed: int
    """Old versions removed from the store."""


def choose_keyframe(step: Step, *, forced: bool | None, every: int) -> bool:
    """As requested; otherwise with every `every` steps, including step 0."""
    return forced if forced is not None else step % every == 0


def read_trained_on(path: Path | None) -> tuple[Digest, ...]:
    """Names of submissions, separated by white space."""
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
    """The keyframe if there is one, because a node without any weights can start from it."""
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
    """Publish completely, or raise LocalError or RemoteError. A repeated call continues where the last one failed."""
    sequence = SequenceCounter.shared()
    # In a thread, because hashing is slow and the event loop also serves status and collects rollouts.
    store, made = await asyncio.to_thread(
        write_to_store, config, key, checkpoint, step, sequence=sequence, keyframe=keyframe, now_ms=clock.now_ms()
    )
    named = choose_manifest(made)
    parts, entry = make_checkpoint_entries(trained_on, step=step, root=named.root, manifest=named.digest)
    async with config.open_client(key, clock) as client:
        upload = UploadRequest(
            digest=named.digest,
            size_bytes=len(named.frame),
            purpose=UploadPurpose.MANIFEST,
            lease=None,
            submission=None,
        )
        await upload_file(client, config.server, upload, named.frame, run=config.run_id)
        # The entry has the form of the rules in force: a network may still follow older ones.
        facts = (await client.call(config.server, RUN, RunRequest(after=2**63 - 1), run=config.run_id)).message
        for part in parts:
            version = choose_version(SubmissionsListed, facts.rules)
            await client.call(config.server, SUBMISSIONS_LISTED, part, run=config.run_id, version=version)
        version = choose_version(CheckpointPublished, facts.rules)
        reply = await client.call(config.server, CHECKPOINT_PUBLISHED, entry, run=config.run_id, version=version)
        logged = reply.message
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
    """Write the shards and signed manifests of a checkpoint into the store."""
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
    """Announce once through the coordinator, so that nodes learn of it before the origin's next announcement."""
    guard = GossipGuard(config.network_id, is_trainer=lambda run, node: node == key.node)
    relay = GossipHttpClient(
        client,
        config.server,
        network=config.network_id,
        run=config.run_id,
        clock=clock,
        guard=guard,
        deliver=lambda gossip: None,
    )
    gossip_publisher = GossipPublisher(
        key, config.network_id, guard, clock=clock, sequence=sequence, transports=(relay.send,)
    )
    for signed in made:
        await gossip_publisher.publish(config.run_id, make_announcement(signed))
    return not gossip_publisher.failures


def remove_old_versions(store: ShardStore, keep: int) -> int:
    """Remove versions that no node needs any more; return their number."""
    removable = choose_removable([each.signed for each in store.shard_sets.values()], versions=keep)
    for digest in removable:
        store.remove(digest)
    return len(removable)


class CheckpointPublisher:
    """Publishes the weights of one step after the other."""

    def __init__(
        self,
        config: TrainConfig,
        key: WalletKey,
        clock: Clock,
        stop: asyncio.Event,
        on_published: Callable[[Path, TrainState], None],
    ) -> None:
        self._config = config
        self._on_published = on_published
        """Called when the log has accepted a step, with its model folder, which is the callee's from then on."""
        self._key = key
        self._clock = clock
        self._stop = stop
        """Set when publishing fails, or at shutdown. Then an unreachable coordinator is not waited for."""
        self._last: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        """Set when a step was published."""
        self.published = Step(-1)
        """The newest step in the log."""
        self.problem = ""

    def start(self, folder: Path, state: TrainState) -> None:
        """Publish a model folder in the background, after those before it."""
        self._last = asyncio.create_task(self._publish_after(self._last, folder, state))

    async def wait(self) -> None:
        """Wait until the last step is published; raise LocalError or RemoteError if one failed."""
        if self._last is not None:
            await asyncio.shield(self._last)

    async def wait_for_room(self, step: Step) -> None:
        """Wait until checkpoint `step` is few enough steps ahead of the log for another one to be made."""
        while step - self.published >= self._config.save.unpublished_max and not self._stop.is_set():
            self._changed.clear()
            await wait_for_first(self._changed.wait(), self._stop.wait())

    async def _publish_after(self, before: asyncio.Task[None] | None, folder: Path, state: TrainState) -> None:
        if before is not None:
            await before
        if state.step <= self.published:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        else:
            try:
                done = await self._publish_with_retries(folder, state)
            except (LocalError, RemoteError, OSError):
                self._stop.set()
                raise
            self.published, self.problem = state.step, ""
            self._changed.set()
            sizes = ", ".join(f"{each.manifest.kind} of {each.manifest.transport_bytes} bytes" for each in done.made)
            log.info("published step %d as %s, log entry %d", state.step, sizes, done.logged.index)
            self._on_published(folder, state)

    async def _publish_with_retries(self, folder: Path, state: TrainState) -> Publication:
        """Retry while the coordinator is unreachable."""
        config, wait_ms = self._config, RETRY_MS
        while True:
            try:
                return await publish_step(
                    config,
                    self._key,
                    folder,
                    state.step,
                    keyframe=choose_keyframe(state.step, forced=None, every=config.keyframe_every),
                    trained_on=state.trained_on,
                    clock=self._clock,
                )
            except Unreachable as error:
                self.problem = str(error)
                log.warning("cannot publish step %d yet: %s", state.step, error)
                if self._stop.is_set():
                    raise LocalError(f"step {state.step} is not published; the next start will: {error}") from None
            await wait_for_first(self._clock.sleep_ms(wait_ms), self._stop.wait())
            wait_ms = min(RETRY_MS_MAX, 2 * wait_ms)
