"""The weights of one run on disk: signed manifests, their shards, and checkpoints. And which versions to remove.

manifests/<digest>              the signed frame
transport/<digest>/<file>       a manifest's files at full size; shards are written at their offset as they arrive
transport/<digest>/.held        bitmap of the verified shards
checkpoints/<root>/<file>       a complete checkpoint; the files of a keyframe are links to the transported ones
checkpoints/<root>/.manifest    the frame that lists its tensors
checkpoints/<root>/.files       digests of the other files

Every name is a parsed digest or a file name that the manifest's rules allow, so no peer can name a path outside. One
process writes at a time. `ShardSet.recheck` finds what a power failure damaged.

Retention: a store keeps the last few steps. Origins and relays also keep what leads to the oldest of them from nothing:
the keyframe before it and the deltas in between. A node that builds every checkpoint continues from its newest one and
never holds a second keyframe; that chain would grow without end, so it keeps only the last few steps.
"""

import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from prime_protocol.constants import MANIFEST_BYTES_MAX, SIGNATURE_BYTES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.weights.manifest import ManifestKind, SignedManifest, open_manifest
from prime_protocol.weights.transfer import ManifestLink, make_manifest_link
from prime_protocol.wire.codec import decode
from prime_protocol.wire.envelope import Payload, open_envelope
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step, hash_bytes
from prime_runtime.files import write_atomic
from prime_runtime.shardcast.checkpoint_files import write_file_digests
from prime_runtime.shardcast.config import VERSIONS_KEPT
from prime_runtime.shardcast.shard_set import ShardSet

log = logging.getLogger(__name__)


MANIFEST_NAME = ".manifest"
DRAFT_SUFFIX = ".draft"
DIGEST_NAME = re.compile("[0-9a-f]{64}")
"""The name of a digest. Other files are ignored."""


