"""Weights of one run on disk: signed manifests, the shards they name, and the checkpoints that came of them.

manifests/<digest>              the signed frame
transport/<digest>/<file>       a manifest's files at full size, shards written at their offset as they come
transport/<digest>/.held        bitmap of the shards that were verified
checkpoints/<root>/<file>       a whole checkpoint; a keyframe's files are the transported ones, linked
checkpoints/<root>/.manifest    the frame that says what its tensors must be
checkpoints/<root>/.files       digests of what lies beside them

A name here is a digest that was parsed, or a file name that the manifest's own rules let through: nothing a peer says
leads out of the folder. One process writes in it at a time. What a power cut left behind is found when `Stock.recheck`
compares every shard marked as held with its digest again.

Which versions may go. Pure.

A version is kept while somebody may still need it: the last few steps, and on origins and relays whatever it takes to
get to the oldest of them from nothing, which is the keyframe before it and the deltas in between.

A node that builds every checkpoint goes on from the newest of them. It takes deltas and never holds a second keyframe,
so the way from its first one would grow for ever: it keeps the last few steps alone.
"""

import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from prime_protocol.constants import FRAME_BYTES_MAX, SIGNATURE_BYTES
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.weights.manifest import ManifestKind, SignedManifest, open_manifest
from prime_protocol.weights.transfer import ManifestLink, make_manifest_link
from prime_protocol.wire.codec import decode
from prime_protocol.wire.envelope import Payload, open_envelope
from prime_protocol.wire.ids import Digest, NetworkId, NodeId, RunId, Step, hash_bytes
from prime_runtime.files import write_atomic
from prime_runtime.shardcast.checkpoint_files import write_file_digests
from prime_runtime.shardcast.shard_set import ShardSet

log = logging.getLogger(__name__)


MANIFEST_NAME = ".manifest"
DRAFT_SUFFIX = ".draft"
DIGEST_NAME = re.compile("[0-9a-f]{64}")
"""Of a digest. What is called otherwise is none of ours."""


