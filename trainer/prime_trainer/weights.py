"""Checkpoints on disk: name them by their root, write the delta between two, and patch one into the other.

A checkpoint is one safetensors file or a folder of them. Files are mapped, not read: a tensor at a time is in memory.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from prime_protocol.codec import decode, encode
from prime_protocol.constants import FRAME_BYTES_MAX
from prime_protocol.errors import LocalError
from prime_protocol.ids import RunId, Step
from prime_protocol.manifest import Kind, Manifest, TensorEntry, patch_tensor, verify_base, verify_shard
from prime_protocol.manifest_build import DELTA_FILE, build_delta, build_keyframe
from prime_runtime.shardcast.checkpoint import MappedFile, map_file

MANIFEST_FILE = "manifest.msgpack"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Mapped files and the keyframe manifest that describes them."""

    manifest: Manifest
    files: tuple[MappedFile, ...]

    def tensor(self, entry: TensorEntry) -> memoryview:
        return memoryview(self.files[entry.file].data)[entry.offset : entry.offset + entry.length]


def list_files(path: Path) -> list[Path]:
    """The safetensors files of a checkpoint, in the order of their names."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise LocalError(f"{path} is neither a safetensors file nor a folder of them")
    return files


def open_checkpoint(path: Path, run: RunId, step: Step, *, writable: bool = False) -> Checkpoint:
    """Map and describe a checkpoint; every byte is hashed once."""
    files = tuple(map_file(file, writable=writable, has_tensors=True) for file in list_files(path))
    return Checkpoint(build_keyframe(run, step, [file.source for file in files]), files)


def write_delta(old: Checkpoint, new: Checkpoint, step: Step, folder: Path) -> Manifest:
    """The delta file and its manifest into `folder`, the manifest last."""
    after = {entry.name: entry for entry in new.manifest.tensors}
    if [entry.name for entry in old.manifest.tensors] != sorted(after):
        raise LocalError("the two checkpoints do not have the same tensors; publish a keyframe")
    pairs = ((entry.name, old.tensor(entry), new.tensor(after[entry.name])) for entry in old.manifest.tensors)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / DELTA_FILE).open("wb") as file:
        manifest = build_delta(old.manifest, step, pairs, file.write)
    (folder / MANIFEST_FILE).write_bytes(encode(manifest))
    return manifest


def patch(base: Path, delta: Path, out: Path, run: RunId, base_step: Step) -> Manifest:
    """A copy of `base` at `out`, patched in place; every shard and every resulting tensor is checked."""
    manifest = decode(Manifest, read_manifest(delta))
    if manifest.kind is not Kind.DELTA:
        raise LocalError(f"{delta} holds a {manifest.kind}, not a delta")
    if out.exists():
        raise LocalError(f"{out} exists and is kept; choose another name")
    view = memoryview(map_file(delta / DELTA_FILE, writable=False, has_tensors=False).data)
    for index, shard in enumerate(manifest.shards):
        verify_shard(manifest, index, view[shard.offset : shard.offset + shard.length])
    draft = out.with_name(out.name + ".draft")
    remove(draft)
    (shutil.copytree if base.is_dir() else shutil.copyfile)(base, draft)
    try:
        apply_records(draft, manifest, view, run, base_step)
        draft.rename(out)
    finally:
        remove(draft)
    return manifest


def apply_records(draft: Path, manifest: Manifest, view: memoryview, run: RunId, base_step: Step) -> None:
    target = open_checkpoint(draft, run, base_step, writable=True)
    verify_base(manifest, target.manifest)
    places = {entry.name: entry for entry in target.manifest.tensors}
    for entry in manifest.tensors:
        record = view[entry.offset : entry.offset + entry.length]
        patch_tensor(entry, record, target.tensor(places[entry.name]))
    for file in target.files:
        file.data.flush()


def remove(path: Path) -> None:
    """What an attempt left behind, if anything."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_manifest(folder: Path) -> bytes:
    try:
        with (folder / MANIFEST_FILE).open("rb") as file:
            return file.read(FRAME_BYTES_MAX + 1)
    except OSError as error:
        raise LocalError(f"cannot read {folder / MANIFEST_FILE}: {error.strerror}") from None
