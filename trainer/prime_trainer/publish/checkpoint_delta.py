"""The `weights` command: the root of a checkpoint, the delta between two checkpoints, and applying a delta.

A checkpoint is one safetensors file or a folder of them. Files are memory-mapped, so only one tensor is in memory.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from prime_protocol.constants import MANIFEST_BYTES_MAX
from prime_protocol.errors import LocalError
from prime_protocol.weights.manifest import Manifest, ManifestKind, ManifestTensor, verify_base, verify_shard
from prime_protocol.weights.manifest_builder import DELTA_FILE, build_delta, build_keyframe
from prime_protocol.wire.codec import decode, encode
from prime_protocol.wire.ids import RunId, Step
from prime_runtime.shardcast.checkpoint_files import MappedCheckpoint, map_checkpoint, map_file
from prime_runtime.shardcast.patching import patch_checkpoint

MANIFEST_FILE = "manifest.msgpack"
PATCH_THREADS = os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class HashedCheckpoint:
    """Memory-mapped files and the keyframe manifest that describes them."""

    manifest: Manifest
    mapped: MappedCheckpoint

    def tensor(self, entry: ManifestTensor) -> memoryview:
        return memoryview(self.mapped.files[entry.file].data)[entry.offset : entry.offset + entry.length]


def open_checkpoint(path: Path, run: RunId, step: Step) -> HashedCheckpoint:
    """Map a checkpoint and hash every byte of it once."""
    mapped = map_checkpoint(path)
    return HashedCheckpoint(build_keyframe(run, step, [file.source for file in mapped.files]), mapped)


def write_delta(old: HashedCheckpoint, new: HashedCheckpoint, step: Step, folder: Path) -> Manifest:
    """Write the delta file and then its manifest into `folder`."""
    after = {entry.name: entry for entry in new.manifest.tensors}
    if [entry.name for entry in old.manifest.tensors] != sorted(after):
        raise LocalError("the two checkpoints do not have the same tensors; publish a keyframe")
    pairs = ((entry.name, old.tensor(entry), new.tensor(after[entry.name])) for entry in old.manifest.tensors)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / DELTA_FILE).open("wb") as file:
        manifest = build_delta(old.manifest, step, pairs, file.write)
    (folder / MANIFEST_FILE).write_bytes(encode(manifest))
    return manifest


def apply_delta(base: Path, delta: Path, out: Path, run: RunId, base_step: Step) -> Manifest:
    """Write the result to `out`, verifying every shard and every resulting tensor. `base` is only read."""
    manifest = decode(Manifest, read_delta_manifest(delta), bytes_max=MANIFEST_BYTES_MAX)
    if manifest.kind is not ManifestKind.DELTA:
        raise LocalError(f"{delta} holds a {manifest.kind}, not a delta")
    if out.exists():
        raise LocalError(f"{out} exists; choose another name")
    records = memoryview(map_file(delta / DELTA_FILE).data)
    for index, shard in enumerate(manifest.shards):
        verify_shard(manifest, index, records[shard.offset : shard.offset + shard.length])
    verify_base(manifest, open_checkpoint(base, run, base_step).manifest)
    draft = out.with_name(out.name + ".draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        patch_checkpoint(base, draft, manifest, records, threads=PATCH_THREADS)
        (draft if base.is_dir() else draft / base.name).rename(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return manifest


def read_delta_manifest(folder: Path) -> bytes:
    try:
        with (folder / MANIFEST_FILE).open("rb") as file:
            return file.read(MANIFEST_BYTES_MAX + 1)
    except OSError as error:
        raise LocalError(f"cannot read {folder / MANIFEST_FILE}: {error.strerror}") from None
