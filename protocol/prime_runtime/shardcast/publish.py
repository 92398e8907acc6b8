"""Publishes a checkpoint into a store: as a keyframe, as the delta from the last one, or both.

Publishing a step again returns what was published the first time, so a trainer that was killed publishes nothing twice.
The store links the files of the checkpoint instead of copying them; they must not be written in place afterwards.
"""

import logging
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from prime_protocol.constants import SHARD_BYTES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.weights.manifest import Manifest, SignedManifest, seal_manifest
from prime_protocol.weights.manifest_builder import DELTA_FILE, MapFunction, build_delta, build_keyframe
from prime_protocol.wire.ids import Digest, Step
from prime_protocol.wire.signing import WalletKey
from prime_runtime.keys import SequenceCounter
from prime_runtime.shardcast.checkpoint_files import MappedCheckpoint, link_or_copy, map_checkpoint, verify_checkpoint
from prime_runtime.shardcast.store import ShardStore

log = logging.getLogger(__name__)

THREADS = os.cpu_count() or 1


class BaseCache:
    """The last published checkpoint, still mapped: mapping it again would cost as much as the next delta."""

    def __init__(self) -> None:
        self._kept: tuple[Digest, MappedCheckpoint] | None = None
        self._spent: MappedCheckpoint | None = None

    def get(self, store: ShardStore, base: SignedManifest, threads: int) -> MappedCheckpoint | None:
        """The cached base, or the one on disk after verification; None if it has changed."""
        if self._kept is not None and self._kept[0] == base.root:
            return self._kept[1]
        path = store.checkpoint_path(base.root)
        try:
            mapped = map_checkpoint(path)
            verify_checkpoint(mapped, base.manifest, threads=threads)
        except (LocalError, RemoteError) as error:
            # No node could apply a delta to it. The next checkpoint is a keyframe, and this one is removed then.
            log.error("step %d in %s differs from what was published: %s", base.manifest.step, path, error)
            return None
        return mapped

    def keep(self, store: ShardStore, root: Digest, mapped: MappedCheckpoint) -> None:
        """Replace the cached checkpoint. The old one is unmapped by `release`, or at the latest with the next."""
        path = store.checkpoint_path(root)
        # A copy on another device is not the mapped file, which may be removed at any time.
        if all(os.path.samefile(path / file.path.name, file.path) for file in mapped.files):
            self._spent, self._kept = self._kept[1] if self._kept else None, (root, mapped)

    def release(self) -> None:
        """Unmap what is not needed any more, after the announcement."""
        self._spent = None


def publish_checkpoint(
    store: ShardStore,
    checkpoint: Path,
    *,
    key: WalletKey,
    step: Step,
    sequence: SequenceCounter,
    now_ms: int,
    keyframe: bool,
    shard_bytes: int = SHARD_BYTES,
    threads: int = THREADS,
    cache: BaseCache | None = None,
) -> tuple[SignedManifest, ...]:
    """The signed manifests of this step: a delta if there is a base, a keyframe if requested or needed.

    A process that publishes step after step passes a `cache`.
    """
    cache = cache or BaseCache()
    if key.node != store.trainer:
        raise LocalError(f"the key is of {key.node}, the trainer of {store.run} is {store.trainer}")
    done = tuple(shard_set.signed for shard_set in store.newest_first() if shard_set.manifest.step == step)
    if done:
        return done
    newest = max((shard_set.manifest.step for shard_set in store.shard_sets.values()), default=-1)
    if step < newest:
        raise LocalError(f"step {newest} is already published; step {step} is too late")
    mapped, base = map_checkpoint(checkpoint), _find_base(store)

    def seal(manifest: Manifest) -> SignedManifest:
        return seal_manifest(key, manifest, network=store.network, sequence=sequence.next(now_ms), now_ms=now_ms)

    made = []
    if base is not None and _has_same_tensors(base.manifest, mapped):
        before = cache.get(store, base, threads)
        if before is not None:
            made.append(_publish_delta(store, base, before, mapped, step, seal, shard_bytes, threads))
    if keyframe or not made:
        sources = [file.source for file in mapped.files]
        with open_thread_mapper(threads) as each:
            signed = seal(build_keyframe(store.run, step, sources, shard_bytes=shard_bytes, each=each))
        store.add(signed, {file.path.name: file.path for file in mapped.files})
        made.append(signed)
    _store_base(store, mapped, made[0])
    cache.keep(store, made[0].root, mapped)
    return tuple(made)


def _publish_delta(
    store: ShardStore,
    base: SignedManifest,
    before: MappedCheckpoint,
    after: MappedCheckpoint,
    step: Step,
    seal: Callable[[Manifest], SignedManifest],
    shard_bytes: int,
    threads: int,
) -> SignedManifest:
    old = {span.name: view for span, view in before.tensors()}
    pairs = ((span.name, old[span.name], view) for span, view in after.tensors())
    draft = store.folder / (DELTA_FILE + ".draft")
    with draft.open("wb") as file, open_thread_mapper(threads) as each:
        manifest = build_delta(base.manifest, step, pairs, file.write, shard_bytes=shard_bytes, each=each)
    signed = seal(manifest)
    store.add(signed, {DELTA_FILE: draft})
    draft.unlink()
    return signed


@contextmanager
def open_thread_mapper(threads: int) -> Iterator[MapFunction]:
    """The built-in `map` on several threads."""
    with ThreadPoolExecutor(max_workers=threads) as pool:
        yield partial(map_in_order, pool, threads + 1)


def map_in_order(
    pool: ThreadPoolExecutor, ahead: int, work: Callable[[Any], Any], items: Iterable[Any]
) -> Iterator[Any]:
    """At most `ahead` results wait."""
    pending: deque[Future[Any]] = deque()
    for item in items:
        pending.append(pool.submit(work, item))
        if len(pending) > ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _find_base(store: ShardStore) -> SignedManifest | None:
    """The newest complete checkpoint."""
    return max(store.checkpoints().values(), key=lambda signed: signed.manifest.step, default=None)


def _has_same_tensors(base: Manifest, mapped: MappedCheckpoint) -> bool:
    wanted = {(tensor.name, tensor.dtype, tensor.shape) for tensor in base.tensors}
    return wanted == {(span.name, span.dtype, span.shape) for span, _ in mapped.tensors()}


def _store_base(store: ShardStore, mapped: MappedCheckpoint, signed: SignedManifest) -> None:
    """Store the checkpoint as the base of the next delta and remove the previous one."""
    older = list(store.checkpoints())
    draft = store.draft_path(signed.root)
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    for file in mapped.files:
        link_or_copy(file.path, draft / file.path.name)
    store.publish(draft, signed)
    store.remove_damaged()
    for root in older:
        if root != signed.root:
            store.remove_checkpoint(root)