class ShardStore:
    """All shard sets and checkpoints of one run."""

    def __init__(self, folder: Path, *, network: NetworkId, run: RunId, trainer: NodeId) -> None:
        self.folder = folder
        self.network = network
        self.run = run
        self.trainer = trainer
        self.shard_sets: dict[Digest, ShardSet] = {}
        self._whole: dict[Digest, SignedManifest] = {}
        self._refused: set[str] = set()
        """Files in the manifests folder that are no manifests."""
        self._unusable: set[str] = set()
        """Checkpoints whose manifest is damaged or from another trainer."""
        self._locations: dict[Digest, tuple[ShardSet, int]] = {}
        """Shard digest to its location. Two manifests may share a shard; either location will do."""
        self._manifests = folder / "manifests"
        self._transport = folder / "transport"
        self._checkpoints = folder / "checkpoints"
        for part in (self._manifests, self._transport, self._checkpoints):
            _make_folder(part)
        self._remove_drafts()
        self.rescan()

    def rescan(self) -> list[ShardSet]:
        """Add manifests that another process added and drop those it removed; returns the new ones."""
        names = {path.name for path in self._manifests.iterdir() if not path.name.endswith(DRAFT_SUFFIX)}
        for digest in [digest for digest in self.shard_sets if digest.hex() not in names]:
            self._unregister(digest)
        known = {digest.hex() for digest in self.shard_sets}
        fresh = []
        for name in sorted(names - known - self._refused):
            signed = self._read_manifest(self._manifests / name)
            if signed is not None and signed.digest.hex() == name:
                fresh.append(self._register(signed))
            elif not self._remove_corrupt(name):
                self._refused.add(name)
        return fresh

    def _remove_corrupt(self, name: str) -> bool:
        """Remove a manifest that no longer matches its name, and its shards: without it they are useless."""
        path = self._manifests / name
        try:
            if not DIGEST_NAME.fullmatch(name) or hash_bytes(path.read_bytes()).hex() == name:
                return False
            path.unlink()
        except OSError:
            return False
        shutil.rmtree(self._transport / name, ignore_errors=True)
        return True

    def open_frame(self, frame: bytes) -> SignedManifest:
        """Open a manifest signed by the run's trainer, or RemoteError."""
        return open_manifest(frame, network=self.network, run=self.run, trainer=self.trainer)

    def preallocate(self, signed: SignedManifest) -> None:
        """Create the files before `add`, from any thread. LocalError: the disk is too small."""
        if signed.digest not in self.shard_sets:
            ShardSet(signed, self._transport / signed.digest.hex()).preallocate()

    def add(self, signed: SignedManifest, files: Mapping[str, Path] | None = None) -> ShardSet:
        """Add a manifest: preallocate its files, or link `files` (by name) that exist already.

        LocalError: the disk is too small.
        """
        known = self.shard_sets.get(signed.digest)
        if known is not None:
            return known
        shard_set = ShardSet(signed, self._transport / signed.digest.hex())
        if files is None:
            shard_set.preallocate()
        else:
            shard_set.link_files(files)
        # Write the manifest last: a manifest implies its files.
        write_atomic(self._manifests / signed.digest.hex(), signed.frame)
        return self._register(signed, shard_set)

    def _register(self, signed: SignedManifest, shard_set: ShardSet | None = None) -> ShardSet:
        shard_set = shard_set or ShardSet(signed, self._transport / signed.digest.hex())
        shard_set.load()
        self.shard_sets[signed.digest] = shard_set
        for index, shard in enumerate(signed.manifest.shards):
            self._locations[shard.digest] = (shard_set, index)
        return shard_set

    def find(self, shard: Digest) -> tuple[ShardSet, int] | None:
        """The shard set and index of a shard; None if no manifest contains it."""
        return self._locations.get(shard)

    def remove(self, digest: Digest) -> None:
        """Remove a version. Running uploads complete: open files outlive their names."""
        (self._manifests / digest.hex()).unlink(missing_ok=True)
        self._unregister(digest)
        shutil.rmtree(self._transport / digest.hex(), ignore_errors=True)

    def _unregister(self, digest: Digest) -> None:
        shard_set = self.shard_sets.pop(digest)
        shard_set.close()
        for shard in shard_set.manifest.shards:
            if self._locations.get(shard.digest, (None, 0))[0] is shard_set:
                del self._locations[shard.digest]
        for other in self.shard_sets.values():
            for index, shard in enumerate(other.manifest.shards):
                self._locations.setdefault(shard.digest, (other, index))

    def newest_first(self) -> list[ShardSet]:
        """Keyframes before the deltas of the same step: more nodes need them."""
        return sorted(self.shard_sets.values(), key=lambda s: (-s.manifest.step, s.manifest.base is not None, s.digest))

    @property
    def held_bytes(self) -> int:
        """Size of all manifests of which shards are here."""
        return sum(each.manifest.transport_bytes for each in self.shard_sets.values() if each.held)

    def links(self) -> Iterator[ManifestLink]:
        """The links of the manifests here."""
        return (make_manifest_link(shard_set.manifest) for shard_set in self.shard_sets.values())

    # --- Checkpoints ------------------------------------------------------------------------------------------------

    def checkpoint_path(self, root: Digest) -> Path:
        return self._checkpoints / root.hex()

    @property
    def preallocated_path(self) -> Path:
        """The folder of files preallocated for the next checkpoint; it may not exist."""
        return self._checkpoints / ("preallocated" + DRAFT_SUFFIX)

    def draft_path(self, root: Digest) -> Path:
        """Where a checkpoint is built before it gets its name."""
        return self._checkpoints / (root.hex() + DRAFT_SUFFIX)

    def checkpoints(self) -> dict[Digest, SignedManifest]:
        """Complete checkpoints by root."""
        names = {path.name for path in self._checkpoints.iterdir() if not path.name.endswith(DRAFT_SUFFIX)}
        # A named checkpoint never changes, and reading a long manifest takes a while.
        self._whole = {root: signed for root, signed in self._whole.items() if root.hex() in names}
        self._unusable &= names
        for name in names - {root.hex() for root in self._whole} - self._unusable:
            signed = self._read_manifest(self._checkpoints / name / MANIFEST_NAME)
            if signed is not None and signed.root.hex() == name:
                self._whole[signed.root] = signed
            else:
                self._unusable.add(name)
        return dict(self._whole)

    def publish(self, draft: Path, signed: SignedManifest) -> Path:
        """Rename a draft to its final name. Under that name a checkpoint is complete or absent."""
        write_file_digests(draft)
        write_atomic(draft / MANIFEST_NAME, signed.frame)
        path = self.checkpoint_path(signed.root)
        if path.exists():
            shutil.rmtree(draft)
        else:
            draft.rename(path)
        return path

    def remove_checkpoint(self, root: Digest) -> None:
        """Rename first, so that a partly removed checkpoint is never taken for a complete one."""
        path = self.checkpoint_path(root)
        if path.exists():
            removed = path.with_name(path.name + DRAFT_SUFFIX)
            shutil.rmtree(removed, ignore_errors=True)
            path.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)

    def remove_damaged(self) -> int:
        """Remove checkpoints without a validly signed manifest; returns their number. Those of other trainers stay."""
        self.checkpoints()
        roots = [Digest(bytes.fromhex(name)) for name in self._unusable if DIGEST_NAME.fullmatch(name)]
        damaged = [root for root in roots if _is_damaged(self.checkpoint_path(root) / MANIFEST_NAME)]
        for root in damaged:
            log.warning("removed the checkpoint %s: it has no valid manifest", root)
            self.remove_checkpoint(root)
        return len(damaged)

    def _remove_drafts(self) -> None:
        """Remove what an interrupted process left behind."""
        for path in self._checkpoints.glob("*" + DRAFT_SUFFIX):
            shutil.rmtree(path, ignore_errors=True)

    def _read_manifest(self, path: Path) -> SignedManifest | None:
        try:
            with path.open("rb") as file:
                return self.open_frame(file.read(MANIFEST_BYTES_MAX + 1))
        except FileNotFoundError:
            return None
        except (OSError, RemoteError) as error:
            log.warning("ignored %s: %s", path.name, error)
            return None


