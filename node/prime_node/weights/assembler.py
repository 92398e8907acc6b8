"""Builds checkpoints from shards: a keyframe's files are hard-linked, a delta is applied to a copy of its base.

Runs in a thread and never waits for the network. A base is only read, so a failed build leaves it intact.
"""

import logging
import shutil
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.weights.manifest import ManifestKind, SignedManifest, verify_base, verify_layout
from prime_protocol.wire.ids import Digest
from prime_runtime.shardcast.checkpoint_files import (
    MappedCheckpoint,
    link_or_copy,
    verify_checkpoint,
    verify_checkpoint_folder,
    verify_file_digests,
)
from prime_runtime.shardcast.patching import patch_checkpoint, patch_copy, preallocate_checkpoint
from prime_runtime.shardcast.store import DRAFT_SUFFIX, ShardStore

log = logging.getLogger(__name__)

CHECKPOINTS_KEPT = 2
"""The newest, and the one before it, which may still be used for rollouts."""


class CheckpointAssembler:
    """Builds, verifies and removes the checkpoints of one store."""

    def __init__(self, store: ShardStore, *, threads: int, kept: int = CHECKPOINTS_KEPT) -> None:
        self._store = store
        self._threads = threads
        self._kept = kept
        self._preallocation_lock = threading.Lock()
        """Space for the next checkpoint is preallocated in the background; a build waits until that is done."""
        self._copy: tuple[Digest, MappedCheckpoint] | None = None
        """Root and mapping of the checkpoint that the preallocated folder is a copy of. The mapping is kept until the
        next preallocation, since unmapping takes a while too."""

    def build(self, path: Sequence[SignedManifest]) -> None:
        """Build along a chain whose shards are all on disk, each manifest on the checkpoint of the one before.

        RemoteError: the result is not what was signed; then no checkpoint was published.
        """
        for signed in path:
            if signed.root in self._store.checkpoints():
                continue
            if signed.manifest.kind is ManifestKind.KEYFRAME:
                self._build_keyframe(signed)
            else:
                self._build_delta(signed)

    def _build_keyframe(self, signed: SignedManifest) -> None:
        shard_set, manifest = self._store.shard_sets[signed.digest], signed.manifest
        mapped = shard_set.map_files()
        for index, file in enumerate(mapped.files):
            if file.header is not None:
                verify_layout(manifest, index, file.header)
        verify_checkpoint(mapped, manifest, threads=self._threads)
        draft = self._start_draft(signed.root)
        draft.mkdir()
        for path in shard_set.files():
            link_or_copy(path, draft / path.name)
        self._store.publish(draft, signed)

    def _build_delta(self, signed: SignedManifest) -> None:
        base = signed.manifest.base
        assert base is not None, "a delta has a base"
        held = self._store.checkpoints().get(base)
        if held is None:
            raise RemoteError("base", f"{base} is not on this disk")
        verify_base(signed.manifest, held.manifest)
        verify_file_digests(self._store.checkpoint_path(base))
        draft = self._start_draft(signed.root)
        copy = self._claim_preallocated(draft, base)
        records = self._store.shard_sets[signed.digest].view_file(0)
        if copy is not None:
            patch_copy(copy, signed.manifest, records, threads=self._threads)
        else:
            patch_checkpoint(self._store.checkpoint_path(base), draft, signed.manifest, records, threads=self._threads)
        self._store.publish(draft, signed)

    def _claim_preallocated(self, draft: Path, base: Digest) -> MappedCheckpoint | None:
        """Turn the preallocated folder into the draft; returns its mapping if it is a copy of the base."""
        with self._preallocation_lock:
            if not self._store.preallocated_path.exists():
                draft.mkdir()
                return None
            self._store.preallocated_path.rename(draft)
            return self._copy[1] if self._copy is not None and self._copy[0] == base else None

    def _start_draft(self, root: Digest) -> Path:
        draft = self._store.draft_path(root)
        shutil.rmtree(draft, ignore_errors=True)
        return draft

    def remove_base(self, path: Sequence[SignedManifest]) -> None:
        """After a failed build: remove the base of the chain, which may be damaged."""
        base = path[0].manifest.base
        if base is not None:
            self._store.remove_checkpoint(base)

    def verify_all(self) -> int:
        """Verify every checkpoint and remove the damaged ones; returns their number."""
        return self._store.remove_damaged() + sum(not self.check(root) for root in self._store.checkpoints())

    def check(self, root: Digest) -> bool:
        """Whether the checkpoint is on disk and is what was signed. A damaged one is removed."""
        signed = self._store.checkpoints().get(root)
        if signed is None:
            return False
        try:
            verify_checkpoint_folder(self._store.checkpoint_path(root), signed.manifest, threads=self._threads)
        except (RemoteError, LocalError) as error:
            log.warning("the checkpoint of step %d is damaged and is fetched again: %s", signed.manifest.step, error)
            self._store.remove_checkpoint(root)
            return False
        return True

    def remove_old(self, in_use: Collection[Digest] = ()) -> None:
        """Remove all but the newest checkpoints and those in use. Files are unlinked, never overwritten: a reader may
        still have them open."""
        newest_first = sorted(self._store.checkpoints().values(), key=lambda signed: -signed.manifest.step)
        for signed in newest_first[self._kept :]:
            if signed.root not in in_use:
                self._store.remove_checkpoint(signed.root)

    def preallocate_next(self) -> None:
        """Copy the newest checkpoint ahead of time, so that the next delta patches in place. Optional: a build without
        a preallocated folder allocates its own."""
        newest = max(self._store.checkpoints().values(), key=lambda signed: signed.manifest.step, default=None)
        with self._preallocation_lock:
            if newest is None or self._is_preallocation_usable(newest.root):
                return
            self._copy = None
            shutil.rmtree(self._store.preallocated_path, ignore_errors=True)
            draft = self._store.preallocated_path.with_name("preallocated.new" + DRAFT_SUFFIX)
            try:
                copy = preallocate_checkpoint(self._store.checkpoint_path(newest.root), draft)
                draft.rename(self._store.preallocated_path)
            except (OSError, LocalError) as error:
                log.info("cannot preallocate the next checkpoint: %s", error)
                shutil.rmtree(draft, ignore_errors=True)
            else:
                self._copy = (newest.root, copy) if copy is not None else None

    def _is_preallocation_usable(self, newest: Digest) -> bool:
        """It exists, and if it holds a copy, then of the checkpoint that the next delta is most likely based on."""
        return self._store.preallocated_path.exists() and (self._copy is None or self._copy[0] == newest)
