"""A manifest under its trainer's signature: the frame that nodes pass on, and the name it goes by.

The frame is an envelope, so it expires; but weights do not, and neither does what a trainer said of them. The time is
therefore not looked at: whether a checkpoint is still wanted is decided by the log, not by its manifest.
"""

from dataclasses import dataclass

from prime_protocol.codec import decode, encode
from prime_protocol.constants import ENVELOPE_LIFE_MS_MAX
from prime_protocol.envelope import open_envelope, seal
from prime_protocol.errors import RemoteError
from prime_protocol.ids import Digest, NetworkId, NodeId, RunId
from prime_protocol.manifest import Manifest
from prime_protocol.signing import WalletKey

MANIFEST_KIND = "manifest"


@dataclass(frozen=True, slots=True)
class SignedManifest:
    """A manifest whose signature was checked."""

    manifest: Manifest
    frame: bytes
    digest: Digest
    """SHA-256 of the frame: what the log and announcements name."""
    root: Digest
    """Of the weights it leads to."""


def seal_manifest(
    key: WalletKey, manifest: Manifest, *, network: NetworkId, sequence: int, now_ms: int
) -> SignedManifest:
    """By the run's trainer. Sealing again gives another frame with another name."""
    frame = seal(
        key,
        kind=MANIFEST_KIND,
        body=encode(manifest),
        network=network,
        run=manifest.run,
        sequence=sequence,
        issued_at_ms=now_ms,
        life_ms=ENVELOPE_LIFE_MS_MAX,
    )
    return open_manifest(frame, network=network, run=manifest.run, trainer=key.node)


def open_manifest(frame: bytes, *, network: NetworkId, run: RunId, trainer: NodeId) -> SignedManifest:
    """What the trainer of this run signed, or RemoteError."""
    envelope = open_envelope(frame, network=network)
    letter = envelope.letter
    if letter.kind != MANIFEST_KIND:
        raise RemoteError("Letter.kind", f"is {letter.kind}, expected {MANIFEST_KIND}")
    if letter.sender != trainer:
        raise RemoteError("Letter.sender", f"is {letter.sender}, the trainer of {run} is {trainer}")
    manifest = decode(Manifest, letter.body)
    for field, named in (("Letter.run", letter.run), ("Manifest.run", manifest.run)):
        if named != run:
            raise RemoteError(field, f"is {named}, this is about {run}")
    return SignedManifest(manifest, frame, envelope.digest, manifest.root)