def _is_damaged(path: Path) -> bool:
    """The manifest is missing or has no valid signature."""
    try:
        frame = path.read_bytes()
        payload = decode(Payload, frame[SIGNATURE_BYTES:])
        open_envelope(frame, network=payload.network, version_min=payload.version)
    except (FileNotFoundError, RemoteError):
        return True
    except OSError:
        pass
    return False


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        os.listdir(path)
    except OSError as error:
        raise LocalError(f"cannot use the folder {path}: {error.strerror}") from None


def choose_removable(
    signed: Iterable[SignedManifest], *, versions: int = VERSIONS_KEPT, keeps_way: bool = True
) -> list[Digest]:
    """Manifests that no kept step needs. `keeps_way`: a new node must reach the kept steps from this server alone."""
    known = list(signed)
    floor = find_oldest_kept([each.manifest.step for each in known], versions)
    if not keeps_way:
        return sorted(each.digest for each in known if each.manifest.step < floor)
    keyframes = [
        each.manifest.step
        for each in known
        if each.manifest.kind is ManifestKind.KEYFRAME and each.manifest.step <= floor
    ]
    first = max(keyframes, default=Step(0))
    # The delta of the keyframe's own step starts from an older base, which is removed.
    return sorted(
        each.digest
        for each in known
        if each.manifest.step < first
        or (each.manifest.step == first < floor and each.manifest.kind is ManifestKind.DELTA)
    )


def find_oldest_kept(steps: Iterable[Step], versions: int) -> Step:
    """The oldest step among the `versions` newest."""
    newest_first = sorted(set(steps), reverse=True)
    return newest_first[: max(1, versions)][-1] if newest_first else Step(0)
