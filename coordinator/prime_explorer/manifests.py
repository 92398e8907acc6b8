"""What manifests of checkpoints say, as far as pages show it; each is read once, since a manifest never changes."""

from collections import OrderedDict
from dataclasses import dataclass

from prime_explorer.constants import MANIFEST_BYTES_READ, MANIFESTS_REMEMBERED
from prime_explorer.live import Objects
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NetworkId, NodeId, RunId
from prime_protocol.signed_manifest import open_manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFacts:
    """How a checkpoint travels."""

    kind: str
    base: str | None
    """Root of the checkpoint that a delta is applied to."""
    files: int
    shards: int
    tensors: int
    transport_bytes: int
    full_bytes: int
    """Of all tensors, whichever way they travel."""


class Manifests:
    """Those that were read, the last used ones kept."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._known: OrderedDict[Digest, ManifestFacts] = OrderedDict()

    async def read(self, digest: Digest, *, network: NetworkId, run: RunId, trainer: NodeId) -> ManifestFacts | None:
        """None where the file is not here, or is not what the trainer of the run signed."""
        if digest in self._known:
            self._known.move_to_end(digest)
            return self._known[digest]
        frame = await self._objects.read(digest, MANIFEST_BYTES_READ)
        if frame is None:
            return None
        try:
            manifest = open_manifest(frame, network=network, run=run, trainer=trainer).manifest
        except RemoteError:
            return None
        facts = ManifestFacts(
            kind=str(manifest.kind),
            base=str(manifest.base) if manifest.base else None,
            files=len(manifest.files),
            shards=len(manifest.shards),
            tensors=len(manifest.tensors),
            transport_bytes=manifest.transport_bytes,
            full_bytes=sum(tensor.size for tensor in manifest.tensors),
        )
        self._known[digest] = facts
        while len(self._known) > MANIFESTS_REMEMBERED:
            self._known.popitem(last=False)
        return facts