class ShardStore:
    """All stocks of one run."""

    def __init__(self, folder: Path, *, network: NetworkId, run: RunId, trainer: NodeId) -> None:
        self.folder = folder
        self.network = network
        self.run = run
        self.trainer = trainer
        self.shard_sets: dict[Digest, ShardSet] = {}
        self._whole: dict[Digest, SignedManifest] = {}
        self._refused: set[str] = set()
        """Files among the manifests that are none."""
        self._unusable: set[str] = set()
        """Checkpoints whose manifest is damaged or another trainer's."""
        self._places: dict[Digest, tuple[ShardSet, int]] = {}
        """Shard digest to where it is. Two manifests may share a shard; either place will do."""
        self._manifests = folder / "manifests"
        self._transport = folder / "transport"
        self._checkpoints = folder / "checkpoints"
        for part in (self._manifests, self._transport, self._checkpoints):
            _make_folder(part)
        self._remove_drafts()
        self.rescan()

    def rescan(self) -> list[ShardSet]:
        """Take in manifests that another process added, drop those it removed; the new ones."""
        names = {path.name for path in self._manifests.iterdir() if not path.name.endswith(DRAFT_SUFFIX)}
        for digest in [digest for digest in self.shard_sets if digest.hex() not in names]:
            self._forget(digest)
        known = {digest.hex() for digest in self.shard_sets}
        fresh = []
        for name in sorted(names - known - self._refused):
            signed = self._read_manifest(self._manifests / name)
            if signed is not None and signed.digest.hex() == name:
                fresh.append(self._take(signed))
            elif not self._remove_rotten(name):
                self._refused.add(name)
        return fresh

    def _remove_rotten(self, name: str) -> bool:
        """A manifest that is not what it is named after any more, with its shards: without it nobody can use them."""
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
        """What the run's trainer signed, or RemoteError."""
        return open_manifest(frame, network=self.network, run=self.run, trainer=self.trainer)

    def preallocate(self, signed: SignedManifest) -> None:
        """Ahead of `add`, which then finds the files; from any thread. LocalError where the disk is too small."""
        if signed.digest not in self.shard_sets:
            ShardSet(signed, self._transport / signed.digest.hex()).preallocate()

    def add(self, signed: SignedManifest, files: Mapping[str, Path] | None = None) -> ShardSet:
        """Make room for a manifest's shards, or link its files where they are here already, by their names.

        LocalError where the disk is too small for all of it.
        """
        known = self.shard_sets.get(signed.digest)
        if known is not None:
            return known
        stock = ShardSet(signed, self._transport / signed.digest.hex())
        if files is None:
            stock.preallocate()
        else:
            stock.link_files(files)
        # The manifest last: what has one has its files.
        write_atomic(self._manifests / signed.digest.hex(), signed.frame)
        return self._take(signed, stock)

    def _take(self, signed: SignedManifest, stock: ShardSet | None = None) -> ShardSet:
        stock = stock or ShardSet(signed, self._transport / signed.digest.hex())
        stock.load()
        self.shard_sets[signed.digest] = stock
        for index, shard in enumerate(signed.manifest.shards):
            self._places[shard.digest] = (stock, index)
        return stock

    def find(self, shard: Digest) -> tuple[ShardSet, int] | None:
        """Where a shard is or will be; None for whatever no manifest names."""
        return self._places.get(shard)

    def remove(self, digest: Digest) -> None:
        """A version nobody needs any more. What is being sent of it is still sent: open files outlive their names."""
        (self._manifests / digest.hex()).unlink(missing_ok=True)
        self._forget(digest)
        shutil.rmtree(self._transport / digest.hex(), ignore_errors=True)

    def _forget(self, digest: Digest) -> None:
        stock = self.shard_sets.pop(digest)
        stock.close()
        for shard in stock.manifest.shards:
            if self._places.get(shard.digest, (None, 0))[0] is stock:
                del self._places[shard.digest]
        for other in self.shard_sets.values():
            for index, shard in enumerate(other.manifest.shards):
                self._places.setdefault(shard.digest, (other, index))

    def newest_first(self) -> list[ShardSet]:
        """Keyframes before the deltas of the same step: they serve more."""
        return sorted(self.shard_sets.values(), key=lambda s: (-s.manifest.step, s.manifest.base is not None, s.digest))

    def links(self) -> Iterator[ManifestLink]:
        """What the manifests here lead to."""
        return (make_manifest_link(stock.manifest) for stock in self.shard_sets.values())

    # --- Checkpoints ------------------------------------------------------------------------------------------------

    def checkpoint_path(self, root: Digest) -> Path:
        return self._checkpoints / root.hex()

    @property
    def preallocated_path(self) -> Path:
        """Files that were allocated ahead for the next checkpoint, if they are there."""
        return self._checkpoints / ("room" + DRAFT_SUFFIX)

    def draft_path(self, root: Digest) -> Path:
        """Where a checkpoint is made before it gets its name."""
        return self._checkpoints / (root.hex() + DRAFT_SUFFIX)

    def checkpoints(self) -> dict[Digest, SignedManifest]:
        """Whole checkpoints, by root."""
        names = {path.name for path in self._checkpoints.iterdir() if not path.name.endswith(DRAFT_SUFFIX)}
        # A checkpoint never changes under its name, and reading a long manifest takes a while.
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
        """Give a checkpoint its name: from then on it is whole, or not there."""
        write_file_digests(draft)
        write_atomic(draft / MANIFEST_NAME, signed.frame)
        path = self.checkpoint_path(signed.root)
        if path.exists():
            shutil.rmtree(draft)
        else:
            draft.rename(path)
        return path

    def remove_checkpoint(self, root: Digest) -> None:
        """Its name goes first, so that half of one is never taken for one."""
        path = self.checkpoint_path(root)
        if path.exists():
            doomed = path.with_name(path.name + DRAFT_SUFFIX)
            shutil.rmtree(doomed, ignore_errors=True)
            path.rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)

    def remove_damaged(self) -> int:
        """Checkpoints whose manifest nobody has signed as it is; their number. One of another trainer stays."""
        self.checkpoints()
        roots = [Digest(bytes.fromhex(name)) for name in self._unusable if DIGEST_NAME.fullmatch(name)]
        damaged = [root for root in roots if _is_damaged(self.checkpoint_path(root) / MANIFEST_NAME)]
        for root in damaged:
            log.warning("the checkpoint %s has no good manifest and is removed", root)
            self.remove_checkpoint(root)
        return len(damaged)

    def _remove_drafts(self) -> None:
        """What an interrupted process left."""
        for path in self._checkpoints.glob("*" + DRAFT_SUFFIX):
            shutil.rmtree(path, ignore_errors=True)

    def _read_manifest(self, path: Path) -> SignedManifest | None:
        try:
            with path.open("rb") as file:
                return self.open_frame(file.read(FRAME_BYTES_MAX + 1))
        except FileNotFoundError:
            return None
        except (OSError, RemoteError) as error:
            log.warning("%s is passed over: %s", path.name, error)
            return None


def _is_damaged(path: Path) -> bool:
    """It is not there, or not as anybody has signed it."""
    try:
        frame = path.read_bytes()
        letter = decode(Payload, frame[SIGNATURE_BYTES:])
        open_envelope(frame, network=letter.network, version_min=letter.version)
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


VERSIONS_KEPT = 5
"""Steps. Work for older ones is not taken any more in any run with the default lag."""


def choose_removable(
    signed: Iterable[SignedManifest], *, versions: int = VERSIONS_KEPT, keeps_way: bool = True
) -> list[Digest]:
    """Manifests that no kept step needs. `keeps_way`: a newcomer must get to the kept steps from here alone."""
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
    # The delta into the keyframe's own step leads to it from an older base, which goes.
    return sorted(
        each.digest
        for each in known
        if each.manifest.step < first
        or (each.manifest.step == first < floor and each.manifest.kind is ManifestKind.DELTA)
    )


def find_oldest_kept(steps: Iterable[Step], versions: int) -> Step:
    """The oldest step that is kept for its own sake."""
    newest_first = sorted(set(steps), reverse=True)
    return newest_first[: max(1, versions)][-1] if newest_first else Step(0)
